"""TLB shootdowns: what taking pages away costs the caller, and the threads that run on other CPUs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from .. import _core
from ..checks import check_choice, check_whole
from ..cores.current import only_here
from ..declared import Bytes, Keys, Nanoseconds, Spec, Whole
from ..machine import files, paging
from ..machine.facts import recent_record
from ..measuring.children import failure, scanned_backing
from ..measuring.point import Common
from ..memory.backing import BackingError, complaint
from ..memory.budget import check_budget
from ..memory.policies import COLLAPSE, PagePolicy, advice_for, find_policy, mapped_size, mapping_request
from ..memory.region import check_offered
from ..record import TIMED, TRAPPING, Probe, Sample
from ..results.measurement import SingleTimes
from ..results.words import format_time, hazard_rows
from ..units import Floats, Size, format_seconds, format_size, parse_size

ShootdownKind = Literal["unmap", "protect", "dontneed"]
SHOOTDOWN_KINDS = {
    "unmap": "munmap(2) of pages in use",
    "protect": "mprotect(2) of pages in use, to read-only",
    "dontneed": "madvise(MADV_DONTNEED) of pages in use",
}
CALLS_MOST = 4096  # of one measurement


# --- the result ------------------------------------------------------------------------------------------

CALL_PARAMS = Keys(bytes=Bytes, kind=ShootdownKind, step=Bytes, threads=Whole)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ShootdownTimes(SingleTimes):
    """Times of single calls that take pages away, for the caller and for other threads.

    A `Measurement` whose `ns` is a time a call: there are no slices, so `low` and `interval` are ``None``.

    Attributes
    ----------
    ns : ndarray of float64, shape (calls,)
        Nanoseconds of each call for the caller, what reading the clock costs subtracted.
    others : ndarray of float64, shape (threads, calls)
        Nanoseconds that each other thread lost to each call: the longest round of reading its own memory
        that the call fell into, less a quiet round. Other interruptions that fall into a call count too.
    overhead_ns : float
        What reading the clock costs.
    quiet_ns : ndarray of float64, shape (threads,)
        Nanoseconds of a quiet round of each other thread, the median of many.
    """

    kind: ClassVar[str] = "shootdown_times"

    params: Annotated[dict[str, Any], CALL_PARAMS]
    counts: Annotated[dict[str, Any], Keys((), interrupts=Whole)] = field(default_factory=dict)
    others: Annotated[Floats, Spec("ns", ("threads", "times"))]
    quiet_ns: Annotated[Floats, Spec("ns", ("threads",))]
    overhead_ns: Nanoseconds

    @property
    def others_median(self) -> float | None:
        """Median of what one other thread lost to one call, nanoseconds; ``None`` without another thread."""
        return float(np.median(self.others)) if self.others.size else None

    @property
    def subject(self) -> str:
        """What was called, in a few words."""
        params = self.params
        each = format_size(params["step"])
        return (
            f"shootdown: {params['kind']} of {format_size(params['bytes'])} on {self.backing.asked!r} pages, "
            f"{each} a call, {params['threads']} other thread{'s' if params['threads'] != 1 else ''}"
        )

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        yield "what", SHOOTDOWN_KINDS[self.params["kind"]]
        yield "caller", f"{_spread_text(self.ns)} a call"
        for number, lost in enumerate(self.others):
            quiet = f"a quiet round takes {format_time(float(self.quiet_ns[number]))}"
            yield f"thread {number + 1} lost", f"{_spread_text(lost)} a call; {quiet}"
        counted = self.counts.get("interrupts")
        if counted is None:
            yield "interrupts", "not counted: /proc/interrupts has no row of TLB shootdowns here"
        else:
            yield "interrupts", f"{counted:,} TLB shootdowns in {self.ns.size:,} calls, on the whole machine"
        yield "clock", f"{format_time(self.overhead_ns)} a reading, subtracted from the caller's times"
        yield "backing", f"{self.backing}, before the calls"
        yield "set-up", ", ".join(f"{name} {format_seconds(taken)}" for name, taken in self.setup.items())
        for name, reason in self.refused.items():
            yield f"refused {name}", reason
        for warning in self.warnings:
            yield "warning", warning
        yield from hazard_rows(self.hazards)

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the single times."""
        return {
            "probe": self.probe,
            "calls": int(self.ns.size),
            "median_ns": self.median,
            "mean_ns": self.mean,
            "others_median_ns": self.others_median,
            "others_mean_ns": float(self.others.mean()) if self.others.size else None,
            "overhead_ns": self.overhead_ns,
            **self._facts(),
        }


def _spread_text(ns: Floats) -> str:
    low, median, high = (format_time(float(np.quantile(ns, level))) for level in (0.05, 0.5, 0.95))
    return f"5 % {low}, median {median}, 95 % {high}"


# --- the probe -------------------------------------------------------------------------------------------


def shootdown(
    size: Size,
    pages: str | None = None,
    *,
    kind: ShootdownKind = "unmap",
    threads: int | None = None,
    step: Size | None = None,
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    counters: Sequence[str] = (),
) -> ShootdownTimes:
    """Time that taking pages away costs the caller and threads on other CPUs, in nanoseconds a call.

    Whatever changes the page table has to make every CPU that runs the process forget its translations:
    x86-64 interrupts them, aarch64 broadcasts. Everything happens in a process of its own.

    Parameters
    ----------
    size : int or str
        Bytes of memory, each of which is taken away once: ``size // step`` calls, 4096 at most.
    pages : str, optional
        Page policy, see `page_policies`; ``"base"`` by default.
    kind : {"unmap", "protect", "dontneed"}
        munmap(2), mprotect(2) to read-only, or madvise(MADV_DONTNEED).
    threads : int, optional
        Other threads, each on a CPU of its own, that go on reading memory of their own: as many as there are
        other CPUs by default, 0 for none.
    step : int or str, optional
        Bytes of a call: one page of the policy by default, or many.
    strict : bool
        Whether other pages than asked, before the calls, are a `BackingError`; otherwise a warning.
    seed : int
        Taken for the sake of sweeps: nothing here is random.
    cpu : int, optional
        CPU of the caller; the one it runs on by default.
    counters : sequence of str
        Performance counters; each lands in ``.refused`` with its reason.

    Returns
    -------
    ShootdownTimes
        ``ns`` float64 (calls,) of the caller, ``others`` float64 (threads, calls) of the other threads.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong, or there are not so many CPUs: before anything is mapped.
    MemoryError
        If it would not fit, with the figures.
    BackingError
        If the policy is not offered, or the pages are not what was asked, unless ``strict=False``.

    Notes
    -----
    One access is one call. Isolates: with 0 threads the system call and the change of the page table; the
    difference to more threads is the shootdown. Confounded by: an idle sibling or a CPU that a hypervisor has
    taken away answers late; other interruptions of the other threads. Limits: what the others lose is seen to
    the length of a round of their own reading.

    Examples
    --------
    >>> m = shootdown("1MiB", kind="protect", threads=0)
    >>> m.ns.size, m.others.shape
    (256, (0, 256))
    """
    only_here("shootdown")
    policy = find_policy("base" if pages is None else pages)
    common = Common(strict, seed, cpu, counters=counters)
    plan = ShootdownPlan(
        policy, kind, *_checked_sizes(size, policy, kind, step), _callers_and_others(threads, cpu)
    )
    _check_shootdown_fits(plan, strict)
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    before = interrupts()
    found = _shoot_down(plan)
    after = interrupts()
    counted = {} if before is None or after is None else {"interrupts": after - before}
    return _shootdown_times(plan, found, common, started, counted)


@dataclass(frozen=True)
class ShootdownPlan:
    """What will be taken away, and before whose eyes."""

    policy: PagePolicy
    kind: str
    size: int  # bytes
    step: int  # bytes of a call
    cpus: tuple[int, ...]  # of the caller, then of the other threads

    @property
    def mapped(self) -> int:
        """Bytes: whole pages of the policy."""
        return mapped_size(self.size, self.policy)


def _checked_sizes(size: Size, policy: PagePolicy, kind: str, step: Size | None) -> tuple[int, int]:
    """Bytes of all and of a call."""
    check_choice("kind", kind, SHOOTDOWN_KINDS)
    if policy.kind == "collapse":
        raise ValueError(f"pages='collapse' makes no sense here: {COLLAPSE}")
    parsed = parse_size(size)
    page = policy.page_size or paging.base_page_size()
    stepped = page if step is None else parse_size(step, "step")
    least = page if policy.kind == "hugetlb" else paging.base_page_size()
    if stepped % least or stepped > parsed:
        raise ValueError(
            f"step={format_size(stepped)!r} must be a multiple of {format_size(least)}, at most the size of "
            f"{format_size(parsed)}"
        )
    if parsed // stepped > CALLS_MOST:
        raise ValueError(
            f"size={format_size(parsed)!r} is {parsed // stepped} calls of {format_size(stepped)}, more than "
            f"{CALLS_MOST}: at most {format_size(CALLS_MOST * stepped)}, or a larger step"
        )
    return parsed, stepped


def _callers_and_others(threads: int | None, cpu: int | None) -> tuple[int, ...]:
    """The caller's CPU, then those of the others: a CPU each, or they would wait for one another."""
    allowed = os.sched_getaffinity(0)
    own = _core.cpu() if cpu is None else cpu
    others = sorted(allowed - {own})
    most = min(len(others), _core.THREADS_MOST - 1)
    wanted = most if threads is None else threads
    check_whole("threads", wanted, 0, most, f"this process may use {len(allowed)} CPUs, one for each")
    return (own, *others[:wanted])


def _check_shootdown_fits(plan: ShootdownPlan, strict: bool) -> None:
    what = f"shootdown(size={format_size(plan.size)!r}, pages={plan.policy.name!r})"
    check_budget(plan.mapped, plan.policy, what)
    check_offered(plan.policy, what, strict)


def _shoot_down(plan: ShootdownPlan) -> dict[str, Any]:
    """Do it, or raise what went wrong in the process that did it."""
    advice = advice_for(plan.policy)
    found = _core.shootdown(
        plan.kind,
        size=plan.mapped,
        **mapping_request(plan.policy),
        advice=-1 if advice is None else advice,
        step=plan.step,
        calls=plan.size // plan.step,
        cpus=plan.cpus,
    )
    if isinstance(found, tuple):
        raise failure(*found)
    return found


def interrupts(root: files.Root = "/") -> int | None:
    """TLB shootdowns that all CPUs have been interrupted for; ``None`` where that is not counted."""
    try:
        text = Path(root, "proc/interrupts").read_text()
    except OSError:
        return None
    row = re.search(r"^\s*TLB:((?:\s+\d+)+)", text, re.MULTILINE)
    return None if row is None else sum(map(int, row[1].split()))


def _shootdown_times(
    plan: ShootdownPlan, found: dict[str, Any], common: Common, started: str, counted: dict[str, Any]
) -> ShootdownTimes:
    backing = scanned_backing(plan.policy, found["scan"], plan.mapped, found["faults"])
    wrong = complaint(plan.policy, backing)
    if wrong and common.strict:
        raise BackingError(wrong, plan.policy.name, backing)
    quiet: npt.NDArray[np.float64] = found["quiet_ns"].astype(np.float64)
    return ShootdownTimes(
        probe="shootdown",
        ns=found["ns"] - float(found["overhead_ns"]),
        accesses_per_slice=1,
        disturbed=np.zeros(0, np.bool_),
        core_ghz=None,
        setup={step: found[f"{step}_ns"] * 1e-9 for step in ("map", "populate")},
        faults={"minor": None, "major": None, "expected": None},
        params=_shootdown_params(plan, common),
        backing=backing,
        host=recent_record(),
        started=started,
        counts=counted,
        refused=common.uncounted,
        warnings=(wrong,) if wrong else (),
        others=found["others"] - quiet[:, None],
        quiet_ns=quiet,
        overhead_ns=float(found["overhead_ns"]),
    )


def _shootdown_params(plan: ShootdownPlan, common: Common) -> dict[str, Any]:
    return {
        "bytes": plan.size,
        "kind": plan.kind,
        "threads": len(plan.cpus) - 1,
        "step": plan.step,
        "pages": plan.policy.name,
        "strict": common.strict,
        "mapped_bytes": plan.mapped,
        "seed": common.seed,
        "cpu": plan.cpus[0],
    }


PROBE = Probe(
    shootdown,
    ShootdownTimes,
    kernel=None,
    question="what taking pages away costs the caller, and threads on other CPUs",
    word="call",
    sizes=("size", "step"),
    hazards={TIMED: "every call is timed", TRAPPING: "each call enters the kernel"},
    helps={"counters": "performance counters: none can be read around a single call, and the result says so"},
    sample=Sample("64KiB", {"kind": "remap", "threads": -1, "step": 100, "seed": -1}),
)
