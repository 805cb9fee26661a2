"""A program as it runs: time, faults, memory and its pages, counters, and whether translation binds it."""

from __future__ import annotations

import errno
import functools
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from ..checks import check_flag, check_number
from ..cores.current import only_here
from ..declared import Bytes, Keys, Seconds, Share, Spec, Whole
from ..machine import facts, paging
from ..measuring.point import checked_counters
from ..results.result import StrPath, load_as, package_version
from ..results.table import Table, tabulate
from ..results.words import recorded_host, refused_rows
from ..units import Floats, Ints, approximate_size, format_seconds, printable
from .accessed import why_touched_is_unknown
from .counted import PROGRAM_COUNTERS, Counted, counting_program
from .launching import Ended, Launched, Word, checked_argv, now_ns
from .processes import (
    ALIVE_SECONDS,
    Memory,
    Switches,
    Usage,
    check_pid,
    read_memory,
    read_name,
    read_switches,
    read_usage,
    tick,
    whose_program,
)
from .sampling import LOOK_SECONDS, ROUNDED, Sampler
from .verdicts import Verdict, judge_run

SAMPLE_SECONDS = 0.01  # seconds between samples, where they do not cost too much
SampledBytes = Annotated[Ints, Spec("B", ("samples",), least=0)]
Counters = dict[str, Annotated[float, Spec("events", least=0)]]
SAMPLING = Keys(
    ("seconds",), seconds=Seconds, interval=Seconds, processes=Annotated[float, Spec(least=0)], stopped=Share
)
FIGURES = Keys(  # of an earlier run, as far as anything is made of them
    ("wall_seconds", "counters"),
    wall_seconds=Seconds,
    cpu_seconds=Seconds | None,
    minor=Whole | None,
    peak_bytes=Bytes | None,
    counters=Counters,
)


@dataclass(frozen=True, eq=False, repr=False)
class ProgramRun(Table):
    """One run of a program, or a while of one that was running already.

    Attributes
    ----------
    program : str
        Its name, without folder and arguments, which are nobody else's business.
    attached : bool
        Whether it ran already: figures are then of the time for which it was watched.
    status, signal : int or None
        Exit status, or the signal that ended it; both ``None`` for one that was attached to.
    wall, user, system : float
        Seconds: of the clock, and of processors, its children included; the latter two ``None`` where they
        are not known.
    faults, switches : dict
        ``minor`` and ``major`` page faults, ``voluntary`` and ``involuntary`` context switches; ``None``: not
        known.
    peak : int or None
        Most bytes that it had in memory at once, as far as that was seen: of several processes at least that.
    seconds, processes : ndarray, shape (samples,)
        When each sample was taken, and how many processes it is of: the program and its descendants.
    resident, proportional, huge : ndarray of int64, shape (samples,)
        Bytes in memory; the same with shared pages divided by those who share; bytes mapped by huge pages.
    touched : ndarray of float64, shape (samples,)
        Bytes touched in the 20 ms before the sample; NaN where nobody looked.
    sampling : dict
        ``seconds`` of a processor that all samples took, the ``interval`` between them, at least, the most
        ``processes`` that were seen at once, and the share of looks that found it ``stopped``.
    uncounted : float or None
        Seconds of processors that `user` and `system` may lack: times of a program that ran already are in
        clock ticks; ``None``: unknown, since processes ended that nobody waited for, or still run.
    counters : dict of str to float
        Hardware counters by name.
    refused : dict of str to str
        Why each other one, or `touched`, is missing.
    against : dict or None
        Figures of the run that it was compared with.
    host : dict
        Facts of the machine.
    started, version : str
        Start in UTC (ISO 8601), version of tlbprobe.
    warnings : tuple of str
        What a reader must know.
    """

    kind: ClassVar[str] = "program_run"

    program: str
    attached: bool
    status: Annotated[int, Spec()] | None
    signal: Annotated[int, Spec()] | None
    wall: Seconds
    user: Seconds | None
    system: Seconds | None
    faults: Annotated[dict[str, int | None], Keys(minor=Whole | None, major=Whole | None)]
    switches: dict[str, Whole | None]
    peak: Bytes | None
    seconds: Annotated[Floats, Spec("s", ("samples",), least=0)]
    processes: Annotated[Ints, Spec("", ("samples",), least=0)]
    resident: SampledBytes
    proportional: SampledBytes
    huge: SampledBytes
    touched: Annotated[Floats, Spec("B", ("samples",), least=0, gaps=True)]
    sampling: Annotated[dict[str, float], SAMPLING]
    host: dict[str, Any]
    started: str
    version: str = field(default_factory=package_version)
    counters: Counters = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    against: Annotated[dict[str, Any], FIGURES] | None = None
    uncounted: Seconds | None = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def huge_share(self) -> float | None:
        """Share of its memory on huge pages, 0 to 1, over time; ``None`` without a sample."""
        if not self.seconds.size:
            return None
        lasted = np.diff(self.seconds, append=max(self.wall, float(self.seconds[-1])))
        whole = float(np.dot(self.resident, lasted))
        return float(np.dot(self.huge, lasted)) / whole if whole else None

    @property
    def touched_bytes(self) -> float | None:
        """Median of the bytes that it touched in 20 ms; ``None`` where nobody looked."""
        known = self.touched[np.isfinite(self.touched)]
        return float(np.median(known)) if known.size else None

    @property
    def looks(self) -> int:
        """How often somebody looked at what it touches."""
        return int(np.isfinite(self.touched).sum())

    @property
    def walk_share(self) -> float | None:
        """Share of the cycles in which a page walk was active: an upper bound of what translation cost."""
        return self._quotient("walk_active", "cycles")

    @property
    def ipc(self) -> float | None:
        """Instructions per cycle."""
        return self._quotient("instructions", "cycles")

    def _quotient(self, part: str, whole: str) -> float | None:
        if part not in self.counters or not self.counters.get(whole):
            return None
        return self.counters[part] / self.counters[whole]

    @functools.cached_property
    def figures(self) -> dict[str, Any]:
        """What a verdict goes by, and what another run may be compared with."""
        host = recorded_host(self.host)
        base = paging.base_page_size()
        reach = host.tlb_reach(int(host.get("pages.base") or base)) if host else {}
        return {
            "program": self.program,
            "wall_seconds": self.wall,
            "cpu_seconds": None if self.user is None or self.system is None else self.user + self.system,
            "user_seconds": self.user,
            "system_seconds": self.system,
            **self.faults,
            **self.switches,
            "uncounted_seconds": self.uncounted,
            "stopped": self.sampling.get("stopped", 0.0),
            "processes": self.sampling.get("processes"),
            "peak_bytes": self.peak,
            "huge_share": self.huge_share,
            "touched_bytes": self.touched_bytes,
            "looks": self.looks,
            "reach_bytes": reach[max(reach)] if reach else None,
            "guest": host is None or host.get("virtualisation.guest") is not False,
            "counters": dict(self.counters),
        }

    @functools.cached_property
    def verdict(self) -> Verdict:
        """Whether translation binds it, with the evidence."""
        return judge_run(self.figures, self.against)

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return one row a sample, a structured array.

        Returns
        -------
        ndarray, shape (samples,)
            Columns ``seconds``, ``processes``, ``resident``, ``proportional``, ``huge``, ``touched`` (bytes).
        """
        return tabulate({name: getattr(self, name).tolist() for name in self.arrays})

    @property
    def subject(self) -> str:
        """What ran, in a few words."""
        return f"{self.program}, which ran already" if self.attached else f"run of {self.program}"

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        yield "verdict", str(self.verdict)
        for text in self.verdict.evidence:
            yield "because", text
        for text in self.verdict.missing:
            yield "to know more", text
        if not self.attached:
            yield "ended", f"by {signal_name(self.signal)}" if self.signal else f"exit status {self.status}"
        times = {"wall": self.wall, "user": self.user, "system": self.system}
        yield "time", ", ".join(f"{name} {_time_text(seconds)}" for name, seconds in times.items())
        yield "page faults", _counts_text(self.faults)
        yield "context switches", _counts_text(self.switches)
        yield "peak memory", self._peak_text()
        yield from self._memory_rows()
        for name, value in self.counters.items():
            yield name, f"{value:,.0f}"
        for name, quotient in (("walk share", self.walk_share), ("ipc", self.ipc)):
            if quotient is not None:
                yield name, f"{quotient:.3f}"
        yield from self._against_rows()
        for text in refused_rows(self.refused):
            yield "refused", text
        for warning in self.warnings:
            yield "warning", warning

    def _peak_text(self) -> str:
        if self.peak is None:
            return "not known"
        size = approximate_size(self.peak)
        many = self.sampling.get("processes", 1) > 1
        return f"at least {size}: samples of all its processes" if many else size

    def _memory_rows(self) -> Iterator[tuple[str, str]]:
        if self.huge_share is None:
            return
        most = approximate_size(float(self.huge.max()))
        yield "on huge pages", f"{self.huge_share:.1%} of its memory over time, at most {most}"
        if self.touched_bytes is not None:
            looks = f"in {format_seconds(LOOK_SECONDS)}, median of {self.looks} look{'s' * (self.looks > 1)}"
            yield "touched", f"{approximate_size(self.touched_bytes)} {looks}"
        if self.sampling.get("processes", 1) > 1:
            yield "processes", f"{self.sampling['processes']:.0f} at once"
        taken = self.sampling["seconds"]
        share = f" ({taken / self.wall:.2%} of the time)" if self.wall else ""
        yield "samples", f"{self.seconds.size}, which took {format_seconds(taken)}{share}"

    def _against_rows(self) -> Iterator[tuple[str, str]]:
        if self.against is None:
            return
        other = printable(str(self.against.get("program")))
        for name, (text, written) in COMPARED.items():
            now, before = self.figures.get(name), self.against.get(name)
            if now is not None and before:
                yield f"{text}, against", f"{now / before:.3f} times the {written(before)} of {other}"
        yield "against", "one run each: whatever differs by little says nothing"
        if other != self.program:
            yield "against", f"the other run is of another program, {other}"

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the samples."""
        return {
            **self.figures,
            "attached": self.attached,
            "status": self.status,
            "signal": self.signal and signal_name(self.signal),
            "huge_bytes": int(self.huge.max()) if self.huge.size else None,
            "processes": int(self.processes.max()) if self.processes.size else None,
            "samples": self.seconds.size,
            "sampling": self.sampling,
            "walk_share": self.walk_share,
            "ipc": self.ipc,
            **self.plain("refused", "against"),
            "verdict": self.verdict.to_dict(),
            **self.plain("warnings", "started", "version"),
        }


COMPARED: dict[str, tuple[str, Callable[[float], str]]] = {
    "wall_seconds": ("wall time", format_seconds),
    "cpu_seconds": ("CPU time", format_seconds),
    "minor": ("page faults", "{:,}".format),
    "peak_bytes": ("peak", approximate_size),
}


def program_name(path: bytes) -> str:
    """Name of a program without its folder."""
    return printable(Path(os.fsdecode(path)).name)


def signal_name(number: int | None) -> str:
    """Name of a signal, or its number where it has none."""
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def _time_text(seconds: float | None) -> str:
    return "unknown" if seconds is None else format_seconds(seconds)


def _counts_text(counts: Mapping[str, int | None]) -> str:
    return ", ".join(
        f"{'unknown' if count is None else f'{count:,}'} {name}" for name, count in counts.items()
    )


def stat(
    argv: Sequence[Word] = (),
    *,
    pid: int | None = None,
    counters: Sequence[str] = PROGRAM_COUNTERS,
    interval: float = SAMPLE_SECONDS,
    seconds: float | None = None,
    touched: bool | None = None,
    against: StrPath | ProgramRun | None = None,
) -> ProgramRun:
    """Run a program and watch it, or watch one that runs: time, memory and its pages, what binds it.

    The program runs as it would without us: the same terminal, streams and signals, and no shell. Its memory
    is sampled with that of its descendants. A sample walks page tables, so it is timed, and the next one
    waits for 99 times as long.

    Parameters
    ----------
    argv : sequence of str, bytes or path
        The command: a program of PATH or of a path, and its arguments.
    pid : int, optional
        A program that runs already, instead of a command: watched until it ends, for `seconds`, or until
        Ctrl-C, which here is no error.
    counters : sequence of str
        Performance counters of the program and its later children; the result says why one is missing.
    interval : float
        Seconds from one sample to the next, at least.
    seconds : float, optional
        How long to watch a program that runs already.
    touched : bool, optional
        Whether to look now and then at how much it touches, by clearing the accessed bits of its pages; by
        default of a command, and not of a program that runs already. It is tried first on a program of known
        behaviour, and refused where these bits are not real.
    against : path or ProgramRun, optional
        An earlier run to compare with.

    Returns
    -------
    ProgramRun
        ``.verdict`` says whether translation binds it, ``.plot()`` draws memory over time.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong: before anything runs.
    OSError
        If the program cannot be run or watched; ``errno`` and the text say why.

    Notes
    -----
    Figures of a command are exact: what the kernel counted for it and for those of its children that it
    waited for. Those of a program that runs already are differences, times in steps of a clock tick; where it
    ended meanwhile, they and `wall` are up to the last look at it. What a child used that nobody waited for
    is missing, and where that was seen, there is a warning.

    Limits: a daemon whose parent ended before a sample saw it is not found. Pages that several processes
    share count once for each of them in ``resident`` and ``huge``. `peak` is exact where one process had more
    than a new process has of its parent; otherwise it is the most that a sample saw.

    Examples
    --------
    >>> import sys
    >>> run = stat([sys.executable, "-c", "print(6 * 7)"])
    >>> run.status, run.faults["minor"] > 0
    (0, True)
    """
    only_here("stat")
    return watch(argv, Watched(pid, counters, interval, seconds, touched, against))


@dataclass(frozen=True)
class Watched:
    """What `stat` was asked, checked."""

    pid: int | None
    counters: Sequence[str]
    interval: float
    seconds: float | None
    touched: bool | None
    against: StrPath | ProgramRun | None

    def __post_init__(self) -> None:
        if self.pid is not None:
            check_pid(self.pid)
        check_number("interval", self.interval, float("inf"), "seconds from one sample to the next")
        if self.seconds is not None:
            meaning = "how long to watch a program that runs already"
            check_number("seconds", self.seconds, float("inf"), meaning)
            if self.pid is None:
                raise ValueError(
                    f"seconds={self.seconds!r} is for a program that runs already: a command ends"
                )
        if self.touched is not None:
            check_flag("touched", self.touched)
        object.__setattr__(self, "counters", checked_counters(self.counters))


def watch(
    argv: Sequence[Word], asked: Watched, *, forward: Iterable[int] = (), ctrl_c_passes: bool = False
) -> ProgramRun:
    """Do what `stat` does; with signals to pass on, Ctrl-C among them, which is then the program's alone."""
    words = checked_argv(argv) if asked.pid is None else ()
    if asked.pid is not None and len(argv):
        raise ValueError(f"pid={asked.pid!r} is instead of a command, and there is one: argv={argv!r}")
    before = _earlier(asked.against)
    refused = {}
    touched = asked.pid is None if asked.touched is None else bool(asked.touched)
    if touched and (reason := why_touched_is_unknown()):
        refused["touched"], touched = reason, False
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    if asked.pid is None:
        found = _run_program(words, asked, touched, forward, ctrl_c_passes)
    else:
        found = _attach(asked.pid, asked, touched)
    if touched and not found.sampler.looks:
        refused["touched"] = found.sampler.why_not_looked()
    return ProgramRun(
        **found.fields,
        **found.sampler.arrays(),
        sampling=found.sampler.about(),
        counters=found.counted.values,
        refused={**found.counted.refused, **refused},
        against=before,
        warnings=(*found.warnings, *found.counted.warnings),
        host=facts.host().to_dict(),
        started=started,
    )


def _earlier(against: StrPath | ProgramRun | None) -> dict[str, Any] | None:
    if against is None:
        return None
    return (against if isinstance(against, ProgramRun) else load_run(against)).figures


def load_run(path: StrPath) -> ProgramRun:
    """Read a saved run; a ValueError for another kind of result."""
    return load_as(path, ProgramRun, "against", "run of a program")


@dataclass(frozen=True)
class _Found:
    """What watching a program gave."""

    fields: dict[str, Any]  # of a ProgramRun
    sampler: Sampler
    counted: Counted
    warnings: list[str]


def _run_program(
    argv: Sequence[bytes], asked: Watched, touched: bool, forward: Iterable[int], ctrl_c_passes: bool
) -> _Found:
    """Run a command to its end."""
    with (
        Launched(argv, forward=forward) as running,
        counting_program(asked.counters, running.pid, held=True) as read,
    ):
        running.go()
        sampler = Sampler(running.pid, interval=asked.interval, touched=touched, began_ns=running.started_ns)
        while not running.wait(0):
            try:
                sampler.until(running.wait)
            except KeyboardInterrupt:
                if not ctrl_c_passes:
                    raise
                running.interrupt()
        ended = running.finish()
        counted = read()
    uncounted, warnings = _uncounted(ended, sampler)
    return _Found(
        {**_run_fields(ended, argv[0], sampler), "uncounted": uncounted},
        sampler,
        counted,
        [*warnings, *sampler.complaints()],
    )


def _uncounted(ended: Ended, sampler: Sampler) -> tuple[float | None, list[str]]:
    """Seconds that the times of a command lack, and why."""
    left = sampler.left()
    if left:
        return None, [f"{left} of the processes that it started still run: they are not in its times"]
    if sampler.lost(ended.user + ended.system):
        return None, [UNWAITED.format(format_seconds(sampler.cpu_seen))]
    return 0.0, []


UNWAITED = (
    "some of its processes ended and nobody waited for them: they used more than its times hold, at least {} "
    "in all"
)


def _run_fields(ended: Ended, name: bytes, sampler: Sampler) -> dict[str, Any]:
    return {
        "program": program_name(name),
        "attached": False,
        "status": ended.status,
        "signal": ended.signal,
        "wall": ended.wall,
        "user": ended.user,
        "system": ended.system,
        "faults": {"minor": ended.minor, "major": ended.major},
        "switches": {"voluntary": ended.voluntary, "involuntary": ended.involuntary},
        "peak": max(ended.peak or 0, sampler.peak) or None,
    }


def _attach(pid: int, asked: Watched, touched: bool) -> _Found:
    """Watch a program that runs already."""
    with _End(pid) as end, counting_program(asked.counters, pid, held=False) as read:
        name, begin = printable(read_name(pid)), now_ns()
        sampler = Sampler(pid, interval=asked.interval, touched=touched, began_ns=begin)
        before, switches = sampler.tree.usage(), read_switches(pid)
        with suppress(KeyboardInterrupt):
            sampler.until(end.wait, asked.seconds)
        later, last = read_switches(pid), now_ns()
        # Also of one that has ended, as long as nobody has asked for its status.
        after: Mapping[int, Usage] = sampler.tree.usage()
        counted = read()
    if pid not in after:
        after, last = sampler.usage, sampler.used_ns or last
    used = used_between(before, after)
    warnings = list(sampler.complaints())
    if sampler.lost(sum(one.cpu for one in after.values())):
        used = dict.fromkeys(used)
        warnings.append(UNWAITED.format(format_seconds(sampler.cpu_seen)))
    found = {
        "program": name,
        "attached": True,
        "status": None,
        "signal": None,
        "wall": (last - begin) / 1e9,
        "user": used["user"],
        "system": used["system"],
        "faults": {name: used[name] for name in ("minor", "major")},
        "switches": switched_between(switches, later),
        "peak": sampler.peak or None,
        "uncounted": 2 * tick() * len(after),
    }
    return _Found(found, sampler, counted, warnings)


def used_between(before: Mapping[int, Usage], after: Mapping[int, Usage]) -> dict[str, Any]:
    """What processes used between two moments; ``None`` where that vanished with one of them.

    What a child used goes to its parent as that waits for it, so that the sum over all of them is whole. A
    child that nobody waits for takes it along.
    """
    return {name: _risen(name, before, after) for name in ("user", "system", "minor", "major")}


def _risen(name: str, before: Mapping[int, Usage], after: Mapping[int, Usage]) -> float | None:
    now: float
    now, then = (sum(getattr(one, name) for one in usages.values()) for usages in (after, before))
    # Times are in ticks, and of a child in finer steps as it is waited for.
    rounding = ROUNDED * tick() if name in ("user", "system") else 0
    return None if now < then - rounding else max(0, now - then)


def switched_between(before: Mapping[int, Switches], after: Mapping[int, Switches]) -> dict[str, int | None]:
    """Context switches of threads between two moments; ``None`` where one of them took its own along."""
    if not before or before.keys() - after.keys():
        return {"voluntary": None, "involuntary": None}
    now, then = (np.sum(list(of_threads.values()), axis=0) for of_threads in (after, before))
    return dict(zip(("voluntary", "involuntary"), (now - then).tolist(), strict=True))


class _End:
    """The end of a program that is not our child; who may not read its memory is told so at once."""

    def __init__(self, pid: int) -> None:
        usage = read_usage(pid)
        if usage is None or _memory_of(pid) is None:
            raise ProcessLookupError(
                errno.ESRCH, f"pid={pid}: there is no such program, it has ended, or it is a kernel thread"
            )
        self._pid, self._began = pid, usage.started
        try:
            self._descriptor: int | None = os.pidfd_open(pid)
        except OSError:  # before Linux 5.3, or filtered: then we look now and then
            self._descriptor = None

    def wait(self, seconds: float) -> bool:
        """Wait for it, or so long; whether it has ended."""
        if self._descriptor is not None:
            polled = select.poll()
            polled.register(self._descriptor, select.POLLIN)
            return bool(polled.poll(min(seconds, LONGEST_WAIT) * 1e3))
        deadline = time.monotonic() + seconds
        while (usage := read_usage(self._pid)) and usage.started == self._began and not usage.over:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, ALIVE_SECONDS))
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


LONGEST_WAIT = 3600.0  # seconds


def _memory_of(pid: int) -> Memory | None:
    try:
        return read_memory(pid)
    except PermissionError as error:
        error.add_note(whose_program(pid, "watch"))
        raise
