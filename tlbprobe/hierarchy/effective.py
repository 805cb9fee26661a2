"""Effective translation size: what the TLB really holds for the bytes of a region, from timing alone.

A guest's huge pages may be backed by small ones of the host: the kernel then proves huge pages, and the TLB
holds small translations all the same. Nothing in the guest can read that; a step in time tells it.
"""

from __future__ import annotations

import platform
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..cores.current import current, once_a_core
from ..machine import cpus, paging
from ..markup import html_table
from ..measuring import slices
from ..measuring.nodes import node_parameters
from ..measuring.point import Common
from ..memory.region import Region
from ..results import analysis
from ..units import format_size

# Whether nodes miss the first level: what translation adds is compared with a load that hits.
STEP = 0.25  # of an L1 hit: the cost that counts as a miss; a hit in the second level costs more
POINT_SECONDS = 0.1
QUIET_SECONDS = 0.001  # where nothing disturbs: some tens of slices
PLACES = 4  # spots of a region that are looked at

# Which size that means: the spacing of the nodes doubles until they miss.
MOST_NODES = 1 << 11  # a first-level TLB has fewer entries
NODES_PER_ENTRY = 4  # nodes of the test over entries of the first level
FARTHEST = 4.0  # factor between what was inferred and the nearest size that a TLB can hold
FEWER_NODES = 16  # so many times fewer nodes on as many bytes: if these miss, too few entries are of such pages


@dataclass(frozen=True)
class EffectivePageSize:
    """What the TLB holds for a region: inferred from timing, never proved.

    Attributes
    ----------
    page_size : int or None
        Bytes of one translation; ``None`` where it is not identifiable, or differs from place to place.
    places : tuple of (int or None)
        The same at each place of the region that was looked at.
    backing : int or None
        Bytes of the pages that the kernel proves.
    entries : int or None
        Entries of the first TLB level, about, as seen with base pages.
    costs : tuple of (int, int, float)
        Evidence: offset and spacing of the nodes in bytes, nanoseconds that translation added.
    reason : str
        Why it is not identifiable; empty if it is.
    simulated : str
        Name of the simulated machine that it was measured on; empty of a real one.
    """

    page_size: int | None
    places: tuple[int | None, ...]
    backing: int | None
    entries: int | None
    costs: tuple[tuple[int, int, float], ...]
    reason: str = ""
    simulated: str = field(default_factory=lambda: current().name)

    def __str__(self) -> str:
        where = f" (simulated: {self.simulated})" if self.simulated else ""
        return f"{self._sentence()}{where}"

    def _sentence(self) -> str:
        if self.page_size is None:
            return f"effective translation size: not identifiable, {self.reason}"
        holds = f"the TLB holds {format_size(self.page_size)} translations"
        if self.backing is None or self.page_size >= self.backing:
            return holds
        return (
            f"{holds}, although the pages are {format_size(self.backing)}: a hypervisor backs them by "
            "smaller ones, or the processor splits them"
        )

    def _repr_html_(self) -> str:
        rows = ((f"{format_size(spacing)} apart, at {format_size(offset)}", f"{cost:.2f} ns added")
                for offset, spacing, cost in self.costs)  # fmt: skip
        return html_table(str(self), rows)


def effective_page_size(region: Region, *, seed: int = 0, cpu: int | None = None) -> EffectivePageSize:
    """Infer the bytes that one TLB entry covers in a region, from the time of dependent loads.

    Four times as many nodes as the first TLB level has entries, further and further apart: as long as
    several share one translation, the first level holds them all and translation adds nothing. The spacing
    at which it begins to cost tells how much one translation covers.

    Parameters
    ----------
    region : Region
        Whose bytes are overwritten. The larger it is, the larger the translations that can be told apart.
    seed : int
        Of the cycles, 0 to 2**64 - 1.
    cpu : int, optional
        CPU to pin this thread to while measuring; the one it runs on by default.

    Returns
    -------
    EffectivePageSize
        ``str()`` of it is one sentence. It belongs to this region: a hypervisor backs each frame as it likes.

    Raises
    ------
    ValueError
        If the region is too small for the test.

    Notes
    -----
    Isolates: the reach of the first TLB level. Confounded by: levels with different entries for different
    page sizes, up to a factor of four; processors that coalesce adjacent pages. Limits: where the first
    level shows no step with base pages, nothing can be told.

    References
    ----------
    .. [1] translation cost from spread and packed nodes: see `translation`.
    """
    Common(strict=True, seed=seed, cpu=cpu, precision=0.01, max_seconds=POINT_SECONDS, counters=())
    if not isinstance(region, Region):
        raise TypeError(
            f"region={reprlib.repr(region)} must be a Region: what the TLB holds belongs to an allocation"
        )
    if region.closed:
        raise ValueError("this Region is closed")
    with cpus.pinned(cpu):
        entries = first_level_entries()
        backing = region.check_backing().page_size
        if entries is None:
            reason = "the first TLB level shows no step with base pages on this machine"
            return EffectivePageSize(None, (), backing, None, (), reason)
        return _infer_size(region, entries, backing, seed)


def _infer_size(region: Region, entries: int, backing: int | None, seed: int) -> EffectivePageSize:
    nodes = NODES_PER_ENTRY * entries
    span = nodes * region.base_page
    if span > region.mapped_bytes:
        raise ValueError(
            f"this Region has {format_size(region.mapped_bytes)}: the test needs {format_size(span)}"
        )
    places: list[int | None] = []
    costs: list[tuple[int, int, float]] = []
    with Region(nodes * paging.cache_line_size()) as beside:
        for offset in _offsets(region, span):
            spot = _Spot(region, beside, offset, nodes, seed)
            places.append(spot.size(backing))
            costs.extend(spot.costs)
    found = {size for size in places if size is not None}  # near the end of a region a step may lie beyond it
    size = found.pop() if len(found) == 1 else None
    reason = "" if size else f"the places that were tried show {', '.join(map(_named, places))}"
    return EffectivePageSize(size, tuple(places), backing, entries, tuple(costs), reason)


def _named(size: int | None) -> str:
    return "nothing clear" if size is None else format_size(size)


def _offsets(region: Region, span: int) -> list[int]:
    """Places spread over the region, each with room for nodes a base page apart."""
    room = region.mapped_bytes - span
    count = min(PLACES, 1 + room // span)
    return [place * room // max(1, count) // region.base_page * region.base_page for place in range(count)]


@dataclass
class _Spot:
    """One spot of a region."""

    region: Region
    beside: Region
    offset: int
    nodes: int
    seed: int

    def __post_init__(self) -> None:
        self.costs: list[tuple[int, int, float]] = []

    def size(self, backing: int | None) -> int | None:
        """Bytes of one translation here."""
        shared = 0  # the largest spacing at which the first level still holds everything
        for spacing in self._spacings():
            if self._misses(self.nodes, spacing):
                size = self._between(shared * NODES_PER_ENTRY, spacing * NODES_PER_ENTRY)
                whole = size is None or backing is None or size >= backing
                few = self.nodes // FEWER_NODES
                return size if whole or not self._misses(few, spacing * FEWER_NODES) else None
            shared = spacing
        # The region ends before the step: it is the kernel's own page size, if nothing smaller is left.
        least = NODES_PER_ENTRY * shared
        left = [size for size in translation_sizes(self.region.base_page) if size >= least]
        return backing if backing is not None and left and left[0] >= backing >= least else None

    def _misses(self, nodes: int, spacing: int) -> bool:
        """Whether the first level does not hold so many nodes, so far apart."""
        cost, hit = added_cost(self.region, self.offset, self.beside, nodes, spacing, self.seed)
        self.costs.append((self.offset, spacing, cost))
        return cost > STEP * hit

    def _between(self, least: int, more: int) -> int | None:
        """The size that the step lies at: from `least` bytes to less than `more`."""
        base = self.region.base_page
        return base if least == 0 else nearest_translation((least * more) ** 0.5, base)

    def _spacings(self) -> Iterator[int]:
        spacing = self.region.base_page
        while self.offset + self.nodes * spacing <= self.region.mapped_bytes:
            yield spacing
            spacing *= 2


def translation_sizes(base: int) -> list[int]:
    """Bytes that one entry of a TLB can cover: base pages, coalesced ones, PMD size, larger huge pages."""
    pmd = paging.pmd_size() or max(paging.hugetlb_pools(), default=base)
    contiguous = [16 * pmd] if platform.machine() == "aarch64" else []  # by its contiguous bit
    larger = [size for size in paging.hugetlb_pools() if size > pmd]
    return sorted({base, 4 * base, 16 * base, pmd, *contiguous, *larger})


def nearest_translation(size: float, base: int) -> int | None:
    """The size that a TLB can hold nearest to an inferred one; ``None`` where none is near."""
    nearest = min(translation_sizes(base), key=lambda one: max(one / size, size / one))
    return nearest if max(nearest / size, size / nearest) <= FARTHEST else None


def added_cost(
    region: Region, offset: int, beside: Region, nodes: int, spacing: int, seed: int
) -> tuple[float, float]:
    """Nanoseconds that translation adds to nodes so far apart, and those of the packed nodes alone."""
    spread = node_parameters(nodes, spacing, "spread", seed)
    packed = node_parameters(nodes, spacing, "packed", seed)
    parts = [
        (region, "chase", offset, nodes * spacing, spread),
        (beside, "chase", 0, nodes * paging.cache_line_size(), packed),
    ]
    with current().session(parts) as session:
        seconds = QUIET_SECONDS if current().quiet else POINT_SECONDS
        timed, _ = slices.measure(session, precision=0.01, max_seconds=seconds)
    cost, _ = analysis.difference(timed[0].ns, timed[1].ns)
    return cost, analysis.low(timed[1].ns)


@once_a_core
def first_level_entries() -> int | None:
    """Entries of the first TLB level for base pages, about; ``None`` where no step shows."""
    base = paging.base_page_size()
    with Region(MOST_NODES * base) as region, Region(MOST_NODES * paging.cache_line_size()) as beside:

        def misses(nodes: int) -> bool:
            cost, hit = added_cost(region, 0, beside, nodes, base, 0)
            return cost > STEP * hit

        return _bisect(misses, 8, MOST_NODES)


def _bisect(misses: Callable[[int], bool], fewest: int, most: int) -> int | None:
    held = fewest
    while 2 * held <= most and not misses(2 * held):
        held *= 2
    if 2 * held > most or (held == fewest and misses(fewest)):
        return None
    missed = 2 * held
    while missed - held > max(1, held / 16):
        middle = (held + missed) // 2
        held, missed = (held, middle) if misses(middle) else (middle, missed)
    return held
