"""Estimates from timed slices: pure functions on arrays.

A measurement times many short slices, in time order. Disturbance on a shared machine only ever adds time,
comes in bursts and may hit more than half of the slices; so the estimate is a low quantile, and
neighbouring slices are never taken to be independent.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..units import Floats

# With 60 % of the slices disturbed the 5 % quantile is still the 12.5 % quantile of the clean ones, the
# 10 % quantile already their 25 %. The lower level also depends less on which slices a burst hit: in
# simulations with bursts of 50 slices its interval covered 2 to 8 points better. Lower still, too few
# slices lie below it to say how sure it is.
LOW_QUANTILE = 0.05

# The slices are cut into this many stretches; how the share of low slices differs between them tells how
# many independent slices the dependent ones are worth. In simulations of 6 to 16 stretches, 16 covered best
# with the stop.
STRETCHES = 16

# Student's t for 15 degrees of freedom and 95 % is 2.13. It covered 75 to 93 % where noise or bursts are
# about as long as a stretch, and lost more to the repeated looks of the adaptive stop; 2.8 is what the
# simulations ask for (tests/bench/coverage.py). On independent slices it is half as wide again as need be,
# and covers 99 %.
WIDTH = 2.8

# Fewer slices hold too few low ones: at 120 the interval covered 88 % under long bursts, at 200 93 %.
FEWEST = 200

# The adaptive stop looks again and again, and would stop at the look that underestimates the dependence
# most. So it also asks for this many low slices, counted as if independent: 6 of them covered 87 % under
# slow noise, 12 do 94 %.
LOWS_TO_STOP = 12

# Slices before the first look: the fewest that can hold LOWS_TO_STOP.
FIRST_BATCH = 240

# A slice is long enough when halving or doubling it moves the low quantile by less than 1 %. Only doubling
# can be tried on recorded slices. The spread goes with one over the square root of the length, so halving
# moves 1.41 times as far as doubling.
LENGTH_TOLERANCE = 0.01 / math.sqrt(2)

# A pair of slices with a member this far above the low quantile says something about the disturbance, not
# the length. Narrower would cut the spread of slices that really are too short; even evenly spread ones
# fail the rule within it.
OUTRIGHT_DISTURBED = 1.2

# The CPU clock is a system call of about 1 us, read at both ends of a slice within the wall time.
CPU_CLOCK_NS = 2000.0

# Less than 1 % beyond CPU time is below the precision asked for.
WALL_TOLERANCE = 0.01

# Undisturbed witnesses agree within a few clock ticks; frequency steps and stolen time are larger than this.
WITNESS_TOLERANCE = 0.05


def low(ns: npt.ArrayLike) -> float:
    """Return the low quantile of the slices, at the level `LOW_QUANTILE`."""
    return float(np.quantile(_series("ns", ns), LOW_QUANTILE))


def interval(ns: npt.ArrayLike) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the low quantile of dependent slices.

    The slices are cut into stretches. If slices came and went independently, the share of low ones would
    differ between stretches only by chance; how much more it does tells how many independent slices these
    are worth. Wilson's interval for the share, at that number, is turned back into two of the recorded
    times.

    Parameters
    ----------
    ns : array_like of float, shape (slices,)
        Nanoseconds per access, in time order.

    Returns
    -------
    tuple of float, or None
        None where there are too few slices: under 200, or so dependent that they are worth too few.

    Notes
    -----
    In simulations with bursts and with the stop of `precise` it covers the low quantile of the process the
    slices come from at least 93 times in 100, and 99 times where they are independent. Limits: noise with a
    memory of a sixteenth of the run cannot be told from the level (200 slices that remember 20 are covered
    83 times in 100); under drift the interval is about the run's own low quantile.
    """
    return _interval(_series("ns", ns))


def difference(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[float, tuple[float, float] | None]:
    """Return ``low(a) - low(b)`` and its 95 % interval, for two runs whose slices were timed in turn.

    What disturbs both runs alike cancels: the two intervals are added as squares, less what the stretches
    of the two runs have in common [1]_.

    Parameters
    ----------
    a, b : array_like of float, shape (slices,)
        Nanoseconds per access; slices k of both were neighbours in time.

    Returns
    -------
    cost : float
        Nanoseconds; negative where `a` is the faster.
    interval : tuple of float, or None
        None where one of the two runs has none.

    References
    ----------
    .. [1] G. Y. Zou, Toward using confidence intervals to compare correlations, Psychological Methods 12
       (2007): limits of a difference from the limits of its terms and their correlation.
    """
    one, other = _series("a", a), _series("b", b)
    if one.size != other.size:
        raise ValueError(f"b has {other.size} slices, a has {one.size}: both must have the same number")
    low_a, low_b = low(one), low(other)
    cost = low_a - low_b
    of_a, of_b = _interval(one), _interval(other)
    if of_a is None or of_b is None:
        return cost, None
    common = _common(_shares(one, low_a), _shares(other, low_b))
    below = _add(low_a - of_a[0], of_b[1] - low_b, common)
    above = _add(of_a[1] - low_a, low_b - of_b[0], common)
    return cost, (cost - below, cost + above)


def paired_ratio(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[float, tuple[float, float] | None]:
    """Return how many times as long `a` takes as `b`, and the 95 % interval, for few runs made in turn.

    The ratio of each round stands for itself, so that what lasts longer than a round cancels. The estimate is
    the median of the geometric means of all pairs of rounds; its interval is the one that Wilcoxon's
    signed-rank test does not reject [1]_: exact, whatever the noise is like, if it meets both alike.

    Parameters
    ----------
    a, b : array_like of float, shape (rounds,)
        Times, above 0; those of round k were taken one after the other.

    Returns
    -------
    ratio : float
        Below 1 where `a` is the faster.
    interval : tuple of float, or None
        None for fewer than 6 rounds.

    References
    ----------
    .. [1] J. L. Hodges and E. L. Lehmann, Estimates of location based on rank tests, Annals of Mathematical
       Statistics 34 (1963).
    """
    one, other = _series("a", a), _series("b", b)
    if one.size != other.size:
        raise ValueError(f"b has {other.size} rounds, a has {one.size}: both must have the same number")
    if min(one.min(), other.min()) == 0:
        raise ValueError("a or b holds a time of 0: a ratio needs times above 0")
    ratios = np.log(one / other)
    first, second = np.triu_indices(ratios.size)
    means = np.sort((ratios[first] + ratios[second]) / 2)
    outside = _never_ranked(ratios.size)
    ends = (means[outside - 1], means[-outside]) if outside else None
    return math.exp(float(np.median(means))), ends and (math.exp(ends[0]), math.exp(ends[1]))


def _never_ranked(count: int) -> int:
    """Return how many of the smallest values of the signed-rank sum together have at most 2.5 %."""
    chances = np.ones(1)  # of each sum: a rank is in it or not, by the toss of a coin
    for rank in range(1, count + 1):
        chances = np.pad(chances, (0, rank)) / 2 + np.pad(chances, (rank, 0)) / 2
    return int(np.count_nonzero(np.cumsum(chances) <= 0.025))


def precise(ns: npt.ArrayLike, precision: float = 0.01) -> bool:
    """Tell whether the adaptive stop may stop here; to be asked after each batch of `next_batch` slices.

    True when half the interval is at most `precision` times the low quantile, and there are enough
    independent low slices for the repeated question not to spoil the interval.
    """
    if not precision > 0:
        raise ValueError(f"precision is {precision}: must be above 0")
    series = _series("ns", ns)
    limits = _interval(series)
    if limits is None or _independent(series) * LOW_QUANTILE < LOWS_TO_STOP:
        return False
    return (limits[1] - limits[0]) / 2 <= precision * low(series)


def next_batch(slices: int) -> int:
    """Return how many slices to time next, after `slices` of them: half as many again, for few looks."""
    if slices < 0:
        raise ValueError(f"slices is {slices}: must be at least 0")
    return FIRST_BATCH if slices == 0 else max(1, slices // 2)


def long_enough(ns: npt.ArrayLike) -> bool:
    """Tell whether halving or doubling the slices would move the low quantile by less than 1 %.

    The mean of two neighbours is what a slice of double length would have shown. Bursts raise the low
    quantile of those means for another reason: a pair is clean only if both members are. So pairs with an
    outright disturbed member are left out, and the means of the others are compared with the very slices
    they are made of.

    Parameters
    ----------
    ns : array_like of float, shape (slices,)
        Nanoseconds per access, in time order.

    Returns
    -------
    bool
        True for fewer than `FIRST_BATCH` slices: they cannot tell, and longer slices would be fewer still.
        False where less than a tenth of the pairs is left: neighbours that seldom agree within 20 % are too
        short, or so disturbed that only longer slices can tell.

    Notes
    -----
    To be asked once for each length, after the first batch. Confounded by: disturbance of a few per cent in
    short bursts, which cannot be told from the spread of short slices; it errs towards longer slices.
    """
    series = _series("ns", ns)
    if series.size < FIRST_BATCH:
        return True
    pairs = np.column_stack((series[:-1], series[1:]))
    pairs = pairs[pairs.max(axis=1) <= OUTRIGHT_DISTURBED * low(series)]
    if len(pairs) < series.size / 10:
        return False
    single, double = low(pairs.ravel()), low(pairs.mean(axis=1))
    return abs(double - single) <= LENGTH_TOLERANCE * single


def disturbed(
    wall_ns: npt.ArrayLike,
    cpu_ns: npt.ArrayLike,
    faults: npt.ArrayLike,
    switches: npt.ArrayLike,
    witness_ns: npt.ArrayLike,
) -> npt.NDArray[np.bool_]:
    """Tell which slices were visibly disturbed: a lower bound, for most disturbance leaves no trace.

    Parameters
    ----------
    wall_ns, cpu_ns : array_like of float, shape (slices,)
        Wall time and thread CPU time of each whole slice.
    faults, switches : array_like of int, shape (slices,)
        Page faults and involuntary context switches during each slice.
    witness_ns : array_like of float, shape (slices + 1,)
        Time of the register-only loop before the first slice and after each.

    Returns
    -------
    ndarray of bool, shape (slices,)
        True for a fault, a switch, wall time beyond CPU time, or a slow witness on either side.
    """
    wall = _series("wall_ns", wall_ns)
    cpu = _series("cpu_ns", cpu_ns, wall.size)
    events = _series("faults", faults, wall.size) + _series("switches", switches, wall.size)
    slow = _slow(_series("witness_ns", witness_ns, wall.size + 1))
    waited = wall - cpu > CPU_CLOCK_NS + WALL_TOLERANCE * wall
    return np.asarray((events > 0) | waited | slow[:-1] | slow[1:])


def core_ghz(witness_ns: npt.ArrayLike, adds: int) -> float | None:
    """Return the core clock in GHz: dependent adds, one cycle each, over the low quantile of the witness.

    Parameters
    ----------
    witness_ns : array_like of float, shape (witnesses,)
        Times of one and the same register-only loop, in time order.
    adds : int
        Dependent adds in the loop.

    Returns
    -------
    float or None
        None where the witness names no single clock: its two halves in time differ by more than 5 % (the
        frequency changed, or one half was disturbed throughout), fewer than a quarter of the times are near
        the low quantile, one is more than 5 % below it, or the result is not between 0.1 and 10 GHz.
    """
    if adds < 1:
        raise ValueError(f"adds is {adds}: must be at least 1")
    witness = _series("witness_ns", witness_ns)
    floor = low(witness)
    halves = [low(half) for half in np.array_split(witness, 2) if half.size]
    changed = max(halves) > (1 + WITNESS_TOLERANCE) * min(halves)
    too_fast = witness.min() < (1 - WITNESS_TOLERANCE) * floor
    mostly_slow = _slow(witness).mean() > 0.75
    if changed or too_fast or mostly_slow or not 0.1 * floor <= adds <= 10 * floor:
        return None
    return adds / floor


def _series(name: str, values: npt.ArrayLike, size: int | None = None) -> Floats:
    """Return values as float64, or name what is wrong with them."""
    array: npt.NDArray[Any] = np.asarray(values)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: must be one-dimensional and not empty")
    if size is not None and array.size != size:
        raise ValueError(f"{name} has {array.size} values: must have {size}")
    series = array.astype(np.float64)
    if not (np.isfinite(series).all() and series.min() >= 0):
        raise ValueError(f"{name} holds a value that is negative or not finite: must be 0 or above")
    return series


def _shares(series: Floats, level: float) -> Floats:
    """Return the share of slices not above level in each stretch; a remainder at the start is left out."""
    length = series.size // STRETCHES
    below = series[series.size - STRETCHES * length :] <= level
    shares: Floats = below.reshape(STRETCHES, length).mean(axis=1)
    return shares


def _independent(series: Floats) -> float:
    """Return how many independent slices these dependent ones are worth, at the low quantile."""
    shares = _shares(series, low(series))
    share = float(shares.mean())
    by_chance = share * (1 - share) / (series.size // STRETCHES)
    found = float(shares.var(ddof=1))
    return series.size * by_chance / found if found > by_chance else float(series.size)


def _interval(series: Floats) -> tuple[float, float] | None:
    if series.size < FEWEST:
        return None
    below, above = _wilson(LOW_QUANTILE, _independent(series))
    first = math.floor(below * series.size) - 1
    last = math.ceil(above * series.size)
    if first < 0 or last >= series.size:
        return None
    ordered = np.partition(series, (first, last))
    return float(ordered[first]), float(ordered[last])


def _wilson(share: float, count: float) -> tuple[float, float]:
    """Return the limits of a share found in count independent trials; they stay inside 0 and 1."""
    extra = WIDTH * WIDTH / count
    centre = (share + extra / 2) / (1 + extra)
    half = math.sqrt(share * (1 - share) * extra + extra * extra / 4) / (1 + extra)
    return centre - half, centre + half


def _common(a: Floats, b: Floats) -> float:
    """Return the correlation of two runs' stretches, 0 if negative: disturbance can only be shared."""
    spread = float(a.std() * b.std())
    if spread == 0:
        return 0.0
    return min(1.0, max(0.0, float(((a - a.mean()) * (b - b.mean())).mean()) / spread))


def _add(one: float, other: float, common: float) -> float:
    """Return the length of the difference of two uncertainties that have a part in common."""
    return math.sqrt(max(0.0, one * one + other * other - 2 * common * one * other))


def _slow(witness: Floats) -> npt.NDArray[np.bool_]:
    """Tell which witnesses took clearly longer than the low quantile of them all."""
    floor = low(witness)
    ticks = np.diff(np.unique(witness))
    # Times come in whole clock ticks (40 ns on many aarch64), and one tick more is no disturbance. What
    # looks like a tick above a fourth of the witness is one.
    tick = float(ticks.min()) if ticks.size else 0.0
    tolerance = max(WITNESS_TOLERANCE * floor, min(1.5 * tick, 0.25 * floor))
    return np.asarray(witness > floor + tolerance)
