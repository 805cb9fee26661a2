"""Pictures: on the Axes that are given, log axes, every policy in the legend, nothing that overlaps."""

import dataclasses
import itertools
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

import tlbprobe as tp
from tlbprobe.hierarchy import inference
from tlbprobe.machine import cpuid, facts

SIZES = [16 << 10 << k for k in range(0, 17, 2)]
PAGES = {
    "base": 4096,
    "thp": 2 << 20,
    "hugetlb": 2 << 20,
    "hugetlb-1G": 1 << 30,
    "default": 4096,
    "collapse": 2 << 20,
    "thp-64K": 65536,
    "thp-128K": 131072,
    "thp-256K": 262144,
    "thp-512K": 524288,
}


@pytest.fixture(autouse=True)
def backend():
    """No display; and pictures of other tests are no concern of ours."""
    mpl.use("agg")


@pytest.fixture
def ax():
    return Figure(figsize=(7, 4.5), layout="constrained").add_subplot()


def policies(count):
    return dict(itertools.islice(PAGES.items(), count))


def drawn(figure):
    """Draw it for real, warnings being errors; returns the texts that can be seen."""
    figure.canvas.draw()
    return [text for text in figure.findobj(mpl.text.Text) if text.get_text() and text.get_visible()]


def boxes(texts):
    return {text.get_text(): text.get_window_extent() for text in texts}


def overlapping(texts):
    pairs = itertools.combinations(boxes(texts).items(), 2)
    return [(a, b) for (a, one), (b, other) in pairs if one.overlaps(other)]


@pytest.mark.parametrize("kind", ["measurement", "translation", "sweep", "curve"])
def test_draws_on_the_given_axes(examples, ax, kind):
    others = ax.figure.add_axes([0, 0, 0.1, 0.1])
    assert examples[kind].plot(ax) is ax
    assert ax.lines
    assert ax.get_xlabel()
    assert "ns" in ax.get_ylabel()
    assert ax.figure.axes == [ax, others], "it makes no other axes"
    assert not others.lines
    drawn(ax.figure)


SINGLE = ["page_times", "shootdown_times", "fault_parts"]


@pytest.mark.parametrize("kind", SINGLE)
def test_single_times_on_the_given_axes(examples, ax, kind):
    assert examples[kind].plot(ax) is ax
    assert ax.figure.axes == [ax], "it makes no other axes"
    assert ax.lines or ax.patches
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    drawn(ax.figure)


@pytest.mark.parametrize("kind", ["measurement", "translation", "sweep", "curve", *SINGLE])
def test_makes_axes_of_its_own(examples, kind):
    from matplotlib import pyplot as plt

    ax = examples[kind].plot()
    drawn(ax.figure)
    plt.close(ax.figure)


@pytest.mark.parametrize("count", [1, 2, 5, 7, 10])
@pytest.mark.parametrize("x", ["working_set", "page_size"])
def test_a_view_of_any_number_of_policies(made, ax, count, x):
    made.curve(policies(count), SIZES).plot(ax, x=x)
    assert ax.get_xscale() == "log"
    assert ax.get_yscale() == "log"
    texts = drawn(ax.figure)
    assert overlapping([label for label in ax.get_xticklabels() if label.get_text()]) == []
    assert overlapping([label for label in ax.get_yticklabels() if label.get_text()]) == []
    assert texts


@pytest.mark.parametrize("count", [1, 2, 5, 7, 10])
def test_figure(made, count):
    figure = made.curve(policies(count), SIZES).figure()
    drawn(figure)
    latency, cost, by_page = figure.axes
    labels = latency.get_legend_handles_labels()[1]
    assert [label.split()[0] for label in labels] == list(policies(count))
    assert latency.get_xlim() == cost.get_xlim()
    for axes in figure.axes:
        assert overlapping([label for label in axes.get_xticklabels() if label.get_text()]) == []
    assert len(by_page.texts) == 5
    assert overlapping(by_page.texts) == []
    assert "Some CPU" in figure.get_suptitle()


def test_every_line_can_be_told_apart(made):
    latency = made.curve(policies(10), SIZES).figure().axes[0]
    styles = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in latency.lines}
    assert len(styles) == len(latency.lines) == 10
    widths = [line.get_linewidth() for line in latency.lines]
    assert widths == sorted(widths, reverse=True), "what lies below is broader than what lies above"


def test_translation_stands_beside_the_latency_on_one_axes(made, ax):
    c = made.curve(policies(2), SIZES)
    c.plot(ax)
    costs = [cost.cost for cost in c.translation.points.values()]
    shown = [value for line in ax.lines for value in np.atleast_1d(line.get_ydata())]
    assert set(costs) <= set(shown)
    assert any("translation" in text.get_text() for text in ax.get_legend().get_texts())


def test_wrong_view(examples, ax):
    with pytest.raises(ValueError, match="x='size'"):
        examples["curve"].plot(ax, x="size")


def test_one_point(made):
    drawn(made.curve(policies(1), [65536]).figure())


def test_all_refused(made, ax):
    every = list(itertools.product(SIZES, policies(2)))
    c = made.curve(policies(2), SIZES, every)
    texts = {text.get_text() for text in drawn(c.figure())}
    assert {"base: refused", "thp: refused", "nothing could be measured"} <= texts
    for x in ("working_set", "page_size"):
        c.plot(ax, x=x)
    drawn(ax.figure)


def test_partly_refused_is_said(made, ax):
    c = made.curve(policies(2), SIZES, [(SIZES[-1], "thp"), (SIZES[-2], "thp")])
    c.plot(ax)
    assert any("2 points refused" in text.get_text() for text in drawn(ax.figure))


def test_mixed_pages(made, ax):
    made.curve({"base": 4096, "thp": None}, SIZES).plot(ax)
    assert any("mixed pages" in text.get_text() for text in drawn(ax.figure))


def test_policies_at_the_view_only_have_points_over_the_page_size(made):
    c = made.curve({"base": 4096, "thp-64K": 65536}, SIZES)
    few = {key: point for key, point in c.chase.points.items() if key[1] == "base" or key[0] in SIZES[-2:]}
    c = tp.Curve(tp.Sweep("chase", c.chase.axes, few), c.translation, SIZES[-2:])
    latency, _, by_page = c.figure().axes
    assert [label.split()[0] for label in latency.get_legend_handles_labels()[1]] == ["base"]
    assert "64K" in "".join(label.get_text() for label in by_page.get_xticklabels())


def test_negative_and_unknown_costs(made, ax):
    points = {
        (1 << 16, "base"): made.translation(cost=-0.4),
        (1 << 20, "base"): made.translation(slices=4),  # no interval
        (1 << 22, "base"): tp.Refusal("MemoryError", "no"),
    }
    axes = {"size": [1 << 16, 1 << 20, 1 << 22], "pages": ["base"]}
    low, _ = tp.Sweep("translation", axes, points).plot(ax).get_ylim()
    assert low < -0.4
    drawn(ax.figure)
    chases = {key: made.measurement(size=key[0]) for key in points}
    drawn(
        tp.Curve(tp.Sweep("chase", axes, chases), tp.Sweep("translation", axes, points), [1 << 22]).figure()
    )


@pytest.mark.parametrize(
    "axes",
    [
        {"pages": ["base", "thp"]},
        {"pages": [None, "thp"]},
        {"strict": [True, False]},
        {"seed": [1, 2, 3]},
        {"pages": ["base", "thp"], "size": [1 << 14, 1 << 16]},
        {"size": [1 << 14, 1 << 16], "stride": [64, 4096], "pages": ["base"]},
        {"precision": [0.1, 0.2]},
        {"size": [1 << 14]},
    ],
)
def test_sweeps_over_any_axes(made, ax, axes):
    points = {key: made.measurement() for key in itertools.product(*axes.values())}
    tp.Sweep("chase", axes, points).plot(ax)
    drawn(ax.figure)
    lines = [line for line in ax.lines if len(line.get_xdata())]
    assert sum(len(line.get_xdata()) for line in lines) == len(points)


@pytest.mark.parametrize("low", [1e-3, 1.0, 1e6])
def test_narrow_ranges_have_ticks(made, ax, low):
    made.measurement(low=low).plot(ax)
    drawn(ax.figure)
    bottom, top = ax.get_ylim()
    assert sum(bottom <= tick <= top for tick in ax.get_yticks()) >= 2


def test_no_pyplot_when_axes_are_given(examples, tmp_path):
    """A picture in a file needs neither a display nor a backend."""
    examples["curve"].save(tmp_path / "c.npz")
    code = (
        "import sys, tlbprobe as tp; c = tp.load(sys.argv[1]); c.figure().savefig(sys.argv[2]);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    arguments = [sys.executable, "-c", code, tmp_path / "c.npz", tmp_path / "c.png"]
    subprocess.run(arguments, check=True, capture_output=True)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_claimed_reach_is_marked(made):
    """By page size, where CPUID claims a reach within the picture."""
    claims = (
        cpuid.TlbClaim(1, "data", (4096,), 16, 16, True, None, "any", "CPUID", ""),
        cpuid.TlbClaim(2, "data", (4096,), 1 << 20, 8, True, None, "any", "CPUID", ""),
    )
    record = facts.Host((), claims).to_dict()
    curve = made.curve({"base": 4096, "default": 4096}, [1 << 14, 1 << 16, 1 << 20])
    for key, point in curve.chase.points.items():
        curve.chase.points[key] = dataclasses.replace(point, host=record)
    texts = [text.get_text() for ax in curve.figure().axes for text in ax.texts]
    assert texts.count("L1, 4K") == 1  # 64 KiB, once for both policies
    assert "L2, 4K" not in texts  # 4 GiB: beyond


def test_measured_reach_takes_the_place_of_the_claimed(made, examples):
    """For the policies of which the anatomy knows something; both are named below."""
    sizes = [1 << 14, 1 << 18, 1 << 20, 1 << 25]
    c = dataclasses.replace(made.curve({"base": 4096, "thp": 2 << 20}, sizes), anatomy=examples["anatomy"])
    claims = tuple(
        cpuid.TlbClaim(1, "data", (page,), entries, 8, True, None, "any", "CPUID", "")
        for page, entries in ((4096, 64), (2 << 20, 4))
    )
    for key, point in c.chase.points.items():
        c.chase.points[key] = dataclasses.replace(point, host=facts.Host((), claims).to_dict())
    figure = c.figure()
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert [text for text in texts if text.startswith("L")] == ["L1, 4K", "L2, 4K", "L1, 2M"]
    huge = dataclasses.replace(
        examples["anatomy"].parts[0], pages="thp"
    )  # of which the TLB holds small parts
    parts = (examples["anatomy"].parts[0], huge)
    split = dataclasses.replace(c, anatomy=dataclasses.replace(examples["anatomy"], parts=parts)).figure()
    texts = [text.get_text() for ax in split.axes for text in ax.texts]
    assert [text for text in texts if text.startswith("L")] == ["L1, 4K", "L2, 4K"]
    label = next(ax.get_xlabel() for ax in figure.axes if "reach" in ax.get_xlabel())
    assert "bands: TLB reach as measured" in label
    assert "dotted: TLB reach by page size, as CPUID claims it" in label


# --- the anatomy


def test_an_anatomy_shows_its_levels(examples, ax):
    examples["anatomy"].plot(ax)
    words = " ".join(text.get_text() for text in drawn(ax.figure))
    assert "L1: 72" in words
    assert "288 KiB" in words
    assert "page table" in words


def test_an_anatomy_shows_the_reach_of_each_page_size(examples, ax):
    """As one mark where huge pages have as many entries, as another where they have others."""
    made = examples["anatomy"]
    huge = dataclasses.replace(made.parts[0], pages="thp", unit=2 << 20)
    dataclasses.replace(made, parts=(made.parts[0], huge)).plot(ax)
    words = [text.get_text() for text in drawn(ax.figure)]
    assert "L1: 72\n288 KiB\n144 MiB" in words
    assert "L2: 3072\n12 MiB\n6 GiB" in words
    few = dataclasses.replace(huge.levels[0], entries=inference.Entries((32, 40), "sharp", (30, 44)))
    huge = dataclasses.replace(huge, side=dataclasses.replace(huge.side, levels=(few,)))
    figure = dataclasses.replace(made, parts=(made.parts[0], huge)).figure()
    words = [text.get_text() for text in drawn(figure)]
    assert "L1: 72\n288 KiB" in words
    assert "L1: 32\N{EN DASH}40\n64 MiB to 80 MiB" in words


def test_an_anatomy_with_its_map(examples):
    figure = examples["anatomy"].figure()
    texts = drawn(figure)
    assert not overlapping([text for text in texts if text.get_text().startswith("L")])
    curve, conflicts, _ = figure.axes
    assert curve.get_xscale() == "log"
    assert len(conflicts.get_images()) == 1


def test_an_anatomy_of_nothing(examples, ax):
    nothing = dataclasses.replace(examples["anatomy"], parts=examples["anatomy"].parts[1:])
    nothing.plot(ax)
    assert "nothing could be measured" in [text.get_text() for text in drawn(ax.figure)]
