"""How fast the model of a processor is, in accesses a second: ``python tests/bench/simulated.py``.

The goal is 20 million where the set fits the second cache of the machine that it runs on, and 3 million for
64 MiB line by line. Kernels are compiled with the compiler that CC names, gcc or clang.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulated_c import BOTH, CODE, DATA, Cache, Config, Model, Overlap, Prepared, Sets, Tlb, Walk, build

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def level(side: int, cycles: float, entries: int, ways: int) -> Tlb:
    made = Tlb(side, cycles)
    made.arrays[0].sets = Sets(entries, ways)
    made.arrays[0].pages[:2] = [4 * KIB, 2 * MIB]
    return made


def usual() -> Config:
    """A server's core of these years: two levels of TLBs, three of caches, page-walk caches."""
    config = Config(ghz=3, clock_ns=20, clock_step_ns=1, seed=1, base_page=4096, memory_cycles=300)
    config.overlap = Overlap(64, 12, 56, 0.5, 4, 2)
    config.walk = Walk(4, 2, 10, 0)
    config.walk.upper[:3] = [Sets(32, 4), Sets(8), Sets(4)]
    config.tlb[:3] = [level(DATA, 0, 64, 4), level(CODE, 0, 64, 8), level(BOTH, 7, 1536, 12)]
    config.cache[0] = Cache(DATA, 32 * KIB, 64, 8, 0, 0, 5)
    config.cache[1] = Cache(CODE, 32 * KIB, 64, 8, 0, 0, 5)
    config.cache[2] = Cache(BOTH, MIB, 64, 16, 0, 0, 14)
    config.cache[3] = Cache(BOTH, 32 * MIB, 64, 16, 0, 0, 50)
    return config


def speed(run: Prepared, accesses: int) -> float:
    """Accesses a second of CPU time, in millions: the best of several."""
    best = float("inf")
    run.access(accesses)
    for _ in range(5):
        begin = time.process_time()
        run.access(accesses)
        best = min(best, time.process_time() - begin)
    return accesses / best / 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        core = build(os.environ.get("CC", "gcc"), Path(folder))
    print("millions of accesses a second: a chase by lines, one node a page, independent reads by lines")
    for size in (16 * KIB, 128 * KIB, 512 * KIB, MIB, 8 * MIB, 64 * MIB):
        with Model(core, usual()) as model:
            lines, pages = size // 64, size // 4096
            base = model.map(size)
            runs = [
                model.run("chase", base, size, lines, 64, 1, 1, 64, 7, lines, 1, 0),
                model.run("chase", base, size, pages, 4096, 1, 64, 64, 7, pages, 1, 0),
                model.run("stride", base, size, 64, 0),
            ]
            figures = []
            for run in runs:
                run.prepare()
                figures.append(f"{speed(run, 1_000_000):6.1f}")
            print(f"{size // KIB:6} KiB", *figures)


if __name__ == "__main__":
    main()
