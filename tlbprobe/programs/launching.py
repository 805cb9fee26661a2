"""Somebody else's program: started and held, let go, followed to its end, with all that it used.

No shell is ever involved. What is set for a program is set in its own process, between fork and exec, and the
machine stays as it is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .. import _core

Word = str | bytes | os.PathLike[str]
Streams = tuple[int | None, int | None, int | None]

# The arguments of PR_SET_THP_DISABLE: 2 is PR_THP_DISABLE_EXCEPT_ADVISED.
THP_AS_IT_IS, THP_REFUSED, THP_ADVISED_ONLY = (0, 0), (1, 0), (1, 2)
STAGES = ("held", "redirecting", "forbidding", "executing")  # enum tlb_stage of tlbprobe.h

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# Seconds that a program has to end by itself.
PATIENCE_AFTER_CTRL_C, PATIENCE = 5.0, 2.0


class PagesRefusedError(OSError):
    """The kernel has not what a trial wants to set of transparent huge pages."""


@dataclass(frozen=True)
class Ended:
    """How a program ended and what it used, with those of its children that it waited for.

    Attributes
    ----------
    status : int or None
        Exit status; ``None`` for one that a signal ended.
    signal : int or None
        That signal.
    wall, user, system : float
        Seconds, from the moment it became this program.
    minor, major, voluntary, involuntary : int
        Page faults and context switches.
    peak : int or None
        Most bytes that were resident in one of its processes; ``None`` if that is no more than what a new
        process has of its parent, which the kernel counts as well.
    """

    status: int | None
    signal: int | None
    wall: float
    user: float
    system: float
    minor: int
    major: int
    voluntary: int
    involuntary: int
    peak: int | None


def checked_argv(argv: Sequence[Word]) -> tuple[bytes, ...]:
    """Words of a command, or an error that says what is wrong with them."""
    if isinstance(argv, str | bytes) or not isinstance(argv, Sequence):
        raise TypeError(
            f"argv={argv!r} must be a sequence of words, such as ['ls', '-l']: no shell splits it"
        )
    if not argv:
        raise ValueError("argv is empty: it must name a program")
    try:
        words = tuple(os.fsencode(word) for word in argv)
    except TypeError as error:
        raise TypeError(f"argv={argv!r} must be strings or paths: {error}") from None
    if not words[0]:
        raise ValueError(f"argv={argv!r} names no program: its first word is empty")
    if any(b"\0" in word for word in words):
        raise ValueError(f"argv={argv!r} holds a NUL, which no argument can")
    return words


def paths_of(name: bytes, environment: Mapping[str, str]) -> tuple[bytes, ...]:
    """Where a program may lie: in the folders of PATH, unless its name says where."""
    if b"/" in name:
        return (name,)
    folders = map(os.fsencode, os.get_exec_path(environment))
    return tuple(folder + b"/" + name if folder else name for folder in folders)  # an empty one: where we are


class Launched:
    """A program: made at once, but held until `go`.

    Parameters
    ----------
    argv : sequence of str, bytes or path
        The command.
    environment : mapping, optional
        Instead of our own.
    streams : tuple of int or None
        Descriptors for its standard input, output and error; ``None``: ours.
    thp : tuple of int
        `THP_AS_IT_IS`, `THP_REFUSED` or `THP_ADVISED_ONLY`.
    at_exit : callable, optional
        Called in another thread when the program stops before its exit, still whole. For this it is traced,
        which the kernel may forbid, and a short program may have ended before.
    forward : iterable of int
        Signals to pass on while it runs; from the main thread only. Those that are ignored stay ignored.

    Notes
    -----
    A context manager: what still runs at its end is ended. The program shares our process group, and so gets
    Ctrl-C from a terminal as we do; it ends with this thread. Making it copies our page tables, which takes
    time where we have much memory; it is not the program's.
    """

    def __init__(
        self,
        argv: Sequence[Word],
        *,
        environment: Mapping[str, str] | None = None,
        streams: Streams = (None, None, None),
        thp: tuple[int, int] = THP_AS_IT_IS,
        at_exit: Callable[[], object] | None = None,
        forward: Iterable[int] = (),
    ) -> None:
        self.argv = checked_argv(argv)
        self.traced = False
        self.told_to_end: int | None = None  # by a signal that was passed on
        self._at_exit = at_exit
        self._forward = tuple(forward)
        self._handlers: dict[int, Any] = {}
        self._begun, self._over = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._ended: Ended | None = None
        self._start: dict[str, int] = {}
        self._end_ns = 0
        self._thread = threading.Thread(target=self._follow, name="tlbprobe-follow", daemon=True)
        self._launch(os.environ if environment is None else environment, streams, thp)

    def _launch(self, environment: Mapping[str, str], streams: Streams, thp: tuple[int, int]) -> None:
        variables = tuple(os.fsencode(f"{name}={value}") for name, value in environment.items())
        paths = paths_of(self.argv[0], environment)
        with ExitStack() as ours, ExitStack() as theirs:
            go, self._go = _pipe(theirs, ours)
            self._report, report = _pipe(ours, theirs)
            above = [_above_standard(one, theirs) for one in (*streams, go, report)]
            standard = (above[0], above[1], above[2])
            self.pid = _core.program_launch(paths, self.argv, variables, standard, thp, above[3], above[4])
            self._pipes = ours.pop_all()

    def go(self) -> None:
        """Let it go, and wait until it has begun; an OSError says why it could not."""
        self._install_handlers()
        self._thread.start()
        self._begun.wait()
        if self._error:
            self.finish()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end, or so long; whether it has ended."""
        return self._over.wait(seconds)

    @property
    def started_ns(self) -> int:
        """When it began, by CLOCK_MONOTONIC_RAW."""
        return self._start["ns"]

    def send(self, number: int) -> None:
        """Send it a signal; too late is no error, nor is a program that may not be sent any."""
        if not self._over.is_set():  # until it is reaped, its number is nobody else's
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def end(self, *, interrupted: bool = False) -> None:
        """Ask it to end, and wait; kill it if that does not help. After Ctrl-C it may take its time."""
        try:
            if interrupted:
                self.interrupt()
                if self.wait(PATIENCE_AFTER_CTRL_C):
                    return
            self.send(signal.SIGTERM)
            if self.wait(PATIENCE):
                return
        finally:  # after another Ctrl-C, too
            if not self.wait(0):
                self.send(signal.SIGKILL)
                self.wait()

    def interrupt(self) -> None:
        """Pass Ctrl-C on, unless the terminal has told it already: a second one might be too much."""
        if not _told_by_terminal():
            self.send(signal.SIGINT)

    def finish(self) -> Ended:
        """Wait for its end, reap it, and say what it used; raise what kept it from beginning."""
        if self._ended is None:
            self._reap()
        if self._error:
            raise self._error
        assert self._ended
        return self._ended

    def _reap(self) -> None:
        if self._thread.ident is None:  # still held: by then it has done nothing
            self.send(signal.SIGKILL)
        else:
            self._thread.join()
        self._pipes.close()
        self._restore_handlers()
        self._ended = _ended(self._start, self._end_ns, *os.wait4(self.pid, 0)[1:])

    def _follow(self) -> None:
        """In a thread of its own, since nothing but the one that traces a program may resume it."""
        try:
            self._start = _core.program_go(self._go, self._report)
            if self._start["error"]:
                raise self._why_not(self._start["error"], STAGES[self._start["stage"]])
            if self._at_exit:
                self._trace()
            self._begun.set()
            self._end_ns = self._wait_for_end()
        except BaseException as error:
            self._error = error
        finally:
            self._begun.set()
            self._over.set()

    def _why_not(self, number: int, stage: str) -> OSError:
        name = os.fsdecode(self.argv[0])
        if stage == "forbidding":
            return PagesRefusedError(number, os.strerror(number))
        if stage == "held":
            return ProcessLookupError(number, "it was ended before it began", name)
        error = OSError(number, os.strerror(number), name)
        if number == errno.ENOEXEC:
            error.add_note("no program of this machine, and without a '#!' line: no shell is started to try")
        if number == errno.ENOENT and any(map(os.path.exists, paths_of(self.argv[0], os.environ))):
            error.add_note(
                "it is there, but what runs it is not: the interpreter of its '#!' line, or its loader"
            )
        return error

    def _trace(self) -> None:
        with suppress(OSError):  # forbidden, or ended already
            _core.program_trace(self.pid)
            self.traced = True

    def _wait_for_end(self) -> int:
        """When it ended, less the time for which it stood still for us."""
        still = 0
        while True:
            over, at = _core.program_wait(self.pid)
            if over:
                return at - still
            with suppress(Exception):  # what becomes of a look at it is no reason to leave it there
                if self._at_exit:
                    self._at_exit()
            _core.program_resume(self.pid)
            still += now_ns() - at

    def _install_handlers(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in self._forward:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._handlers[number] = signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _: object) -> None:
        if number in ENDING:
            self.told_to_end = number
        self.send(number)

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended is None:
            if self._thread.ident is not None:
                self.end(interrupted=isinstance(error, KeyboardInterrupt))
            self._reap()


def now_ns() -> int:
    """Nanoseconds by the clock of every measurement."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Make a pipe; who closes each of its ends."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _above_standard(stream: int | None, stack: ExitStack) -> int:
    """A copy of a descriptor that none of the standard ones overwrites; -1 for none."""
    if stream is None:
        return -1
    copy = fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 3)
    stack.callback(os.close, copy)
    return copy


def _told_by_terminal() -> bool:
    """Whether Ctrl-C comes from a terminal whose foreground we are: then our children have had it too."""
    try:
        with open("/dev/tty", "rb") as terminal:  # noqa: PTH123 - a device
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


BECOMING = 1 << 20  # bytes that a process may gain while it becomes another program


def _ended(start: Mapping[str, int], end_ns: int, status: int, used: resource.struct_rusage) -> Ended:
    """What a program used: of its process, less what that had used before it became the program."""
    code = os.waitstatus_to_exitcode(status)
    peak = used.ru_maxrss * 1024
    return Ended(
        status=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        wall=max(0, end_ns - start.get("ns", 0)) / 1e9,
        user=max(0.0, used.ru_utime - start.get("user_us", 0) / 1e6),
        system=max(0.0, used.ru_stime - start.get("system_us", 0) / 1e6),
        minor=used.ru_minflt - start.get("minor", 0),
        major=used.ru_majflt - start.get("major", 0),
        voluntary=used.ru_nvcsw - start.get("voluntary", 0),
        involuntary=used.ru_nivcsw - start.get("involuntary", 0),
        peak=peak if peak > start.get("peak", 0) + BECOMING else None,
    )
