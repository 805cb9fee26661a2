"""What the inference makes of simulated machines: ``python tests/bench/anatomy.py [MACHINES [SEED]]``.

Random machines of real-looking sizes, each asked once without noise and once with the noise that a shared
virtual machine showed. A parameter is counted

exact      one value, the true one
within 2 % the range holds the truth, and both ends are within 2 % of it
wide       the range holds it, but is wider
wrong      a value or a range that excludes the truth
refused    not identifiable, with a reason

The goal: wrong below 0.2 %; wide and refused together below 5 % of what the noise-free curves determine.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np

from tlbprobe.hierarchy import inference
from tlbprobe.hierarchy.model import QUIET, Cache, Level, Machine, Noise, Simulation

MACHINES = 1500
OUTCOMES = ("exact", "within 2 %", "wide", "wrong", "refused")
Row = tuple[str, str, str]
EVIDENCE = "entries by evidence"  # counted once more, by what they rest on

FIRST = ((16, 16), (32, 32), (32, 4), (48, 48), (64, 64), (64, 4), (72, 72), (96, 96), (96, 6), (128, 8))
SECOND = (
    (512, 4),
    (1024, 4),
    (1024, 8),
    (1280, 5),
    (1536, 6),
    (1536, 12),
    (2048, 8),
    (2048, 16),
    (3072, 12),
    (3072, 24),
    (4096, 8),
    (4096, 16),
)
BETWEEN = ((128, 4), (256, 4), (256, 8), (512, 8))


def random_machine(random: np.random.Generator) -> Machine:
    """A machine of sizes that exist, put together anew."""

    def level(sizes: tuple[tuple[int, int], ...], hit_ns: float) -> Level:
        entries, ways = sizes[random.integers(len(sizes))]
        policies = ("lru", "plru", "random") if ways & (ways - 1) == 0 or ways <= 24 else ("lru", "random")
        chances = (0.55, 0.25, 0.2) if len(policies) == 3 else (0.75, 0.25)
        policy = str(random.choice(policies, p=chances))
        index = "hashed" if entries > ways and hit_ns and random.random() < 0.5 else "plain"
        return Level(entries, ways, hit_ns, index, policy, int(random.integers(2, 4)))  # type: ignore[arg-type]

    depth = random.choice((1, 2, 3), p=(0.08, 0.8, 0.12))
    hit = float(random.uniform(1.2, 3.5))
    if depth == 1:
        levels = [level((*FIRST, (256, 4), (512, 8)), 0.0)]
    elif depth == 2:
        levels = [level(FIRST, 0.0), level(SECOND, hit)]
    else:
        levels = [level(FIRST[:4], 0.0), level(BETWEEN, hit), level(SECOND[3:], hit * random.uniform(2.2, 3))]
    caches = (
        Cache(int(random.choice((512, 768, 1024))), float(random.uniform(0.9, 1.8))),
        Cache(int(random.choice((4096, 8192, 16384, 32768))), float(random.uniform(3.4, 5))),
        Cache(int(random.choice((1 << 17, 1 << 18, 1 << 19))), float(random.uniform(10, 25))),
    )
    return Machine(
        tuple(levels),
        caches,
        memory_ns=float(random.uniform(70, 140)),
        walk_ns=float(random.uniform(12, 40)),
        paging=(int(random.choice((16, 32, 64))), 16, 8),
        exposed=float(random.uniform(0, 0.2)),
    )


def outcome(truth: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "refused"
    if not low <= truth <= high:
        return "wrong"
    if low == high:
        return "exact"
    return "within 2 %" if low >= 0.98 * truth and high <= 1.02 * truth else "wide"


def judged(machine: Machine, side: inference.Side) -> Iterator[tuple[str, str]]:
    """Every parameter of a machine, with what the inference made of it."""
    count = len(side.levels)
    doubted = side.certain < count or not count
    yield "levels", "refused" if doubted else "exact" if count == len(machine.levels) else "wrong"
    for number, true in enumerate(machine.levels):
        name = f"level {number + 1}" if len(machine.levels) > 1 else "the only level"
        found = side.levels[number] if number < count else None
        if found and number > side.certain and not _fits(true, found):
            found = None  # of the levels after a doubtful one it is not known which they are
        span = found.entries.range if found else None
        yield f"{name}: entries", outcome(true.entries, *(span or (None, None)))
        if found and span:
            yield f"{EVIDENCE}: {found.entries.evidence}", outcome(true.entries, *span)
        for what, value in (("ways", true.ways), ("sets", true.sets)):
            got = getattr(found, what, None)
            yield f"{name}: {what}", outcome(value, got, got)
        if true.sets > 1:
            bits = (true.sets.bit_length() - 1) * (true.folds if true.index == "hashed" else 1)
            got = found.index if found else None
            yield f"{name}: index", "refused" if got is None else "exact" if got == true.index else "wrong"
            yield f"{name}: index bits", outcome(bits, *(2 * [found.index_bits if found else None]))
        cost = found.miss_ns if found else None
        if cost is not None:
            real = machine.translation_ns(np.arange(cost.nodes))
            yield f"{name}: miss ns", outcome(real, cost.low, cost.high)


def _fits(true: Level, found: inference.MeasuredLevel) -> bool:
    return found.entries.range is not None and outcome(true.entries, *found.entries.range) != "wrong"


def table(machines: int = MACHINES, seed: int = 0, noise: Noise | None = None) -> Iterator[Row]:
    """One row a parameter: shares of the machines with noise, and what is lost to the noise."""
    disturbed: dict[str, Counter[str]] = {}
    determined: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    asked = []
    start = time.perf_counter()
    for number in range(machines):
        random = np.random.default_rng([seed, number])
        machine = random_machine(random)
        quiet = dict(judged(machine, inference.infer(Simulation(machine, QUIET, number), number)))
        source = Simulation(machine, Noise() if noise is None else noise, number)
        for name, found in judged(machine, inference.infer(source, number)):
            disturbed.setdefault(name, Counter())[found] += 1
            if found == "wrong":
                print(f"  machine {number}: {name} wrong (without noise: {quiet.get(name)})", file=sys.stderr)
            if quiet.get(name) in ("exact", "within 2 %"):
                determined[name] += 1
                lost[name] += found in ("wide", "refused")
        asked.append(source.asked)
    for name, counts in sorted(disturbed.items()):
        total = counts.total()
        shares = ", ".join(f"{each} {counts[each] / total:.2%}" for each in OUTCOMES)
        yield name, f"{shares} of {total}", f"lost {lost[name] / max(1, determined[name]):.2%}"
    everything = sum(
        (counts for name, counts in disturbed.items() if not name.startswith(EVIDENCE)), Counter()
    )
    total, wrong = everything.total(), everything["wrong"]
    lost_all, all_determined = (
        sum(n for name, n in of.items() if not name.startswith(EVIDENCE)) for of in (lost, determined)
    )
    yield "all", f"wrong {wrong / total:.3%} of {total}", "below 0.2 %"
    yield "all", f"lost {lost_all / all_determined:.2%} of what is determined", "below 5 %"
    taken = time.perf_counter() - start
    yield "time", f"{taken:.0f} s for {machines} machines; {np.mean(asked):.0f} rounds each", "a few minutes"


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    for row in table(*given):
        print(f"{row[0]:28} {row[1]:95} {row[2]}")
