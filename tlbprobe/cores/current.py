"""The core that measures: this machine's own unless a simulated one is in use.

All time that decides anything (deadlines, budgets, pauses) is asked of it, and so are pages and sessions.
Which one it is stands in a context variable: every thread and every task has its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from .. import _core

Answer = TypeVar("Answer")
SessionPart = tuple[Any, str, int, int, dict[str, int]]  # mapping, kernel, offset, size, parameters


class Core(Protocol):
    """What measures."""

    name: str  # of a simulated machine; empty: this machine itself
    known: dict[Any, Any]  # what was found out about it once
    shortest_ns: float  # of a slice, whatever the clock allows
    quiet: bool  # nothing disturbs it: what was measured once is not measured again
    pages: tuple[int, ...]  # page sizes in bytes, the base page first; empty: what the kernel says
    line: int  # bytes of a cache line; 0: what the kernel says

    def now(self) -> float:
        """Seconds on its clock."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""

    def moment(self) -> tuple[int, int, int]:
        """One moment on several clocks, as `_core.clock_moment`."""

    def calibrate(self) -> tuple[float, int]:
        """What reading the clock costs, and its smallest step, in nanoseconds."""

    def session(self, parts: Sequence[SessionPart]) -> _core.Session:
        """Prepare kernels on parts of regions that belong to it."""

    def adopt(self, mapping: _core.Mapping, page: int) -> Callable[[], object] | None:
        """Take memory whose pages it makes itself; returns what gives it back, None where the kernel does."""


class Native:
    """The machine that this runs on."""

    name = ""
    shortest_ns = 100e3  # interrupts come a few hundred times a second
    quiet = False
    pages: tuple[int, ...] = ()
    line = 0

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def __str__(self) -> str:
        return "this machine"

    def now(self) -> float:
        """Seconds on the clock of every measurement."""
        return _core.clock_ns() * 1e-9

    def wait(self, seconds: float) -> None:
        """Sleep."""
        _core.clock_wait(seconds)

    def moment(self) -> tuple[int, int, int]:
        """One moment on several clocks."""
        return _core.clock_moment()

    def calibrate(self) -> tuple[float, int]:
        """What reading the clock costs, and its smallest step."""
        return _core.clock_calibrate()

    def session(self, parts: Sequence[SessionPart]) -> _core.Session:
        """Prepare kernels on parts of regions."""
        check_belongs(self, parts)
        return _core.Session(parts)

    def adopt(self, mapping: _core.Mapping, page: int) -> None:
        """Leave memory to the kernel."""


NATIVE = Native()
_current: ContextVar[Core] = ContextVar("core", default=NATIVE)


def current() -> Core:
    """The core of this thread or task."""
    return _current.get()


@contextlib.contextmanager
def using(core: Core) -> Iterator[None]:
    """Measure on a core for the time being."""
    before = _current.set(core)
    try:
        yield
    finally:
        _current.reset(before)


def check_belongs(core: Core, parts: Sequence[SessionPart]) -> None:
    """Raise a ValueError for memory that another core made."""
    for mapping, *_ in parts:
        other = getattr(mapping, "core", NATIVE)
        if other is not core:
            raise ValueError(f"this Region belongs to {other}, and here measures {core}: map one here")


def only_here(what: str) -> None:
    """Raise a RuntimeError where a simulated core is in use: it cannot do this."""
    if current().name:
        raise RuntimeError(f"{what} is of real memory and a real kernel: not on {current()}")


def once_a_core(function: Callable[[], Answer]) -> Callable[[], Answer]:
    """Remember what a function without parameters found, for each core."""

    @functools.wraps(function)
    def remembered() -> Answer:
        known = current().known
        if function not in known:
            known[function] = function()
        found: Answer = known[function]
        return found

    return remembered
