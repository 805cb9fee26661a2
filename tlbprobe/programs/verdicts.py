"""Verdicts on programs: pure functions from figures to a claim, with its evidence and how sure it is.

Two rules come from articles. One of a hash table of 6 GiB, in Russian: the share of cycles in which a page
walk is active is an upper bound of the time lost to translation. One of a packet gateway, in Chinese: cycles
that stay the same, fewer instructions and many more TLB misses say that the processor waits for translation,
and not for the work itself or for the caches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..units import Interval, approximate_size

Confidence = Literal["high", "medium", "low", "none"]
Figures = Mapping[str, Any]

BOUND = "bound by translation"
NOT_BOUND = "not bound by translation"
UNDECIDED = "not enough evidence"

MUCH_WALKING, LITTLE_WALKING = 0.10, 0.02  # shares of cycles with an active walk
FLAT, FEWER, MORE = 0.05, 0.10, 0.50  # relative changes: cycles, instructions, TLB misses
LITTLE_CPU = 0.10  # of the wall time: whoever waits for something else does not wait for translation
MUCH_KERNEL = 0.25  # of the CPU time ...
MANY_FAULTS = 1000  # ... with so many page faults, and so many a second of it
FEW_LOOKS = 3  # a program that waits, or begins, touches little for a moment
SAME = 0.02  # two times that differ by less are the same to anybody


@dataclass(frozen=True)
class Verdict:
    """What may be said of a program.

    Attributes
    ----------
    claim : str
        In a few words.
    confidence : {"high", "medium", "low", "none"}
        How sure that is; ``"none"`` where nothing can be said.
    evidence : tuple of str
        What it rests on, rule by rule, with the figures.
    missing : tuple of str
        What would tell more.
    """

    claim: str
    confidence: Confidence
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        sure = "" if self.confidence == "none" else f" (confidence: {self.confidence})"
        return self.claim + sure

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for files."""
        return asdict(self)


@dataclass(frozen=True)
class Finding:
    """What one rule says; `claim` is empty for one that decides nothing."""

    text: str
    claim: str = ""
    confidence: Confidence = "none"


# --- one program, from its figures -----------------------------------------------------------------------


def judge_run(now: Figures, before: Figures | None = None) -> Verdict:
    """Judge a run of a program by its figures, and by those of an earlier run where there is one.

    Parameters
    ----------
    now, before : mapping of str to float, int or None
        ``wall_seconds``, ``cpu_seconds``, ``system_seconds``, ``minor``, ``peak_bytes``, ``huge_share``,
        ``uncounted_seconds`` (of processors, that ``cpu_seconds`` may lack), ``stopped`` (share of the time),
        ``processes`` (at once; these three may be left out, for a single process that was watched whole),
        ``touched_bytes``, ``looks``, ``reach_bytes``, ``guest``, ``counters`` (by name); what is missing is
        ``None``.

    Returns
    -------
    Verdict
        The first rule that decides makes the claim: counters of one run, of two, then what needs none.
    """
    findings = [finding for rule in VERDICT_RULES for finding in rule(now, before)]
    deciding = [finding for finding in findings if finding.claim]
    evidence = tuple(finding.text for finding in findings)
    missing = () if any(_walk_share(now, before)) else (WALKS_MISSING,)
    if not deciding:
        return Verdict(UNDECIDED, "none", evidence, (*missing, WHATIF))
    first = deciding[0]
    against = any(finding.claim != first.claim for finding in deciding)
    return Verdict(first.claim, "low" if against else first.confidence, evidence, missing)


WALKS_MISSING = "the walk share, which needs the counters of cycles and of active page walks"
WHATIF = "'tlbprobe whatif -- COMMAND' runs the program with and without huge pages, and needs no counter"


def _walk_share(now: Figures, _: Figures | None) -> Iterator[Finding]:
    share = _ratio(now["counters"].get("walk_active"), now["counters"].get("cycles"))
    if share is None:
        return
    rule = (
        f"page walks are active in {share:.1%} of the cycles, which is an upper bound of the time lost to "
        "translation (the article on a hash table found its lost third by this: 31.1 %)"
    )
    sure: Confidence = "medium" if now["guest"] else "high"
    if now["guest"]:
        rule += "; in a virtual machine, some processors leave the host's half of a walk out"
    if share >= MUCH_WALKING:
        yield Finding(rule, BOUND, sure)
    elif share < LITTLE_WALKING:
        yield Finding(rule, NOT_BOUND, sure)
    else:
        yield Finding(f"{rule}: there is a little to gain", NOT_BOUND, "medium")


def _signature(now: Figures, before: Figures | None) -> Iterator[Finding]:
    """By the second: a program that serves runs as long as it is let, and is always busy."""
    changes = {name: _change(name, now, before) for name in ("cycles", "instructions", "walks")}
    cycles, instructions, walks = changes.values()
    if cycles is None or instructions is None or walks is None:
        return
    text = (
        f"against the other run, by the second: cycles {cycles:+.0%}, instructions {instructions:+.0%}, "
        f"TLB misses {walks:+.0%}"
    )
    if abs(cycles) <= FLAT and instructions <= -FEWER and walks >= MORE:
        yield Finding(
            f"{text}: the processor waits for translation and not for the work (the article on a packet "
            "gateway: cycles flat, instructions down, TLB misses up)",
            BOUND,
            "medium",
        )
    else:
        yield Finding(f"{text}: not the signature of translation (cycles flat, instructions down, misses up)")


def _waiting(now: Figures, _: Figures | None) -> Iterator[Finding]:
    """By all that it can have computed; one that was stopped does not wait for anything."""
    uncounted = now.get("uncounted_seconds", 0.0)
    share = _ratio(now["cpu_seconds"], now["wall_seconds"])
    if share is None or uncounted is None or now.get("stopped"):
        return
    if share + uncounted / now["wall_seconds"] < LITTLE_CPU:
        yield Finding(
            f"it computes for {share:.1%} of its time, and waits for something else in the rest: translation "
            "cannot cost more than that",
            NOT_BOUND,
            "high",
        )


def _touched(now: Figures, _: Figures | None) -> Iterator[Finding]:
    times = _ratio(now["touched_bytes"], now["reach_bytes"])
    if times is None:
        return
    touched, reach = approximate_size(now["touched_bytes"]), approximate_size(now["reach_bytes"])
    text = f"in 20 ms it touches {touched}; the TLB is said to reach {reach} with base pages"
    if times > 1:
        huge = now["huge_share"] or 0.0
        further = f"; {huge:.0%} of its memory is on huge pages and reaches further" if huge else ""
        yield Finding(
            f"{text}: {times:.1f} times as much, so misses are possible, no more than that{further}"
        )
    elif now["looks"] < FEW_LOOKS:
        yield Finding(f"{text}: all of it fits, by {now['looks']} looks, which are few")
    else:
        yield Finding(f"{text}: all of it fits", NOT_BOUND, "medium")


def _footprint(now: Figures, _: Figures | None) -> Iterator[Finding]:
    """Of one process: what several have at once is only seen in passing."""
    times = _ratio(now["peak_bytes"], now["reach_bytes"])
    if times is not None and times <= 1 and (now.get("processes") or 1) == 1:
        peak, reach = approximate_size(now["peak_bytes"]), approximate_size(now["reach_bytes"])
        yield Finding(
            f"all of its memory, {peak}, lies within what the TLB is said to reach with base pages, {reach}",
            NOT_BOUND,
            "medium",
        )


def _faulting(now: Figures, _: Figures | None) -> Iterator[Finding]:
    """Another thing that huge pages help, and not to be taken for translation."""
    kernel = _ratio(now["system_seconds"], now["cpu_seconds"])
    rate = _ratio(now["minor"], now["cpu_seconds"])
    if (kernel or 0) >= MUCH_KERNEL and min(rate or 0, now["minor"] or 0) >= MANY_FAULTS:
        yield Finding(
            f"{kernel:.0%} of its CPU time is the kernel's, with {now['minor']:,} page faults: huge pages "
            "may save most of the faults, which is another thing than translation"
        )


VERDICT_RULES = (_walk_share, _signature, _waiting, _touched, _footprint, _faulting)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _change(name: str, now: Figures, before: Figures | None) -> float | None:
    """Relative change of a counter's rate."""
    if before is None:
        return None
    rates = [_ratio(one["counters"].get(name), one["wall_seconds"]) for one in (now, before)]
    change = _ratio(rates[0], rates[1])
    return None if change is None else change - 1


# --- trials ----------------------------------------------------------------------------------------------

HELP, COST, NOTHING = "huge pages help", "huge pages cost time", "huge pages make no difference"


@dataclass(frozen=True)
class Pair:
    """Two variants of a trial, run in turn: what each had on huge pages, and how their times compare."""

    variant: str
    reference: str
    huge: float | None  # bytes; None: its pages were not seen
    reference_huge: float | None
    page: int  # bytes of a huge page: what a difference must be at least
    wall: tuple[float, Interval]  # time of the variant over that of the reference
    cpu: tuple[float, Interval]

    @property
    def difference(self) -> float | None:
        """Bytes by which the variant had more on huge pages; ``None`` where that was not seen."""
        return None if self.huge is None or self.reference_huge is None else self.huge - self.reference_huge

    @property
    def differs(self) -> bool:
        """Whether one of them is known to have had more huge pages."""
        return self.difference is not None and abs(self.difference) >= self.page

    @property
    def alike(self) -> bool:
        """Whether they are known to have had as many."""
        return self.difference is not None and not self.differs

    def ratio(self, name: str) -> tuple[float, Interval]:
        """Time with more huge pages over the time with fewer."""
        ratio, interval = self.wall if name == "wall" else self.cpu
        if self.difference is None or self.difference >= 0:
            return ratio, interval
        return 1 / ratio, interval and (1 / interval[1], 1 / interval[0])

    def __str__(self) -> str:
        pages, others = _pages_text(self.huge), _pages_text(self.reference_huge)
        with_pages = f"{self.variant!r} ({pages}) against {self.reference!r} ({others})"
        return f"{with_pages}: wall time {ratio_text(*self.wall)}, CPU time {ratio_text(*self.cpu)}"


def _pages_text(huge: float | None) -> str:
    if huge is None:
        return "its pages were not seen"
    return f"{approximate_size(huge)} on huge pages" if huge else "no huge page"


def ratio_text(ratio: float, interval: Interval) -> str:
    """Write a ratio of two times with its interval."""
    if math.isnan(ratio):
        return "not known, since some run was too short for the clock"
    between = (
        "too few rounds for an interval" if interval is None else "95 %: {:.3f} to {:.3f}".format(*interval)
    )
    return f"{ratio:.3f} times ({between})"


def judge_trial(pairs: Mapping[str, Pair]) -> Verdict:
    """Judge a trial by its variants, each against the reference.

    Parameters
    ----------
    pairs : mapping of str to Pair
        By the name of the variant, what is asked most first.

    Returns
    -------
    Verdict
        Of the first pair that has huge pages on one side and can be decided: by wall time, else by CPU time.
        Pairs on the same pages show what differs by chance; where that is as much, it says so.
    """
    tests = [pair for pair in pairs.values() if pair.differs]
    evidence = tuple(map(str, pairs.values()))
    if not tests:
        if all(pair.alike for pair in pairs.values()):
            return Verdict(UNDECIDED, "none", (*evidence, NO_DIFFERENCE), (SAME_PAGES,))
        return Verdict(UNDECIDED, "none", evidence, (PAGES_UNSEEN,))
    by_chance = _largest(_distance(pair.wall) for pair in pairs.values() if pair.alike)
    for pair in tests:
        for name, sure in TIMES:
            claim = _claim(*pair.ratio(name))
            if claim:
                noisy = by_chance > max(SAME, _distance(pair.ratio(name)))
                words = _gain(claim, name, pair.ratio(name)[0])
                note = (SAME_PAGES_DIFFER.format(by_chance),) if noisy else ()
                return Verdict(words, "low" if noisy else sure, (*evidence, *note))
    return Verdict(UNDECIDED, "none", evidence, ("more rounds, or a machine with less else to do",))


TIMES: tuple[tuple[str, Confidence], ...] = (("wall", "high"), ("cpu", "medium"))
NO_DIFFERENCE = "no variant had more huge pages than another, so that their times differ by chance alone"
PAGES_UNSEEN = (
    "its pages, which were not seen in every variant: it runs too short, it may not be traced, or they could "
    "not be proved"
)
SAME_PAGES = "a variant with other pages than these"
SAME_PAGES_DIFFER = (
    "two variants on the same pages differ by {:.1%}, which is by chance, and as much as was found"
)


def _largest(values: Iterable[float]) -> float:
    """Largest of the values that are known, 0 where none is."""
    return max((value for value in values if not math.isnan(value)), default=0.0)


def _distance(times: tuple[float, Interval]) -> float:
    return abs(times[0] - 1)


def _claim(ratio: float, interval: Interval) -> str:
    """What an interval of the ratio allows to say; empty for nothing."""
    if interval is None:
        return ""
    low, high = interval
    if low >= 1 - SAME and high <= 1 + SAME:
        return NOTHING
    if high < 1:
        return HELP
    return COST if low > 1 else ""


def _gain(claim: str, name: str, ratio: float) -> str:
    time = "time" if name == "wall" else "CPU time"
    if claim == NOTHING:
        return f"{claim}: less than {SAME:.0%} of the {time}"
    return f"{claim}: {abs(1 - ratio):.1%} {'less' if claim == HELP else 'more'} {time}"
