"""Estimates and intervals: exact small cases, invariants, and coverage by simulation.

The processes are those of bench/coverage.py, which prints the whole table.
"""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlbprobe.results import analysis

bench = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent / "bench" / "coverage.py")))

RUNS = 400
REQUIRED = 0.93


def covers(outcomes):
    """Whether these simulations agree with the required coverage, give or take two standard errors."""
    found = [(limits, true) for limits, true, *_ in outcomes if limits is not None]
    assert len(found) > 0.9 * len(outcomes)
    slack = 2 * np.sqrt(REQUIRED * (1 - REQUIRED) / len(found))
    return np.mean([limits[0] <= true <= limits[1] for limits, true in found]) >= REQUIRED - slack


def noise(slices, spread=0.01, seed=0):
    return bench.clean(np.random.default_rng(seed), 1, slices, spread)[0]


def bursts(slices, seed=0, **parameters):
    return bench.bursts(np.random.default_rng(seed), 1, slices, **parameters)[0]


# --- low and interval


def test_low_is_the_quantile():
    assert analysis.low([7.0]) == 7.0
    assert analysis.low(np.arange(101)) == 5.0
    assert analysis.low(np.arange(101)[::-1]) == 5.0


@pytest.mark.parametrize("bad", [[], [1.0, np.nan], [1.0, -1.0], [1.0, np.inf], [[1.0, 2.0]], 3.0])
@pytest.mark.parametrize("name", ["low", "interval", "precise", "long_enough"])
def test_bad_slices_are_refused_by_name(name, bad):
    with pytest.raises(ValueError, match="ns "):
        getattr(analysis, name)(bad)


def test_too_few_slices_have_no_interval():
    assert analysis.interval(noise(40)) is None
    assert analysis.interval(noise(199)) is None
    assert analysis.interval(noise(200)) is not None


def test_low_slices_from_one_stretch_only_are_not_trusted():
    ns = 1.0 + noise(800)
    ns[150:200] -= 1.0
    least, most = analysis.interval(ns)
    assert least < 1.1
    assert most > 1.9
    assert not analysis.precise(ns, precision=10)


def test_equal_slices_have_an_interval_of_no_width():
    assert analysis.interval(np.full(300, 2.5)) == (2.5, 2.5)
    assert analysis.precise(np.full(300, 2.5))


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(200, 700), st.floats(0.01, 1e4))
def test_interval_holds_low_repeats_and_scales(seed, slices, factor):
    ns = bursts(slices, seed)
    limits = analysis.interval(ns)
    assert limits == analysis.interval(ns)
    if limits is not None:
        assert limits[0] <= analysis.low(ns) <= limits[1]
        assert analysis.interval(ns * factor) == pytest.approx(np.multiply(limits, factor))


def test_slow_slices_count_only_as_slow():
    ns = bursts(500)
    slower = np.where(ns > np.median(ns), 10 * ns, ns)
    assert analysis.interval(slower) == analysis.interval(ns)


def test_interval_narrows_with_slices_and_widens_with_dependence():
    def width(ns):
        return np.ptp(analysis.interval(ns))

    few, many = noise(500), noise(8000)
    assert width(many) < width(few) / 2
    assert width(bench.slow_noise(np.random.default_rng(0), 1, 8000)[0]) > 1.5 * width(many)


# --- coverage, with the adaptive stop


@pytest.fixture(scope="module", params=["bursts 20, 50%, +3%, 0.3%", "bursts 50, 60%, +50%, 3.0%"])
def burst_runs(request):
    process = bench.STATIONARY[request.param]
    return process(np.random.default_rng(3), RUNS, bench.SLICES), bench.truth(process)


def test_interval_covers_under_bursts(burst_runs):
    assert covers(bench.coverage(*burst_runs))


def test_an_interval_of_independent_slices_does_not_cover(burst_runs):
    """Negative control: the test above can fail."""
    samples, true = burst_runs
    for control, runs in ((bench.order_statistics, samples), (bench.single_slices, samples[:100])):
        assert not covers(bench.naive(runs, true, control))


@pytest.mark.parametrize(
    "name",
    [
        "independent 1%",
        "independent 3%",
        "AR(1) 0.5, 1%",
        "AR(1) 0.9, 1%",
        "spikes",
        "bursts 5, 60%, +50%, 3.0%",
        "level bursts 50, 60%, +5%",
    ],
)
def test_interval_covers(name):
    process = bench.STATIONARY[name]
    assert covers(bench.coverage(process(np.random.default_rng(4), RUNS, bench.SLICES), bench.truth(process)))


def test_interval_is_not_uselessly_wide():
    """At most 1.6 times the ideal for independent slices: 1.96 standard errors of a normal quantile."""
    samples = bench.clean(np.random.default_rng(5), RUNS, 1000)
    half = np.mean([np.ptp(analysis.interval(ns)) / 2 for ns in samples])
    density = 0.1031  # of the standard normal distribution at its 5 % quantile
    ideal = 1.96 * np.sqrt(0.05 * 0.95 / 1000) / density * 0.01
    assert half < 1.6 * ideal


@pytest.mark.parametrize("name", bench.TRENDS)
def test_interval_covers_the_runs_own_low_under_drift(name):
    rng = np.random.default_rng(6)
    trends = bench.TRENDS[name](rng, RUNS // 4, bench.SLICES)
    ladder = np.quantile(bench.clean(rng, 1, 200_000), (np.arange(100) + 0.5) / 100)
    outcomes = []
    for trend, ns in zip(trends, trends * bench.clean(rng, *trends.shape), strict=True):
        outcomes += bench.coverage([ns], bench.truth_of_trend(trend, ladder))
    assert covers(outcomes)


# --- difference


def test_difference_of_a_run_and_itself_is_zero():
    ns = bursts(600)
    cost, limits = analysis.difference(ns, ns)
    assert cost == 0.0
    assert limits[0] <= 0.0 <= limits[1]


def test_difference_changes_sign():
    a, b = bursts(600, 1), 2 * bursts(600, 2)
    cost, (least, most) = analysis.difference(a, b)
    assert cost == analysis.low(a) - analysis.low(b)
    swapped = analysis.difference(b, a)
    assert swapped[0] == -cost
    assert swapped[1] == pytest.approx((-most, -least))


def test_difference_needs_pairs():
    with pytest.raises(ValueError, match="b has 3 slices, a has 2"):
        analysis.difference([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="b holds"):
        analysis.difference([1.0], [-1.0])
    assert analysis.difference([3.0], [1.0]) == (2.0, None)


@pytest.mark.parametrize("shared", [True, False])
def test_difference_covers(shared):
    def process(seed, runs, slices):
        return bench.two_runs(np.random.default_rng(seed), runs, slices, shared, 50, 0.6, 0.01)

    a, b = (analysis.low(run.ravel()) for run in process(99, 100, 20_000))
    assert covers(bench.differences(*process(7, RUNS, 2000), a - b))


def test_what_both_runs_share_cancels():
    trend = bench.random_walk(np.random.default_rng(8), 1, 2000, 0.1)[0]
    a, b = trend * noise(2000, 0.002, 1), trend * noise(2000, 0.002, 2)
    _, (least, most) = analysis.difference(a, b)
    assert most - least < 0.7 * (np.ptp(analysis.interval(a)) + np.ptp(analysis.interval(b)))


# --- the adaptive stop


def test_precise():
    assert analysis.precise(noise(600, 0.003))
    assert not analysis.precise(noise(600, 0.003), precision=1e-5)
    assert not analysis.precise(noise(600, 0.2))
    assert not analysis.precise(noise(100, 0.001))
    assert not analysis.precise(noise(analysis.FIRST_BATCH - 1, 0.0))
    assert analysis.precise(noise(analysis.FIRST_BATCH, 0.0))


@pytest.mark.parametrize("precision", [0, -0.1, np.nan])
def test_precision_must_be_positive(precision):
    with pytest.raises(ValueError, match="precision"):
        analysis.precise([1.0], precision)


def test_batches_grow_by_half():
    assert analysis.next_batch(0) == analysis.FIRST_BATCH
    assert analysis.next_batch(240) == 120
    assert analysis.next_batch(1) == 1
    with pytest.raises(ValueError, match="slices"):
        analysis.next_batch(-1)


# --- the length of a slice


def answers(process, runs=60, slices=analysis.FIRST_BATCH):
    return np.mean([analysis.long_enough(process(slices, seed)) for seed in range(runs)])


def test_long_slices_are_long_enough():
    assert answers(lambda slices, seed: noise(slices, 0.005, seed)) == 1.0


@pytest.mark.parametrize("spread", [0.03, 0.1, 0.5])
def test_short_slices_are_not_long_enough(spread):
    """The low quantile of pairs lies half a spread higher."""
    assert answers(lambda slices, seed: noise(slices, spread, seed)) < 0.1


@pytest.mark.parametrize("length", [5, 20, 50])
def test_bursts_do_not_make_slices_too_short(length):
    def process(slices, seed):
        return bursts(slices, seed, length=length, share=0.5, extra=0.5, spread=0.005)

    assert answers(process) > 0.9


def test_bursts_do_not_hide_short_slices():
    assert answers(lambda slices, seed: bursts(slices, seed, spread=0.04)) < 0.1


def test_doubling_settles():
    """Means of single accesses: the length found keeps the promise of the rule, halved and doubled."""
    accesses = np.random.default_rng(9).exponential(1.0, 1 << 21) + 1.0
    length = 16
    while not analysis.long_enough(accesses[: length * 400].reshape(-1, length).mean(axis=1)):
        length *= 2
    halved, found, doubled = (
        analysis.low(accesses.reshape(-1, n).mean(axis=1)) for n in (length // 2, length, 2 * length)
    )
    assert 128 <= length <= 2048
    assert found - halved < 0.015 * found
    assert doubled - found < 0.01 * found


def test_few_slices_cannot_tell():
    assert analysis.long_enough([1.0])
    assert analysis.long_enough(noise(analysis.FIRST_BATCH - 1, 0.5))


# --- disturbance and the witness


def undisturbed(slices=60):
    return {
        "wall_ns": np.full(slices, 100_000.0),
        "cpu_ns": np.full(slices, 99_000.0),
        "faults": np.zeros(slices, int),
        "switches": np.zeros(slices, int),
        "witness_ns": 1000.0 + np.arange(slices + 1) % 2,
    }


def test_undisturbed():
    found = analysis.disturbed(**undisturbed())
    assert found.dtype == bool
    assert found.shape == (60,)
    assert not found.any()


@pytest.mark.parametrize(
    ("name", "value", "slices"),
    [
        ("faults", 1, [9]),
        ("switches", 2, [9]),
        ("cpu_ns", 96_000.0, [9]),
        ("cpu_ns", 97_500.0, []),
        ("cpu_ns", 101_000.0, []),
        ("witness_ns", 1060.0, [8, 9]),
        ("witness_ns", 1040.0, []),
        ("witness_ns", 3000.0, [8, 9]),
    ],
)
def test_each_sign_of_disturbance(name, value, slices):
    record = undisturbed()
    record[name][9] = value
    assert list(np.flatnonzero(analysis.disturbed(**record))) == slices


def test_one_tick_of_a_coarse_clock_is_no_disturbance():
    record = undisturbed()
    record["witness_ns"] = np.where(np.arange(61) % 3 == 0, 440.0, 400.0)
    assert not analysis.disturbed(**record).any()
    record["witness_ns"][30] = 480.0
    assert list(np.flatnonzero(analysis.disturbed(**record))) == [29, 30]


@pytest.mark.parametrize("name", ["wall_ns", "cpu_ns", "faults", "switches", "witness_ns"])
def test_disturbed_refuses_by_name(name):
    for bad in (undisturbed()[name][:0], -1.0 - undisturbed()[name]):
        with pytest.raises(ValueError, match=name):
            analysis.disturbed(**undisturbed() | {name: bad})
    if name != "wall_ns":
        with pytest.raises(ValueError, match=f"{name} has 40 values"):
            analysis.disturbed(**undisturbed() | {name: undisturbed()[name][:40]})


def test_core_clock():
    assert analysis.core_ghz(np.full(50, 1000.0), 4000) == 4.0
    assert analysis.core_ghz(1000 * bursts(400, spread=0.002), 4000) == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize(
    "witness",
    [
        np.repeat([1000.0, 1200.0], 100),  # the frequency changed half-way
        np.where(np.arange(200) % 10 == 0, 1000.0, 1500.0),  # nearly all are slow
        np.where(np.arange(200) == 77, 500.0, 1000.0),  # one is impossibly fast
        np.full(200, 100.0),  # 40 GHz
        np.zeros(200),
    ],
)
def test_an_inconsistent_witness_names_no_clock(witness):
    assert analysis.core_ghz(witness, 4000) is None


def test_core_clock_refuses_by_name():
    with pytest.raises(ValueError, match="adds"):
        analysis.core_ghz([1000.0], 0)
    with pytest.raises(ValueError, match="witness_ns"):
        analysis.core_ghz([np.nan], 4000)


def test_a_paired_ratio_is_exact_where_nothing_disturbs():
    a = np.geomspace(1, 100, 9)
    ratio, limits = analysis.paired_ratio(0.8 * a, a)
    assert ratio == pytest.approx(0.8)
    assert limits == pytest.approx((0.8, 0.8))


def test_few_rounds_have_no_interval():
    for rounds in range(1, 12):
        times = np.linspace(1, 2, rounds)
        assert (analysis.paired_ratio(times, times[::-1])[1] is None) == (rounds < 6)


@pytest.mark.parametrize(("rounds", "outside"), [(5, 0), (6, 1), (7, 3), (8, 4), (9, 6), (10, 9), (20, 53)])
def test_the_interval_is_that_of_the_signed_rank_test(rounds, outside):
    """As its published tables have it: one more than the critical value at 5 %, two-sided."""
    assert analysis._never_ranked(rounds) == outside


@pytest.mark.parametrize("kind", ["even", "bursts", "drift"])
def test_the_interval_of_a_paired_ratio_covers(kind):
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        times = np.exp(rng.normal(0, 0.02, (9, 2)))
        if kind == "bursts":
            times *= 1 + (rng.random((9, 2)) < 0.2) * rng.exponential(0.5, (9, 2))
        if kind == "drift":
            times *= np.geomspace(1, 3, 9)[:, None]
        low, high = analysis.paired_ratio(times[:, 0] * 0.9, times[:, 1])[1]
        covered += low <= 0.9 <= high
    assert covered >= 0.93 * 400


def test_a_paired_ratio_can_be_turned_round():
    rng = np.random.default_rng(5)
    a, b = rng.uniform(1, 2, (2, 11))
    ratio, (low, high) = analysis.paired_ratio(a, b)
    turned, (other_low, other_high) = analysis.paired_ratio(b, a)
    assert (1 / turned, 1 / other_high, 1 / other_low) == pytest.approx((ratio, low, high))


def test_a_paired_ratio_refuses_by_name():
    for bad in ([], [[1.0]], [np.nan], [-1.0]):
        with pytest.raises(ValueError, match=r"a has|a holds"):
            analysis.paired_ratio(bad, [1.0])
    with pytest.raises(ValueError, match="b has 2 rounds"):
        analysis.paired_ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="time of 0"):
        analysis.paired_ratio([0.0], [1.0])
