"""Results: frozen, with raw samples and everything that was true of them, saved and loaded.

A file is a NumPy ``.npz`` without pickle: arrays, and a JSON header of ``format``, ``version``, ``kind``.
Format version 1: first.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import html
import io
import json
import os
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from . import analysis
from .facts import Host
from .hazards import Hazard
from .pages import Backing
from .units import approximate_size, format_count, format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = "tlbprobe"
FORMAT_VERSION = 1

StrPath = str | os.PathLike[str]
Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Interval = tuple[float, float] | None
Put = Callable[[str, Array], None]  # puts an array into a file, under a name
Get = Callable[[str], Array]  # gets it back


@functools.cache
def package_version() -> str:
    """Version of the installed package; looked up when it is asked for, since that is slow."""
    from importlib.metadata import version

    return version("tlbprobe")


# --- what all results can do -----------------------------------------------------------------------------

KINDS: dict[str, type[Result]] = {}


class Result(ABC):
    """What can be read, shown in a notebook, and saved; every class of results registers for `load`."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    @property
    @abstractmethod
    def title(self) -> str:
        """What was measured, in a few words."""

    @abstractmethod
    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the raw slices; what is missing is ``None``."""

    @abstractmethod
    def to_parts(self, put: Put) -> dict[str, Any]:
        """Plain values; each array goes to `put`."""

    @classmethod
    @abstractmethod
    def from_parts(cls, parts: dict[str, Any], get: Get) -> Self:
        """Read back what `to_parts` wrote."""

    def save(self, path: StrPath) -> None:
        """Write it to a file that `load` reads; it holds no host name, user name or path."""
        arrays: dict[str, Array] = {}
        data = self.to_parts(arrays.__setitem__)
        header = {"format": FORMAT, "version": FORMAT_VERSION, "kind": self.kind, "data": data}
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, header=text, **arrays)

    def __str__(self) -> str:
        rows = list(self.rows())
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join((self.title, *(f"  {name:{width}}  {text}" for name, text in rows)))

    def __repr__(self) -> str:
        return f"<{self}>"

    def _repr_html_(self) -> str:
        return html_table(self.title, self.rows())


Saved = TypeVar("Saved", bound=Result)


def html_table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Write a small table for a notebook."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table><caption style='text-align:left'><b>{html.escape(title)}</b></caption>{cells}</table>"


# --- files -----------------------------------------------------------------------------------------------


def below(prefix: str, put: Put) -> Put:
    """Put arrays under a prefix."""
    return lambda name, array: put(f"{prefix}/{name}", array)


def from_below(prefix: str, get: Get) -> Get:
    """Get arrays from under a prefix."""
    return lambda name: get(f"{prefix}/{name}")


@contextlib.contextmanager
def _beside(path: StrPath) -> Iterator[tuple[Path, Path]]:
    """An output file, and an empty temporary one in its folder; errors name the path that was asked for."""
    target = Path(os.path.realpath(path))  # a link stays a link
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder: name a file in it", os.fspath(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is a device or a pipe: name an ordinary file", os.fspath(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "it is write-protected", os.fspath(path))
    temporary = target.with_name(f".tlbprobe-{os.urandom(8).hex()}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    try:
        yield target, temporary
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: StrPath) -> None:
    """Raise the OSError that writing an output file would end with, before anything is measured for it."""
    with _beside(path):
        pass


@contextlib.contextmanager
def replacing(path: StrPath) -> Iterator[Path]:
    """Write a file beside its target and move it there when it is whole: nothing is lost half-way."""
    with _beside(path) as (target, temporary):
        yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)


class FileFormatError(ValueError):
    """A file that is not ours, is damaged, or was written by a newer version than this one."""


def load(path: StrPath) -> Any:
    """Read a result of any kind from a file.

    Parameters
    ----------
    path : path
        A file that a result's ``save`` wrote.

    Returns
    -------
    Result

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is not one of ours, is damaged, or was written by a newer version.
    """
    if not os.fspath(path):
        raise ValueError("path is empty: it must name a file that a result's save wrote")
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # which fails by itself, as it always does
        raise FileFormatError(f"{os.fspath(path)!r} is no regular file: results are saved in one")
    content = Path(path).read_bytes()
    try:
        return _decode(content)
    except FileFormatError as error:
        raise FileFormatError(f"{os.fspath(path)!r} {error}") from None
    except Exception as error:  # there is no end to what damage looks like
        message = f"{os.fspath(path)!r} is damaged, not a whole tlbprobe file: {error}"
        raise FileFormatError(message) from error


def load_as(path: StrPath, kind: type[Saved], name: str, what: str) -> Saved:
    """Read a result of one kind, as a parameter of that name wants it; a ValueError for any other."""
    found = load(path)
    if not isinstance(found, kind):
        raise ValueError(f"{name}={os.fspath(path)!r} holds no {what}, but a {found.kind}")
    return found


def _decode(content: bytes) -> Result:
    if not content.startswith(b"PK\3\4"):
        raise FileFormatError("is no tlbprobe file: those are what --out and .save() write")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        header = _header(arrays)
        if header["version"] > FORMAT_VERSION or header["kind"] not in KINDS:
            raise FileFormatError(
                f"has format version {header['version']} and kind {header['kind']!r}; tlbprobe "
                f"{package_version()} reads up to version {FORMAT_VERSION} of {', '.join(sorted(KINDS))}: "
                "a newer tlbprobe reads it"
            )
        return KINDS[header["kind"]].from_parts(header["data"], arrays.__getitem__)


def _header(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """The header, if the file says that it is ours."""
    header = json.loads(arrays["header"].tobytes()) if "header" in arrays else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FileFormatError("is no tlbprobe file, but another kind of archive")
    return header


def frozen(array: npt.ArrayLike, dtype: npt.DTypeLike) -> Array:
    """Return a read-only copy."""
    copy = np.array(array, dtype)
    copy.flags.writeable = False
    return copy


# --- one measurement -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Measurement(Result):
    """One measured point: raw slices, robust estimates, proof, and what was true of the machine.

    Attributes
    ----------
    probe : str
        Name of the probe.
    ns : ndarray of float64, shape (slices,)
        Nanoseconds per access of each slice, in time order.
    accesses_per_slice : int
        Accesses that each slice averages over.
    disturbed : ndarray of bool, shape (slices,)
        Slices with a page fault, an involuntary switch, wall time beyond CPU time, or a slow core-clock
        witness beside them. A lower bound: most disturbance leaves no trace.
    core_ghz : float or None
        Core clock while measuring, from the witness; ``None`` where it did not hold still.
    setup : dict of str to float
        Seconds of each step; ``measure`` is the timed part and all around it.
    faults : dict
        Page faults in the timed part: ``minor``, ``major``, and ``expected`` (``None``: not known).
    params : dict
        What was asked, completed: bytes, nodes, stride, seed, CPU ...
    backing : Backing
        The proved pages of the measured bytes.
    host : dict
        Facts of the machine.
    started, version : str
        Start in UTC (ISO 8601), version of tlbprobe.
    counters : dict of str to ndarray of float64, shape (slices,)
        Performance counters per access, in the order of `ns`; NaN in slices in which others had their turn.
    refused : dict of str to str
        Why each other counter that was asked for is missing.
    counts : dict of str to int, float or dict
        What the probe counted beside the time, by name: hits, pages touched ... Empty where there is nothing.
    warnings : tuple of str
        What a reader must know.
    low_quantile : float
        Level of `low`.
    """

    kind: ClassVar[str] = "measurement"
    low_quantile: ClassVar[float] = analysis.LOW_QUANTILE
    arrays: ClassVar[tuple[str, ...]] = ("ns", "disturbed")  # fields that are saved as arrays

    probe: str
    ns: Floats
    accesses_per_slice: int
    disturbed: npt.NDArray[np.bool_]
    core_ghz: float | None
    setup: dict[str, float]
    faults: dict[str, int | None]
    params: dict[str, Any]
    backing: Backing
    host: dict[str, Any]
    started: str
    version: str = field(default_factory=package_version)
    counters: dict[str, Floats] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        clean = {
            "ns": frozen(self.ns, np.float64),
            "disturbed": frozen(self.disturbed, np.bool_),
            "counters": {name: frozen(values, np.float64) for name, values in self.counters.items()},
            # A caller's np.float32 is as good as a float, but JSON knows none.
            "params": {
                name: value.item() if isinstance(value, np.generic) else value
                for name, value in self.params.items()
            },
            "warnings": tuple(self.warnings),
        }
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickled and copied arrays are read-only again."""
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    @functools.cached_property
    def low(self) -> float:
        """Low quantile of the slices, ns per access: the estimate least moved by disturbance."""
        return analysis.low(self.ns)

    @property
    def estimate(self) -> float:
        """What stands for all the times: `low`, or their median where each is of a single access."""
        return self.low

    @functools.cached_property
    def interval(self) -> Interval:
        """95 % confidence interval of `low`, ns; ``None`` where there are too few slices for one."""
        return analysis.interval(self.ns)

    @property
    def median(self) -> float:
        """Median of the slices, ns per access."""
        return float(np.median(self.ns))

    @property
    def mean(self) -> float:
        """Mean of the slices, ns per access."""
        return float(np.mean(self.ns))

    def counter(self, name: str) -> float | None:
        """Median of a counter per access, over the slices that have it; ``None`` if it was not counted."""
        values = self.counters.get(name)
        return None if values is None or np.isnan(values).all() else float(np.nanmedian(values))

    def _share(self, *pairs: tuple[str, str]) -> float | None:
        """Ratio of the first two counters that were counted both."""
        for above, below in pairs:
            one, other = self.counter(above), self.counter(below)
            if one is not None and other:
                return one / other
        return None

    @property
    def walk_share(self) -> float | None:
        """Page walks for loads, in cycles, over all cycles: the most that they can have cost.

        Of cycles with a walk in progress (``walk_active``), else of walks summed over cycles
        (``walk_pending``), which may exceed 1; ``None`` where they were not counted.
        """
        return self._share(("walk_active", "cycles"), ("walk_pending", "cycles"))

    @property
    def ipc(self) -> float | None:
        """Instructions per cycle; ``None`` where they were not counted."""
        return self._share(("instructions", "cycles"))

    @property
    def miss_rate(self) -> float | None:
        """Page walks for each load; ``None`` where they were not counted.

        Of ``walks`` and ``loads``, else of ``dTLB-load-misses`` and ``dTLB-loads``, which mean another level
        of the TLB on another processor: `events` says which.
        """
        return self._share(("walks", "loads"), ("dTLB-load-misses", "dTLB-loads"))

    @property
    def cycles(self) -> float | None:
        """Core cycles per access by `low`; ``None`` where the core clock is not known."""
        return None if self.core_ghz is None else self.low * self.core_ghz

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the slices over time, with the estimates; returns the Axes."""
        from . import plot

        return plot.slices(self, ax)

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the raw slices."""
        return {
            "probe": self.probe,
            "low_ns": self.low,
            "low_quantile": self.low_quantile,
            "interval_ns": self.interval and list(self.interval),
            "median_ns": self.median,
            "mean_ns": self.mean,
            "cycles": self.cycles,
            "core_ghz": self.core_ghz,
            "slices": self.ns.size,
            "accesses_per_slice": self.accesses_per_slice,
            "disturbed_share": float(self.disturbed.mean()),
            **self._facts(),
        }

    def _facts(self) -> dict[str, Any]:
        """What every measurement knows beside its times, as plain values."""
        return {
            "page_size": self.backing.page_size,
            "backing": self.backing.to_dict(),
            "setup_seconds": self.setup,
            "faults": self.faults,
            "counts": self.counts,
            "counters": {name: self.counter(name) for name in self.counters},
            **self.derived(),
            "params": self.params,
            "refused": self.refused,
            "warnings": list(self.warnings),
            "hazards": [asdict(hazard) for hazard in self.hazards],
            "started": self.started,
            "version": self.version,
        }

    @functools.cached_property
    def hazards(self) -> tuple[Hazard, ...]:
        """What could have spoiled this result, by the facts of the machine; worst first."""
        return hazards_of(self.host, self.probe)

    @property
    def title(self) -> str:
        """What was measured, in a few words."""
        counted = next((name for name in ("records", "sessions") if name in self.params), None)
        of = f" of {format_count(self.params[counted])} {counted}" if counted else ""
        where = f" of {format_size(self.params['bytes'])}" if not of and "bytes" in self.params else ""
        memory = f" in {approximate_size(self.params['bytes'])}" if of else ""
        where = where.replace(" of ", " over ") if self.probe == "stride" else where
        return f"{self.probe}{of}{where}{memory} on {self.backing.asked!r} pages"

    @property
    def parameters(self) -> Iterator[tuple[str, str]]:
        """What was asked that tells this measurement from others of its probe: names and texts."""
        yield "pages", self.backing.asked
        for name, value in self.params.items():
            if name not in (*EVERYWHERE, "records", "sessions") and value is not None:
                yield name, format_size(value) if name in SIZES else str(value)

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        cycles = f", {self.cycles:.1f} cycles at {self.core_ghz:.2f} GHz" if self.cycles else ""
        word = access_word(self.probe)
        yield "low", f"{format_ns(self.low)} per {word} ({format_interval(self.interval)}){cycles}"
        yield "median, mean", f"{format_ns(self.median)}, {format_ns(self.mean)}"
        yield "backing", str(self.backing)
        asked = (f"{name.replace('_', ' ')} {text}" for name, text in self.parameters if name != "pages")
        yield "parameters", ", ".join((*asked, f"seed {self.params.get('seed', 'unknown')}"))
        for name, count in self.counts.items():
            yield name.replace("_", " "), _counted(count)
        yield from self._counter_rows()
        disturbed = f"{self.disturbed.mean():.0%} visibly disturbed"
        plural = f"{word}{'es' if word.endswith('s') else 's'}"
        yield "slices", f"{self.ns.size} of {self.accesses_per_slice} {plural}, {disturbed}"
        yield "set-up", ", ".join(f"{name} {format_seconds(taken)}" for name, taken in self.setup.items())
        for text in refused_rows(self.refused):
            yield "refused", text
        for warning in self.warnings:
            yield "warning", warning
        yield from hazard_rows(self.hazards)

    def derived(self) -> dict[str, float | None]:
        """Ratios of counters, by name."""
        return {name: getattr(self, name) for name in DERIVED}

    def _counter_rows(self) -> Iterator[tuple[str, str]]:
        """Each counter, and how many slices had it if not all."""
        for name, values in self.counters.items():
            counted = int((~np.isnan(values)).sum())
            some = "" if counted == values.size else f", counted in {counted} of {values.size} slices"
            median = self.counter(name)
            yield name, "missing" if median is None else f"{median:.4g} per access{some}"
        for name, share in self.derived().items():
            if share is not None:
                yield name.replace("_", " "), f"{share:.3g}"

    def to_parts(self, put: Put) -> dict[str, Any]:
        """Plain values; each array goes to `put`."""
        for name in self.arrays:
            put(name, getattr(self, name))
        for name, values in self.counters.items():
            put(f"counters/{name}", values)
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in self.arrays}
        return {**plain, "backing": self.backing.to_dict(), "counters": list(self.counters)}

    @classmethod
    def from_parts(cls, parts: dict[str, Any], get: Get) -> Self:
        """Read back what `to_parts` wrote."""
        read = {name: get(name) for name in cls.arrays}
        # What a later field holds, an older file does not have.
        plain = {one.name: parts[one.name] for one in fields(cls) if one.name in parts}
        counters = {name: get(f"counters/{name}") for name in parts["counters"]}
        return cls(**{**plain, **read, "backing": Backing.from_dict(parts["backing"]), "counters": counters})


class SingleTimes(Measurement):
    """A measurement whose `ns` are of single accesses: nothing that follows from slices is there."""

    low = None  # type: ignore[assignment]
    interval = None
    cycles = None

    @property
    def estimate(self) -> float:
        """What stands for all the times: their median."""
        return self.median


# Parameters that every result has, or that follow from others: not what tells one from another.
EVERYWHERE = (
    "bytes",
    "pages",
    "strict",
    "touch",
    "mapped_bytes",
    "seed",
    "cpu",
    "precision",
    "max_seconds",
    "nodes",
    "slots",
)
SIZES = ("stride", "locality", "record_size", "step")
ACCESS_WORDS = {
    "lookup": "look-up",
    "objects": "request",
    "jump": "jump",
    "fault": "touch",
    "shootdown": "call",
}


def access_word(probe: str) -> str:
    """What one access of a probe is called."""
    return ACCESS_WORDS.get(probe, "access")


DERIVED = ("walk_share", "ipc", "miss_rate")  # properties of it that need several counters


# --- two that took turns ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Translation(Result):
    """What translation adds to a dependent access: spread nodes against packed ones.

    Attributes
    ----------
    spread, packed : Measurement
        One node a base page, and the same number of lines side by side; slices were timed in turn.
    """

    kind: ClassVar[str] = "translation"

    spread: Measurement
    packed: Measurement

    @functools.cached_property
    def _difference(self) -> tuple[float, Interval]:
        return analysis.difference(self.spread.ns, self.packed.ns)

    @property
    def cost(self) -> float:
        """Nanoseconds that translation adds to one access; within noise it may be negative."""
        return self._difference[0]

    @property
    def interval(self) -> Interval:
        """95 % confidence interval of `cost`, ns; ``None`` where there are too few slices for one."""
        return self._difference[1]

    @property
    def backing(self) -> Backing:
        """The proved pages of both."""
        return self.spread.backing

    @property
    def params(self) -> dict[str, Any]:
        """What was asked, of the spread nodes."""
        return self.spread.params

    @property
    def setup(self) -> dict[str, float]:
        """Seconds of each step; ``measure`` is the timed part and all around it."""
        return self.spread.setup

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know, of both."""
        return tuple(dict.fromkeys(self.spread.warnings + self.packed.warnings))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the slices of both over time; returns the Axes."""
        from . import plot

        return plot.translation(self, ax)

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the raw slices."""
        return {
            "probe": "translation",
            "cost_ns": self.cost,
            "interval_ns": self.interval and list(self.interval),
            "spread": self.spread.summary(),
            "packed": self.packed.summary(),
            "hazards": [asdict(hazard) for hazard in self.hazards],
        }

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """What could have spoiled this result, by the facts of the machine; worst first."""
        return hazards_of(self.spread.host, self.kind)

    @property
    def title(self) -> str:
        """What was measured, in a few words."""
        pages = f"{self.params['nodes']} pages"
        return (
            f"translation over {format_size(self.params['bytes'])} ({pages}) on {self.backing.asked!r} pages"
        )

    @property
    def parameters(self) -> Iterator[tuple[str, str]]:
        """What was asked that tells this one from others."""
        return ((name, text) for name, text in self.spread.parameters if name in ("pages", "stride"))

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        yield "cost", f"{format_ns(self.cost)} per access ({format_interval(self.interval)})"
        for name, run in (("spread", self.spread), ("packed", self.packed)):
            yield (
                name,
                f"{format_ns(run.low)} ({format_interval(run.interval)}), median {format_ns(run.median)}",
            )
        yield "backing", str(self.backing)
        for name in self.spread.counters:
            one, other = self.spread.counter(name), self.packed.counter(name)
            if one is not None and other is not None:
                yield name, f"{one:.4g} per access of spread nodes, {other:.4g} of packed ones"
        for text in refused_rows(self.spread.refused):
            yield "refused", text
        for warning in self.warnings:
            yield "warning", warning
        yield from hazard_rows(self.hazards)

    def to_parts(self, put: Put) -> dict[str, Any]:
        """Plain values; each array goes to `put`."""
        runs = (("spread", self.spread), ("packed", self.packed))
        return {name: run.to_parts(below(name, put)) for name, run in runs}

    @classmethod
    def from_parts(cls, parts: dict[str, Any], get: Get) -> Self:
        """Read back what `to_parts` wrote."""
        runs = {
            name: Measurement.from_parts(parts[name], from_below(name, get)) for name in ("spread", "packed")
        }
        return cls(**runs)


# --- words -----------------------------------------------------------------------------------------------


def format_number(ns: float) -> str:
    """Nanoseconds with the digits that mean something, and no minus before a zero."""
    return f"{ns:z.2f}" if abs(ns) < 100 else f"{ns:.1f}" if abs(ns) < 1000 else f"{ns:.0f}"


def format_ns(ns: float) -> str:
    """Nanoseconds with their unit."""
    return f"{format_number(ns)} ns"


def _counted(count: Any) -> str:
    """What was counted, or several of it by name."""
    if isinstance(count, Mapping):
        return ", ".join(f"{name} {_counted(each)}" for name, each in count.items())
    return (
        f"{count:,}" if isinstance(count, int) else f"{count:.4g}" if isinstance(count, float) else str(count)
    )


def refused_rows(refused: Mapping[str, str]) -> Iterator[str]:
    """Why counters are missing: those with the same reason together."""
    names: dict[str, list[str]] = {}
    for name, reason in refused.items():
        names.setdefault(reason, []).append(name)
    yield from (f"{', '.join(alike)}: {reason}" for reason, alike in names.items())


def format_interval(interval: Interval) -> str:
    """Write an interval, or say that there is none."""
    if interval is None:
        return "too few slices for an interval"
    return f"95 %: {format_number(interval[0])} to {format_number(interval[1])}"


# --- hazards ---------------------------------------------------------------------------------------------


def recorded_host(host: dict[str, Any]) -> Host | None:
    """The machine that a result was measured on; ``None`` where its record is not one of this version."""
    try:
        return Host.from_dict(host)
    except ValueError:
        return None


def hazards_of(host: dict[str, Any], probe: str) -> tuple[Hazard, ...]:
    """Hazards that touch the results of a probe, by the recorded facts of a machine; none without facts."""
    found = recorded_host(host)
    return () if found is None else found.hazards_for(probe)


def hazard_rows(hazards: Iterable[Hazard]) -> Iterator[tuple[str, str]]:
    """One row for each that matters, and one for all that are low or unknown."""
    small: dict[str, list[str]] = {}
    for hazard in hazards:
        if hazard.severity in ("high", "medium"):
            remedy = f"; to remove it: {hazard.command}" if hazard.command else ""
            yield f"{hazard.severity} hazard", f"{hazard.what}: {hazard.effect}{remedy}"
        else:
            small.setdefault(hazard.severity, []).append(hazard.what)
    for severity, names in small.items():
        yield f"{severity} hazard" + "s" * (len(names) > 1), ", ".join(names)
