"""A simulated translation hierarchy: what a random cycle of loads costs on a machine made of numbers.

Predict, then measure: build a `Machine`, ask it for the curve that a real one would show, and lay the
measurement beside it. Nothing here measures anything.

What is exact, and what is not. A random cycle visits its pages in one fixed order again and again; so within
a set of a TLB as many pages as are mapped to it take turns in that order, and how often each is still there
depends on their number, the ways and the replacement alone (`hit_share`). A second level sees what the first
one misses; where the first level misses only some of the visits to a page, which never happens with LRU and
with random replacement as soon as a set overflows, the second level is treated as if it saw them all. Data
caches are a smooth function of the lines in use: their own structure is not what this module is about.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import numpy as np

from ..checks import check_choice
from ..cores.description import REPLACEMENTS
from ..units import Floats, Ints

Replacement = Literal["lru", "plru", "random"]
Index = Literal["plain", "hashed"]

TABLE_BITS = 9  # entries of one page table: 512 of 8 bytes in 4 KiB
LINES_PER_PAGE = 64  # of data
ENTRIES_PER_LINE = 8  # of a page table, in a cache line of 64 bytes
LAPS = 96  # of a simulated set, where its state does not repeat before
EXACT_STATES = 800  # of a set under random replacement: more would take too long to solve
FAR = 2  # times the ways: that many pages in turn never hit under tree-PLRU


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} must be a whole number")
    if value < least:
        raise ValueError(f"{name}={value!r} must be at least {least}")


def _check_amount(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name}={value!r} must be a number")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={value!r} must be finite, and 0 at least")


def _checked_pages(pages: Sequence[int] | Ints) -> Ints:
    """Page numbers, each once: a page that is there twice is one page."""
    where = np.asarray(pages)
    if where.ndim != 1 or not where.size or where.dtype.kind not in "iu":
        raise ValueError(
            f"pages of shape {where.shape} and {where.dtype}: must be page numbers, one at least"
        )
    if len(np.unique(where)) < where.size or where.min() < 0:
        raise ValueError("pages must be numbers of 0 or more, each of them once")
    return where.astype(np.int64)


# --- one set ---------------------------------------------------------------------------------------------


def hit_share(pages: int, ways: int, replacement: Replacement) -> float:
    """Share of visits that hit, where so many pages take turns in one set, after the first laps.

    Parameters
    ----------
    pages : int
        Pages that are mapped to the set, at least 1; each is visited once a lap, in a fixed order.
    ways : int
        Pages that the set holds.
    replacement : {"lru", "plru", "random"}
        What a miss replaces once the set is full: the least recently used page; where the bits of a binary
        tree point, each away from its last use; any page.

    Notes
    -----
    LRU is all or nothing. Tree-PLRU is simulated until it repeats itself. Of random replacement it is the
    expectation: exact of small sets and for one page too many, which is two misses a lap; of larger sets from
    how the chance to be out grows with the time since the last visit: within 0.012 of simulations up to twice
    as many pages as ways, and beyond that up to 0.04 too high.

    Examples
    --------
    >>> hit_share(4, 4, "lru"), hit_share(5, 4, "lru")
    (1.0, 0.0)
    >>> round(5 * (1 - hit_share(5, 4, "random")), 6)
    2.0
    """
    _check_count("pages", pages, 1)
    _check_count("ways", ways, 1)
    check_choice("replacement", replacement, REPLACEMENTS)
    if pages <= ways:
        return 1.0
    if replacement == "lru":
        return 0.0
    return _random_share(pages, ways) if replacement == "random" else _plru_share(pages, ways)


@functools.lru_cache(maxsize=1 << 16)
def _random_share(pages: int, ways: int) -> float:
    if math.comb(pages, ways) <= EXACT_STATES:
        return _random_exactly(pages, ways)
    out = pages - ways
    after = (out - 1) / out  # of the others that are out, relative: given that one is
    low, high = 0.0, 1.0 / ways
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if _out_ahead(pages, rate, after).sum() < out else (low, rate)
    return float(1 - (_out_ahead(pages, low, after)[0] + low * ways) / 2)


def _out_ahead(pages: int, rate: float, after: float) -> Floats:
    """Probability that a page is out, by how many visits it is ahead: the longer ago its last one was."""
    visits = np.arange(pages - 1, 0, -1, dtype=np.float64)
    return rate * visits if after == 0 else (1 - (1 - after * rate) ** visits) / after


def _random_exactly(pages: int, ways: int) -> float:
    """The stationary distribution of which pages are out, numbered from the one that is visited next."""
    states = [frozenset(out) for out in itertools.combinations(range(pages), pages - ways)]
    number = {state: k for k, state in enumerate(states)}
    chances = np.zeros((len(states), len(states)))
    for state, k in number.items():
        inside = [page for page in range(1, pages) if page not in state]
        replaced = [(state - {0}) | {page} for page in inside] if 0 in state else [state]
        for after in replaced:
            moved = frozenset((page - 1) % pages for page in after)
            chances[number[moved], k] += 1 / len(replaced)
    balance = chances - np.eye(len(states))
    balance[-1] = 1
    share = np.linalg.solve(balance, np.eye(len(states))[-1])
    return float(sum(share[k] for state, k in number.items() if 0 not in state))


@functools.lru_cache(maxsize=1 << 16)
def _plru_share(pages: int, ways: int) -> float:
    if pages >= FAR * ways:
        return 0.0
    tree = _PlruTree(ways)
    seen: dict[tuple[object, ...], int] = {}
    hits: list[int] = []
    for lap in range(LAPS):
        state = tree.state
        if state in seen:
            period = hits[seen[state] :]
            return sum(period) / (pages * len(period))
        seen[state] = lap
        hits.append(sum(tree.visit(page) for page in range(pages)))
    late = hits[LAPS // 2 :]
    return sum(late) / (pages * len(late))


class _PlruTree:
    """A set under tree-PLRU; a number of ways that is no power of two leaves branches of the tree empty."""

    def __init__(self, ways: int) -> None:
        self.depth = max(1, math.ceil(math.log2(ways)))
        self.ways = ways
        self.bits = [0] * (1 << self.depth)  # node 1 is the root; 1: the way to replace is to the right
        self.held: dict[int, int] = {}  # way of each page
        self.page: list[int | None] = [None] * ways

    @property
    def state(self) -> tuple[object, ...]:
        """All that the future depends on, at the end of a lap."""
        return (*self.bits, *self.page)

    def visit(self, page: int) -> bool:
        """Whether a page is there; it is afterwards."""
        way = self.held.get(page)
        hit = way is not None
        if way is None:
            way = self._victim()
            if (old := self.page[way]) is not None:
                del self.held[old]
            self.page[way], self.held[page] = page, way
        node = 1
        for level in range(self.depth - 1, -1, -1):
            right = way >> level & 1
            self.bits[node] = 1 - right
            node = 2 * node + right
        return hit

    def _victim(self) -> int:
        if len(self.held) < self.ways:
            return self.page.index(None)
        node, way = 1, 0
        for level in range(self.depth - 1, -1, -1):
            right = self.bits[node] if way + (1 << level) < self.ways else 0
            way += right << level
            node = 2 * node + right
        return way


# --- one machine -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """One level of the TLB.

    Attributes
    ----------
    entries, ways : int
        Translations it holds, and those of one set; as many ways as entries: fully associative. The sets are
        a power of two.
    hit_ns : float
        Nanoseconds that a load takes longer if its translation is found here; 0 for the first level.
    index : {"plain", "hashed"}
        Low bits of the page number choose the set; or their exclusive-or with the next `folds` - 1 groups of
        as many bits.
    replacement : {"lru", "plru", "random"}
        What a miss replaces.
    """

    entries: int
    ways: int
    hit_ns: float = 0.0
    index: Index = "plain"
    replacement: Replacement = "lru"
    folds: int = 2

    def __post_init__(self) -> None:
        for name in ("entries", "ways", "folds"):
            _check_count(name, getattr(self, name), 1)
        _check_amount("hit_ns", self.hit_ns)
        check_choice("replacement", self.replacement, REPLACEMENTS)
        check_choice("index", self.index, ("plain", "hashed"))
        if self.ways > self.entries or self.entries % self.ways:
            raise ValueError(f"ways={self.ways} must divide entries={self.entries}")
        if self.sets & (self.sets - 1):
            raise ValueError(f"entries={self.entries} of ways={self.ways}: {self.sets} sets, no power of two")

    @property
    def sets(self) -> int:
        """Entries over ways."""
        return self.entries // self.ways

    def set_of(self, pages: Ints) -> Ints:
        """Set of each page number."""
        bits = self.sets.bit_length() - 1
        found = pages.copy()
        if self.index == "hashed":
            for fold in range(1, self.folds):
                found ^= pages >> (fold * bits)
        return found & (self.sets - 1)

    def hits(self, pages: Ints, lines: int = 1) -> Floats:
        """Share of visits to each page that hit, where all take turns; their lines in random order."""
        if len(pages) <= self.ways:
            return np.ones(len(pages))
        sets = self.set_of(pages)
        counts = np.bincount(sets, minlength=self.sets)
        share = np.ones(int(counts.max()) + 1)
        for count in np.unique(counts):
            if count > self.ways:
                again = (1 - 1 / lines) * self.ways / int(count)  # another line of it was soon before
                share[count] = max(again, hit_share(int(count), self.ways, self.replacement))
        found: Floats = share[counts[sets]]
        return found


@dataclass(frozen=True)
class Cache:
    """A data cache: how many lines it holds, and the nanoseconds of a load that finds its line in it."""

    lines: int
    ns: float

    def __post_init__(self) -> None:
        _check_count("lines", self.lines, 1)
        _check_amount("ns", self.ns)


@dataclass(frozen=True)
class Machine:
    """A translation hierarchy with its data caches.

    Attributes
    ----------
    levels : tuple of Level
        Of the TLB, the first one first.
    caches : tuple of Cache
        Of data, the first one first; page tables are data too.
    memory_ns : float
        Of a load that no cache holds.
    walk_ns : float
        Nanoseconds that a load takes longer if its translation is in no level, where the last table entry is
        in the first data cache and the upper ones are in the paging-structure caches.
    paging : tuple of int
        Entries of the paging-structure cache of each upper level of the page table, the lowest first: of
        those that point to tables of 512 pages, then to tables of these ... An entry that is not there is
        one more load.
    exposed : float
        Share of `hit_ns` that shows in addition where the data is not in the first cache.
    """

    levels: tuple[Level, ...]
    caches: tuple[Cache, ...] = (Cache(512, 1.1), Cache(16384, 3.8), Cache(1 << 19, 11.0))
    memory_ns: float = 90.0
    walk_ns: float = 18.0
    paging: tuple[int, ...] = (32, 16, 8)
    exposed: float = 0.14

    def __post_init__(self) -> None:
        for name, kind in (("levels", Level), ("caches", Cache)):
            given = getattr(self, name)
            if not given or not all(isinstance(one, kind) for one in given):
                raise ValueError(f"{name}={given!r} must hold at least one {kind.__name__}, and nothing else")
        for entries in self.paging:
            _check_count("paging", entries, 1)
        for name in ("memory_ns", "walk_ns", "exposed"):
            _check_amount(name, getattr(self, name))

    def missing(self, pages: Ints, lines: int = 1) -> list[Floats]:
        """Share of the visits to each page that miss a level and all before it, level by level."""
        shares: list[Floats] = []
        missed = np.ones(len(pages))
        for level in self.levels:
            there = missed > 0
            if there.any():
                hit = np.ones(len(pages))
                hit[there] = level.hits(pages[there], lines)
                missed = missed * (1 - hit)
            shares.append(missed)
        return shares

    def packed_ns(self, nodes: int) -> float:
        """Nanoseconds of one access to so many lines side by side, on the fewest pages, in random order."""
        _check_count("nodes", nodes, 1)
        pages = -(-nodes // LINES_PER_PAGE)
        held = itertools.accumulate((level.entries for level in self.levels), max)  # by it and all before
        missed = [max(0.0, 1 - entries / pages) for entries in held]
        return self.load_ns(nodes) + self._hits_ns(missed) + missed[-1] * self.walk_ns

    def spread_ns(self, pages: Sequence[int] | Ints, *, lines: int = 1) -> float:
        """Nanoseconds of one access to some lines on each of these pages, which take turns."""
        where = _checked_pages(pages)
        missing = self.missing(where, lines)
        tables, upper = self._walks(where, missing[-1])
        footprint = lines * len(where) + tables
        data, first = self.load_ns(footprint), self.caches[0]
        exposure = 1 + self.exposed * _beyond(footprint / first.lines)
        hits = exposure * self._hits_ns([float(share.mean()) for share in missing])
        fetch = data - first.ns  # of a table entry, beyond what a walk has in any case
        walk = self.walk_ns + fetch + upper * data
        return data + hits + float(missing[-1].mean()) * walk

    def _hits_ns(self, missed: Sequence[float]) -> float:
        """Nanoseconds for what each further level still finds, by the share that misses each."""
        found = zip(self.levels[1:], missed, missed[1:], strict=False)
        return sum(level.hit_ns * (before - after) for level, before, after in found)

    def translation_ns(self, pages: Sequence[int] | Ints) -> float:
        """Nanoseconds that translation adds to one access to each of these pages."""
        return self.spread_ns(pages) - self.packed_ns(len(pages))

    def _walks(self, pages: Ints, walked: Floats) -> tuple[float, float]:
        """Lines of page table that walks use, and upper entries that one walk has to load."""
        if not walked.any():
            return 0.0, 0.0
        used = pages[walked > 0]
        lines, upper = float(len(np.unique(used // ENTRIES_PER_LINE))), 0.0
        for level, entries in enumerate(self.paging, 1):
            tables = len(np.unique(used >> (TABLE_BITS * level)))
            missed = _beyond(tables / entries)
            upper += missed
            lines += missed * tables
            if tables == 1:
                break
        return lines, upper

    def load_ns(self, lines: float) -> float:
        """Nanoseconds of a load from a working set of so many lines."""
        ns, reached = 0.0, 1.0
        for cache in self.caches:
            beyond = min(reached, _beyond(lines / cache.lines))
            ns += (reached - beyond) * cache.ns
            reached = beyond
        return ns + reached * self.memory_ns


@functools.lru_cache(maxsize=1 << 16)
def _beyond(ratio: float) -> float:
    """Share of visits that miss a large cache of random replacement, at so many times its lines."""
    if ratio <= 1:
        return 0.0
    missed = 1.0
    for _ in range(200):
        after = 1 - math.exp(-ratio * missed)
        if abs(after - missed) < 1e-9:
            break
        missed = after
    return missed


# --- noise -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """Disturbance, which only ever adds time, as it was seen on a shared virtual machine.

    Attributes
    ----------
    quiet : float
        Relative spread of undisturbed slices (exponential).
    placement : float
        Relative spread of what is beyond the first data cache, from one preparation to the next (normal):
        where the lines and the tables came to lie.
    burst_share, burst : float
        Share of the slices in a burst, and the mean of what it adds, relative.
    burst_slices : float
        Mean length of a burst.
    round_share, round : float
        Share of the rounds in which every slice is disturbed, and the mean of what that adds, relative.
    """

    quiet: float = 0.002
    placement: float = 0.006
    burst_share: float = 0.3
    burst: float = 0.15
    burst_slices: float = 4.0
    round_share: float = 0.12
    round: float = 0.3

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_amount(one.name, getattr(self, one.name))
        for name in ("burst_share", "round_share"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name}={getattr(self, name)!r} is a share, below 1")
        if self.burst_slices < 1:
            raise ValueError(f"burst_slices={self.burst_slices!r} is a mean length of bursts, at least 1")

    def times(self, factor: float) -> Noise:
        """The same, so many times as large; 0 is none."""
        return Noise(
            self.quiet * factor,
            self.placement * factor,
            min(0.9, self.burst_share * factor),
            self.burst * min(factor, 2.0),
            self.burst_slices,
            min(0.5, self.round_share * factor),
            self.round * min(factor, 2.0),
        )

    def slices(self, ns: float, floor: float, count: int, random: np.random.Generator) -> Floats:
        """Times of so many slices of one round, of which `floor` nanoseconds are beyond doubt."""
        placed = ns + (ns - floor) * self.placement * random.standard_normal()
        added = self.quiet * random.standard_exponential(count)
        if self.burst_share:
            added += self._burst(count, random)
        if random.random() < self.round_share:
            added += self.round * random.standard_exponential()
        found: Floats = placed * (1 + added)
        return found

    def _burst(self, count: int, random: np.random.Generator) -> Floats:
        """Bursts of geometric length: a chain of two states."""
        leave = 1 / self.burst_slices
        enter = leave * self.burst_share / (1 - self.burst_share)
        inside = random.random() < self.burst_share
        on = np.empty(count, np.bool_)
        for k, draw in enumerate(random.random(count)):
            on[k] = inside
            inside = draw >= leave if inside else draw < enter
        added: Floats = on * self.burst * random.standard_exponential(count)
        return added


QUIET = Noise(0, 0, 0, 0, 1, 0, 0)


# --- a source of slices ----------------------------------------------------------------------------------


@dataclass
class Simulation:
    """A machine that is asked for slices as a real one is, with noise.

    Attributes
    ----------
    machine : Machine
        What answers.
    noise : Noise
        What disturbs it.
    seed : int
        Of the noise.
    most_nodes : int
        Pages of its memory.
    far_bits : int
        Bits of the page numbers that it has.
    floor_ns : float
        Effects that are to be overlooked.
    """

    machine: Machine
    noise: Noise = field(default_factory=Noise)
    seed: int = 0
    most_nodes: int = 1 << 15
    far_bits: int = 34
    floor_ns: float = 0.0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.asked, self.halves = 0, True
        self._known: dict[tuple[int, float], tuple[float, float]] = {}

    def pair(self, nodes: int, spacing: float, slices: int) -> tuple[Floats, Floats]:
        """Slices of one round: nodes so many pages apart, and as many lines side by side."""
        key = nodes, spacing
        if key not in self._known:
            self._known[key] = self._spread(nodes, spacing), self.machine.packed_ns(nodes)
        return self._slices(*self._known[key], slices)

    def _spread(self, nodes: int, spacing: float) -> float:
        """Nodes so many pages apart; if that is less than one, several on each page."""
        if spacing < 1:
            lines = round(1 / spacing)
            return self.machine.spread_ns(np.arange(-(-nodes // lines)), lines=lines)
        pages = np.arange(nodes, dtype=np.int64) * round(spacing)
        if spacing > 1:
            pages += _within(nodes, round(spacing))
        return self.machine.spread_ns(pages)

    def nearest(self, nodes: int) -> int:
        """Any number of nodes will do."""
        return nodes

    def places(self, pages: Ints, slices: int) -> tuple[Floats, Floats]:
        """Slices of one round: a line on each of some pages, and as many lines side by side."""
        return self._slices(self.machine.spread_ns(pages), self.machine.packed_ns(len(pages)), slices)

    def _slices(self, one: float, other: float, slices: int) -> tuple[Floats, Floats]:
        self.asked += 1
        floor = self.machine.caches[0].ns
        return (
            self.noise.slices(one, floor, slices, self.random),
            self.noise.slices(other, floor, slices, self.random),
        )


def _within(nodes: int, spacing: int) -> Ints:
    """Page within its cell of each node: the digit sum of its number, as the kernels place them."""
    left = np.arange(nodes, dtype=np.int64)
    total = np.zeros(nodes, np.int64)
    while left.any():
        total += left % spacing
        left //= spacing
    return total % spacing
