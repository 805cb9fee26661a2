"""The adaptive loop around the slices: pin, calibrate, find the slice length, stop when it is precise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..cores.current import current, once_a_core
from ..results import analysis

if TYPE_CHECKING:
    from ..counters.groups import Groups

LAP_SECONDS = 0.05  # of the untimed lap before the first slice, a tenth of the time for all at most
LAP_ACCESSES = 1 << 13  # at once: a few milliseconds where every access misses
TOO_SHORT = 0.75  # of the length aimed at: a slice that takes less was measured too short
LONGEST_NS = 12e6  # of a slice, so that Ctrl-C is answered in 100 ms with several runs and their warming
CLOCK_SHARE = 1e-3  # of a slice that reading the clock, or one step of it, may cost
CLOCK_TOLERANCE = 1e-3  # relative, between two clocks: slewing bends one by at most half of it
LEAST_SLICES = 4  # of a measurement that has no time for more
MOST_SLICES = 1 << 20  # of one batch: some 50 MB for each run
LEAST_CHECK_NS = 5e6  # between two moments of which the clocks are compared
PILOTS = 5  # before fixed work, whose slices keep their length: the least disturbed one counts
DIVISORS_TRIED = 10_000  # of a number of accesses, for slices that come out even


@dataclass(frozen=True)
class Timed:
    """The timed slices of one run."""

    ns: npt.NDArray[np.float64]  # per access
    accesses: int  # per slice
    disturbed: npt.NDArray[np.bool_]
    core_ghz: float | None
    minor: int
    major: int
    counted: npt.NDArray[np.int64] | None = None  # rows of the groups of counters, if there are any


# --- the clock -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """One moment on several clocks."""

    raw_ns: int
    monotonic_ns: int
    ticks: int  # 0: no tick counter

    @classmethod
    def now(cls) -> Moment:
        """Read them together."""
        return cls(*current().moment())


@once_a_core
def tick_rate() -> float | None:
    """Ticks of the tick counter per nanosecond, calibrated once; ``None`` where there is no counter."""
    start = Moment.now()
    current().wait(2 * LEAST_CHECK_NS * 1e-9)
    end = Moment.now()
    return (end.ticks - start.ticks) / (end.raw_ns - start.raw_ns) if start.ticks else None


@once_a_core
def shortest_slice_ns() -> float:
    """Shortest slice of which the clock costs little enough."""
    read_ns, step_ns = current().calibrate()
    return max(current().shortest_ns, read_ns / CLOCK_SHARE, step_ns / CLOCK_SHARE)


def clock_complaint(start: Moment, end: Moment, rate: float | None) -> str:
    """Say how far the clock went from the other two between two moments; empty if it kept with them."""
    elapsed = end.raw_ns - start.raw_ns
    if elapsed < LEAST_CHECK_NS:
        return ""
    others = {"CLOCK_MONOTONIC": float(end.monotonic_ns - start.monotonic_ns)}
    if rate:
        others["the tick counter"] = (end.ticks - start.ticks) / rate
    for name, other in others.items():
        if abs(other - elapsed) > CLOCK_TOLERANCE * elapsed:
            return (
                f"CLOCK_MONOTONIC_RAW went {elapsed / 1e6:.2f} ms while {name} went {other / 1e6:.2f} ms: "
                "times are that uncertain"
            )
    return ""


# --- the loop --------------------------------------------------------------------------------------------


def measure(
    session: _core.Session, *, precision: float, max_seconds: float, groups: Groups = ()
) -> tuple[list[Timed], tuple[str, ...]]:
    """Time slices of the parts of a session in turn until each is precise, or the time is over.

    Parameters
    ----------
    session : _core.Session
        The thread is pinned already.
    precision : float
        Half the interval over the low estimate at which to stop.
    max_seconds : float
        Time for all of it.
    groups : tuple of _core.CounterGroup
        Counters to read around the slices.

    Returns
    -------
    list of Timed
        One for each part, of the same number of slices.
    tuple of str
        Warnings.
    """
    rate = tick_rate()
    start = Moment.now()
    begin = current().now()
    _lap(session, min(LAP_SECONDS, max_seconds / 10))
    deadline = (current().now() if current().name else begin) + max_seconds
    rounds, accesses, settled = _find_length(session, deadline, groups)
    while not all(analysis.precise(ns, precision) for ns in rounds.ns(accesses)):
        seconds = _round_seconds(rounds)
        affordable = int((deadline - current().now()) / seconds)
        batch = min(analysis.next_batch(rounds.slices), affordable, MOST_SLICES)
        if batch < 1:
            break
        rounds.add(session.measure(accesses, batch, groups))
    complaint = clock_complaint(start, Moment.now(), rate)
    warnings = [complaint] if complaint else []
    if not settled:
        warnings.append(
            "slices as long as allowed still depend on their length by more than 1 %: the machine is too "
            "disturbed, or max_seconds too short, for a closer estimate"
        )
    return rounds.timed(accesses), tuple(warnings)


def measure_fixed(
    session: _core.Session, accesses: int, groups: Groups = ()
) -> tuple[list[Timed], tuple[str, ...]]:
    """Time so many accesses, in as many slices of equal length as are long enough.

    Where that does not come out even, the fewer than one a slice that are left over are done untimed. So are
    those before the first slice: a lap, as in `measure`, and what tells the length of a slice.

    Parameters
    ----------
    session : _core.Session
        Of one part. The thread is pinned already.
    accesses : int
        How many.
    groups : tuple of _core.CounterGroup
        Counters to read around the slices.

    Returns
    -------
    list of Timed
        One.
    tuple of str
        Warnings.
    """
    rate = tick_rate()
    start = Moment.now()
    _lap(session, LAP_SECONDS)
    per_access = min(_pilot(session)[0] for _ in range(PILOTS))
    slices = even_slices(accesses, max(1, round(shortest_slice_ns() / per_access)))
    length, left_over = divmod(accesses, slices)
    batches = [min(MOST_SLICES, slices - done) for done in range(0, slices, MOST_SLICES)]
    rounds = Rounds(session.measure((length,), batches[0], groups))
    for batch in batches[1:]:
        rounds.add(session.measure((length,), batch, groups))
    if left_over:
        session.measure((left_over,), 1)
    complaint = clock_complaint(start, Moment.now(), rate)
    warnings = [complaint] if complaint else []
    if length * per_access < TOO_SHORT * shortest_slice_ns():
        warnings.append(f"{accesses} accesses are so few that reading the clock adds more than 0.1 % to them")
    return rounds.timed((length,)), tuple(warnings)


def even_slices(accesses: int, length: int) -> int:
    """How many slices of at least some length: a divisor of the accesses where there is one near."""
    most = max(1, accesses // length)
    near = range(most, max(most // 2, most - DIVISORS_TRIED), -1)
    return next((count for count in near if accesses % count == 0), most)


class Rounds:
    """What the session's `measure` returned, batch after batch."""

    def __init__(self, first: dict[str, npt.NDArray[np.int64]]) -> None:
        self.batches = [first]

    def add(self, batch: dict[str, npt.NDArray[np.int64]]) -> None:
        """Append a batch of the same runs with the same accesses."""
        self.batches.append(batch)

    @property
    def slices(self) -> int:
        """How many slices each run has."""
        return sum(batch["ns"].shape[1] for batch in self.batches)

    def all(self, name: str) -> npt.NDArray[np.int64]:
        """One field of all slices, (runs, slices) or (runs, slices, columns)."""
        return np.concatenate([batch[name] for batch in self.batches], axis=1)

    def ns(self, accesses: Sequence[int]) -> npt.NDArray[np.float64]:
        """Nanoseconds per access, (runs, slices)."""
        return np.asarray(self.all("ns") / np.asarray(accesses)[:, None])

    def timed(self, accesses: Sequence[int]) -> list[Timed]:
        """Sort everything by run."""
        ns, minor, major = self.ns(accesses), self.all("minor"), self.all("major")
        witness = np.concatenate([batch["witness_ns"] for batch in self.batches])
        ghz = analysis.core_ghz(witness, _core.WITNESS_ADDS)
        counted = self.all("counted") if "counted" in self.batches[0] else None
        return [
            Timed(
                ns[run],
                accesses[run],
                self._disturbed(run),
                ghz,
                int(minor[run].sum()),
                int(major[run].sum()),
                None if counted is None else counted[run],
            )
            for run in range(len(accesses))
        ]

    def _disturbed(self, run: int) -> npt.NDArray[np.bool_]:
        """Batch by batch, since each has one more witness than slices."""
        return np.concatenate(
            [
                analysis.disturbed(
                    batch["ns"][run],
                    batch["cpu_ns"][run],
                    batch["minor"][run] + batch["major"][run],
                    batch["switches"][run],
                    batch["witness_ns"],
                )
                for batch in self.batches
            ]
        )


def _round_seconds(rounds: Rounds) -> float:
    """Typical time of one round: the slices, as much again where others made them warm up, the witness."""
    ns = np.median(rounds.all("ns"), axis=1).sum()
    return float(ns * (2 if rounds.all("ns").shape[0] > 1 else 1) + 10e3) * 1e-9


def _lap(session: _core.Session, seconds: float) -> None:
    """Go untimed until the caches hold what the accesses leave in them, and not what preparing left.

    Preparing wrote all nodes in address order. The first accesses hit what it wrote last, and were up to a
    third faster than all that came after, which a low quantile would have taken for the truth.
    """
    chunk = tuple(min(lap, LAP_ACCESSES) for lap in session.laps)
    end = math.inf if current().name else current().now() + seconds  # a model's time is nobody's
    done = 0
    while done < max(session.laps) and current().now() < end:
        session.measure(chunk, 1)
        done += 2 * LAP_ACCESSES  # as many again come before the slice


def _find_length(
    session: _core.Session, deadline: float, groups: Groups
) -> tuple[Rounds, tuple[int, ...], bool]:
    """Double the slices until that moves the low estimate by less than 1 %, as the first batches tell."""
    target = shortest_slice_ns()
    turns = 2 if len(session.laps) > 1 else 1  # each is warmed before its slice if there are others
    per_access = _pilot(session)
    while True:
        accesses = tuple(max(1, round(target / ns)) for ns in per_access)
        seconds = turns * sum(n * ns for n, ns in zip(accesses, per_access, strict=True)) * 1e-9
        affordable = int((deadline - current().now()) / seconds)
        batch = min(analysis.FIRST_BATCH, max(LEAST_SLICES, affordable))
        rounds = Rounds(session.measure(accesses, batch, groups))
        series = rounds.ns(accesses)
        per_access = [analysis.low(ns) for ns in series]
        if all(n * ns >= TOO_SHORT * target for n, ns in zip(accesses, per_access, strict=True)):
            if all(analysis.long_enough(ns) for ns in series):
                return rounds, accesses, batch == analysis.FIRST_BATCH
            target *= 2
        next_seconds = turns * len(series) * target * 1e-9 * analysis.FIRST_BATCH
        if target > LONGEST_NS or next_seconds > deadline - current().now():
            return rounds, accesses, False


def _pilot(session: _core.Session) -> list[float]:
    """Roughly the nanoseconds of one access of each part; cold caches and disturbance may have added some."""
    accesses = [64] * len(session.laps)
    while True:
        ns = session.measure(tuple(accesses), 1)["ns"][:, 0]
        short = ns < shortest_slice_ns() / 4
        if not short.any():
            return [float(each) for each in ns / accesses]
        accesses = [n * 4 if again else n for n, again in zip(accesses, short, strict=True)]


def faults(timed: Timed) -> dict[str, Any]:
    """Page faults of the timed part; none are expected of memory that was populated."""
    return {"minor": timed.minor, "major": timed.major, "expected": 0}
