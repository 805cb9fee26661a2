"""What `anatomy` makes of machines that are known: ``python tests/bench/truth.py [--docs] [MACHINE ...]``.

The simulated machines of the package and variations of them, end to end: the kernels, the slices and the
inference of a real machine, on a processor whose hierarchy a description gives. A parameter is counted

right    one value or a range with both ends within 2 % of the truth; a cost within 2 %, of a walk 5 %
wide     a range that holds the truth, but is wider
refused  not identifiable, with a reason
wrong    a value or a range that excludes the truth; a level more or less than there is

A walk has no one cost: loads of tables hit what holds them, and take room of data. `walk_ns` says what that
must come to, by caches of its own, on several draws of frames. With --docs the table replaces the one of
docs/anatomy.md.
"""

from __future__ import annotations

import copy
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tlbprobe as tp
from tlbprobe.cores.description import Description, describe, known_machines, parse
from tlbprobe.hierarchy.anatomy import Anatomy, Part
from tlbprobe.hierarchy.inference import Cost, MeasuredLevel

DOCS = Path(__file__).parents[2] / "docs" / "anatomy.md"
OUTCOMES = ("right", "wide", "refused", "wrong")
NEAR, NEAR_WALK = 0.02, 0.05  # of the truth: how far what is right may be off
LAPS = 2  # the first one fills the caches
FRAMES = 3  # where pages and tables may lie
NUMBERS = ("first", "second", "third", "fourth")

# --- machines --------------------------------------------------------------------------------------------

SMALL, LARGE = ["4KiB"], ["2MiB"]


def level(
    entries: int, ways: int = 0, *, side: str = "both", cycles: float = 0, **how: Any
) -> dict[str, Any]:
    """One level that pages of 4 KiB and of 2 MiB share."""
    sets = {"pages": SMALL + LARGE, "entries": entries, "ways": ways, **how}
    return {"side": side, "cycles": cycles, "entries": [sets], "source": "made up"}


def usual(about: str, *tlb: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Caches, walks and overlap of a server's core, with levels of its own."""
    made: dict[str, Any] = copy.deepcopy(tomllib.loads(known_machines()["zen4"].read_text()))
    made["about"], made["ghz"], made["pages"] = about, 4.0, SMALL + LARGE
    made["tlb"] = list(tlb)
    made["walk"]["upper"] = [{"entries": 32}, {"entries": 16}, {"entries": 4}]
    for table, keys in changes.items():
        made[table] = {**made.get(table, {}), **keys}
    return made


def firsts(*given: Any, **how: Any) -> list[dict[str, Any]]:
    """A first level of data, and one of code of 64 entries."""
    return [level(*given, side="data", **how), level(64, side="code")]


def apart(first: dict[str, Any], large: int) -> dict[str, Any]:
    """The same level, with entries for 2 MiB of their own."""
    small = {**first["entries"][0], "pages": SMALL}
    return {**first, "entries": [small, {"pages": LARGE, "entries": large}]}


VARIATIONS = {
    "eight-large": usual(
        "64 entries, 8 for 2 MiB, no second level",
        apart(level(64, 4, side="data"), 8),
        level(64, side="code"),
    ),
    "random-first": usual(
        "a first level of 40 with random replacement",
        *firsts(40, replacement="random"),
        level(1024, 8, cycles=8),
    ),
    "random-second": usual(
        "a second level with random replacement", *firsts(48), level(1536, 12, cycles=8, replacement="random")
    ),
    "plru-both": usual(
        "tree-PLRU in both levels",
        *firsts(64, 4, replacement="plru"),
        level(2048, 8, cycles=7, replacement="plru"),
    ),
    "folded": usual(
        "a folded index of 14 bits, a micro TLB", *firsts(16), level(1024, 8, cycles=8, index="folded")
    ),
    "five-ways": usual("a second level of 5 ways", *firsts(48), level(1280, 5, cycles=9)),
    "three-levels": usual(
        "levels of 16, 256 and 4096",
        *firsts(16),
        level(256, 4, cycles=6),
        level(4096, 8, cycles=18),
        walk={"cycles": 40},
    ),
    "one-large-level": usual("one level of 512 in 128 sets", *firsts(512, 4)),
    "backed-by-small": usual(
        "a guest whose huge pages are small ones",
        *firsts(64),
        level(1536, 12, cycles=8),
        frames={"smallest": "4KiB"},
    ),
    "few-upper": usual(
        "caches of 32 and 8 upper entries, which walk through the second cache",
        *firsts(64),
        level(1024, 8, cycles=8),
        walk={"cache": 2, "upper": [{"entries": 32}, {"entries": 8}]},
    ),
    "odd-sets": usual("384 sets of 4 ways", *firsts(64), level(1536, 4, cycles=8)),
}


def all_machines() -> dict[str, Description]:
    """Those of the package, and the variations."""
    return {name: describe(name) for name in known_machines()} | {
        name: parse(content, name) for name, content in VARIATIONS.items()
    }


# --- what is true ----------------------------------------------------------------------------------------


def true_levels(machine: Description, side: str, unit: int) -> list[dict[str, Any]]:
    """Levels of a side that hold translations of a size: entries, ways, sets, index, nanoseconds of a hit.

    What holds no more than the level before it never shows.
    """
    found: list[dict[str, Any]] = []
    for one in machine.tables["tlb"]:
        held = [array for array in one["entries"] if unit in array["pages"]]
        if (
            one["side"] in (side, "both")
            and held
            and (not found or held[0]["entries"] > found[-1]["entries"])
        ):
            ways = held[0]["ways"] or held[0]["entries"]
            sets = {"ways": ways, "sets": held[0]["entries"] // ways, "ns": one["cycles"] / machine.ghz}
            found.append({**held[0], **sets})
    return found


def index_bits(true: dict[str, Any]) -> int | None:
    """Bits of the page number that choose the set; of a hash of all of them there is no number."""
    folds = {"plain": 1, "folded": 2, "hashed": None}[true["index"]]
    return folds and folds * (true["sets"].bit_length() - 1)


class Held:
    """Lines or entries in sets: those used last, or as chance has it."""

    def __init__(self, sets: dict[str, Any], entries: int, chance: random.Random) -> None:
        self.ways, self.hashed = sets["ways"] or entries, sets["index"] != "plain"
        self.chance = chance if sets["replacement"] == "random" else None
        self.rows: list[dict[int, None]] = [{} for _ in range(entries // self.ways)]

    def row(self, number: int) -> dict[int, None]:
        """The set of a number; a good hash is as good as any."""
        return self.rows[(hash((number,)) if self.hashed else number) % len(self.rows)]

    def take(self, number: int) -> bool:
        """Whether it is held; it is from now on."""
        row = self.row(number)
        hit = number in row
        if not hit and len(row) == self.ways:
            del row[self.chance.choice(list(row)) if self.chance else next(iter(row))]
        row.pop(number, None)
        row[number] = None
        return hit


class Walker:
    """Walks and data of one side, through caches of lines on random frames."""

    def __init__(self, machine: Description, side: str, seed: int) -> None:
        self.machine, self.random = machine, random.Random(seed)
        self.frames: dict[tuple[int, int], int] = {}
        caches = machine.tables["cache"]
        every = [(one, Held(one, one["size"] // one["line"], self.random)) for one in caches]
        of_data = [one for one in every if one[0]["side"] != "code"]
        self.tables = of_data[machine.tables["walk"]["cache"] - 1 :]
        self.own = [one for one in every if one[0]["side"] in (side, "both")]
        upper = machine.tables["walk"]["upper"]
        self.upper = [Held(one, one["entries"], self.random) for one in upper]

    def load(self, caches: list[tuple[dict[str, Any], Held]], kind: int, address: int, page: int) -> float:
        """Cycles of one load, at a place of a page or table of its kind."""
        bits = 40 - (page.bit_length() - 1)
        frame = self.frames.setdefault((kind, address // page), self.random.getrandbits(bits))
        number = (frame * page + address % page) // self.machine.line
        for cache, held in caches:
            if held.take(number):
                return float(cache["cycles"])
        return float(self.machine.tables["memory"]["cycles"])

    def walk(self, page: int, unit: int) -> float:
        """Cycles of the walk to a page."""
        base = self.machine.base_page
        bits = (base // 8).bit_length() - 1
        leaf = (unit.bit_length() - base.bit_length()) // bits
        entries = [page * (unit // base) >> bits * at for at in range(self.machine.tables["walk"]["levels"])]
        known = len(entries)
        for at in range(leaf + 1, min(len(entries), len(self.upper) + 1)):
            if self.upper[at - 1].take(entries[at]) and known == len(entries):
                known = at
        loads = (self.load(self.tables, at, 8 * entries[at], base) for at in range(leaf, known))
        return float(self.machine.tables["walk"]["cycles"]) + sum(loads)


def place_of(node: int, places: int) -> int:
    """Where nodes are in their cells: the sum of the digits of their number, so that all places are used."""
    total = 0
    while node and places > 1:
        node, digit = divmod(node, places)
        total += digit
    return total % places


def walk_ns(machine: Description, side: str, unit: int, nodes: int, pages: int = 1) -> tuple[float, float]:
    """Nanoseconds that walks add to a chase, one node in so many pages, of which each misses every level.

    Beside the walks that is what their lines take from the nodes, which lie side by side otherwise. Least
    and most, over frames.
    """
    lines, line = machine.base_page // machine.line, machine.line
    spread = [
        (page, page * unit + place_of(node, lines) * line)
        for node, page in ((node, node * pages + place_of(node, pages)) for node in range(nodes))
    ]
    packed = [(None, node * line) for node in range(nodes)]
    base = machine.base_page
    found = [
        lap_ns(machine, side, unit, spread, seed) - lap_ns(machine, side, base, packed, seed)
        for seed in range(FRAMES)
    ]
    return min(found), max(found)


def lap_ns(
    machine: Description, side: str, unit: int, nodes: Sequence[tuple[int | None, int]], seed: int
) -> float:
    """Nanoseconds of a node, in the last of some laps in random order; with a walk to its page, if any."""
    walker, order = Walker(machine, side, seed), list(nodes)
    walker.random.shuffle(order)
    cycles = 0.0
    for _ in range(LAPS):
        cycles = sum(
            walker.load(walker.own, -1, address, unit) + (0 if page is None else walker.walk(page, unit))
            for page, address in order
        )
    return cycles / len(nodes) / machine.ghz


# --- what was said of it -----------------------------------------------------------------------------------

Judged = Iterator[tuple[str, str, str]]  # parameter, outcome, and the two values in words


def of_range(truth: int, found: tuple[int, int] | None) -> str:
    """The outcome of a range."""
    if found is None:
        return "refused"
    if not found[0] <= truth <= found[1]:
        return "wrong"
    return "right" if found[0] >= (1 - NEAR) * truth and found[1] <= (1 + NEAR) * truth else "wide"


def of_value(truth: Any, found: Any) -> str:
    """The outcome of what is exact, or not told."""
    return "refused" if found is None else "right" if found == truth else "wrong"


def of_cost(truth: tuple[float, float], found: Cost | None, near: float) -> str:
    """The outcome of a cost."""
    if found is None:
        return "refused"
    if (1 - near) * truth[0] <= found.ns <= (1 + near) * truth[1]:
        return "right"
    return "wide" if found.low <= truth[1] and truth[0] <= found.high else "wrong"


def of_count(truth: int, part: Part) -> str:
    """The outcome of the number of levels: "at least" so many are no more than there are."""
    count = len(part.levels)
    if count > truth:
        return "wrong"
    if part.side.certain < count or not part.complete or part.why:
        return "refused"
    return "right" if count == truth else "wrong"


def judged_part(machine: Description, part: Part) -> Judged:
    """Every parameter of one side, on pages of one size."""
    unit = part.unit or machine.base_page
    side = "data" if part.name == "data" else "code"
    where = f"{part.name}, {'base' if unit == machine.base_page else 'larger'} pages"
    true = true_levels(machine, side, unit)
    yield f"{where}: levels", of_count(len(true), part), f"{len(part.levels)} for {len(true)}"
    for number, one in enumerate(true):
        found = part.levels[number] if number < len(part.levels) else None
        if found and number > part.side.certain and of_range(one["entries"], found.entries.range) == "wrong":
            found = None  # which one it is is not known after one in doubt
        name = f"{where}, {NUMBERS[number]} level"
        yield from judged_sets(name, one, found, part)
        last = number + 1 == len(true)
        cost = found.miss_ns if found else None
        if last:
            truth = walk_ns(machine, side, unit, cost.nodes) if cost else (0.0, 0.0)
            name, near = f"{where}: cost of a walk", NEAR_WALK
        else:
            truth, near = (true[number + 1]["ns"],) * 2, NEAR
            name = f"{where}: cost of a hit in a further level"
        yield name, of_cost(truth, cost, near), f"{in_words(cost)} for {truth[0]:.2f} to {truth[1]:.2f} ns"


def judged_sets(name: str, true: dict[str, Any], found: MeasuredLevel | None, part: Part) -> Judged:
    """Entries, ways and index of one level."""
    entries = found.entries.range if found else None
    yield f"{name}: entries", of_range(true["entries"], entries), f"{entries} for {true['entries']}"
    if part.name != "data":
        return  # code cannot be placed at will
    ways = found.ways if found else None
    yield f"{name}: ways", of_value(true["ways"], ways), f"{ways} for {true['ways']}"
    if true["sets"] > 1:
        kind = "plain" if true["index"] == "plain" else "hashed"
        index, bits = (found.index, found.index_bits) if found else (None, None)
        yield f"{name}: kind of index", of_value(kind, index), f"{index} for {true['index']}"
        truth = index_bits(true)
        yield f"{name}: bits of the index", of_value(truth, bits), f"{bits} for {truth}"


def in_words(cost: Cost | None) -> str:
    """A cost, and where it was read."""
    return "nothing" if cost is None else f"{cost.ns:.2f} ({cost.low:.2f} to {cost.high:.2f}) at {cost.nodes}"


def judged(machine: Description, found: Anatomy) -> Judged:
    """Every parameter of a machine, with what was said of it."""
    for part in found.parts:
        page = {"base": machine.base_page, "hugetlb-1G": 1 << 30}.get(part.pages, machine.pages[1])
        if part.name == "data" and part.pages != "base":
            truth = machine.true_page(page)
            yield "what the TLB holds of larger pages", of_value(truth, part.unit), f"{part.unit} for {truth}"
        if part.pages in ("base", "thp"):
            yield from judged_part(machine, part)
    for step in found.walk:
        truth = walk_ns(machine, "data", machine.base_page, step.cost.nodes, step.pages)
        span = f"{truth[0]:.2f} to {truth[1]:.2f} ns"
        words = f"{in_words(step.cost)} for {span}, {step.pages} pages apart"
        yield "cost of a walk, far apart", of_cost(truth, step.cost, NEAR_WALK), words
    upper = machine.tables["walk"]["upper"]
    for (name, entries), true in zip(found.paging.items(), upper, strict=False):
        told = entries if isinstance(entries, tuple) else None
        yield name, of_range(true["entries"], told), f"{told} for {true['entries']}"


# --- the table -------------------------------------------------------------------------------------------


def run(machines: dict[str, Description]) -> tuple[dict[str, Counter[str]], float]:
    """Outcomes by parameter; every wrong one is told at once."""
    outcomes: dict[str, Counter[str]] = {}
    start = time.perf_counter()
    for name, machine in machines.items():
        begin = time.process_time()
        with tp.simulated(machine) as core:
            rows = list(judged(machine, tp.anatomy()))
            seconds = core.now()
        counts = Counter(outcome for _, outcome, _ in rows)
        shown = ", ".join(f"{each} {counts[each]}" for each in OUTCOMES)
        took = f"{time.process_time() - begin:.0f} s of CPU for {seconds:.2f} s of its own"
        print(f"{name}: {shown}; {took}", file=sys.stderr, flush=True)
        for parameter, outcome, words in rows:
            outcomes.setdefault(parameter, Counter())[outcome] += 1
            if outcome == "wrong":
                print(f"  wrong: {parameter}: {words}", file=sys.stderr, flush=True)
    return outcomes, time.perf_counter() - start


def table(outcomes: dict[str, Counter[str]]) -> str:
    """One row a parameter, and one for all of them, in Markdown."""
    rows = [("parameter", *OUTCOMES), ("---",) * (1 + len(OUTCOMES))]
    outcomes = {**outcomes, "all": sum(outcomes.values(), Counter())}
    for parameter, counts in outcomes.items():
        rows.append((parameter, *(str(counts[each] or "") for each in OUTCOMES)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(arguments: list[str]) -> None:
    """Run all machines, or those that are named."""
    known = all_machines()
    names = [one for one in arguments if not one.startswith("-")] or list(known)
    outcomes, seconds = run({name: known[name] for name in names})
    made = table(outcomes)
    print(made + f"\n{len(names)} machines in {seconds / 60:.0f} min")
    if "--docs" in arguments:
        begin, end = "<!-- truth -->\n", "<!-- end of truth -->"
        before, _, after = DOCS.read_text(encoding="utf-8").partition(begin)
        said = f"{len(names)} machines: {', '.join(names)}.\n\n"
        DOCS.write_text(before + begin + said + made + end + after.partition(end)[2], encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
