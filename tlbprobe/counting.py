"""Hardware counters of somebody else's program: names in, for each a value or a reason out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from . import _core
from .counters import USER_ONLY, allowed, prove, why_refused
from .events import Event, expand, find, processor
from .facts import recent_host

# What the verdicts ask for: `cycles` and `walk_active` for the walk share, the others for the signature.
PROGRAM_COUNTERS = ("cycles", "instructions", "walk_active", "walks")
NEVER_RAN = "it never had a counter while the program ran: others use them"


@dataclass
class Counted:
    """Counts of a program and of the children that it had later, and why each other one is missing."""

    values: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@contextmanager
def counting(names: Sequence[str], pid: int, *, held: bool) -> Iterator[Callable[[], Counted]]:
    """Count events of a program from now on; what it yields is called to read them.

    Each event has a counter of its own, since what a program's children inherit cannot be read in groups.

    Parameters
    ----------
    names : sequence of str
        Counters, as `find` takes them, or ``"tlb"``.
    pid : int
        The program.
    held : bool
        Whether it has not begun yet, so that counting starts as it does.
    """
    on = processor("/", _core.cpu())
    found = allowed(find(name, on) for name in expand(names, on))
    refused = {name: str(absent) for name, absent in found.absent.items()}
    verdicts = prove(found.events, found.user_only, on)
    opened: dict[str, _core.CounterGroup] = {}
    with ExitStack() as stack:
        for event in found.events:
            if verdicts[event.name].status == "dead":
                refused[event.name] = f"dead here: {verdicts[event.name].evidence}"
                continue
            try:
                opened[event.name] = stack.enter_context(_attached(event, pid, found.user_only, held))
            except OSError as error:
                refused[event.name] = str(why_refused(event, error.errno or 0, recent_host()))
        warnings = (USER_ONLY,) if found.user_only and opened else ()
        yield lambda: _read(opened, refused, warnings)


def _attached(event: Event, pid: int, user_only: bool, held: bool) -> _core.CounterGroup:
    counter = _core.CounterGroup(
        [event.key], pid=pid, exclude_kernel=user_only, inherit=True, enable_on_exec=held
    )
    if not held:
        counter.enable()
    return counter


def _read(
    opened: dict[str, _core.CounterGroup], refused: dict[str, str], warnings: tuple[str, ...]
) -> Counted:
    """Whole counts; those that had a counter for a part of the time are scaled, and said to be."""
    counted = Counted(refused=dict(refused))
    notes = list(warnings)
    for name, counter in opened.items():
        enabled, running, (value,) = counter.read()
        if not running:
            counted.refused[name] = NEVER_RAN
            continue
        counted.values[name] = value * enabled / running
        if running < enabled:
            notes.append(f"{name} had a counter for {running / enabled:.1%} of the time: its value is scaled")
    counted.warnings = tuple(notes)
    return counted
