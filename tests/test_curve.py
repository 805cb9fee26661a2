"""The curve: both axes, mTHP sizes at the working sets of the second view only, one joined table."""

import csv
import dataclasses
import itertools
import math

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe.machine import facts
from tlbprobe.memory.backing import Backing
from tlbprobe.sweeps.curve import view_sizes

SIZES = [16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20]


@pytest.fixture
def asked(made, monkeypatch):
    """Every point that a curve measures, (probe, size, policy): by hand, without memory."""
    seen = []

    class NoRegion:
        def __init__(self, size, pages, *, strict):
            self.pages, self.mapped_bytes, self.base_page = pages, size, 4096

        def check_backing(self):
            page = {"base": 4096, "thp-64K": 65536}.get(self.pages, 2 << 20)
            return Backing(self.pages, page, {page: 1.0}, "proved", "by hand")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    def point(probe, region, working_set):
        seen.append((probe, working_set, region.pages))
        return getattr(made, "measurement" if probe == "chase" else probe)(
            pages=region.pages, size=working_set
        )

    def chase(size, pages=None, *, working_set=None, **_):
        return point("chase", size, working_set)

    def translation(size, pages=None, *, working_set=None, **_):
        return point("translation", size, working_set)

    monkeypatch.setattr("tlbprobe.sweeps.run.Region", NoRegion)
    module = "tlbprobe.sweeps.curve"
    monkeypatch.setattr(f"{module}.effective_page_size", lambda region, *, seed, cpu: f"of {region.pages}")
    monkeypatch.setattr(f"{module}.chase", named_like(tp.chase, chase))
    monkeypatch.setattr(f"{module}.translation", named_like(tp.translation, translation))
    return seen


def named_like(original, replacement):
    replacement.__wrapped__ = original  # its signature
    return replacement


@pytest.fixture
def offered(monkeypatch):
    """A kernel that offers 64 KiB pages and a hugetlb pool, and not 128 KiB pages."""
    known = [
        tp.PagePolicy("base", "base", 4096),
        tp.PagePolicy("thp-64K", "mthp", 65536),
        tp.PagePolicy("thp-128K", "mthp", 131072, False, "it is 'never'", "echo madvise"),
        tp.PagePolicy("thp-256K", "mthp", 262144, False, "it is 'never'", "echo madvise too"),
        tp.PagePolicy("thp", "thp", 2 << 20),
        tp.PagePolicy("hugetlb", "hugetlb", 2 << 20),
        tp.PagePolicy("hugetlb-1G", "hugetlb", 1 << 30, False, "none free", "echo 1"),
    ]
    monkeypatch.setattr("tlbprobe.memory.policies.page_policies", lambda root="/": known)
    monkeypatch.setattr("tlbprobe.sweeps.curve.page_policies", lambda root="/": known)
    return known


def test_default_policies(asked, offered):
    c = tp.curve(SIZES, progress=False)
    assert c.policies == ["base", "thp", "thp-64K", "hugetlb"]


def test_mthp_only_at_the_view(asked, offered):
    c = tp.curve(SIZES, progress=False)
    assert c.view == [16 << 10, 64 << 10, 256 << 10, 1 << 20]
    for probe in ("chase", "translation"):
        at = {name: sorted(size for p, size, n in asked if (p, n) == (probe, name)) for name in c.policies}
        assert at["thp-64K"] == c.view
        assert at["base"] == at["thp"] == at["hugetlb"] == SIZES
    assert len(asked) == len(set(asked)) == len(c.chase) + len(c.translation)


def test_mthp_that_was_asked_for_is_measured_everywhere(asked, offered):
    c = tp.curve(SIZES, ["base", "thp-64K"], progress=False)
    assert len(c.chase) == 2 * len(SIZES)


def test_what_is_not_offered_is_noted_kind_by_kind(asked, offered):
    notes = tp.curve(SIZES, progress=False).notes
    assert len(notes) == 2
    assert "thp-128K" in notes[0]
    assert "echo madvise" in notes[0]
    assert "thp-256K" in notes[0]
    assert "echo 1" in notes[1]


def test_sizes_and_pages_alone(asked):
    c = tp.curve("64KiB", "base", progress=False)
    assert c.chase.axes == c.translation.axes == {"size": [65536], "pages": ["base"]}


def test_sizes_are_sorted_and_made_unique(asked):
    c = tp.curve(["1MiB", 65536, "64KiB"], "base", progress=False)
    assert c.chase.axes["size"] == [65536, 1 << 20]


def test_default_sizes(asked):
    c = tp.curve(pages="base", progress=False)
    assert c.chase.axes["size"] == tp.sizes("16KiB", "1GiB", 4)
    assert c.view == [4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]


def test_translation_is_not_asked_below_two_pages(asked):
    c = tp.curve([1024, 65536 * 2], "base", progress=False)
    assert list(c.chase.points) == [(1024, "base"), (131072, "base")]
    assert list(c.translation.points) == [(131072, "base")]
    assert math.isnan(c.to_numpy()["translation_ns"][0])


@pytest.mark.parametrize(
    "sizes", [[1], list(range(1, 100)), [2**k for k in range(12, 40)], [3**k for k in range(12)]]
)
def test_view(sizes):
    view = view_sizes(sizes)
    assert 1 <= len(view) <= 5
    assert view == sorted(view)
    assert view[-1] == max(sizes)
    assert all(b >= 4 * a for a, b in itertools.pairwise(view))


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        (([], "base"), {}, "sizes"),
        (("64KiB", []), {}, "pages"),
        (("64KB", "base"), {}, "sizes='64KB'"),
        (("64KiB", ["base", "base"]), {}, "repeats"),
        (("64KiB", "colossal"), {}, "pages='colossal'"),
        (("64KiB", "base"), {"precision": 0}, "precision=0"),
        (("64KiB", "base"), {"max_seconds": -1}, "max_seconds=-1"),
        (("64KiB", "base"), {"seed": -1}, "seed=-1"),
        (("64KiB", "base"), {"cpu": 99999}, "cpu=99999"),
        (("64KiB", "base"), {"on_error": "x"}, "on_error='x'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_mapped(monkeypatch, arguments, keywords, message):
    def fail(*_, **__):
        pytest.fail("a region was mapped")

    monkeypatch.setattr("tlbprobe.memory.region.Region.__init__", fail)
    with pytest.raises(ValueError, match=message):
        tp.curve(*arguments, progress=False, **keywords)


def test_what_the_tlb_holds_stands_beside_larger_pages(asked, offered):
    """Of the memory that was measured, not of base pages, where there is nothing to tell."""
    c = tp.curve(SIZES, progress=False)
    assert c.effective == {name: f"of {name}" for name in ("thp", "thp-64K", "hugetlb")}
    assert "of thp-64K" in repr(c)
    assert c.summary()["effective"] == c.effective


def test_why_nobody_knows_what_the_tlb_holds(asked, offered, monkeypatch):
    def fail(region, *, seed, cpu):
        raise ValueError("this Region is too small")

    monkeypatch.setattr("tlbprobe.sweeps.curve.effective_page_size", fail)
    c = tp.curve(SIZES, ["base", "thp"], progress=False)
    assert c.effective == {"thp": "effective translation size: not identifiable, this Region is too small"}


def test_an_anatomy_goes_with_it(asked, examples, tmp_path):
    """From a file as well; what holds something else is refused before anything is measured."""
    path = tmp_path / "a.npz"
    examples["anatomy"].save(path)
    for given in (examples["anatomy"], path, str(path)):
        c = tp.curve(SIZES, "base", anatomy=given, progress=False)
        assert c.anatomy.sentences() == examples["anatomy"].sentences()
    c.save(tmp_path / "c.npz")
    assert tp.load(tmp_path / "c.npz").anatomy.sentences() == c.anatomy.sentences()
    assert c.summary()["anatomy"]["sentences"] == list(c.anatomy.sentences())
    asked.clear()
    examples["trial"].save(path)
    with pytest.raises(ValueError, match="holds no anatomy, but a trial"):
        tp.curve(SIZES, "base", anatomy=path, progress=False)
    assert not asked


def test_an_anatomy_of_another_machine_or_of_nothing(asked, examples, monkeypatch):
    made = examples["anatomy"]
    other = facts.Host((facts.Fact("cpu.name", "Another CPU", None, "by hand"),), ()).to_dict()
    with pytest.raises(ValueError, match="of another machine: of Another CPU"):
        tp.curve(SIZES, "base", anatomy=dataclasses.replace(made, host=other), progress=False)
    with pytest.raises(ValueError, match="found no level on the data side"):
        tp.curve(SIZES, "base", anatomy=dataclasses.replace(made, parts=made.parts[1:]), progress=False)
    assert not asked
    c = tp.curve(SIZES, "base", anatomy=made, progress=False)
    assert "72 and 3072 entries" in repr(c)


def test_progress_counts_both(asked):
    seen = []
    tp.curve(["64KiB", "128KiB"], "base", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(k, 4) for k in (1, 2, 3, 4)]


@pytest.fixture
def curve(examples):
    return examples["curve"]


def test_table_joins_translation(curve):
    table = curve.to_numpy()
    assert table.dtype.names[: len(curve.chase.to_numpy().dtype.names)] == curve.chase.to_numpy().dtype.names
    for row in table:
        cost = curve.translation[row["size"].item(), row["pages"].item()]
        if isinstance(cost, tp.Refusal):
            assert math.isnan(row["translation_ns"])
            assert cost.reason in row["translation_reason"]
        else:
            assert row["translation_ns"] == cost.cost
            assert (row["translation_low_ns"], row["translation_high_ns"]) == cost.interval


def test_csv_has_every_point(curve, tmp_path):
    curve.to_csv(tmp_path / "c.csv")
    with (tmp_path / "c.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    refused = [row for row in rows if row["reason"]]
    assert [(row["size"], row["pages"]) for row in refused] == [("1048576", "thp")]
    assert refused[0]["translation_ns"] == refused[0]["low_ns"] == refused[0]["page_size"] == ""


def test_pandas(curve):
    pytest.importorskip("pandas")
    assert curve.to_pandas()["translation_ns"].isna().sum() == 1


def test_repr(curve):
    text = repr(curve)
    for part in ("64 KiB to 1 MiB", "base, thp", "translation", "2 of 8 points", "not offered", "echo 1"):
        assert part in text
    assert "<table>" in curve._repr_html_()


def test_largest_and_host(curve):
    assert {name: size for name, (size, _) in curve.largest.items()} == {"base": 1 << 20, "thp": 1 << 16}
    assert curve.host["facts"][0]["value"] == "Some CPU"


def test_all_refused(made):
    points = [(1 << 16, "base"), (1 << 20, "base")]
    c = made.curve({"base": 4096}, [1 << 16, 1 << 20], points)
    assert c.largest == c.host == {}
    assert np.isnan(c.to_numpy()["low_ns"]).all()
    assert "4 of 4 points" in repr(c)


def test_a_measured_one(tmp_path):
    c = tp.curve(["64KiB", "256KiB"], ["base", "default"], max_seconds=0.05, progress=False)
    assert not c.chase.refused
    assert not c.translation.refused
    assert not c.effective
    assert {point.params["mapped_bytes"] for _, point in c.chase} == {
        point.spread.params["mapped_bytes"] for _, point in c.translation
    }
    c.save(tmp_path / "c.npz")
    loaded = tp.load(tmp_path / "c.npz")
    assert repr(loaded) == repr(c)
    assert str(loaded.to_numpy().tolist()) == str(c.to_numpy().tolist())
