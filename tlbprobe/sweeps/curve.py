"""The curve: latency over working set and page policy, with the translation cost beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy.typing as npt

from ..declared import Bytes, Keys, Spec
from ..grouping import grouped
from ..hierarchy.anatomy import Anatomy
from ..hierarchy.effective import effective_page_size
from ..machine import facts, paging
from ..machine.hazards import Hazard
from ..memory.backing import BackingError
from ..memory.policies import find_policy, page_policies
from ..memory.region import Region
from ..probes.chase import chase
from ..probes.translation import translation
from ..results.measurement import Measurement, Translation
from ..results.progress import Progress
from ..results.result import StrPath, load_as
from ..results.table import Table, point_columns, tabulate
from ..results.words import format_ns, hazard_rows, hazards_of, recorded_host
from ..units import Size, format_size, parse_size
from .axes import check_common, is_axis, sizes
from .run import Asked, run_points
from .sweep import Sweep, complaints

if TYPE_CHECKING:
    from matplotlib.axes import Axes


VIEW_STEP = 4  # working sets of the second view are this factor apart ...
VIEW_LINES = 5  # ... and at most so many


def default_policies() -> list[str]:
    """Policies that a curve measures by default: base, thp, every hugetlb and mTHP size on offer."""
    known = page_policies()
    huge = [policy.name for policy in known if policy.offered and policy.kind in ("hugetlb", "mthp")]
    thp = [policy.name for policy in known if policy.kind == "thp"]
    return ["base", *thp, *huge]


def view_sizes(working_sets: Sequence[int]) -> list[int]:
    """Working sets of the second view, latency over page size: a few from the largest down."""
    chosen: list[int] = []
    for size in sorted(working_sets, reverse=True):
        if len(chosen) < VIEW_LINES and (not chosen or size * VIEW_STEP <= chosen[-1]):
            chosen.append(size)
    return chosen[::-1]


AXES = Keys(size=Annotated[list[Bytes], Spec(some=True)], pages=Annotated[list[str], Spec(some=True)])


@dataclass(frozen=True, eq=False, repr=False)
class Curve(Table):
    """Latency over working set and page policy, with the translation cost beside it.

    Attributes
    ----------
    chase : Sweep
        A dependent load on every cache line of the working set; axes ``size`` (bytes), ``pages``.
    translation : Sweep
        What translation adds at one node a base page; the same axes.
    view : list of int
        Working sets in bytes at which every page size was measured.
    notes : list of str
        Page policies that the machine does not offer, and how it would.
    effective : dict of str to str
        What the TLB holds for the memory of each policy of larger pages, in one sentence: see
        `effective_page_size`.
    anatomy : Anatomy or None
        Of the same machine: where its levels end is drawn, instead of what the processor claims.
    """

    kind: ClassVar[str] = "curve"

    chase: Sweep
    translation: Sweep
    view: list[Bytes]
    notes: list[str] = field(default_factory=list)
    effective: dict[str, str] = field(default_factory=dict)
    anatomy: Anatomy | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        AXES.check("chase.axes", self.chase.axes)
        AXES.check("translation.axes", self.translation.axes)

    @property
    def policies(self) -> list[str]:
        """Page policies, in the order of asking."""
        return list(self.chase.axes["pages"])

    @property
    def largest(self) -> dict[str, tuple[int, Measurement]]:
        """Largest working set that was measured on each policy, and its chase."""
        found: dict[str, tuple[int, Measurement]] = {}
        for size, name in sorted(self.chase.points, key=lambda key: key[0]):
            point = self.chase.points[size, name]
            if isinstance(point, Measurement):
                found[name] = size, point
        return {name: found[name] for name in self.policies if name in found}

    @property
    def nothing(self) -> str:
        """That no point could be measured, if that is so."""
        return "" if self.largest else "no point could be measured"

    @property
    def host(self) -> dict[str, Any]:
        """Facts of the machine."""
        return next((point.host for _, point in self.largest.values()), {})

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """What could have spoiled these results, by the facts of the machine; worst first."""
        return hazards_of(self.host, "chase")

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return one row a point: the columns of `Sweep.to_numpy`, and the cost with its interval."""
        table = self.chase.to_numpy()
        keys = zip(table["size"].tolist(), table["pages"].tolist(), strict=True)
        costs = point_columns([self.translation.points.get(key) for key in keys])
        beside = {
            "translation_ns": costs["low_ns"],
            "translation_low_ns": costs["interval_low_ns"],
            "translation_high_ns": costs["interval_high_ns"],
            "translation_reason": costs["reason"],
        }
        return tabulate({**{name: table[name].tolist() for name in table.dtype.names or ()}, **beside})

    def plot(self, ax: Axes | None = None, *, x: Literal["working_set", "page_size"] = "working_set") -> Axes:
        """Draw one view on the given Axes: latency over working set, or over page size."""
        axes: Axes = type(self).pictures().picture(self, ax, x=x)
        return axes

    @property
    def subject(self) -> str:
        """What was measured, in a few words."""
        span = self.chase.axes["size"]
        return f"curve from {format_size(span[0])} to {format_size(span[-1])} on {', '.join(self.policies)}"

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        for name, (size, point) in self.largest.items():
            cost = self.translation.points.get((size, name))
            added = f", translation {format_ns(cost.cost)}" if isinstance(cost, Translation) else ""
            yield name, f"{format_ns(point.low)} at {format_size(size)}{added}; {point.backing}"
        for name, sentence in self.effective.items():
            yield f"{name}, in truth", sentence
        if self.anatomy is not None:
            yield "levels", self.anatomy.sentences()[0]
        total = len(self.chase) + len(self.translation)
        for (what, text), count in complaints(self.chase, self.translation).items():
            yield what, f"{count} of {total} points: {text}"
        yield from hazard_rows(self.hazards)
        for note in self.notes:
            yield "not offered", note

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the raw slices."""
        parts = {"chase": self.chase.summary(), "translation": self.translation.summary()}
        hazards = [asdict(hazard) for hazard in self.hazards]
        return {
            **parts,
            "view": self.view,
            "effective": self.effective,
            "anatomy": self.anatomy and self.anatomy.summary(),
            "not_offered": self.notes,
            "hazards": hazards,
        }


def curve(
    sizes: Size | Iterable[Size] | None = None,
    pages: str | Iterable[str] | None = None,
    *,
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 0.25,
    anatomy: Anatomy | StrPath | None = None,
    on_error: Literal["keep", "raise"] = "keep",
    progress: Progress = True,
) -> Curve:
    """Measure latency over working set and page policy, with the translation cost beside it.

    Every working set is measured on every policy twice: as a `chase` on each of its cache lines, and as a
    `translation` at one node a base page. Multi-size transparent huge pages are measured at the working
    sets of the second view only.

    Parameters
    ----------
    sizes : int, str or iterable of them, optional
        Working sets in bytes; 16 KiB to 1 GiB, four an octave, by default.
    pages : str or iterable of str, optional
        Page policies; base, thp and every hugetlb and mTHP size that this machine offers by default.
    strict, cpu, precision
        As for `chase`.
    seed : int
        Of the cycles, and of the order of the points, 0 to 2**64 - 1.
    max_seconds : float
        Time for the timed part of each point, at most.
    anatomy : Anatomy or path, optional
        Of this machine, or the file that holds it: the levels that it found are drawn.
    on_error, progress
        As for `sweep`.

    Returns
    -------
    Curve
        ``.plot()``, ``.plot(x="page_size")``, ``.to_numpy()``, ``.save()``.

    Notes
    -----
    Isolates: nothing by itself; it shows caches and translation together, and translation alone. The result
    is of the guest's pages; a hypervisor may back them by smaller ones: what the TLB holds for the very
    memory that was measured stands beside it.
    """
    working_sets = sorted({parse_size(size, "sizes") for size in _listed(sizes, default_sizes)})
    names = [find_policy(name).name for name in _listed(pages, default_policies)]
    if not working_sets or not names:
        raise ValueError("sizes and pages need at least one value each")
    if len(set(names)) < len(names):
        raise ValueError(f"pages={names} repeats a policy")
    common = {"strict": strict, "seed": seed, "cpu": cpu, "precision": precision, "max_seconds": max_seconds}
    check_common(common)
    levels = None if anatomy is None else _of_this_machine(anatomy)
    view = view_sizes(working_sets)
    base = paging.base_page_size()
    asked: dict[str, list[Asked]] = {"chase": [], "translation": []}
    for name in names:
        few = pages is None and find_policy(name).kind == "mthp"
        for size in view if few else working_sets:
            arguments = {"size": size, "pages": name, **common}
            asked["chase"].append(Asked(chase, (size, name), arguments))
            if size >= 2 * base:
                asked["translation"].append(Asked(translation, (size, name), arguments))
    effective: dict[str, str] = {}

    def look(region: Region) -> None:
        if sentence := _effective(region, seed, cpu):
            effective[region.pages] = sentence

    points = run_points([*asked["chase"], *asked["translation"]], on_error, progress, seed, look)
    sweeps = {
        probe: Sweep(probe, {"size": working_sets, "pages": names}, {ask.key: points[ask] for ask in asks})
        for probe, asks in asked.items()
    }
    return Curve(**sweeps, view=view, notes=not_offered(), effective=effective, anatomy=levels)


def _effective(region: Region, seed: int, cpu: int | None) -> str:
    """What the TLB holds for larger pages, or why that is not known, in a sentence; empty for base pages."""
    try:
        if region.check_backing().page_size == region.base_page:
            return ""
        return str(effective_page_size(region, seed=seed, cpu=cpu))
    except (ValueError, MemoryError, OSError, BackingError) as error:
        return f"effective translation size: not identifiable, {error}"


def _of_this_machine(given: Anatomy | StrPath) -> Anatomy:
    """An anatomy, or what a file holds; a ValueError for any other result, machine, or nothing to draw."""
    if isinstance(given, Anatomy):
        anatomy, what = given, ""
    else:
        anatomy, what = load_as(given, Anatomy, "anatomy", "anatomy"), f"={os.fspath(given)!r}"
    if anatomy.data is None:
        raise ValueError(f"anatomy{what} found no level on the data side: there is nothing to draw")
    its, here = recorded_host(anatomy.host), facts.host()
    names = [host.get("cpu.name") if host else None for host in (its, here)]
    if None not in names and names[0] != names[1]:
        raise ValueError(f"anatomy{what} is of another machine: of {names[0]}, and this is {names[1]}")
    return anatomy


def _listed(given: Any, default: Callable[[], list[Any]]) -> list[Any]:
    """Values that were given one by one or as a list, or not at all."""
    if given is None:
        return default()
    return list(given) if is_axis(given) else [given]


def default_sizes() -> list[int]:
    """16 KiB to 1 GiB, four an octave."""
    return sizes("16KiB", "1GiB", 4)


def not_offered() -> list[str]:
    """Page policies that this machine does not offer, kind by kind, with the command that would offer it."""
    missing = (policy for policy in page_policies() if not policy.offered)
    return [
        str(first) + (f" (likewise {', '.join(policy.name for policy in others)})" if others else "")
        for first, *others in grouped(missing, lambda policy: policy.kind).values()
    ]
