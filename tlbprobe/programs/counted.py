"""Hardware counters of somebody else's program: names in, for each a value or a reason out."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from .. import _core
from ..counters import groups
from ..counters.events import Event, expand, find, processor
from ..machine import cpus, files
from ..machine.facts import recent_host

# What the verdicts ask for: `cycles` and `walk_active` for the walk share, the others for the signature.
PROGRAM_COUNTERS = ("cycles", "instructions", "walk_active", "walks")
PROGRAM_NEVER_RAN = "it never had a counter while the program ran: others use them"


@dataclass(frozen=True)
class Counted:
    """Counts of a program and of the children that it had later, and why each other one is missing."""

    values: dict[str, float]
    refused: dict[str, str]
    warnings: tuple[str, ...] = ()


@contextmanager
def counting_program(names: Sequence[str], pid: int, *, held: bool) -> Iterator[Callable[[], Counted]]:
    """Count events of a program from now on; what it yields is called to read them.

    Parameters
    ----------
    names : sequence of str
        Counters, as `events.find` takes them, or ``"tlb"``.
    pid : int
        The program.
    held : bool
        Whether it has not begun yet, so that counting starts as it does.
    """
    if not names:
        yield lambda: Counted({}, {})
        return
    with cpus.pinned(None) as cpu:  # as each of them is tried; the program has its own mind
        on = processor("/", cpu)
        found = groups.allowed(find(name, on) for name in expand(names, on))
        verdicts = groups.prove(found.events, found.user_only, on)
    dead = {name: one.evidence for name, one in verdicts.items() if one.status == "dead"}
    refused = {name: str(absent) for name, absent in found.absent.items()}
    refused |= {name: f"dead here: {evidence}" for name, evidence in dead.items()}
    opened: dict[str, list[_core.CounterGroup]] = {}
    with ExitStack() as stack:
        for event in (one for one in found.events if one.name not in dead):
            try:
                opened[event.name] = [
                    stack.enter_context(group) for group in _open(event, pid, held, found.user_only)
                ]
            except OSError as error:
                code = error.errno or errno.EIO
                refused[event.name] = str(groups.why_refused(event, code, recent_host()))
        warnings = (groups.USER_ONLY,) if found.user_only and opened else ()
        yield lambda: _sum_of_threads(opened, refused, warnings)


def _open(event: Event, pid: int, held: bool, user_only: bool) -> Iterator[_core.CounterGroup]:
    """One counter for each thread that there is: those to come inherit it."""
    threads = [pid] if held else list(map(int, files.list_names("/", f"proc/{pid}/task")))
    opened = 0
    for thread in threads:
        with suppress(ProcessLookupError):  # a thread may end between any two looks
            group = _core.CounterGroup(
                [event.key], pid=thread, exclude_kernel=user_only, inherit=True, enable_on_exec=held
            )
            opened += 1
            if not held:
                group.enable()
            yield group
    if not opened:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))


def _sum_of_threads(
    opened: Mapping[str, Sequence[_core.CounterGroup]], refused: dict[str, str], warnings: tuple[str, ...]
) -> Counted:
    """Sum over threads; what had no counter all the time is scaled, and what never had one is missing."""
    values, scaled = {}, []
    missing = dict(refused)
    for name, of_threads in opened.items():
        read = [group.read() for group in of_threads]
        enabled, running = sum(one[0] for one in read), sum(one[1] for one in read)
        if enabled and not running:
            missing[name] = PROGRAM_NEVER_RAN
            continue
        count = sum(one[2][0] for one in read)
        values[name] = count * enabled / running if running else count  # it may not have run at all
        if running < enabled:
            scaled.append(f"{name} had a counter for {running / enabled:.1%} of the time: it is scaled")
    return Counted(values, missing, (*warnings, *scaled))
