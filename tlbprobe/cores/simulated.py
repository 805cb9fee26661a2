"""Measuring on a simulated processor: the same kernels, the same slices, a clock that is the model's."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from .. import _core
from .current import SessionPart, check_belongs, using
from .description import Description, describe, known_machines

DISTURBANCE = ("burst", "drift", "steps", "neighbour")  # tables of a description


class SimulatedCore:
    """A simulated processor in use.

    Attributes
    ----------
    name : str
        Of its description.
    description : Description
        Pages, levels, caches and latencies.
    """

    shortest_ns = 0.0  # nothing interrupts it

    def __init__(self, description: Description, seed: int) -> None:
        self.name = description.name
        self.description = description
        self.pages, self.line = description.pages, description.line
        self.machine = _machine(description.numbers(seed))
        self.quiet = not any(description.tables[name] for name in DISTURBANCE)
        self.known: dict[Any, Any] = {}

    def __str__(self) -> str:
        return f"simulated: {self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {self.description.about}>"

    def now(self) -> float:
        """Seconds on the model's clock."""
        return float(self.machine.clock_ns()) * 1e-9

    def wait(self, seconds: float) -> None:
        """Let the model's time pass; nobody waits for real."""
        self.machine.clock_wait(seconds)

    def moment(self) -> tuple[int, int, int]:
        """One moment on clocks that all agree."""
        found: tuple[int, int, int] = self.machine.clock_moment()
        return found

    def calibrate(self) -> tuple[float, int]:
        """What reading the clock costs, and its smallest step."""
        found: tuple[float, int] = self.machine.clock_calibrate()
        return found

    def session(self, parts: Sequence[SessionPart]) -> _core.Session:
        """Prepare kernels on parts of regions that were mapped here."""
        check_belongs(self, parts)
        from .. import _simulated

        return cast("_core.Session", _simulated.Session(parts, self.machine))  # the same to whoever uses it

    def counter_group(self, names: Sequence[str]) -> _core.CounterGroup:
        """Counters by the model's names, to be read around slices."""
        from .. import _simulated

        return cast("_core.CounterGroup", _simulated.CounterGroup(names, self.machine))

    def counters(self) -> dict[str, int]:
        """What the model has counted since it was made, exactly."""
        counted: dict[str, int] = self.machine.counters()
        return counted

    def adopt(self, mapping: _core.Mapping, page: int) -> Callable[[], object]:
        """Tell the model of memory; it forgets when that ends, or when what this returns is called."""
        self.machine.map(mapping.address, mapping.mapped_bytes, page, self.description.true_page(page))
        return weakref.finalize(mapping, self.machine.unmap, mapping.address)


def _machine(numbers: Sequence[float]) -> Any:
    try:
        from .. import _simulated
    except ImportError as error:
        raise RuntimeError(
            "this build cannot simulate processors: its compiler could not instrument the kernels"
        ) from error
    return _simulated.Machine(numbers)


@contextlib.contextmanager
def simulated(machine: str | os.PathLike[str] | Description, *, seed: int = 0) -> Iterator[SimulatedCore]:
    """Measure on a processor whose hierarchy is known, instead of this machine.

    Every probe, sweep, curve and anatomy inside runs the same kernels on a model of TLBs, page walks and
    caches, whose clock says what they would take there. Pages are those of the machine, of any size and
    without a pool; results say that they are simulated, in their titles, pictures and files. Faults,
    shootdowns and programs are of a real kernel, and refused.

    Parameters
    ----------
    machine : str or path
        A machine that `machines` lists, or a TOML file of your own.
    seed : int
        Of random replacement, frames and disturbance: the same one makes the same run, to the tick.

    Yields
    ------
    SimulatedCore
        ``description`` says what it is made of, ``counters()`` what it has counted, exactly.

    Raises
    ------
    ValueError
        If there is no such machine, or its description does not hold: with the place.
    OSError
        If a file cannot be read.
    RuntimeError
        If this build cannot simulate.

    Notes
    -----
    A context of a thread or task: others go on measuring for real. Memory belongs to the machine that was in
    use when it was mapped. Modelled are translation, caches and overlap; not prefetchers, branches and
    bandwidth.

    Examples
    --------
    >>> with simulated("two-levels") as machine:
    ...     print(machine)
    simulated: two-levels
    """
    description = machine if isinstance(machine, Description) else describe(machine)
    core = SimulatedCore(description, seed)
    with using(core):
        yield core


def machines() -> list[Description]:
    """List the simulated machines that come with the package.

    Returns
    -------
    list of Description
        By name; `simulated` takes these, and files of your own.

    Examples
    --------
    >>> [machine.name for machine in machines() if machine.name == "two-levels"]
    ['two-levels']
    """
    return [describe(Path(path)) for path in known_machines().values()]
