"""Counters around slices: opened where they can be had, tried before they are believed, read per access.

What cannot be counted is missing with its reason, in words that a person can act on. In a virtual machine a
counter may open and stay at zero: so each event is tried, once a process, on a chase whose misses are known.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..cores.current import current
from ..cores.simulated import SimulatedCore
from ..machine import cpus, paging
from ..machine.facts import recent_host
from ..memory.region import Region
from ..units import Floats
from .events import (
    CACHE,
    HARDWARE,
    HARDWARE_EVENTS,
    LISTED_EVENTS,
    MEANINGS,
    SOFTWARE_EVENTS,
    Absent,
    Event,
    EventKey,
    Processor,
    announced_events,
    expand,
    find,
    processor,
)
from .pmus import CORE
from .simulated import counted_as, find_simulated

Counts = npt.NDArray[np.int64]


# --- why not ---------------------------------------------------------------------------------------------

UNSUPPORTED = (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL)
KERNEL_HIDDEN = "sudo sysctl kernel.perf_event_paranoid=1"


def why_refused(event: Event, code: int, host: Mapping[str, Any]) -> Absent:
    """Why the kernel refused an event, and the command that would allow it.

    Parameters
    ----------
    event : Event
        Which one.
    code : int
        The errno of perf_event_open.
    host : mapping
        Facts of the machine by name.

    Returns
    -------
    Absent
    """
    reasons: dict[int, Callable[[Event, Mapping[str, Any]], tuple[str, str]]] = {
        errno.EACCES: _not_permitted,
        errno.EPERM: _filtered,
        **dict.fromkeys(UNSUPPORTED, _not_there),
    }
    plain = {
        errno.ENOSYS: ("this kernel, or the sandbox that we run in, has no perf_event_open", ""),
        errno.EMFILE: ("this process has as many files open as it may", "ulimit -n 4096"),
        errno.ENFILE: ("the machine has as many files open as it may", "sudo sysctl fs.file-max=1000000"),
        errno.EBUSY: ("another program holds the counters for itself alone", ""),
        errno.ESRCH: ("there is no such thread any more", ""),
    }
    unknown = (f"perf_event_open: {os.strerror(code)} (errno {code})", "")
    reason = reasons[code](event, host) if code in reasons else plain.get(code, unknown)
    return Absent(event.name, *reason, meaning=event.meaning)


def _not_permitted(_: Event, host: Mapping[str, Any]) -> tuple[str, str]:
    level = host.get("perf.paranoid")
    if isinstance(level, int) and level >= 3:
        return (
            f"kernel.perf_event_paranoid is {level}: no counters without privilege",
            "sudo sysctl kernel.perf_event_paranoid=2",
        )
    shown = "unknown" if level is None else level
    return f"not permitted to this user (kernel.perf_event_paranoid is {shown})", KERNEL_HIDDEN


def _filtered(_: Event, host: Mapping[str, Any]) -> tuple[str, str]:
    if host.get("process.seccomp") != "filter":
        return "a security module or a locked-down kernel refuses perf_event_open", ""
    kind = host.get("container.kind")
    if kind in ("docker", "podman"):
        return f"the seccomp filter of {kind} refuses perf_event_open", f"{kind} run --cap-add PERFMON ..."
    return "a seccomp filter refuses perf_event_open", ""


def _not_there(event: Event, host: Mapping[str, Any]) -> tuple[str, str]:
    if event.software:
        return "this kernel does not count it", ""
    unit, written, _ = event.encoding.partition("/")
    if written and not CORE.fullmatch(unit):
        return (
            f"the PMU {unit!r} refuses it: no such event, or none of one thread, or none without the kernel",
            "",
        )
    pmu = host.get("perf.pmu")
    if pmu not in (None, "none"):
        return f"the PMU here ({pmu}) has no such event", ""
    if host.get("virtualisation.guest"):
        return (
            "there is no PMU: the hypervisor gives this virtual machine none",
            "on its host, give it one, as with qemu -cpu host,pmu=on",
        )
    return "the kernel shows no PMU: the processor, the firmware or a hypervisor has none for it", ""


def _hidden_kernel(event: Event) -> Absent:
    reason = "it happens in the kernel, and kernel.perf_event_paranoid lets us count user space alone"
    return Absent(event.name, reason, KERNEL_HIDDEN, event.meaning)


# --- opening ---------------------------------------------------------------------------------------------


@dataclass
class Allowed:
    """Events that the kernel lets us open, and why it does not the others."""

    events: list[Event] = field(default_factory=list)
    absent: dict[str, Absent] = field(default_factory=dict)
    user_only: bool = False  # the kernel must be left out


def _attempt(event: Event, user_only: bool) -> int:
    """0, or the errno that opening it ends with."""
    try:
        _core.CounterGroup([event.key], exclude_kernel=user_only).close()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def allowed(wanted: Iterable[Event | Absent]) -> Allowed:
    """Try to open each event by itself: with the kernel counted, else without it."""
    found = Allowed()
    for event in wanted:
        if isinstance(event, Absent):
            found.absent[event.name] = event
            continue
        code = _attempt(event, False)
        if code == errno.EACCES:
            code = _attempt(event, True)
            found.user_only |= code == 0
        if code:
            found.absent[event.name] = why_refused(event, code, recent_host())
        else:
            found.events.append(event)
    if found.user_only:
        hidden = [event for event in found.events if event.kernel_only]
        found.absent |= {event.name: _hidden_kernel(event) for event in hidden}
        found.events = [event for event in found.events if not event.kernel_only]
    return found


TURN_SECONDS = 0.02  # in which the kernel gives counters that others use to everybody: some turns of it

Groups = tuple[_core.CounterGroup, ...]  # as a session takes them


class Group(NamedTuple):
    """Events that are counted together."""

    events: tuple[Event, ...]
    counters: _core.CounterGroup


def _open_fitting(events: tuple[Event, ...], user_only: bool) -> Group | None:
    """A group that the hardware has room for: one that has none may open all the same, and never run."""
    try:
        counters = _core.CounterGroup([event.key for event in events], exclude_kernel=user_only)
    except (OSError, ValueError):
        return None
    counters.enable()
    end = time.perf_counter() + TURN_SECONDS
    while not (fits := counters.read()[1] > 0) and time.perf_counter() < end:
        pass
    counters.disable()
    if fits:
        return Group(events, counters)
    counters.close()
    return None


@dataclass
class Packed:
    """Groups that are open, software first, and events that got no counter."""

    groups: list[Group] = field(default_factory=list)
    absent: dict[str, Absent] = field(default_factory=dict)

    def close(self) -> None:
        """Give the counters back."""
        for group in self.groups:
            group.counters.close()


def pack(events: Sequence[Event], user_only: bool) -> Packed:
    """Open events in as few groups as the hardware has room for; those of software apart."""
    packed = Packed()
    for software in (True, False):
        last: Group | None = None
        for event in (one for one in events if one.software is software):
            larger = _open_fitting((*last.events, event), user_only) if last else None
            if last and larger:
                last.counters.close()
                packed.groups.remove(last)
            last = larger or _open_fitting((event,), user_only)
            if last:
                packed.groups.append(last)
            else:
                packed.absent[event.name] = _without_counter(event)
    return packed


def _without_counter(event: Event) -> Absent:
    watchdog = recent_host().get("perf.nmi_watchdog") is True
    holder = "the NMI watchdog or another program" if watchdog else "another program"
    reason = f"it opens, and never gets a counter: {holder} holds them"
    command = "sudo sysctl kernel.nmi_watchdog=0" if watchdog else ""
    return Absent(event.name, reason, command, event.meaning)


# --- values ----------------------------------------------------------------------------------------------


def scaled(values: Counts, enabled: Counts, running: Counts) -> Floats:
    """Values as if they had had a counter all the time; NaN where they never had one: that is not zero."""
    factor = np.full(np.shape(enabled), math.nan)
    np.divide(enabled, running, out=factor, where=np.asarray(running) > 0)
    return np.asarray(values * factor)


class Column(NamedTuple):
    """One event over the slices of a run."""

    per_access: Floats
    ran: float  # share of the time it was enabled that it had a counter; NaN: it had no turn


def columns(counted: Counts, groups: Sequence[Sequence[Event]], accesses: int) -> dict[str, Column]:
    """Counts per access of each event, from the rows of the slices of one run.

    Parameters
    ----------
    counted : ndarray of int64, shape (slices, columns)
        Of each group the nanoseconds that it was enabled and that it had counters, then its values.
    groups : sequence of sequence of Event
        Whose.
    accesses : int
        In a slice.

    Returns
    -------
    dict of str to Column
    """
    found: dict[str, Column] = {}
    first = 0
    for events in groups:
        enabled, running = counted[:, first], counted[:, first + 1]
        ran = float(running.sum() / enabled.sum()) if enabled.any() else math.nan
        for number, event in enumerate(events, first + 2):
            values = scaled(counted[:, number], enabled, running) / accesses
            found[event.name] = Column(values, ran)
        first += 2 + len(events)
    return found


# --- the proof of a counter ------------------------------------------------------------------------------

FAR_PAGES = 8192  # twice as many as any data TLB has entries: half of the loads must miss them all
NEAR_PAGES = 512  # more than any first level holds, fewer than any second
STORE_PAGES = 17  # from one store to the next: no prefetcher follows, and all pages have their turn
TRIED_ACCESSES = FAR_PAGES
TRIED_ROUNDS = 2  # in each turn of the groups


class EventTrial(NamedTuple):
    """Counts of one event (NaN: it had no counter) and nanoseconds, per access of three pieces of work."""

    far: float  # dependent loads, one a page, from FAR_PAGES
    near: float  # from NEAR_PAGES
    stores: float  # independent stores, each to another of FAR_PAGES
    far_ns: float
    near_ns: float
    stores_ns: float


class EventVerdict(NamedTuple):
    """What became of a trial."""

    status: str  # "counts", "dead" or "untried"
    evidence: str


class Known(NamedTuple):
    """What an event must count on a piece of work, for an access or for a nanosecond of it."""

    work: str
    least: float
    most: float
    says: str
    unit: str = "access"
    less_near: bool = False  # and less where the second-level TLB holds all


HALF_MISS = f"loads from {FAR_PAGES} pages in random order, of which at least half miss every TLB"
NEARBY = f"loads from {NEAR_PAGES} pages in random order, which no first-level TLB holds"
STORING = f"stores to {FAR_PAGES} pages in turn, which miss every TLB"
MOST = 100  # of anything that happens to an access
CYCLES_A_NS = 10  # cycles of a nanosecond
WALKERS = 8  # page walks at the same time
KNOWN: dict[str, Known] = {
    "cycles": Known("far", 0.05, CYCLES_A_NS, "dependent loads", "ns"),
    "instructions": Known("far", 1, MOST, "dependent loads, each an instruction"),
    "loads": Known("far", 0.9, MOST, "dependent loads"),
    "stores": Known("stores", 0.9, MOST, "stores"),
    "walks": Known("far", 0.2, MOST, HALF_MISS, less_near=True),
    "walk_cycles": Known("far", 0.002, CYCLES_A_NS * WALKERS, HALF_MISS, "ns", less_near=True),
    "store_walks": Known("stores", 0.2, MOST, STORING),
    "store_walk_cycles": Known("stores", 0.002, CYCLES_A_NS * WALKERS, STORING, "ns"),
    "first_level_misses": Known("near", 0.1, MOST, NEARBY),
    "stall": Known("far", 1e-6, MOST * CYCLES_A_NS, "loads that wait for each other", "ns"),
}
OF_BASE_PAGES = "_of_base_pages"  # kinds that say 4 KiB
NO_COUNTER = "it had no counter when it was tried"
UNTRIED = EventVerdict("untried", "nothing here makes it count by construction")


def judge_event(
    event: Event, trial: EventTrial, control: EventVerdict | None = None, base_page: int = 4096
) -> EventVerdict:
    """Say whether a counter is to be believed.

    Parameters
    ----------
    event : Event
        Its kind says what it must count.
    trial : EventTrial
        What it did count.
    control : EventVerdict, optional
        What became of the cycles: where not even they count, nothing does.
    base_page : int
        Bytes of the pages of the trial.

    Returns
    -------
    EventVerdict
        That it counts; that it is dead, with the evidence; or untried, where nothing is known of its kind.
    """
    kind = event.kind.replace(OF_BASE_PAGES, "") if base_page == 4096 else event.kind
    if kind in KNOWN:
        return _verdict(KNOWN[kind], trial)
    if control is not None and control.status == "dead":
        return EventVerdict("dead", f"not even cycles count here: {control.evidence}")
    return UNTRIED


def _verdict(known: Known, trial: EventTrial) -> EventVerdict:
    found, ns = getattr(trial, known.work), getattr(trial, f"{known.work}_ns")
    rate = found / ns if known.unit == "ns" else found
    evidence = f"{rate:.3g} for each {known.unit} of {known.says}"
    if math.isnan(found):
        return EventVerdict("untried", NO_COUNTER)
    if found == 0:
        return EventVerdict("dead", f"it stays at 0 over {TRIED_ROUNDS * TRIED_ACCESSES} {known.says}")
    if rate < known.least:
        return EventVerdict("dead", f"it counts too little: {evidence}")
    if rate > known.most:
        return EventVerdict("dead", f"it counts the impossible: {evidence}")
    if known.less_near and trial.near >= found:
        near = f"and no less, {trial.near:.3g}, from {NEAR_PAGES} pages, which the second-level TLB holds"
        return EventVerdict("dead", f"it counts {found:.3g} for each of {known.says}, {near}")
    return EventVerdict("counts", evidence)


_verdicts: dict[tuple[EventKey, bool], EventVerdict] = {}  # of this process, by what the kernel was given


def forget_trials() -> None:
    """Try every event again when it is next asked for."""
    _verdicts.clear()


def prove(events: Sequence[Event], user_only: bool, on: Processor) -> dict[str, EventVerdict]:
    """Try hardware events that were not tried before in this process; their verdicts by name."""
    hardware = [event for event in events if not event.software]
    new = {event.key: event for event in hardware if (event.key, user_only) not in _verdicts}
    found = _judge_new(new, user_only, on) if new else {}
    done = {key: one for key, one in found.items() if one == UNTRIED or one.status != "untried"}
    _verdicts.update({(key, user_only): verdict for key, verdict in done.items()})
    return {event.name: found.get(event.key) or _verdicts[event.key, user_only] for event in hardware}


def _judge_new(new: Mapping[EventKey, Event], user_only: bool, on: Processor) -> dict[EventKey, EventVerdict]:
    cycles = Event("control", "", HARDWARE, on.generic(0), kind="cycles")
    trials, why_not = _try_out({cycles.key: cycles, **new}, user_only)
    control = judge_event(cycles, trials[cycles.key]) if cycles.key in trials else None
    found = dict.fromkeys(new, EventVerdict("untried", why_not))
    for key in new.keys() & trials.keys():
        of_core = new[key].type in (HARDWARE, CACHE, on.raw_type)
        found[key] = judge_event(new[key], trials[key], control if of_core else None, paging.base_page_size())
    return found


def _try_out(events: Mapping[EventKey, Event], user_only: bool) -> tuple[dict[EventKey, EventTrial], str]:
    """Count the three pieces of work; where that cannot be, say why."""
    packed = pack([event for event in events.values() if not _attempt(event, user_only)], user_only)
    if not packed.groups:
        return {}, NO_COUNTER
    try:
        work = _known_work(packed.groups)
    except (MemoryError, OSError, RuntimeError) as error:
        return {}, f"it could not be tried: {error}"
    finally:
        packed.close()
    times = [done.ns for done in work]
    counted = {event.key: event.name for group in packed.groups for event in group.events}
    trials = {
        key: EventTrial(*(done.counts[name] for done in work), *times)  # in the order of its fields
        for key, name in counted.items()
    }
    return trials, NO_COUNTER


class Work(NamedTuple):
    """What a piece of work took and counted, per access."""

    ns: float
    counts: dict[str, float]


def _known_work(groups: Sequence[Group]) -> tuple[Work, Work, Work]:
    """Do the three pieces of work: far, near and stores."""
    page, line = paging.base_page_size(), paging.cache_line_size()
    spread = {"spacing": page, "pages": 1, "lines": page // line, "line": line, "seed": 1}
    far, near = (
        {**spread, "nodes": pages, "window": pages, "chains": 1, "store": 0}
        for pages in (FAR_PAGES, NEAR_PAGES)
    )
    stores = {"stride": STORE_PAGES * page + line, "access": 1}
    span, more = FAR_PAGES * page, NEAR_PAGES * page
    with Region(span + more) as region:
        loading = _count(groups, (region, "chase", 0, span, far), (region, "chase", span, more, near))
        storing = _count(groups, (region, "stride", 0, span, stores))
    return loading[0], loading[1], storing[0]


def _count(groups: Sequence[Group], *parts: Any) -> list[Work]:
    turns = max(1, sum(not group.events[0].software for group in groups))
    counters = tuple(group.counters for group in groups)
    with _core.Session(parts) as session:
        measured = session.measure((TRIED_ACCESSES,) * len(parts), TRIED_ROUNDS * turns, counters)
    events = [group.events for group in groups]
    done = []
    for ns, counted in zip(measured["ns"], measured["counted"], strict=True):
        counts = columns(counted, events, TRIED_ACCESSES)
        means = {name: _mean(column.per_access) for name, column in counts.items()}
        done.append(Work(float(np.median(ns)) / TRIED_ACCESSES, means))
    return done


def _mean(values: Floats) -> float:
    """Mean of the values that are there; NaN if none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


# --- around a measurement --------------------------------------------------------------------------------


@dataclass
class Counting:
    """Counters that are open for a measurement, and why others are not."""

    groups: list[Group] = field(default_factory=list)
    absent: dict[str, Absent] = field(default_factory=dict)
    user_only: bool = False

    @property
    def open(self) -> Groups:
        """As a session takes them."""
        return tuple(group.counters for group in self.groups)

    def read(self, counted: Counts | None, accesses: int) -> Read:
        """Values of one run, per access."""
        found = Read(refused={name: str(absent) for name, absent in self.absent.items()})
        if counted is None:
            return found
        groups = [group.events for group in self.groups]
        for name, (values, ran) in columns(counted, groups, accesses).items():
            if np.isnan(values).all():
                found.refused[name] = self._no_turn(len(counted)) if math.isnan(ran) else NO_COUNTER_FREE
                continue
            found.values[name] = values
            if ran < 1:
                found.warnings.append(
                    f"{name} had a counter for {ran:.1%} of the time, since others use them: its values are "
                    "scaled"
                )
        if self.user_only and found.values:
            found.warnings.append(USER_ONLY)
        return found

    def _no_turn(self, slices: int) -> str:
        return (
            f"it had no turn: {len(self.groups)} groups of counters take turns, a slice each, and there were "
            f"{slices} slices; ask for fewer counters, or for more accesses"
        )


NO_COUNTER_FREE = "it never had a counter in the timed part: others use them"
USER_ONLY = (
    "counters counted user space alone, since kernel.perf_event_paranoid hides the kernel; to count it too: "
    f"{KERNEL_HIDDEN}"
)


@dataclass
class Read:
    """What counters say of one run."""

    values: dict[str, Floats] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@contextlib.contextmanager
def open_counters(names: Sequence[str], cpu: int) -> Iterator[Counting]:
    """Open counters for this thread, which is pinned to a CPU, and close them afterwards.

    Parameters
    ----------
    names : sequence of str
        Events, as `events.find` takes them, or ``"tlb"``.
    cpu : int
        Which CPU.

    Yields
    ------
    Counting
    """
    core = current()
    if isinstance(core, SimulatedCore):
        with _counting_simulated(names, core) as counting:
            yield counting
        return
    on = processor("/", cpu)
    found = allowed(find(name, on) for name in expand(names, on))
    verdicts = prove(found.events, found.user_only, on)
    dead = {name: verdict for name, verdict in verdicts.items() if verdict.status == "dead"}
    absent = {name: Absent(name, f"dead here: {verdict.evidence}") for name, verdict in dead.items()}
    packed = pack([event for event in found.events if event.name not in dead], found.user_only)
    try:
        yield Counting(packed.groups, {**found.absent, **absent, **packed.absent}, found.user_only)
    finally:
        packed.close()


@contextlib.contextmanager
def _counting_simulated(names: Sequence[str], core: SimulatedCore) -> Iterator[Counting]:
    """Groups of what a simulated processor counts: there are always counters enough."""
    found = list(find_simulated(names, core))
    events = [event for event in found if isinstance(event, Event)]
    with contextlib.ExitStack() as stack:
        groups = []
        for first in range(0, len(events), _core.EVENTS_MOST):
            some = tuple(events[first : first + _core.EVENTS_MOST])
            counters = stack.enter_context(core.counter_group([event.encoding for event in some]))
            groups.append(Group(some, counters))
        yield Counting(groups, {one.name: one for one in found if isinstance(one, Absent)})


# --- all there are ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CounterEvent:
    """An event that a measurement may count, and what became of it here.

    Attributes
    ----------
    name : str
        As ``counters=`` takes it.
    status : str
        ``"counts"``: it proved itself, or the kernel counts it; ``"untried"``: it opens, and nothing here
        makes it count by construction; ``"dead"``: it opens and does not count; ``"refused"``.
    meaning : str
        What it counts on this processor.
    encoding, source : str
        As perf writes it, and where that is from; empty where this processor has none.
    reason : str
        Evidence of the trial, or why it is refused.
    command : str
        That would allow it; empty where there is none.
    """

    name: str
    status: str
    meaning: str
    encoding: str = ""
    source: str = ""
    reason: str = ""
    command: str = ""

    def __str__(self) -> str:
        remedy = f"\n    {self.command}" if self.command else ""
        return f"{self.name}: {self.status}: {self.reason or self.meaning}{remedy}"


def events(cpu: int | None = None, names: Sequence[str] = ()) -> list[CounterEvent]:
    """Events that ``counters=`` takes by name, what they count here, and which do not and why.

    Opens each, and tries those of the hardware on a chase whose misses are known: a tenth of a second.

    Parameters
    ----------
    cpu : int, optional
        CPU whose events are meant, where there are several kinds of core; the current one by default.
    names : sequence of str, optional
        Those alone, as ``counters=`` takes them; all that there are, by default.

    Returns
    -------
    list of CounterEvent
        By meaning first, then the kernel's names of what concerns translation, the kernel's software events,
        and what the kernel announces for the PMU.

    Examples
    --------
    >>> {event.status for event in events()} <= {"counts", "untried", "dead", "refused"}
    True
    """
    cpus.check_cpu(cpu)
    core = current()
    if isinstance(core, SimulatedCore):
        every = find_simulated(names or [*counted_as(core.description), "instructions"], core)
        return [_event_here(one, one if isinstance(one, Absent) else None, None) for one in every]
    with cpus.pinned(cpu) as number:
        on = processor("/", number)
        wanted = [find(name, on) for name in expand(names, on)] if names else _everything(on)
        found = allowed(wanted)
        verdicts = prove(found.events, found.user_only, on)
    return [_event_here(event, found.absent.get(event.name), verdicts.get(event.name)) for event in wanted]


def whose_events(cpu: int | None = None) -> str:
    """What counts the events of a CPU: its design, and its PMU."""
    if current().name:
        return f"{current()}: everything is counted, exactly"
    number = _core.cpu() if cpu is None else cpu
    on = processor("/", number)
    unit = f"PMU {on.pmu.name}" if on.pmu else "no PMU to be seen"
    return f"CPU {number}: {on.label}, {unit}"


def _everything(on: Processor) -> list[Event | Absent]:
    names = dict.fromkeys((*MEANINGS, *LISTED_EVENTS, *HARDWARE_EVENTS, *SOFTWARE_EVENTS))
    more = (event for event in announced_events(on) if event.name not in names)
    return [*(find(name, on) for name in names), *more]


def _event_here(event: Event | Absent, absent: Absent | None, verdict: EventVerdict | None) -> CounterEvent:
    encoding, source = (event.encoding, event.source) if isinstance(event, Event) else ("", "")
    status, reason = verdict or EventVerdict("counts", "")
    if absent is not None:
        status, reason = "refused", absent.reason
    command = absent.command if absent else ""
    return CounterEvent(event.name, status, event.meaning, encoding, source, reason, command)
