"""Inference of a TLB from slices: which levels there are, what they hold, and what is not identifiable.

Nothing here measures or knows a machine. A `Source` answers with slices, from hardware, from a model or from
a recording; points are asked for where the last ones left something open. The rules:

- Disturbance only ever adds time. A round is a handful of slices, of which the second smallest counts; rounds
  come back later, in an order drawn anew; of a point the quietest round counts, and a chase of fewer nodes is
  taken to be no dearer than one of more.
- What translation costs is what spread nodes take longer than packed ones. A step of it next to one of the
  packed nodes is the data caches', unless it is far larger.
- A step that is there on half the pages as well, two nodes on each, is of lines and not of translation.
- A step leads from one plateau to the next. It must exceed the noise floor, persist at further points, and be
  there again in rounds that had no part in finding it. Its knee says how many entries a level has.
- What does not look like any replacement filling its sets evenly gives a wide range, never a sharp one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Protocol

import numpy as np

from ..cores.current import current
from ..declared import Declared, Nanoseconds, Spec, Whole
from ..units import Floats, Ints

Range = tuple[Whole, Whole]

# --- what the rules go by ----------------------------------------------------------------------------------
#
# Tuned on the random machines of tests/bench/anatomy.py with the noise of `model.Noise`, which is that of a
# shared virtual machine: of 1500 none had a wrong range. The tests hold them against the recordings of a real
# processor in tests/data too. Not tried: levels that a busy sibling thread shares, processors that coalesce
# adjacent pages, replacement that is none of `model.REPLACEMENTS`.

# How much is asked: some 500 rounds for two levels. Time is what limits it.
SLICES = 8  # of one round
COARSE_ROUNDS, FINE_ROUNDS, COST_ROUNDS = 3, 4, 14  # of a point of the first look, near a knee, of a cost
FIRST_SHARE = 0.6  # of the time, for the first look
PER_OCTAVE = 4  # points of the first look
FEWEST_NODES = 6
TRIES, LATE_TRIES = 3, 2  # of a step whose validation contradicts it: at first, and when all else is known

# What is noise: the gap between the two quietest rounds of a point tells how far quiet ones scatter. No
# smaller effect than these counts, whoever makes it: smaller levels than that are not seen.
NOISE_SIGMAS = 5.0  # of that scatter
SIGMA_PER_GAP = 2.0  # scatter of quiet rounds over the median of the gaps
HIT_FLOOR = 0.04  # of a load that hits everything
RELATIVE_FLOOR = 0.008  # of the spread nodes' time: where they lie in memory moves it by some 0.006
TOO_NOISY = 0.05  # relative scatter beyond which nothing is concluded
TYPICAL = 0.4  # quantile of the rounds that a cost is read from: most are quiet

# What is a step of the cost, from one plateau to the next. Two with no plateau between them are one.
LEAST_STEP = 0.35  # of the cost before it: a smaller one is no level
DRIFT = 0.02  # of a step: by that much the plateau before it may rise
PLATEAU_SLOPE = 0.08  # of a step so far: where it grows less from one coarse point to the next, it has ended
PLATEAU_FURTHER = np.array([1.0, 2.5])  # times that, for the next point and for the one after it
RAMP_SPAN, RAMP_GROWTH = 1.7, 1.2  # a cost that grows more, within so many times the nodes, is on no plateau

# What is a data cache's shadow: packed nodes rise too, and the difference does not cancel all of it. A level
# is lost whose step is small beside that of a cache at the same number of nodes.
SHADOW = 0.25  # of a rise of the packed nodes: a rise of the cost that small may be its shadow
WITH_DATA = 0.5  # of a step: packed nodes that rise more than this have a part in it
AS_MUCH_DATA = 1.5  # the same after a cost that may be a hit in the next level, or a walk

# What is a level, and what the page table that leaves a data cache. In the recording a load that hits takes
# 1.1 ns; the second level adds 1.9 to it, a walk 35.
LEAST_WALK, MOST_LEVEL = (
    3.0,
    14.0,
)  # of a load that hits everything: no walk costs less, no level takes longer
SURE_WALK = 6.0  # of what hits everything, a jump too: a step from that much on starts from walks
TABLE_COPIES = 8  # neighbouring pages in so many places far apart share no line of a page table
TABLE_GROWS = 1.6  # times the lines of nodes and table that they touch
TABLE_SHARE = 0.3  # of what so many more nodes cost: a table that costs as much was the reason

# How entries follow from the knee of a step.
KNEE_GROWTH = 0.7  # of the mean growth up to the first point of EVEN_AT: it does not begin more slowly
KNEE_UNSEEN = 0.012  # of the entries: the knee may be that much later than they say
CONFIDENCE = {"sharp": 0.995, "sets": 0.998, "onset": 0.98, "uneven": 0.85}  # see Entries.confidence

# Whether sets fill evenly: whatever they replace, the cost then grows at once, and random replacement, whose
# share is in brackets, is the slowest. Late growth says less where walks get dearer, which those of a first
# level do not; two levels in one step look uneven too.
EVEN_AT = 1.05, 1.15, 1.3  # times the entries: where it is looked at
EVEN_SOON = 0.3  # of the growth at the second of them, at the first (0.37)
EVEN_LATE, EVEN_LATE_FIRST = 0.2, 0.3  # of the whole step, at the third (0.42); of that of a first level
SLOWLY = 0.7  # of the whole step, at the third: where it is less (random: 0.42), some accesses hit beyond it
ALL_MISS = 6.0  # times the entries: hardly any access hits, whatever is replaced (random: 0.25 %)
UNEVEN_HELD = 0.93  # of the last point below: where sets fill unevenly, misses begin unseen
HALF_MISSED = 0.6  # of the accesses missed: as many pages are more than the entries, however they fill

# Whether a step is of pages, and not of lines or jumps: a level holds as many nodes if two share a page.
HALVED = 0.5  # pages from one node to the next
HALVED_AT = 0.3  # of a step, where it is tried: half as many pages fit
STAYS = 0.25  # of what it is high there: caches differ that much between pages and half as many
JUMPS_ABOVE, JUMPS_BELOW = 1.7, 0.8  # times the entries: jumps that half as many pages hold, and fewer

# Ways and sets: pages a power of two apart fall into one set. Others beside them pass the levels before.
OVER_BEFORE = 2.0  # times the entries of the level before: so many pass it by, under tree-PLRU too
WAYS_MOST, WAYS_FIRST = 32, 160  # pages of one set that are tried; of a first level, which may be one set
BITS_MOST = 24  # of the number of sets
OVERFLOW, OVERFLOW_FIRST = 0.03, 0.1  # of what a miss costs more: a set that overflows shows more than this
FAR_SLOPE = 1.06  # times a cost: what it may be among far pages
ONE_SET = 0.6  # of the entries: a set that holds more is the only one

# The index: what pages that collide cost must be clear before nearer ones are tried.
CLEAR_NOISE = 5.0  # times the noise
FOLDS_MOST = 4  # of a hashed index: groups of bits that choose the set
MAP_ROUNDS = 2  # of each point of the picture of conflicts, which decides nothing

# Paging-structure caches: the cost of a walk, by the distance of the nodes, grows at one distance where one
# of them overflows, and little by little where data caches do.
WALK_BITS = (0, 3, 6, 9, 12, 15, 18)  # of the distance in pages: to 1 GiB, of base pages of 4 KiB
TABLE_ENTRIES = 512
STILL_HIT = 0.5  # of as many tables as begin to cost: in random order that many may hit, and cost little
AT_ONCE, LEAST_GROWTH = 0.8, 0.15  # of the growth, at one distance; of the cost, to be growth at all


class Source(Protocol):
    """Where slices come from."""

    most_nodes: int  # of a pair, one a page apart
    halves: bool  # whether it can put two nodes on a page: a recording cannot
    far_bits: int  # bits of the page numbers that `places` takes; 0: it cannot place pages at will
    floor_ns: float  # smaller effects than this do not count, whatever the noise

    def nearest(self, nodes: int) -> int:
        """A number of nodes that it can answer for."""

    def pair(self, nodes: int, spacing: float, slices: int) -> tuple[Floats, Floats]:
        """Nanoseconds per access of spread and of packed nodes, of so many slices in turn: one round.

        Spread nodes are `spacing` pages apart: `HALVED`, or a whole number.
        """

    def places(self, pages: Ints, slices: int) -> tuple[Floats, Floats]:
        """The same for nodes on these pages."""


class TimeOverError(Exception):
    """The time for all of it is over."""


# --- points ----------------------------------------------------------------------------------------------


@dataclass
class RoundsByNodes:
    """Rounds of spread and packed nodes, by the number of nodes."""

    source: Source
    random: np.random.Generator
    spacing: float = 1
    deadline: float = math.inf
    rounds: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    _known: tuple[Floats, Floats, float] | None = None  # what follows from the rounds so far

    def ask(self, nodes: Iterable[int], rounds: int) -> None:
        """Ask for more rounds of some points: all points once, in an order of its own, then all again."""
        wanted = sorted({self.source.nearest(n) for n in nodes})
        for _ in range(rounds):
            for n in self.random.permutation(wanted).tolist():
                if current().now() > self.deadline:
                    raise TimeOverError
                spread, packed = self.source.pair(n, self.spacing, SLICES)
                self.add(n, [(quiet(spread), quiet(packed))])

    def add(self, nodes: int, rounds: Iterable[tuple[float, float]]) -> None:
        """Add rounds to a point."""
        self.rounds.setdefault(nodes, []).extend(rounds)
        self._known = None

    @property
    def nodes(self) -> list[int]:
        """Points that were asked for, fewest nodes first."""
        return sorted(self.rounds)

    def lows(self) -> tuple[Floats, Floats]:
        """Spread and packed nodes, ns, at `nodes`: the quietest round of a point, or of one further on."""
        spread, packed, _ = self._all()
        return spread, packed

    def _all(self) -> tuple[Floats, Floats, float]:
        if self._known is None:
            rounds = [self.rounds[n] for n in self.nodes]
            best = np.array([[min(side) for side in zip(*one, strict=True)] for one in rounds])
            spread, packed = np.minimum.accumulate(best[::-1], axis=0)[::-1].T
            pairs = [sorted(spread for spread, _ in one)[:2] for one in rounds if len(one) > 2]
            gaps = [(second - first) / first for first, second in pairs]
            self._known = spread, packed, SIGMA_PER_GAP * float(np.median(gaps)) if gaps else 0.0
        return self._known

    def at(self, nodes: int) -> tuple[float, float]:
        """Spread and packed nodes, ns, at one point."""
        spread, packed = self.lows()
        where = self.nodes.index(self.source.nearest(nodes))
        return float(spread[where]), float(packed[where])

    def cost(self, nodes: int) -> float:
        """Nanoseconds that translation adds at one point."""
        spread, packed = self.at(nodes)
        return spread - packed

    @property
    def sigma(self) -> float:
        """Relative spread of quiet rounds, over all points of more than one."""
        return self._all()[2]

    def noise(self, nodes: int) -> float:
        """Nanoseconds by which two points here may differ for no reason."""
        spread, _ = self.at(nodes)
        _, packed = self.at(self.nodes[0])
        return max(
            self.source.floor_ns, HIT_FLOOR * packed, max(NOISE_SIGMAS * self.sigma, RELATIVE_FLOOR) * spread
        )


def quiet(slices: Floats) -> float:
    """What one round counts as: the second smallest of its slices."""
    return float(np.partition(slices, 1)[1]) if len(slices) > 1 else float(slices[0])


def coarse_nodes(most: int) -> list[int]:
    """Numbers of nodes of the first look: some an octave, up to the most."""
    octaves = math.log2(most / FEWEST_NODES)
    count = int(octaves * PER_OCTAVE)
    return sorted({round(FEWEST_NODES * 2 ** (k / PER_OCTAVE)) for k in range(count + 1)} | {most})


# --- steps -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """From one plateau of the cost to the next: numbers of nodes, nanoseconds."""

    before: int  # a point on the plateau before, clearly below it
    above: int  # the first one above
    top: int  # where the plateau after it begins
    base_ns: float
    top_ns: float
    packed: tuple[float, float]  # packed nodes before and at the top

    @property
    def height(self) -> float:
        """Nanoseconds."""
        return self.top_ns - self.base_ns

    @property
    def with_data(self) -> float:
        """How much the packed nodes rise too, over its height."""
        return (self.packed[1] - self.packed[0]) / self.height


def find_steps(curve: RoundsByNodes) -> list[Step]:
    """Steps of the cost along the points of a curve, those that are none of a level left out."""
    nodes = curve.nodes
    spread, packed = curve.lows()
    cost = spread - packed
    noise = np.array([curve.noise(n) for n in nodes])
    found: list[Step] = []
    i = 0
    while i + 1 < len(nodes):
        if not _is_step(cost, packed, noise, i, i + 1):
            i += 1
            continue
        end = _plateau(cost, packed, noise, i)
        slow = cost[i] + DRIFT * (cost[end] - cost[i])
        start = max(k for k in range(i, end) if cost[k] <= slow)
        before = max(0, start - 1) if not found or nodes[max(0, start - 1)] > found[-1].top else start
        step = Step(
            nodes[before],
            nodes[start + 1],
            nodes[end],
            float(cost[before]),
            float(cost[end]),
            (float(packed[before]), float(packed[end])),
        )
        if step.height > max(3 * noise[end], LEAST_STEP * step.base_ns, SHADOW * (packed[end] - packed[i])):
            found.append(step)
        i = end
    return _joined(found, nodes)


def _is_step(cost: Floats, packed: Floats, noise: Floats, i: int, j: int) -> bool:
    """Whether the cost is higher at a point and the next two, by more than noise and the caches' shadow."""
    shadow = SHADOW * max(0.0, packed[j] - packed[i])
    later = cost[j : j + 3]
    return bool((later - cost[i] > noise[j : j + 3] + shadow).all())


def _plateau(cost: Floats, packed: Floats, noise: Floats, i: int) -> int:
    """Where a step has reached its plateau: neither the next point nor the one after that is much higher."""
    end = i + 1
    while end + 1 < len(cost):
        later = slice(end + 1, end + 3)
        shadow = SHADOW * np.maximum(0.0, packed[later] - packed[end])
        grown = cost[later] - cost[end] - shadow
        limit = np.maximum(noise[later], PLATEAU_SLOPE * (cost[end] - cost[i]))
        if (grown <= limit * PLATEAU_FURTHER[: len(limit)]).all():
            break
        end += 1
    return end


def _joined(steps: list[Step], nodes: list[int]) -> list[Step]:
    """One step of two that have no plateau between them."""
    joined: list[Step] = []
    for step in steps:
        if joined and nodes.index(step.above) - nodes.index(joined[-1].top) <= 1:
            first = joined.pop()
            both = (first.packed[0], step.packed[1])
            joined.append(replace(first, top=step.top, top_ns=step.top_ns, packed=both))
        else:
            joined.append(step)
    return joined


def is_of_lines(curve: RoundsByNodes, step: Step) -> bool:
    """Whether a step stays where two nodes share a page: their lines, or those of tables, fill a cache."""
    return curve.source.halves and _stays_on_half(curve, step.before, _reached(curve, step, HALVED_AT))


def _stays_on_half(curve: RoundsByNodes, before: int, after: int) -> bool:
    """Whether what so many nodes cost more than fewer is there on half the pages too.

    The level before holds some of so few pages, a share that goes with one over their number: they cost less
    for that, and the more they are the less so.
    """
    half = RoundsByNodes(curve.source, curve.random, HALVED, curve.deadline)
    half.ask([before, after], FINE_ROUNDS)
    base, height = curve.cost(before), curve.cost(after) - curve.cost(before)
    expected = base - max(0.0, base - half.cost(before)) * before / after
    return half.cost(after) > expected + STAYS * height


def is_page_table(curve: RoundsByNodes, step: Step) -> bool:
    """Whether a step comes earlier where the same pages are spread over more of the page table.

    The number of translations is the same, and so are the sets that they go to; only the table is larger. It
    is tried with nodes that do not reach the step, but would if the table were the reason.
    """
    source, nodes = curve.source, step.before
    if not source.far_bits:
        cheap = step.base_ns < SURE_WALK * curve.at(curve.nodes[0])[1]
        return step.with_data > (AS_MUCH_DATA if cheap else WITH_DATA)
    more = source.nearest(min(round(nodes * TABLE_GROWS), curve.nodes[-1]))
    curve.ask([nodes, more], FINE_ROUNDS)
    pages = np.arange(nodes, dtype=np.int64)
    pages += (pages % TABLE_COPIES) << (source.far_bits - TABLE_COPIES.bit_length())
    spread, packed = quietest(source, pages, FINE_ROUNDS)
    earlier, expected = spread - packed - curve.cost(nodes), curve.cost(more) - curve.cost(nodes)
    return earlier > TABLE_SHARE * expected + curve.noise(nodes)


def _reached(curve: RoundsByNodes, step: Step, share: float) -> int:
    """The first point at which a step has so much of its height."""
    limit = step.base_ns + share * step.height
    return next((n for n in curve.nodes if n > step.before and curve.cost(n) > limit), step.top)


def quietest(source: Source, pages: Ints, rounds: int) -> tuple[float, float]:
    """Spread and packed nodes, ns, on some pages: each in its quietest round."""
    asked = [source.places(pages, SLICES) for _ in range(rounds)]
    lows = np.array([[quiet(side) for side in one] for one in asked])
    spread, packed = lows.min(axis=0).tolist()
    return spread, packed


# --- entries ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entries(Declared):
    """Translations that a level holds: a range, or why there is none.

    Attributes
    ----------
    range : tuple of (int, int) or None
        Fewest and most.
    evidence : {"sharp", "sets", "onset", "uneven", ""}
        What the range rests on: a cost that goes up at once; a knee that so many sets of so many ways
        explain; the knee alone; or, where the sets fill unevenly, how many pages it takes until most miss.
    widest : tuple of (int, int) or None
        The range that holds even if the sets fill unevenly.
    reason : str
        Why there is no range; empty if there is one.
    step : tuple of (int, int) or None
        The last number of nodes below the step, and the first one above.
    """

    range: Range | None
    evidence: str = ""
    widest: Range | None = None
    reason: str = ""
    step: Range | None = None

    @property
    def even(self) -> bool:
        """Whether the sets seem to fill evenly."""
        return self.evidence != "uneven"

    @property
    def sharp(self) -> bool:
        """Whether one page too many costs at least half of what all cost."""
        return self.evidence == "sharp"

    @property
    def confidence(self) -> float | None:
        """How sure the range is to hold the truth: the lower 95 % limit over simulated machines.

        None of 1500 had a wrong range (tests/bench/anatomy.py); the fewer of them have this evidence, the
        lower is the limit.
        """
        return CONFIDENCE.get(self.evidence)


def find_entries(curve: RoundsByNodes, step: Step, previous: MeasuredLevel | None = None) -> Entries:
    """Narrow a step down to its knee, and find it again in rounds of its own."""
    knee = Knee(curve, step, previous)
    for _ in range(TRIES):
        held, missed = knee.bisect()
        if knee.confirmed(held, missed):
            return knee.entries(held, missed)
    if knee.is_there():
        return Entries(knee.widest(step.before), "uneven", knee.widest(step.before))
    reason = f"a step near {step.above} pages did not come back in rounds of its own: too disturbed a machine"
    return Entries(None, reason=reason)


def slowest_even_miss(ratio: float) -> float:
    """Share of accesses missed at so many times the entries, by random replacement in sets filled evenly."""
    if ratio <= 1:
        return 0.0
    missed = 1.0
    for _ in range(200):
        missed = 1 - math.exp(-ratio * missed)
    return missed


@dataclass
class Knee:
    """Where the curve leaves a plateau: the knee of a step."""

    curve: RoundsByNodes
    step: Step
    previous: MeasuredLevel | None  # the level before, which may not have missed everything yet

    def above(self, curve: RoundsByNodes, nodes: int) -> float:
        """Nanoseconds by which a point is above the base, beyond what the caches and the last level add."""
        spread, packed = curve.at(nodes)
        base_spread, base_packed = curve.at(self.step.before)
        shadow = SHADOW * max(0.0, packed - base_packed)
        return spread - packed - (base_spread - base_packed) - shadow - self.drift(nodes)

    def drift(self, nodes: int) -> float:
        """What the level before may still add, if its replacement lets it miss little by little."""
        level = self.previous
        if level is None or level.miss_ns is None or level.entries.range is None or level.entries.sharp:
            return 0.0
        entries = level.entries.range[0]
        more = slowest_even_miss(nodes / entries) - slowest_even_miss(self.step.before / entries)
        return level.miss_ns.ns * more

    def is_above(self, nodes: int) -> bool:
        """Whether a point belongs to the step."""
        return self.above(self.curve, nodes) > self.curve.noise(nodes)

    def bisect(self) -> Range:
        """Two numbers of nodes next to each other, or as near as they can be asked for: below, and above."""
        curve, held, missed = self.curve, self.step.before, self.step.above
        curve.ask([held, missed], FINE_ROUNDS)
        while missed - held > 1:
            middle = curve.source.nearest((held + missed) // 2)
            if not held < middle < missed:
                break
            curve.ask([middle], FINE_ROUNDS)
            held, missed = (held, middle) if self.is_above(middle) else (middle, missed)
        return held, missed

    def confirmed(self, held: int, missed: int) -> bool:
        """Whether fresh rounds show the same; they join the others if they do not."""
        curve, step = self.curve, self.step
        further = [n for n in curve.nodes if missed < n <= step.top][:2]
        fresh = RoundsByNodes(curve.source, curve.random, curve.spacing, curve.deadline)
        fresh.ask({step.before, held, missed, *further}, FINE_ROUNDS)
        limit = curve.noise(missed)
        below = self.above(fresh, held) <= 1.5 * limit
        if below and all(self.above(fresh, n) > limit / 2 for n in (missed, *further)):
            return True
        for n, rounds in fresh.rounds.items():
            curve.add(n, rounds)
        return False

    def entries(self, held: int, missed: int) -> Entries:
        """Range of the entries, from the last point below and the first one above."""
        curve, step = self.curve, self.step
        widest = self.widest(held)
        if not self.is_even(missed):
            return Entries(widest, "uneven", widest)
        sharp = self.above(curve, missed) > step.height / 2 and missed - held == 1
        first = (
            missed if missed - held == 1 else _reached(curve, step, 0.5)
        )  # strays may fill the last entries
        low = held - self.unseen(held, missed)
        if not sharp:  # the last few, of which one set in hundreds is too full, cost too little to be seen
            low -= math.floor(KNEE_UNSEEN * low + 0.3)
        found = max(1, low), max(held, first - 1)
        return Entries(found, "sharp" if sharp else "onset", widest, step=(held, missed))

    def widest(self, held: int) -> Range:
        """What holds even if sets fill unevenly, or if the level is now and then shared."""
        low = max(self.step.before, round(UNEVEN_HELD * held))
        return low, max(low, _reached(self.curve, self.step, HALF_MISSED))

    def is_there(self) -> bool:
        """Whether fresh rounds show the step as a whole, though its knee does not hold still."""
        step = self.step
        fresh = RoundsByNodes(self.curve.source, self.curve.random, self.curve.spacing, self.curve.deadline)
        fresh.ask({step.before, step.top}, FINE_ROUNDS)
        return fresh.cost(step.top) - fresh.cost(step.before) > step.height / 2

    def unseen(self, held: int, missed: int) -> int:
        """Pages too many that a point may have without being seen above the base: from how fast it grows."""
        curve = self.curve
        soon = max(missed, curve.source.nearest(round(missed * EVEN_AT[0])))
        growth = max(self.above(curve, soon), curve.noise(soon)) / (soon - held)
        base = curve.cost(self.step.before)
        lowest = min(curve.cost(n) for n in curve.nodes if self.step.before <= n <= held)
        fallen = base - lowest  # packed nodes begin to miss levels as well
        other = max(0.0, curve.cost(held) - base - self.above(curve, held))
        hidden = curve.noise(held) + fallen + other
        return math.floor(hidden / (KNEE_GROWTH * growth))

    def is_even(self, missed: int) -> bool:
        """Whether it grows as where every set has as many pages as any other: at once, and not late.

        Sets that fill unevenly overflow one after the other: slowly at first. Whatever they replace, evenly
        filled sets miss in proportion to the pages too many; random replacement is the slowest.
        """
        curve, step = self.curve, self.step
        soon, later, late = (curve.source.nearest(round(missed * ratio)) for ratio in EVEN_AT)
        if late > curve.nodes[-1]:
            return False
        curve.ask([soon, later, late], FINE_ROUNDS)
        at = {n: self.above(curve, n) + curve.noise(n) for n in (soon, later, late)}
        grows = soon == missed or at[soon] >= EVEN_SOON * (at[later] - 2 * curve.noise(later))
        share = EVEN_LATE if self.previous else EVEN_LATE_FIRST
        return grows and at[late] >= share * step.height


# --- costs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost(Declared):
    """Nanoseconds that translation adds at a number of nodes, and between which limits."""

    ns: Nanoseconds
    low: Nanoseconds
    high: Nanoseconds
    nodes: Whole


def find_miss(curve: RoundsByNodes, step: Step, entries: Entries, most: int) -> Cost:
    """The cost of a miss, at the top of a step; where misses come slowly, further on, up to the next step.

    Under random replacement some accesses still hit there. As many as may do widen the range.
    """
    if entries.range is None or entries.step is None or not _misses_slowly(curve, step, entries.step[1]):
        return find_cost(curve, step.top)
    held = entries.range[0]
    cost = find_cost(curve, max(step.top, min(most, round(ALL_MISS * held))))
    return replace(cost, high=cost.high / slowest_even_miss(cost.nodes / held))


def _misses_slowly(curve: RoundsByNodes, step: Step, missed: int) -> bool:
    late = curve.source.nearest(round(missed * EVEN_AT[-1]))
    return late in curve.rounds and curve.cost(late) - step.base_ns < SLOWLY * step.height


def find_cost(curve: RoundsByNodes, nodes: int) -> Cost:
    """The cost at one point, from more rounds of it."""
    curve.ask([nodes], COST_ROUNDS)
    nodes = curve.source.nearest(nodes)
    rounds = np.array(curve.rounds[nodes])
    means, errors = zip(*(_typical(side, curve.sigma) for side in rounds.T), strict=True)
    half = math.hypot(*errors) + 0.1 * HIT_FLOOR * curve.at(curve.nodes[0])[1]
    ns = means[0] - means[1]
    return Cost(ns, ns - half, ns + half, nodes)


def _typical(lows: Floats, sigma: float) -> tuple[float, float]:
    """A typical round, and how far it may be off, by how far the quietest one is below it."""
    typical = float(np.quantile(lows, TYPICAL))
    spread = max((typical - float(lows.min())) / 1.4, 0.5 * max(sigma, 2e-4) * typical)
    return typical, (3.75 / math.sqrt(len(lows)) + 0.3) * spread


# --- levels ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredLevel(Declared):
    """One level as inferred; what is `None` has its reason."""

    entries: Entries
    hit_ns: Cost | None  # of the first level: none, that is what all is compared with
    miss_ns: Cost | None
    ways: Whole | None = None
    sets: Whole | None = None
    index: str | None = None
    index_bits: Whole | None = None
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dearer(Declared):
    """Where walks get dearer because the page table leaves a data cache.

    Attributes
    ----------
    nodes : tuple of (int, int)
        The last point before, and the first one above.
    before_ns, after_ns : float
        Cost before and after.
    confirmed : bool
        Whether a further point shows it too.
    """

    nodes: Range
    before_ns: Nanoseconds
    after_ns: Nanoseconds
    confirmed: bool = True


@dataclass(frozen=True)
class Side(Declared):
    """All levels of one side, with the curve that they were read from."""

    levels: tuple[MeasuredLevel, ...]
    dearer: tuple[Dearer, ...]
    nodes: Annotated[tuple[Whole, ...], Spec(axes=("nodes",))]
    spread: Annotated[tuple[Nanoseconds, ...], Spec(axes=("nodes",))]
    packed: Annotated[tuple[Nanoseconds, ...], Spec(axes=("nodes",))]
    noise: Annotated[float, Spec(least=0)]  # relative spread of quiet rounds
    reason: str = ""

    @property
    def ends_at(self) -> int:
        """Pages from which on costs are of the page table too; beyond all of them if they never are."""
        return self.dearer[0].nodes[0] if self.dearer else 1 + max(self.nodes, default=0)

    def still_rises(self, cost: Cost) -> bool:
        """Whether a cost was read where it still rises, so that not all of the accesses miss."""
        later = [
            spread - packed
            for nodes, spread, packed in zip(self.nodes, self.spread, self.packed, strict=True)
            if cost.nodes < nodes <= min(RAMP_SPAN * cost.nodes, self.ends_at)
        ]
        return bool(later) and float(np.median(later)) > RAMP_GROWTH * cost.ns

    @property
    def certain(self) -> int:
        """How many levels there are no doubts about: a step that grows unevenly may hold more than one."""
        doubts = (
            k for k, level in enumerate(self.levels) if level.entries.range is None or not level.entries.even
        )
        return next(doubts, len(self.levels))


def infer(source: Source, seed: int = 0, deadline: float = math.inf, *, lines: bool = True) -> Side:
    """Infer the levels of a TLB from what a source answers, until a moment of the clock of the core.

    Without `lines` steps of data caches are left in: `of_pages` says which, and why.
    """
    curve = RoundsByNodes(source, np.random.default_rng(seed), 1, deadline)
    try:
        _first_look(curve)
        steps, tables = _sorted_out(curve, find_steps(curve), lines)
    except TimeOverError:
        return _side([], [], curve, _time_over(curve))
    if curve.sigma > TOO_NOISY:
        words = (
            f"quiet rounds differ by {curve.sigma:.1%}, more than the {TOO_NOISY:.0%} that allow conclusions"
        )
        return _side([], [], curve, words)
    levels: list[MeasuredLevel] = []
    ends = [*(step.before for step in [*steps, *tables[:1]][1:]), curve.nodes[-1]]
    for step, end in zip(steps, ends, strict=False):
        levels.append(_level(curve, step, levels[-1] if levels else None, end))
    for number in range(len(levels)):
        levels[number] = _with_ways(curve, levels, number)
    for number, step in enumerate(steps):
        levels[number] = _looked_at_again(curve, step, levels, number)
    return _side(levels, tables, curve, "" if levels else _why_none(curve))


def _looked_at_again(
    curve: RoundsByNodes, step: Step, levels: Sequence[MeasuredLevel], number: int
) -> MeasuredLevel:
    """The same level, or one in doubt if its step is elsewhere now: some disturbances last for seconds."""
    level, before = levels[number], levels[number - 1] if number else None
    entries = level.entries
    if entries.step is not None and entries.even:
        try:
            if not any(Knee(curve, step, before).confirmed(*entries.step) for _ in range(LATE_TRIES)):
                entries = replace(entries, range=entries.widest, evidence="uneven")
        except TimeOverError:
            pass
    if entries is not level.entries:
        return _without_ways(replace(level, entries=entries), "its step was elsewhere when it was seen again")
    if before and not before.entries.even and level.ways:
        return _without_ways(level, "the level before it cannot be passed by: its size is not sure")
    return level


def _without_ways(level: MeasuredLevel, reason: str) -> MeasuredLevel:
    reasons = {**level.reasons, "ways": reason}
    return replace(level, ways=None, sets=None, index=None, index_bits=None, reasons=reasons)


def _time_over(curve: RoundsByNodes) -> str:
    return f"the time was over after {sum(map(len, curve.rounds.values()))} rounds"


def _side(levels: Sequence[MeasuredLevel], tables: Sequence[Step], curve: RoundsByNodes, reason: str) -> Side:
    last = curve.nodes[-1] if curve.rounds else 0
    dearer = tuple(
        Dearer((step.before, step.above), step.base_ns, step.top_ns, step.above < last) for step in tables
    )
    if not _whole(curve):
        return Side((), (), (), (), (), 0.0, reason)
    spread, packed = (tuple(side.tolist()) for side in curve.lows())
    return Side(tuple(levels), dearer, tuple(curve.nodes), spread, packed, curve.sigma, reason)


def _first_look(curve: RoundsByNodes) -> None:
    """Coarse points over the whole range, in a part of the time; each at least once, or there is no curve."""
    whole = curve.deadline
    if whole < math.inf:
        curve.deadline = current().now() + FIRST_SHARE * (whole - current().now())
    try:
        curve.ask(coarse_nodes(curve.source.most_nodes), COARSE_ROUNDS)
    except TimeOverError:
        if not _whole(curve):
            raise
    curve.deadline = whole


def _whole(curve: RoundsByNodes) -> bool:
    """Whether every point of the first look was asked for at least once."""
    return set(curve.rounds) >= {curve.source.nearest(n) for n in coarse_nodes(curve.source.most_nodes)}


def _level(curve: RoundsByNodes, step: Step, previous: MeasuredLevel | None, end: int) -> MeasuredLevel:
    """A level, up to where the next one begins; what time was over for has that for its reason."""
    hit = previous.miss_ns if previous else None
    entries = Entries(None, reason=_time_over(curve))
    try:
        entries = find_entries(curve, step, previous)
        return MeasuredLevel(entries, hit, find_miss(curve, step, entries, end))
    except TimeOverError:
        return MeasuredLevel(entries, hit, None, reasons={"cost": _time_over(curve)})


def _sorted_out(curve: RoundsByNodes, steps: Sequence[Step], lines: bool) -> tuple[list[Step], list[Step]]:
    """Steps of levels, and those of the page table; after the first of these no level follows."""
    hit = curve.at(curve.nodes[0])[1]
    levels: list[Step] = []
    for number, step in enumerate(steps):
        of_lines = lines and number > 0 and is_of_lines(curve, step)
        walks = step.base_ns > MOST_LEVEL * hit
        may_walk = step.base_ns > LEAST_WALK * hit
        if number and (walks or (may_walk and (of_lines or is_page_table(curve, step)))):
            return levels, list(steps[number:])
        if not of_lines:
            levels.append(step)
    return levels, []


def _why_none(curve: RoundsByNodes) -> str:
    nodes = curve.nodes
    highest = max(curve.cost(n) for n in nodes)
    return (
        f"translation adds {highest:.2f} ns at most up to {nodes[-1]} pages, where quiet rounds differ by "
        f"{curve.noise(nodes[-1]):.2f} ns: no step is to be seen"
    )


def of_pages(side: Side, source: Source, deadline: float = math.inf) -> tuple[Side, str]:
    """Leave out levels that are none of translation; and say which.

    Jumps are predicted, and the tables of that overflow too: by jumps, not by pages. So as many are tried on
    half as many pages, which a level still holds.
    """
    random = np.random.default_rng(0)
    kept: list[MeasuredLevel] = []
    others: list[int] = []
    for level in side.levels:
        if _goes_on_half(level, source, random, deadline):
            kept.append(replace(level, hit_ns=kept[-1].miss_ns if kept else None))
        else:
            others.append(level.entries.range[0] if level.entries.range else 0)
    if not others:
        return side, ""
    where = ", ".join(f"{n} pages" for n in others if n) or "an unknown number of pages"
    reason = f"rises from {where} on are not of translation, or not to be told from the prediction of jumps"
    return replace(side, levels=tuple(kept)), reason


def _goes_on_half(level: MeasuredLevel, source: Source, random: np.random.Generator, deadline: float) -> bool:
    """Whether a level's step goes away where there are half as many pages; not, if that cannot be told."""
    if level.entries.range is None:
        return False
    low, whole = level.entries.range[0], RoundsByNodes(source, random, 1, deadline)
    before, after = max(1, round(low * JUMPS_BELOW)), round(low * JUMPS_ABOVE)
    try:
        whole.ask([before, after], FINE_ROUNDS)
        return not _stays_on_half(whole, before, after)
    except TimeOverError:
        return False


# --- ways and index --------------------------------------------------------------------------------------


@dataclass
class Sets:
    """Sets of one level, looked at through pages that are far apart."""

    curve: RoundsByNodes
    before: int  # entries of the level before it, which have to be passed by; 0 for the first
    pass_by: tuple[int, int]  # so many pages, at so many pages' distance, fill what is before it
    entries: Range
    below_ns: float  # cost while this level holds everything
    miss_ns: float  # cost where it holds nothing
    most: int  # pages of one set that are tried

    @property
    def far(self) -> int:
        """Bits of the distance that leaves room for all pages."""
        return self.curve.source.far_bits - self.most.bit_length()

    def cost(self, pages: Ints) -> float:
        """Nanoseconds that translation adds to nodes on some pages."""
        if current().now() > self.curve.deadline:
            raise TimeOverError
        spread, packed = quietest(self.curve.source, pages, FINE_ROUNDS)
        return spread - packed

    def limit(self, nodes: int) -> float:
        """Cost of so many nodes that this level holds, and what it may be dearer among far pages."""
        known = [n for n in self.curve.nodes if n <= min(nodes, self.entries[0])]
        held = max(self.below_ns, self.curve.cost(known[-1])) if self.before and known else self.below_ns
        return FAR_SLOPE * held + self.curve.noise(self.curve.nodes[0])

    def columns(self, count: int) -> int:
        """How many rows of so many pages pass the level before: a power of two, so that sets have alike."""
        needed = math.ceil(OVER_BEFORE * self.before / count)
        return 1 << (needed - 1).bit_length() if needed > 1 else 1

    def overflow(self, count: int, bits: int) -> bool:
        """Whether so many pages, 2**bits apart, are more than a set holds; in several sets at once."""
        rows = np.arange(count, dtype=np.int64) << bits
        pages = np.asarray((rows[:, None] + np.arange(self.columns(count))).ravel())
        share = OVERFLOW if self.before else OVERFLOW_FIRST
        return self.cost(pages) > self.limit(len(pages)) + share * (self.miss_ns - self.below_ns)

    def capacity(self, bits: int) -> int | None:
        """Pages, 2**bits apart, that do not overflow; `None` where not even the most do."""
        held, tried = 1, 2
        while tried < self.most and not self.overflow(tried, bits):
            held, tried = tried, 2 * tried
        missed = min(tried, self.most)
        if tried >= self.most and not self.overflow(self.most, bits):
            return None
        while missed - held > 1:
            middle = (held + missed) // 2
            held, missed = (held, middle) if self.overflow(middle, bits) else (middle, missed)
        return held

    def collision(self, ways: int, bits: int) -> float:
        """Nanoseconds that pages 2**bits apart cost more than as many in sets of their own.

        Half as many more than the ways: in one set they overflow, in two they leave room.
        """
        count = ways + max(1, ways // 2)
        rows = np.arange(count, dtype=np.int64)
        beside = self.beside(count)
        others = (1 << self.curve.source.far_bits - 1) + self.pass_by[1] * (1 + np.arange(beside))
        apart = self.cost(np.concatenate([self.pass_by[1] * rows, others]))
        return self.cost(np.concatenate([rows << bits, others])) - apart

    def expected(self, ways: int) -> float:
        """The same if these pages miss this level alone, as often as under the slowest replacement."""
        count = ways + max(1, ways // 2)
        missed = slowest_even_miss(count / ways) * count / (count + self.beside(count))
        return missed * (self.miss_ns - self.below_ns)

    def beside(self, count: int) -> int:
        """Other pages that it takes, beside so many, to pass the level before."""
        return max(0, math.ceil(OVER_BEFORE * self.pass_by[0]) - count)

    def has_room(self, ways: int, sets: int) -> bool:
        """Whether these others leave room in the sets for pages that do not collide."""
        count = ways + max(1, ways // 2)
        each = -(-self.beside(count) // max(1, sets // self.pass_by[1]))
        return each <= ways - (count + 1) // 2

    def nearest_top(self, count: int) -> int:
        """Bits of the largest distance that so many pages can be apart."""
        return self.curve.source.far_bits - 1 - count.bit_length()


def _with_ways(curve: RoundsByNodes, levels: Sequence[MeasuredLevel], number: int) -> MeasuredLevel:
    """The same level with its ways and its index, or why they are not identifiable."""
    level = levels[number]
    if not curve.source.far_bits:
        return replace(level, reasons={"ways": "pages cannot be placed at will here"})
    if level.entries.range is None or level.miss_ns is None:
        return replace(
            level, reasons={**level.reasons, "ways": "its entries or its cost are not identifiable"}
        )
    before = levels[number - 1].entries if number else Entries((0, 0))
    hidden = number > 0 and level.hit_ns is None
    if before.range is None or not before.even or hidden:
        return replace(
            level, reasons={"ways": "the level before it cannot be passed by: its size is not sure"}
        )
    below = level.hit_ns.ns if level.hit_ns else 0.0
    most = min(WAYS_MOST if number else WAYS_FIRST, level.entries.range[1] + 1)
    pass_by = _pass_by(levels[:number], before.range[1])
    sets = Sets(curve, before.range[1], pass_by, level.entries.range, below, level.miss_ns.ns, most)
    try:
        return _with_sets(level, sets) if level.entries.even else _uneven(level, sets)
    except TimeOverError:
        return replace(level, reasons={"ways": _time_over(curve)})


def _uneven(level: MeasuredLevel, sets: Sets) -> MeasuredLevel:
    """What pages far apart show of a level whose sets neighbours fill unevenly: words, and no figure."""
    held = sets.capacity(sets.far)
    far = f"of pages 2**{sets.far} apart one set holds {f'more than {sets.most}' if held is None else held}"
    reason = (
        f"{far}, but neighbours fill its sets unevenly from {sets.entries[0]} pages on: no model fits both"
    )
    return replace(level, reasons={"ways": reason})


def _with_sets(level: MeasuredLevel, sets: Sets) -> MeasuredLevel:
    low, high = sets.entries
    ways, nearer = sets.capacity(sets.far), sets.capacity(sets.far - 1)
    if sets.most > high and all(held is None or held > ONE_SET * high for held in (ways, nearer)):
        if low == high:
            return replace(level, ways=low, sets=1)
        return replace(level, sets=1, reasons={"ways": "fully associative: as many as it has entries"})
    if ways is None or ways != nearer:
        return replace(level, reasons={"ways": _no_ways(ways, nearer, sets.most, sets.far)})
    counts = [n for n in range(BITS_MOST) if low <= ways << n <= high]
    if len(counts) != 1:
        reason = f"{ways} pages of a set fit, but no single power of two of such sets makes {low} to {high}"
        doubted = replace(level.entries, range=level.entries.widest, evidence="uneven")
        return replace(level, entries=doubted, reasons={"ways": reason})
    found = replace(level, entries=_exactly(level.entries, ways << counts[0]), ways=ways, sets=1 << counts[0])
    return _with_index(found, sets, counts[0])


def _pass_by(before: Sequence[MeasuredLevel], entries: int) -> tuple[int, int]:
    """Pages that fill one set of the only level before, if that is known; else as many as all it holds."""
    if len(before) == 1 and before[0].index == "plain" and before[0].ways and before[0].sets:
        return before[0].ways, before[0].sets
    return entries, 1


def _exactly(entries: Entries, count: int) -> Entries:
    return replace(entries, range=(count, count), evidence="sets")


def _no_ways(ways: int | None, nearer: int | None, most: int, far: int) -> str:
    if ways is None and nearer is None:
        return f"not even {most} pages, 2**{far} pages apart, overflow a set"
    return f"a set seems to hold {ways} pages at 2**{far} pages apart and {nearer} at half of that"


def _with_index(level: MeasuredLevel, sets: Sets, bits: int) -> MeasuredLevel:
    """Which bits of the page number choose the set: from the nearest distance at which pages collide."""
    assert level.ways is not None
    assert level.sets is not None
    ways, far = level.ways, sets.nearest_top(2 * level.ways)
    if not sets.has_room(ways, level.sets):
        return replace(level, reasons={"index": "what passes the level before fills its sets as well"})
    effect = min(sets.collision(ways, far), sets.expected(ways))
    noise = sets.curve.noise(sets.curve.nodes[0])
    if effect < CLEAR_NOISE * noise:
        reason = (
            f"pages 2**{far} apart cost {effect:.2f} ns more, where {CLEAR_NOISE * noise:.2f} would be clear"
        )
        return replace(level, reasons={"index": reason})

    def collide(distance: int) -> bool:
        return sets.collision(ways, distance) > max(effect / 3, CLEAR_NOISE * noise / 2)

    if collide(bits):
        return replace(level, index="plain", index_bits=bits)
    apart, together = bits, far
    while together - apart > 1:
        middle = (apart + together) // 2
        apart, together = (apart, middle) if collide(middle) else (middle, together)
    if not collide(together) or collide(together - 1):
        return replace(level, reasons={"index": f"pages 2**{together} apart collide now and then: disturbed"})
    if together > FOLDS_MOST * bits:
        reason = (
            f"pages collide from 2**{together} apart on, and no nearer: further than the bits of a set reach"
        )
        return replace(level, reasons={"index": reason})
    return replace(level, index="hashed", index_bits=together)


# --- what shows more than it decides ----------------------------------------------------------------------


def conflict_map(
    source: Source, beside: int, strides: Sequence[int], counts: Sequence[int], deadline: float = math.inf
) -> Floats:
    """Nanoseconds that a lap over some pages, so many apart, takes longer than over as many neighbours.

    Beside them other pages, as many as pass the first level, are visited in every lap. One row a stride, in
    pages; one column a count; NaN where time or memory was over.
    """
    found = np.full((len(strides), len(counts)), np.nan)
    others = (1 << source.far_bits - 1) + 1 + np.arange(beside, dtype=np.int64)
    for column, count in enumerate(counts):
        rows = np.arange(count, dtype=np.int64)
        spread, packed = quietest(source, np.concatenate([rows, others]), MAP_ROUNDS)
        for row, stride in enumerate(strides):
            if current().now() > deadline:
                return found
            far, near = quietest(source, np.concatenate([rows * stride, others]), MAP_ROUNDS)
            found[row, column] = ((far - near) - (spread - packed)) * (count + beside)
    return found


@dataclass(frozen=True)
class WalkStep(Declared):
    """What a translation that no level holds costs, with the nodes so many pages apart."""

    pages: Whole
    cost: Cost


def packed_ns(first: MeasuredLevel, pages: float) -> float:
    """Nanoseconds that translation adds to nodes side by side, if the first level does not hold all pages."""
    if first.miss_ns is None or first.entries.range is None:
        return 0.0
    return first.miss_ns.ns * max(0.0, 1 - first.entries.range[0] / pages)


def walk_steps(
    source: Source, nodes: int, seed: int = 0, deadline: float = math.inf, *, packed_ns: float = 0.0
) -> tuple[WalkStep, ...]:
    """The cost of a walk where the nodes use more and more of the page table, until time is over.

    What translation adds to the packed nodes too, `packed_ns`, is in it.
    """
    random = np.random.default_rng(seed)
    found: list[WalkStep] = []
    for bits in WALK_BITS:
        curve = RoundsByNodes(source, random, 1 << bits, deadline)
        try:
            curve.ask([nodes], FINE_ROUNDS)
            rounds = np.array(curve.rounds[nodes])
        except (TimeOverError, MemoryError):
            break
        spread, packed = rounds.min(axis=0).tolist()
        half = float(np.sort(rounds[:, 0])[1] - spread) + RELATIVE_FLOOR * spread
        ns = spread - packed + packed_ns
        found.append(WalkStep(1 << bits, Cost(ns, ns - half, ns + half, nodes)))
    return tuple(found)


def paging_entries(steps: Sequence[WalkStep], level: int) -> tuple[Range | None, str]:
    """Entries that the paging-structure cache of an upper level of the page table holds; or why not.

    Level 1 points to tables of 512 pages, level 2 to tables of 512 of these. Nodes that are further apart use
    more of them; where the cost jumps from one distance to the next, their number passed what is held.
    """
    covered = TABLE_ENTRIES**level
    of_level = [
        step
        for step in steps
        if step.pages >= TABLE_COPIES and covered // TABLE_ENTRIES <= step.pages <= covered
    ]
    if len(of_level) < 3:
        return None, "the distances that were measured do not reach it"
    costs = [step.cost.ns for step in of_level]
    growth = np.diff(costs)
    whole = max(costs) - costs[0]
    noise = max(step.cost.high - step.cost.ns for step in of_level)
    if whole <= 3 * noise or whole <= LEAST_GROWTH * costs[0]:
        return None, f"more of them add {whole:.1f} ns, no more than noise and caches do"
    at = int(np.argmax(growth))
    if growth[at] < AT_ONCE * whole:
        return None, "the cost rises little by little, as with data caches, not at one number of them"
    tables = [max(1, -(-step.cost.nodes * step.pages // covered)) for step in of_level]
    low, high = (min(count, step_nodes(of_level)) for count in tables[at : at + 2])
    return (max(1, round(low * STILL_HIT)), high), ""


def step_nodes(steps: Sequence[WalkStep]) -> int:
    """Nodes of these steps: no more tables are in use."""
    return steps[0].cost.nodes
