"""What every probe does: check what all take, find or map the memory, prove, time, and fill the result in."""

from __future__ import annotations

import contextlib
import errno
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from .. import _core
from ..checks import check_flag, check_number
from ..cores.current import current
from ..machine import cpus
from ..machine.facts import recent_record
from ..memory.backing import Backing
from ..memory.policies import find_policy
from ..memory.region import Region
from ..results.measurement import Measurement
from ..units import Size, approximate_size, format_size, parse_size
from . import slices

if TYPE_CHECKING:
    from ..counters.groups import Counting, Groups

LONGEST_SECONDS = 1e6  # of one measurement: eleven days
UNTIMED_PASSES = 2  # over every page of the working set, since populating is no warm-up under a hypervisor


@dataclass(frozen=True)
class Common:
    """What every probe takes, checked before anything is mapped."""

    strict: bool = True
    seed: int = 0
    cpu: int | None = None
    precision: float = 0.01
    max_seconds: float = 5.0
    counters: Sequence[str] = ()

    def __post_init__(self) -> None:
        cpus.check_cpu(self.cpu)
        check_flag("strict", self.strict)
        precise = check_number("precision", self.precision, 1.0, "0.01 means 1 % of the low estimate")
        object.__setattr__(self, "precision", precise)
        seconds = check_number("max_seconds", self.max_seconds, LONGEST_SECONDS, "for the timed part")
        object.__setattr__(self, "max_seconds", seconds)
        whole = isinstance(self.seed, SupportsIndex) and not isinstance(self.seed, bool | np.ndarray)
        if not whole:
            raise TypeError(f"seed={self.seed!r} must be an integer from 0 to 2**64 - 1")
        object.__setattr__(self, "seed", operator.index(self.seed))
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed={self.seed!r} is out of range: from 0 to 2**64 - 1")
        object.__setattr__(self, "counters", checked_counters(self.counters))

    @property
    def uncounted(self) -> dict[str, str]:
        """Why no counter can be read where every access has its own time."""
        reason = "counters are read around slices of many accesses, and here every access has its own time"
        return dict.fromkeys(self.counters, reason)


def checked_counters(names: Sequence[str]) -> tuple[str, ...]:
    """Names of counters, if they are some that are known: the set "tlb" may stand for itself."""
    if isinstance(names, Sequence) and not names and not isinstance(names, str):
        return ()
    from ..counters.events import TLB_SET, check_names  # seldom wanted, and slow to load

    if isinstance(names, str) and names == TLB_SET:
        return (TLB_SET,)
    listed = isinstance(names, Sequence) and not isinstance(names, str)
    if not listed or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"counters={names!r} must be a sequence of names, such as ('cycles',), or {TLB_SET!r}"
        )
    check_names(names)
    return tuple(names)


def working_set_of(size: Size | Region, working_set: Size | None) -> int:
    """Bytes to measure: of a size, that; of a region, `working_set` of it or all that was asked for."""
    if not isinstance(size, Region):
        if working_set is not None:
            raise ValueError(f"working_set={working_set!r} is for a Region: the size itself says it here")
        return parse_size(size)
    wanted = size.size if working_set is None else parse_size(working_set, "working_set")
    if wanted > size.mapped_bytes and not size.closed:
        raise ValueError(
            f"working_set={working_set!r} is more than the {format_size(size.mapped_bytes)} of this Region"
        )
    return wanted


def check_holds(region: Region | None, needed: int, what: str, instead: str) -> None:
    """Raise an error for what is no Region, or one that is too small."""
    if region is None:
        return
    if not isinstance(region, Region):
        raise TypeError(f"region={region!r} must be a Region, or None to map one for this measurement")
    if needed > region.mapped_bytes and not region.closed:
        raise ValueError(
            f"{what} takes {needed} bytes ({approximate_size(needed)}), but this Region has "
            f"{region.mapped_bytes}: map more, or ask for {instead}"
        )


@contextlib.contextmanager
def on_region(size: Size | Region, needed: int, pages: str | None, strict: bool) -> Iterator[Region]:
    """The given region, or one of our own for the time being."""
    if not isinstance(size, Region):
        with Region(needed, "base" if pages is None else pages, strict=strict) as region:
            yield region
        return
    if pages is not None and find_policy(pages).name != size.pages:
        raise ValueError(f"pages={pages!r} contradicts the Region, which is on {size.pages!r}")
    yield size


@dataclass(frozen=True)
class Place:
    """What a kernel measures: a part of a region, with the parameters of the kernel."""

    region: Region
    kernel: str
    size: int  # bytes
    parameters: dict[str, int]
    offset: int = 0
    proved: int | None = None  # bytes from the start of the region, instead of those up to its end

    @property
    def part(self) -> tuple[Region, str, int, int, dict[str, int]]:
        """As a session takes it."""
        return self.region, self.kernel, self.offset, self.size, self.parameters

    @property
    def proved_bytes(self) -> int:
        """Bytes from the start of the region whose pages are proved: these, and what lies before them."""
        return self.offset + self.size if self.proved is None else self.proved

    @property
    def key(self) -> tuple[Region, int]:
        """What is proved at once."""
        return self.region, self.proved_bytes


class Point:
    """One measurement in the making, of one place or of several in turn: set-up times, proofs, warnings."""

    def __init__(self, common: Common, *places: Place) -> None:
        self.common = common
        self.places = places
        self.cpu = -1
        self.setup: dict[str, float] = {}
        self.warnings: list[str] = []
        self.started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.timed: list[slices.Timed] = []
        self.backings: list[Backing] = []
        self.counts: tuple[tuple[int, int], ...] = ()
        self.counting: Counting | None = None

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step of the set-up."""
        start = current().now()
        yield
        self.setup[name] = current().now() - start

    @contextlib.contextmanager
    def prepared(self, step: str) -> Iterator[_core.Session]:
        """Prepare the kernels; their regions are nobody else's until it is over."""
        with self.step(step):
            session = self._prepare()
        with session:
            yield session

    def _prepare(self) -> _core.Session:
        try:
            return current().session([place.part for place in self.places])
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise MemoryError(
                f"{self.places[0].kernel}: the kernel refused the memory that preparing "
                f"{format_size(self.places[0].size)} needs beside it; a limit, or another process, may be why"
            ) from error

    def verify(self, session: _core.Session) -> None:
        """Count in memory what was prepared, and raise a RuntimeError if it is not whole."""
        with self.step("verify"):
            for place, found, lap in zip(self.places, session.verify(), session.laps, strict=True):
                if found != lap:
                    raise RuntimeError(
                        f"{place.kernel}: {found} of {lap} that were prepared are there: memory is damaged"
                    )

    def time(self, session: _core.Session, accesses: int | None = None) -> None:
        """Passes, proof, slices, proof; `accesses` is fixed work instead of the adaptive stop."""
        with cpus.pinned(self.common.cpu) as self.cpu, self._counters() as groups:
            with self.step("passes"):
                for _ in range(UNTIMED_PASSES):
                    session.pass_over()
            with self.step("proof"):
                before = self._prove()
            with self.step("measure"):
                if accesses is None:
                    limits = {"precision": self.common.precision, "max_seconds": self.common.max_seconds}
                    self.timed, warnings = slices.measure(session, **limits, groups=groups)
                else:
                    self.timed, warnings = slices.measure_fixed(session, accesses, groups)
            self.backings = self._prove()
        self.warnings.extend(warnings)
        for one, other in dict.fromkeys(zip(map(str, before), map(str, self.backings), strict=True)):
            if one != other:
                self.warnings.append(f"the pages changed during the measurement: {one}, then {other}")
        self._check_counts(session)

    @contextlib.contextmanager
    def _counters(self) -> Iterator[Groups]:
        """Counters that were asked for; trying them out, once a process, is a step of the set-up."""
        if not self.common.counters:
            yield ()
            return
        from ..counters.groups import open_counters  # seldom wanted, and slow to load

        start = current().now()
        with open_counters(self.common.counters, self.cpu) as self.counting:
            self.setup["counters"] = current().now() - start
            yield self.counting.open

    def _prove(self) -> list[Backing]:
        """Pages of every place, each once; what is wrong with them is refused or becomes a warning."""
        found: dict[tuple[Region, int], Backing] = {}
        for place in self.places:
            if place.key not in found:
                found[place.key] = place.region.check_backing(place.proved_bytes)
                complaint = place.region.complaint(found[place.key])
                if complaint and complaint not in self.warnings:
                    self.warnings.append(complaint)
        return [found[place.key] for place in self.places]

    def _check_counts(self, session: _core.Session) -> None:
        """What the accesses found must be what they were bound to find."""
        self.counts = session.counts
        for place, (expected, found) in zip(self.places, self.counts, strict=True):
            if expected != found:
                raise RuntimeError(
                    f"{place.kernel}: the accesses found {found} where they must find {expected}: memory is "
                    "damaged"
                )

    def params(self, place: Place) -> dict[str, Any]:
        """What was asked of every probe, completed."""
        return {
            "pages": place.region.pages,
            "strict": place.region.strict,
            "touch": place.region.touch_order,
            "mapped_bytes": place.region.mapped_bytes,
            "seed": self.common.seed,
            "cpu": self.cpu,
            "precision": float(self.common.precision),
            "max_seconds": float(self.common.max_seconds),
        }

    def result(
        self, probe: str, params: dict[str, Any], number: int = 0, counts: dict[str, Any] | None = None
    ) -> Measurement:
        """The measurement of one of the places."""
        place, timed = self.places[number], self.timed[number]
        counters = self.counting.read(timed.counted, timed.accesses) if self.counting else None
        warnings = [*self.warnings, *(counters.warnings if counters else ())]
        if timed.minor + timed.major:
            warnings.append(
                f"{timed.minor} minor and {timed.major} major page faults in the timed part, none expected"
            )
        return Measurement(
            probe=probe,
            ns=timed.ns,
            accesses_per_slice=timed.accesses,
            disturbed=timed.disturbed,
            core_ghz=timed.core_ghz,
            setup={**place.region.setup, **self.setup},
            faults=slices.faults(timed),
            params={**params, **self.params(place)},
            backing=self.backings[number],
            host=recent_record(),
            started=self.started,
            counts=counts or {},
            counters=counters.values if counters else {},
            refused=counters.refused if counters else {},
            warnings=tuple(warnings),
        )
