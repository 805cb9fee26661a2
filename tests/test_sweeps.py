"""Sweeps: every point with its result or its reason, whatever order they ran in."""

import csv
import itertools
import math
import random
import re

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.memory.budget import check_budget
from tlbprobe.results.table import NUMBERS
from tlbprobe.sweeps import run, sweep

KIB = 1024


@pytest.fixture
def probe(made):
    """A probe that measures nothing: its latency says what it was asked."""

    def fake(size, pages=None, *, working_set=None, stride=64, strict=True, seed=0, counters=()):
        name = size.pages if isinstance(size, tp.Region) else pages or "base"
        wanted = working_set or size
        if stride > wanted:
            raise ValueError(f"stride={stride} is larger than the working set of {wanted} bytes")
        fake.calls.append((wanted, name, stride, seed, tuple(counters)))
        return made.measurement(1 + wanted / 1e6 + seed, size=wanted, pages=name)

    fake.calls = []
    return fake


@pytest.fixture
def regions(monkeypatch):
    """Every region that a sweep maps, and how many were open at most."""
    seen = {"mapped": [], "open": 0, "most": 0}

    class Counted(tp.Region):
        def __init__(self, size, pages, *, strict):
            super().__init__(size, pages, strict=strict)
            seen["mapped"].append((pages, size))
            seen["open"] += 1
            seen["most"] = max(seen["most"], seen["open"])

        def close(self):
            seen["open"] -= 1
            super().close()

    monkeypatch.setattr(run, "Region", Counted)
    return seen


def swept(probe, **axes):
    return tp.sweep(probe, progress=False, **axes)


# --- sizes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_octave", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    ("first", "last"), [("16KiB", "1GiB"), (100, 1000), ("1MiB", "1MiB"), (1, 9), (70, 4000)]
)
def test_sizes(first, last, per_octave):
    found = tp.sizes(first, last, per_octave)
    assert (found[0], found[-1]) == (tp.sizes(first, first)[0], tp.sizes(last, last)[0])
    assert found == sorted(set(found))
    assert all(type(size) is int for size in found)
    inner = [size for size in found[1:-1] if size >= 64]
    assert all(size % 64 == 0 for size in inner)


def test_sizes_hold_every_power_of_two():
    assert {16 * KIB << k for k in range(17)} <= set(tp.sizes("16KiB", "1GiB", 4))
    assert len(tp.sizes("16KiB", "1GiB", 4)) == 65


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2MiB", "1MiB"), "last='1MiB'"),
        ((0, 1), "first=0"),
        (("1MB", "1GiB"), "first='1MB'"),
        ((1, 2, 0), "per_octave=0"),
        ((1, 2, 1.5), "per_octave=1.5"),
        ((1, 2, True), "per_octave=True"),
    ],
)
def test_wrong_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        tp.sizes(*arguments)


# --- axes ------------------------------------------------------------------------------------------------


def test_axes_keep_their_order(probe):
    s = swept(probe, seed=[3, 1, 2], size=["64KiB", 16 * KIB])
    assert s.axes == {"seed": [3, 1, 2], "size": [65536, 16384]}
    assert [(values["seed"], values["size"]) for values, _ in s] == [
        (3, 65536), (3, 16384), (1, 65536), (1, 16384), (2, 65536), (2, 16384),
    ]  # fmt: skip
    assert len(s) == 6
    assert s[1, 65536].params["bytes"] == 65536


def test_random_order_does_not_change_the_result(probe):
    sweep = {"size": [16 * KIB, 32 * KIB, 64 * KIB], "seed": range(4)}
    one, other = (tp.sweep(probe, progress=False, order_seed=seed, **sweep) for seed in (0, 1))
    assert probe.calls[:12] != probe.calls[12:]
    assert sorted(probe.calls[:12]) == sorted(probe.calls[12:])
    assert list(one.points) == list(other.points)
    assert one.to_numpy().tolist() == other.to_numpy().tolist()


def test_same_order_seed_same_order(probe):
    for _ in range(2):
        swept(probe, size=[16 * KIB, 32 * KIB, 64 * KIB], seed=range(4))
    assert probe.calls[:12] == probe.calls[12:]


def test_fixed_parameters_reach_every_point(probe):
    s = swept(probe, size=np.array([16 * KIB, 32 * KIB]), stride="4KiB", seed=5)
    assert list(s.axes) == ["size"]
    assert {call[2:4] for call in probe.calls} == {(4096, 5)}


@pytest.mark.parametrize(
    "axis", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), (i for i in (1, 2)), {1: 0, 2: 0}.keys()]
)
def test_what_makes_an_axis(probe, axis):
    s = swept(probe, size="16KiB", seed=axis)
    assert s.axes == {"seed": [1, 2]}
    assert all(type(seed) is int for seed in s.axes["seed"])


def test_counters_are_no_axis(probe):
    swept(probe, size=["16KiB"], counters=["cycles", "walks"])
    assert probe.calls == [(16 * KIB, "base", 64, 0, ("cycles", "walks"))]


def test_without_an_axis_it_is_one_point(probe):
    s = swept(probe, size="16KiB")
    assert len(s) == 1
    assert s[()].low > 0
    assert s.to_numpy().shape == (1,)


@pytest.mark.parametrize(
    ("axes", "error", "message"),
    [
        ({"size": []}, ValueError, "size"),
        ({"size": ["1KiB", 1024]}, ValueError, "repeats"),
        ({"size": ["1KB"]}, ValueError, "size='1KB'"),
        ({"size": [0]}, ValueError, "size=0"),
        ({"size": [1.5]}, TypeError, "size=1.5"),
        ({"size": "1KiB", "sizes": [1]}, TypeError, "'sizes'"),
        ({"seed": [1]}, TypeError, "needs size="),
        ({"size": "1KiB", "seed": []}, ValueError, "seed"),
        ({"size": "64KiB", "precision": 5}, ValueError, "precision=5"),
        ({"size": "64KiB", "seed": -1}, ValueError, "seed=-1"),
        ({"size": "64KiB", "on_error": "ignore"}, ValueError, "on_error='ignore'"),
    ],
)
def test_wrong_axes_are_refused_before_anything_is_mapped(regions, axes, error, message):
    with pytest.raises(error, match=message):
        swept(tp.chase, **axes)
    assert regions["mapped"] == []


# --- refusals --------------------------------------------------------------------------------------------


def test_refused_points_are_kept(probe):
    s = swept(probe, size=[1024, 4096], stride=[64, 2048])
    assert list(s.refused) == [(1024, 2048)]
    refusal = s[1024, 2048]
    assert refusal.error == "ValueError"
    assert "stride=2048" in refusal.reason
    assert "stride=2048" in repr(s)


def test_on_error_raise(probe):
    with pytest.raises(ValueError, match="stride=2048"):
        swept(probe, size=[1024, 4096], stride=[64, 2048], on_error="raise")


def test_a_page_policy_that_does_not_exist_refuses_its_points(probe):
    s = swept(probe, size=[16 * KIB], pages=["base", "colossal"])
    assert list(s.refused) == [(16 * KIB, "colossal")]
    assert "'colossal'" in s[16 * KIB, "colossal"].reason


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, TypeError])
def test_what_is_no_refusal_goes_up(regions, error):
    def failing(size, pages=None, *, working_set=None):
        raise error("on purpose")

    with pytest.raises(error, match="on purpose"):
        swept(failing, size=[16 * KIB, 32 * KIB])
    assert regions["mapped"] == [("base", 32 * KIB)]
    assert regions["open"] == 0


def test_working_set_without_a_region_is_refused_by_the_probe():
    s = swept(tp.chase, size=["64KiB"], working_set="16KiB", max_seconds=0.05)
    assert "is for a Region" in s[65536].reason


def test_on_a_given_region():
    with tp.Region("128KiB") as region:
        s = swept(tp.chase, size=region, working_set=["16KiB", "1MiB"], max_seconds=0.05)
        assert s[16384].params["bytes"] == 16384
        assert "1048576" in s[1048576].reason or "1MiB" in s[1048576].reason
        assert not region.closed


# --- memory ----------------------------------------------------------------------------------------------


def test_each_policy_is_mapped_once(probe, regions):
    s = swept(probe, size=[16 * KIB, 64 * KIB, 32 * KIB], pages=["base", "default"], seed=[1, 2])
    assert sorted(regions["mapped"]) == [("base", 64 * KIB), ("default", 64 * KIB)]
    assert (regions["most"], regions["open"]) == (2, 0)
    assert not s.refused


def test_policies_that_do_not_fit_together_are_mapped_one_by_one(probe, regions, monkeypatch):
    monkeypatch.setattr(
        "tlbprobe.sweeps.run.fit_together", lambda wanted: sum(size for size, _ in wanted) <= 100 * KIB
    )
    s = swept(probe, size=[16 * KIB, 64 * KIB], pages=["base", "default"])
    assert sorted(regions["mapped"]) == [("base", 64 * KIB), ("default", 64 * KIB)]
    assert (regions["most"], regions["open"]) == (1, 0)
    assert not s.refused


def test_a_small_pool_refuses_only_the_larger_points(probe, regions, monkeypatch):
    real = check_budget

    def small(mapped, policy, what):
        if mapped > 40 * KIB:
            raise MemoryError(f"{what} needs {mapped} of a pool that has 40 KiB")
        real(mapped, policy, what)

    monkeypatch.setattr("tlbprobe.memory.region.check_budget", small)
    s = swept(probe, size=[16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB])
    assert regions["mapped"] == [("base", 32 * KIB)]
    assert list(s.refused) == [(64 * KIB,), (128 * KIB,)]
    assert "that has 40 KiB" in s[64 * KIB].reason
    assert [s[size].params["bytes"] for size in (16 * KIB, 32 * KIB)] == [16 * KIB, 32 * KIB]


def test_nothing_fits(probe, monkeypatch):
    def none(*_, **__):
        raise MemoryError("nothing left")

    monkeypatch.setattr("tlbprobe.memory.region.check_budget", none)
    s = swept(probe, size=[16 * KIB, 32 * KIB])
    assert len(s.refused) == 2
    with pytest.raises(MemoryError, match="nothing left"):
        swept(probe, size=[16 * KIB, 32 * KIB], on_error="raise")


def test_translation_has_room_for_its_packed_lines(regions):
    s = swept(tp.translation, size=["64KiB", "256KiB"], max_seconds=0.05)
    assert len(regions["mapped"]) == 1
    assert not s.refused
    assert s[65536].spread.params["nodes"] == s[65536].packed.params["nodes"]


# --- progress --------------------------------------------------------------------------------------------


def test_progress_callback(probe):
    seen = []
    tp.sweep(probe, progress=lambda done, total: seen.append((done, total)), size="16KiB", seed=range(5))
    assert seen == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize("progress", [True, False])
def test_no_bar_without_a_terminal(probe, capfd, progress):
    tp.sweep(probe, progress=progress, size="16KiB", seed=range(5))
    assert capfd.readouterr() == ("", "")


# --- tables ----------------------------------------------------------------------------------------------


@pytest.fixture
def refusing(probe):
    """A sweep of which one point was refused."""
    return swept(probe, size=[1024, 4096], stride=[64, 2048])


def test_to_numpy(refusing):
    table = refusing.to_numpy()
    assert table["size"].tolist() == [1024, 1024, 4096, 4096]
    assert table["stride"].tolist() == [64, 2048, 64, 2048]
    assert np.isfinite(table["low_ns"]).tolist() == [True, False, True, True]
    for name in NUMBERS:
        assert table[name].dtype == np.float64
        assert math.isnan(table[name][1])
    assert table["page_size"][0] == 4096
    assert "stride=2048" in table["reason"][1]
    assert table["reason"][0] == ""


def test_long_reasons_are_not_cut(made):
    reason = "because " * 500
    s = tp.Sweep("chase", {"size": [1]}, {(1,): tp.Refusal("ValueError", reason)})
    assert reason in s.to_numpy()["reason"][0]


def test_figures_of_a_translation_are_of_the_cost(made):
    t = made.translation(cost=1.5)
    row = tp.Sweep("translation", {"size": [1]}, {(1,): t}).to_numpy()[0]
    assert row["low_ns"] == t.cost
    assert (row["interval_low_ns"], row["interval_high_ns"]) == t.interval
    assert row["median_ns"] == t.spread.median - t.packed.median


def test_what_is_not_known_is_nan(made):
    m = made.measurement(slices=4, core_ghz=None, page_size=None)
    row = tp.Sweep("chase", {"size": [1]}, {(1,): m}).to_numpy()[0]
    for name in ("interval_low_ns", "interval_high_ns", "core_ghz", "page_size"):
        assert math.isnan(row[name])


def test_large_seeds_stay_exact(probe):
    seeds = [1, 2**63, 2**64 - 1]
    s = swept(probe, size="16KiB", seed=seeds)
    assert s.to_numpy()["seed"].tolist() == seeds


def test_to_csv(refusing, tmp_path):
    refusing.to_csv(tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["size"] for row in rows] == ["1024", "1024", "4096", "4096"]
    assert rows[0]["page_size"] == "4096"
    assert rows[0]["slices"] == "240"
    assert float(rows[0]["low_ns"]) == refusing[1024, 64].low
    assert {rows[1][name] for name in NUMBERS} == {""}
    assert "stride=2048" in rows[1]["reason"]


def test_to_pandas(refusing):
    pytest.importorskip("pandas")
    frame = refusing.to_pandas()
    assert frame["size"].tolist() == [1024, 1024, 4096, 4096]
    assert frame["low_ns"].isna().tolist() == [False, True, False, False]
    assert frame["page_size"].dtype == "Int64"
    assert frame["page_size"].isna().tolist() == [False, True, False, False]
    assert frame["page_size"][0] == 4096


def test_to_xarray(refusing):
    pytest.importorskip("xarray")
    grid = refusing.to_xarray()
    assert dict(grid.sizes) == {"size": 2, "stride": 2}
    assert float(grid.low_ns.sel(size=4096, stride=64)) == refusing[4096, 64].low
    assert np.isnan(grid.low_ns.sel(size=1024, stride=2048))
    assert np.isnan(grid.page_size.sel(size=1024, stride=2048))


@pytest.mark.parametrize(
    "axis", [{"pages": [None, "base"]}, {"strict": [True, False]}, {"seed": [1, 2**64 - 1]}]
)
def test_every_table_takes_any_axis(probe, tmp_path, axis):
    pytest.importorskip("xarray")
    s = swept(probe, size=[16 * KIB], **axis)
    (name, values), shape = next(iter(axis.items())), (1, 2)
    assert s.to_numpy()[name].tolist() == values
    assert s.to_xarray().low_ns.shape == shape
    assert len(s.to_pandas()) == 2
    s.to_csv(tmp_path / "s.csv")
    s.save(tmp_path / "s.npz")
    loaded = tp.load(tmp_path / "s.npz")
    assert loaded.axes == s.axes
    assert loaded.to_numpy().tolist()[0][2] == s.to_numpy().tolist()[0][2]


def test_repr(refusing):
    text = repr(refusing)
    assert "sweep of fake: 4 points" in text
    assert "1 KiB, 4 KiB" in text
    assert "1 of 4 points" in text
    assert "<table>" in refusing._repr_html_()


def test_a_measured_one():
    s = tp.sweep(tp.chase, size=["16KiB", "32KiB"], pages=["base"], max_seconds=0.05, progress=False)
    assert not s.refused
    assert {point.backing.asked for _, point in s} == {"base"}
    assert (s.to_numpy()["low_ns"] > 0).all()


def test_points_that_differ_in_pages_alone_follow_each_other():
    asked = [
        run.Asked(tp.chase, (size, pages), {"size": size, "pages": pages})
        for pages in ("base", "thp", "default")
        for size in range(20)
    ]
    ordered = run.in_blocks(asked, random.Random(1))
    assert sorted(ask.key for ask in ordered) == sorted(ask.key for ask in asked)
    sizes = [ask.key[0] for ask in ordered]
    assert [size for size, _ in itertools.groupby(sizes)] == sizes[::3]
    assert sizes[::3] != sorted(sizes[::3])
    assert len({tuple(ask.key[1] for ask in ordered[i : i + 3]) for i in range(0, 60, 3)}) > 1


def test_what_is_no_probe_is_refused_at_once():
    with pytest.raises(TypeError, match=r"takes a probe.*<lambda> returned a int"):
        swept(lambda size: 1, size=[1])


def test_a_sweep_without_an_axis_is_one_point(probe):
    s = swept(probe, size=16 * KIB)
    assert s[()].params["bytes"] == 16 * KIB
    with pytest.raises(ValueError, match="one point"):
        s.plot()


def test_each_refused_size_has_its_own_reason(probe, monkeypatch):
    def none(mapped, policy, what):
        raise MemoryError(f"{mapped} would not fit")

    monkeypatch.setattr("tlbprobe.memory.region.check_budget", none)
    s = swept(probe, size=[16 * KIB, 32 * KIB])
    assert [s[size].reason for size in (16 * KIB, 32 * KIB)] == ["16384 would not fit", "32768 would not fit"]
    assert list(sweep.complaints(s).items()) == [(("refused", "16384 would not fit"), 2)]


def test_an_empty_policy_is_no_policy_in_a_sweep_either():
    s = swept(tp.chase, size=[16 * KIB], pages=[""])
    assert "pages='' is no page policy" in s[16 * KIB, ""].reason


@pytest.mark.parametrize(
    ("axes", "error", "said"),
    [
        ({"size": ["64KiB"], "precision": [0.01, float("nan")]}, ValueError, "precision=nan"),
        ({"size": ["64KiB"], "max_seconds": [0.1, float("inf")]}, ValueError, "max_seconds=inf"),
        ({"size": ["64KiB"], "seed": [0, 1 << 64]}, ValueError, "seed=18446744073709551616"),
        ({"size": [None]}, TypeError, "needs size="),
        ({"size": ["64KiB"], "access": [["load"]]}, TypeError, "access="),
        ({"size": ["64KiB"], "progress": "no"}, TypeError, "progress='no'"),
        ({"size": ["64KiB"], "order_seed": [1]}, TypeError, "order_seed=[1]"),
    ],
)
def test_what_is_wrong_at_any_point_is_said_before_any(monkeypatch, axes, error, said):
    monkeypatch.setattr(_core.Mapping, "advise", lambda *_: pytest.fail("it was mapped"))
    with pytest.raises(error, match=re.escape(said)):
        tp.sweep(tp.chase, **{"progress": False, **axes})


def test_regions_are_no_axis():
    with tp.Region("64KiB") as region, pytest.raises(ValueError, match="lists Regions"):
        tp.sweep(tp.chase, size=[region], progress=False)


def test_none_may_be_a_value_of_an_axis():
    swept = tp.sweep(tp.chase, size="64KiB", locality=[None, "4KiB"], progress=False, max_seconds=0.02)
    assert not swept.refused
    assert swept.plot() is not None


def test_a_packed_chase_maps_its_lines_alone():
    swept = tp.sweep(
        tp.chase, size=["1TiB"], stride="1GiB", placement="packed", progress=False, max_seconds=0.02
    )
    assert not swept.refused
