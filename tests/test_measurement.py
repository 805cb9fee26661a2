"""A Measurement and a Translation: frozen, with figures derived from raw slices, readable and plain."""

import dataclasses
import html.parser
import json
import math

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe.machine import facts


def has_nan(value):
    if isinstance(value, dict):
        return any(map(has_nan, value.values()))
    if isinstance(value, list):
        return any(map(has_nan, value))
    return isinstance(value, float) and not math.isfinite(value)


def test_is_frozen(made):
    m = made.measurement()
    for name in ("ns", "backing", "params"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(m, name, None)


def test_arrays_are_read_only_copies(made):
    given = np.full(10, 2.0)
    m = made.measurement(ns=given, disturbed=[False] * 10, counters={"cycles": given})
    given[:] = 9
    for array in (m.ns, m.disturbed, m.counters["cycles"]):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert m.ns.tolist() == m.counters["cycles"].tolist() == [2.0] * 10
    assert m.ns.dtype == np.float64
    assert m.disturbed.dtype == np.bool_


def test_derived_figures(made):
    m = made.measurement(ns=np.arange(1.0, 401.0), disturbed=np.zeros(400))
    assert m.low == np.quantile(m.ns, m.low_quantile)
    assert m.median == 200.5
    assert m.mean == 200.5
    assert m.cycles == m.low * 3.0
    assert m.interval is None or m.interval[0] <= m.low <= m.interval[1]


def test_what_is_not_known_is_none(made):
    m = made.measurement(slices=4, core_ghz=None)
    assert m.cycles is None
    assert m.interval is None
    assert made.translation(slices=4).interval is None


def test_translation_is_the_difference(made):
    t = made.translation(cost=1.5)
    assert t.cost == pytest.approx(t.spread.low - t.packed.low)
    assert t.interval[0] <= t.cost <= t.interval[1]
    assert t.backing == t.spread.backing


def test_translation_joins_warnings(made):
    t = tp.Translation(made.measurement(warnings=("a", "b")), made.measurement(warnings=["b", "c"]))
    assert t.warnings == ("a", "b", "c")


@pytest.mark.parametrize("kind", ["measurement", "translation"])
@pytest.mark.parametrize("changes", [{}, {"slices": 4}, {"core_ghz": None}, {"page_size": None}])
def test_summary_is_plain_json_without_nan(made, kind, changes):
    summary = getattr(made, kind)(**changes).summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert not has_nan(summary)


def test_numpy_scalars_in_parameters_are_plain(made, tmp_path):
    m = made.measurement(params={"bytes": np.int64(4096), "precision": np.float32(0.5)})
    assert json.dumps(m.summary())
    m.save(tmp_path / "m.npz")
    assert tp.load(tmp_path / "m.npz").params == {"bytes": 4096, "precision": 0.5}


def test_repr_says_what_a_reader_must_know(made):
    m = made.measurement(refused={"cycles": "no PMU"}, warnings=("the clock drifted",))
    text = repr(m)
    assert text == f"<{m}>"
    for part in ("chase of 1 MiB", "'base'", "4 KiB pages proved", "no PMU", "the clock drifted", "populate"):
        assert part in text


def test_no_minus_before_a_zero(made):
    t = tp.Translation(made.measurement(ns=np.full(240, 2.0)), made.measurement(ns=np.full(240, 2.001)))
    assert t.cost < 0
    assert "-0.00" not in str(t)


def test_html_is_escaped_and_well_formed(made):
    opened = []

    class Checker(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            opened.append(tag)

        def handle_endtag(self, tag):
            assert opened.pop() == tag

    for result in (made.measurement(warnings=("<script>&",)), made.translation(warnings=("<script>&",))):
        text = result._repr_html_()
        assert "<script>" not in text
        assert "&lt;script&gt;&amp;" in text
        Checker().feed(text)
        assert opened == []


def test_a_measured_one():
    m = tp.chase("64KiB", max_seconds=0.1)
    assert m.ns.size == m.disturbed.size >= 4
    assert (m.ns > 0).all()
    assert m.params["bytes"] == 65536
    assert has_nan(m.summary()) is False
    assert m.faults["minor"] == m.faults["major"] == 0 or m.warnings


def host_with_thp(mode):
    """A record of a machine whose setting makes unadvised memory huge, or not."""
    named = {"thp.enabled": mode, "pages.pmd": 1 << 21, "process.thp_disabled": 0}
    known = tuple(facts.Fact(name, value, None, "sysfs: kernel/mm") for name, value in named.items())
    return facts.Host(known).to_dict()


def test_hazards_of_the_recorded_machine_are_in_the_result(made):
    always = made.measurement(host=host_with_thp("always"))
    found = {hazard.what: hazard for hazard in always.hazards}
    assert found["default pages are huge"].severity == "high"
    assert "default pages are huge" in str(always)
    assert "echo madvise" in always._repr_html_()
    assert "default pages are huge" in {hazard["what"] for hazard in always.summary()["hazards"]}
    advised = made.measurement(host=host_with_thp("madvise"))
    assert "default pages are huge" not in {hazard.what for hazard in advised.hazards}


def test_a_record_that_is_none_has_no_hazards(made):
    assert made.measurement(host={}).hazards == ()
    assert made.measurement(host={"facts": "what"}).hazards == ()
