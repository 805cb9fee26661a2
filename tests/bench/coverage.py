"""How often the intervals of `tlbprobe.analysis` cover the truth, by simulation: prints a table.

Run: python tests/bench/coverage.py [simulations]. The tests use the same processes with fewer simulations.
"""

import itertools
import multiprocessing
import sys
from collections.abc import Callable

import numpy as np

from tlbprobe.results import analysis

SLICES = 4000  # what the time limit allows


def clean(rng, runs, slices, spread=0.01):
    """Independent slices."""
    return np.exp(spread * rng.standard_normal((runs, slices)))


def slow_noise(rng, runs, slices, spread=0.01, memory=0.9):
    """First-order autoregressive clean noise."""
    steps = np.sqrt(1 - memory**2) * rng.standard_normal((slices, runs))
    steps[0] = rng.standard_normal(runs)
    for before, here in itertools.pairwise(steps):
        here += memory * before
    return np.exp(spread * steps.T)


def states(rng, runs, slices, length, share):
    """Quiet (0) or disturbed (number of the burst): a Markov chain with bursts of a mean length."""
    stop, start = 1 / length, share / (1 - share) / length
    now = rng.random(runs) < share
    number, bursts = np.ones(runs, int), np.zeros((slices, runs), int)
    for row, chance in zip(bursts, rng.random((slices, runs)), strict=True):
        row[:] = now * number
        begins, ends = ~now & (chance < start), now & (chance < stop)
        number += ends
        now = (now | begins) & ~ends
    return bursts.T


def bursts(rng, runs, slices, length=20, share=0.5, extra=0.5, spread=0.01, level=False):
    """Clean noise and exponential extra time in bursts: drawn for each slice or each burst."""
    burst = states(rng, runs, slices, length, share)
    more = rng.exponential(extra, (runs, slices))
    if level:
        more = np.take_along_axis(more, burst, axis=1)
    return clean(rng, runs, slices, spread) * (1 + (burst > 0) * more)


def spikes(rng, runs, slices):
    """One slice in five is slower by a factor of infinite variance."""
    hit = rng.random((runs, slices)) < 0.2
    return clean(rng, runs, slices) * (1 + hit * rng.pareto(1.2, (runs, slices)))


def sinusoid(rng, runs, slices, period, size=0.02):
    phase = rng.random((runs, 1)) + np.arange(slices) / period
    return 1 + size * np.sin(2 * np.pi * phase)


def random_walk(rng, runs, slices, size=0.03):
    return np.exp(size / np.sqrt(slices) * rng.standard_normal((runs, slices)).cumsum(axis=1))


def with_(process: Callable, **parameters) -> Callable:
    return lambda rng, runs, slices: process(rng, runs, slices, **parameters)


STATIONARY = (
    {
        "independent 0.3%": with_(clean, spread=0.003),
        "independent 1%": clean,
        "independent 3%": with_(clean, spread=0.03),
        "AR(1) 0.5, 1%": with_(slow_noise, memory=0.5),
        "AR(1) 0.8, 2%": with_(slow_noise, memory=0.8, spread=0.02),
        "AR(1) 0.9, 1%": slow_noise,
        "AR(1) 0.9, 3%": with_(slow_noise, spread=0.03),
        "spikes": spikes,
    }
    | {
        f"bursts {length}, {share:.0%}, +{extra:.0%}, {spread:.1%}": with_(
            bursts, length=length, share=share, extra=extra, spread=spread
        )
        for length, share, extra, spread in (
            (5, 0.1, 0.5, 0.01),
            (5, 0.6, 0.03, 0.01),
            (5, 0.6, 0.5, 0.03),
            (20, 0.5, 0.03, 0.003),
            (20, 0.5, 2.0, 0.01),
            (50, 0.3, 0.03, 0.003),
            (50, 0.3, 0.5, 0.03),
            (50, 0.6, 0.03, 0.003),
            (50, 0.6, 0.5, 0.003),
            (50, 0.6, 0.5, 0.01),
            (50, 0.6, 0.5, 0.03),
        )
    }
    | {
        "level bursts 20, 50%, +5%": with_(bursts, extra=0.05, level=True),
        "level bursts 50, 60%, +5%": with_(bursts, length=50, share=0.6, extra=0.05, level=True),
        "level bursts 50, 60%, +50%": with_(bursts, length=50, share=0.6, level=True),
    }
)
# Drifting slices have no low quantile but that of the run itself. So "true" is the low quantile of the
# mixture of the noise over the trend that this run went through: what endless repetition under the same
# trend would show. Where the trend is periodic and shorter than the run, that is the stationary truth as
# well.
TRENDS = {
    "sinusoid 2%, period 200": with_(sinusoid, period=200),
    "sinusoid 2%, period 3000": with_(sinusoid, period=3000),
    "random walk 3%": random_walk,
}


def truth(process: Callable, slices: int = 20_000, runs: int = 150) -> float:
    """The low quantile of the process, from a very long simulation."""
    return float(np.quantile(process(np.random.default_rng(99), runs, slices), analysis.LOW_QUANTILE))


def truth_of_trend(trend: np.ndarray, noise: np.ndarray) -> Callable[[int], float]:
    """The low quantile of the noise (some sample of it) mixed over the trend of a run of some slices."""
    return lambda slices: float(np.quantile(np.multiply.outer(trend[:slices], noise), analysis.LOW_QUANTILE))


def order_statistics(ns: np.ndarray) -> tuple[float, float] | None:
    """Negative control: the interval that takes slices for independent."""
    count, level = ns.size, analysis.LOW_QUANTILE
    half = 1.96 * np.sqrt(count * level * (1 - level))
    first, last = int(np.floor(count * level - half)), int(np.ceil(count * level + half))
    ordered = np.sort(ns)
    return (ordered[max(first, 0)], ordered[last])


def single_slices(ns: np.ndarray) -> tuple[float, float] | None:
    """Negative control: the bootstrap of single slices."""
    resampled = np.random.default_rng(0).choice(ns, (200, ns.size))
    first, last = np.quantile(np.quantile(resampled, analysis.LOW_QUANTILE, axis=1), (0.025, 0.975))
    return (first, last)


def stopped(done: Callable[[int], bool], first: int, most: int) -> int:
    """The number of slices at which the adaptive stop ends a run."""
    slices = min(first, most)
    while slices < most and not done(slices):
        slices = min(slices + analysis.next_batch(slices), most)
    return slices


def true_of(true: float | Callable[[int], float], slices: int) -> float:
    """The truth, which under drift depends on how long the run was."""
    return true(slices) if callable(true) else true


def summary(outcomes: list[tuple[tuple[float, float] | None, float, float, int]]) -> str:
    """Coverage where there is an interval, share without one, mean half width, median slices.

    An outcome is the interval, the truth, what the width is relative to, and the slices it took.
    """
    found = [(limits, true, scale) for limits, true, scale, _ in outcomes if limits is not None]
    none = 1 - len(found) / len(outcomes)
    if not found:
        return f"{'-':>6} {none:6.1%} {'-':>7}"
    covered = np.mean([limits[0] <= true <= limits[1] for limits, true, _ in found])
    width = np.mean([(limits[1] - limits[0]) / 2 / scale for limits, _, scale in found])
    slices = np.median([slices for *_, slices in outcomes])
    return f"{covered:6.1%} {none:6.1%} {width:7.2%} {slices:6.0f}"


def coverage(samples, true, interval=analysis.interval, done=analysis.precise, first=analysis.FIRST_BATCH):
    """Outcomes of runs that end by the stop `done`, or at all their slices where that is None."""
    outcomes = []
    for ns in samples:
        slices = ns.size if done is None else stopped(lambda count, ns=ns: done(ns[:count]), first, ns.size)
        ended = ns[:slices]
        outcomes.append((interval(ended), true_of(true, slices), analysis.low(ended), slices))
    return outcomes


def naive(samples, true, interval):
    """Outcomes of a negative control, which stops as soon as its own interval is narrow."""

    def done(ns: np.ndarray) -> bool:
        return np.ptp(interval(ns)) / 2 <= 0.01 * analysis.low(ns)

    return coverage(samples, true, interval, done, first=40)


def stationary_lines(name: str, runs: int, seed: int = 1) -> list[str]:
    process = STATIONARY[name]
    samples, true = process(np.random.default_rng(seed), runs, SLICES), truth(process)
    few = samples[: max(100, runs // 10)]
    return [
        f"{name:30} adaptive stop   {summary(coverage(samples, true))}",
        *(
            f"{'':30} {slices:4} slices     {summary(coverage(samples[:, :slices], true, done=None))}"
            for slices in (200, 500, 2000)
        ),
        f"{'':30} order statistic {summary(naive(samples, true, order_statistics))}",
        f"{'':30} one-slice boot  {summary(naive(few, true, single_slices))}",
    ]


def trend_lines(name: str, runs: int, seed: int = 1) -> list[str]:
    rng = np.random.default_rng(seed)
    trends = TRENDS[name](rng, runs, SLICES)
    noise = np.quantile(clean(rng, 1, 1_000_000), (np.arange(100) + 0.5) / 100)
    samples = trends * clean(rng, runs, SLICES)
    lines = []
    for label, done, slices in (("adaptive stop", analysis.precise, SLICES), (" 500 slices", None, 500)):
        outcomes = []
        for trend, ns in zip(trends, samples[:, :slices], strict=True):
            outcomes += coverage([ns], truth_of_trend(trend, noise), done=done)
        lines.append(f"{name:30} {label:15} {summary(outcomes)}")
    return lines


def two_runs(rng, runs, slices, shared, length, share, spread, levels=(3.0, 2.0)):
    """Two runs in turn: one of bursts for both, or bursts of their own."""
    burst = states(rng, runs, slices, length, share) > 0
    other = burst if shared else states(rng, runs, slices, length, share) > 0
    return [
        level * clean(rng, runs, slices, spread) * (1 + hit * rng.exponential(0.5, (runs, slices)))
        for level, hit in zip(levels, (burst, other), strict=True)
    ]


def differences(a, b, true, done=True):
    """Outcomes of `difference`, relative to the low quantile of a, stopping when both runs are precise."""
    outcomes = []
    for one, other in zip(a, b, strict=True):

        def both(count: int, one=one, other=other) -> bool:
            return analysis.precise(one[:count]) and analysis.precise(other[:count])

        slices = stopped(both, analysis.FIRST_BATCH, one.size) if done else one.size
        _, limits = analysis.difference(one[:slices], other[:slices])
        outcomes.append((limits, true_of(true, slices), analysis.low(one[:slices]), slices))
    return outcomes


PAIRS = {
    f"{whose} bursts {length}, {share:.0%}, {spread:.1%}": (whose == "shared", length, share, spread)
    for whose in ("shared", "own")
    for length, share, spread in ((5, 0.1, 0.01), (20, 0.5, 0.003), (50, 0.6, 0.01), (50, 0.6, 0.03))
}


def pair_lines(name: str, runs: int, seed: int = 1) -> list[str]:
    def process(rng, runs, slices):
        return two_runs(rng, runs, slices, *PAIRS[name])

    low_a, low_b = (analysis.low(run.ravel()) for run in process(np.random.default_rng(99), 100, 20_000))
    true = low_a - low_b
    a, b = process(np.random.default_rng(seed), runs, SLICES)
    return [
        f"{name:30} both precise    {summary(differences(a, b, true))}",
        f"{'':30}  300 slices     {summary(differences(a[:, :300], b[:, :300], true, done=False))}",
    ]


def pair_trend_lines(name: str, runs: int, seed: int = 1) -> list[str]:
    rng = np.random.default_rng(seed)
    trends = TRENDS[name](rng, runs, SLICES)
    noise = np.quantile(clean(rng, 1, 1_000_000), (np.arange(100) + 0.5) / 100)
    a, b = (level * trends * clean(rng, runs, SLICES) for level in (3.0, 2.0))
    outcomes = []
    for trend, one, other in zip(trends, a, b, strict=True):
        # The truths of the two runs are 3 and 2 times one and the same.
        outcomes += differences([one], [other], truth_of_trend(trend, noise))
    return [f"{'shared ' + name:30} both precise    {summary(outcomes)}"]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    jobs = [
        *((stationary_lines, name) for name in STATIONARY),
        *((trend_lines, name) for name in TRENDS),
        *((pair_lines, name) for name in PAIRS),
        *((pair_trend_lines, name) for name in TRENDS),
    ]
    print(f"{runs} simulations of at most {SLICES} slices\n")
    print(f"{'process':30} {'how it ended':15} {'covers':>6} {'none':>6} {'+-':>7} {'slices':>6}")
    with multiprocessing.Pool() as pool:
        for result in [pool.apply_async(lines, (name, runs)) for lines, name in jobs]:
            print("\n".join(result.get()), flush=True)


if __name__ == "__main__":
    main()
