"""Speed and memory, each beside what it is compared with and the goal: ``make bench``.

Ratios come from one run wherever they can. These are goals to look at, not tests: a shared machine may miss
any of them. Names of benchmarks may be given as arguments.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.machine import paging
from tlbprobe.measuring.nodes import node_parameters, node_places
from tlbprobe.probes.objects import OBJECT_LAYOUTS, object_bytes
from tlbprobe.probes.stride import STRIDE_ACCESSES
from tlbprobe.programs import launching
from tlbprobe.results import analysis
from tlbprobe.units import format_size, parse_size

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
GIB = 1 << 30
Row = tuple[str, str, str]


def compiled() -> ctypes.CDLL:
    """The code that we are compared with, compiled as we are."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "compare.so")
        flags = ["-std=c11", "-O2", "-falign-loops=32", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{CSRC}"]
        subprocess.run([os.environ.get("CC", "gcc"), *flags, HERE / "compare.c", "-o", library], check=True)
        compare = ctypes.CDLL(str(library))
    strides = (f"{way}_{access}" for way in ("hand_written", "nested") for access in STRIDE_ACCESSES)
    for name in ("hand_written_chase", "sattolo_in_place", *strides):
        getattr(compare, name).restype = ctypes.c_double
    compare.hand_written_reads.restype = ctypes.c_double
    compare.hand_written_writes.restype = ctypes.c_double
    compare.hand_written_loop.restype = ctypes.c_double
    compare.hand_written_lookups.restype = ctypes.c_double
    compare.random_stores.restype = ctypes.c_double
    return compare


def low(values: list[float]) -> float:
    return float(np.quantile(values, 0.05))


def loop() -> Iterator[Row]:
    """An L1-resident chase against the loop that anyone would write, in turn."""
    compare = compiled()
    size, accesses = 16 << 10, 90000
    line = paging.cache_line_size()
    parameters = node_parameters(size // line, line, "spread", 0)
    ours: list[float] = []
    theirs: list[float] = []
    with tp.Region(size) as region, _core.Session([(region, "chase", 0, size, parameters)]) as session:
        first = ctypes.c_void_p(region.address)
        for _ in range(40):
            ours.extend(session.measure((accesses,), 10)["ns"][0] / accesses)
            theirs.extend(compare.hand_written_chase(first, accesses) for _ in range(10))
    ratio = low(ours) / low(theirs)
    text = f"{low(ours):.4f} / {low(theirs):.4f} ns = {ratio:.4f}"
    yield "L1 chase / hand-written loop", text, "0.99 to 1.01"


def stride_loop() -> Iterator[Row]:
    """L1-resident strides against two nested loops, in turn; beside them the loop that anyone would write."""
    compare = compiled()
    size, step, accesses = 16 << 10, 64, 1 << 18
    for number, access in enumerate(STRIDE_ACCESSES):
        parameters = {"stride": step, "access": number}
        ours: list[float] = []
        theirs: dict[str, list[float]] = {"nested": [], "hand_written": []}
        with tp.Region(size) as region, _core.Session([(region, "stride", 0, size, parameters)]) as session:
            arguments = (ctypes.c_void_p(region.address), *map(ctypes.c_uint64, (size, step, accesses)))
            for _ in range(40):
                ours.extend(session.measure((accesses,), 10)["ns"][0] / accesses)
                for way, taken in theirs.items():
                    taken.extend(getattr(compare, f"{way}_{access}")(*arguments) for _ in range(10))
        nested, written = (low(taken) for taken in theirs.values())
        text = (
            f"{low(ours):.4f} / {nested:.4f} ns = {low(ours) / nested:.4f} (with a check each: {written:.4f})"
        )
        yield f"L1 stride, {access} / nested loop", text, "0.98 to 1.02"


def objects_loop() -> Iterator[Row]:
    """Requests through chains of objects against the loop that anyone would write, on the same memory."""
    compare = compiled()
    for sessions, accesses in ((100, 40000), (20000, 10000)):
        for name, write in (("reading", 0), ("writing", 1)):
            size = object_bytes(sessions)
            layout = OBJECT_LAYOUTS.index("scattered")
            parameters = {"sessions": sessions, "layout": layout, "write": write, "seed": 0}
            by_hand = compare.hand_written_writes if write else compare.hand_written_reads
            counter = ctypes.c_uint64(1)
            numbers = (ctypes.c_uint64(sessions), ctypes.byref(counter), ctypes.c_uint64(accesses))
            ours: list[float] = []
            theirs: list[float] = []
            part = ("objects", 0, size, parameters)
            with tp.Region(size) as region, _core.Session([(region, *part)]) as session:
                for _ in range(400):
                    ours.extend(session.measure((accesses,), 1)["ns"][0] / accesses)
                    theirs.append(by_hand(ctypes.c_void_p(region.address), *numbers))
            ratio = low(ours) / low(theirs)
            text = f"{low(ours):.4f} / {low(theirs):.4f} ns = {ratio:.4f}"
            yield f"objects / hand-written loop, {sessions}, {name}", text, "0.98 to 1.02"


def jump_loop() -> Iterator[Row]:
    """Jumps through few cells, beside an empty loop, in turn: each round of either has one taken branch.

    C has no words for a jump through cells, so that there is nothing to be equal to and no goal.
    """
    compare = compiled()
    cells, accesses = 16, 90000
    ours: list[float] = []
    theirs: list[float] = []
    parameters = {**node_places(cells, paging.base_page_size(), "packed"), "seed": 0}
    with (
        tp.Region(cells * parameters["line"]) as region,
        _core.Session([(region, "jump", 0, region.mapped_bytes, parameters)]) as session,
    ):
        for _ in range(40):
            ours.extend(session.measure((accesses,), 10)["ns"][0] / accesses)
            theirs.extend(compare.hand_written_loop(ctypes.c_uint64(accesses)) for _ in range(10))
    yield f"{cells} packed jumps / empty loop", f"{low(ours):.4f} / {low(theirs):.4f} ns", ""


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """A process that computes on every core."""
    spin = "\nwhile True: pass"
    count = os.cpu_count() or 1
    processes = [subprocess.Popen([sys.executable, "-P", "-c", spin]) for _ in range(count)]
    try:
        time.sleep(1)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def load() -> Iterator[Row]:
    """The low estimate, idle and with a busy process on every core."""
    for size, seconds in (("16KiB", 2.0), ("256KiB", 2.0), ("64MiB", 5.0), ("1GiB", 5.0)):
        with tp.Region(size) as region:
            idle = tp.chase(region, max_seconds=seconds)
            with busy():
                loaded = tp.chase(region, max_seconds=seconds)
            idle_again = tp.chase(region, max_seconds=seconds)
        ratio = loaded.low / idle.low
        means = f"means {idle.mean:.4g}, {loaded.mean:.4g}; idle again {idle_again.low / idle.low:.3f}"
        text = f"{loaded.low:.4g} / {idle.low:.4g} ns = {ratio:.3f} ({means})"
        yield f"low under load / idle, {size}", text, "0.97 to 1.03"


def cycle() -> Iterator[Row]:
    """Building a random cycle over 1 GiB, against in-place Sattolo on the same memory."""
    compare = compiled()
    for pages in ("base", "thp"):
        with tp.Region(GIB, pages) as region:
            for spacing in (64, 8):
                count = GIB // spacing
                parameters = node_parameters(count, spacing, "spread", 1)
                ours, theirs = [], []
                for _ in range(3 if spacing > 8 else 2):
                    start = time.perf_counter()
                    _core.Session([(region, "chase", 0, GIB, parameters)]).close()
                    ours.append(time.perf_counter() - start)
                    base = ctypes.c_void_p(region.address)
                    arguments = (base, *(ctypes.c_uint64(n) for n in (count, spacing, 1)))
                    theirs.append(compare.sattolo_in_place(*arguments))
                ratio = min(theirs) / min(ours)
                text = f"{min(theirs):.3f} s / {min(ours):.3f} s = {ratio:.2f}"
                yield f"Sattolo / cycle, {spacing} B nodes, {pages}", text, "at least 2"


# --- look-ups --------------------------------------------------------------------------------------------

RECORDS, LOAD_FACTOR, RECORD_SIZE = 400_000_000, 0.95, 16  # of the largest table, about 6 GiB
BATCH_SIZES = ("1MiB", "16MiB", "128MiB", "1GiB")


def table_of(size: int, load_factor: float = 0.8) -> dict[str, int]:
    """Parameters of a table that fills a size, for which every look-up is a hit."""
    slots = size // RECORD_SIZE
    records = int(slots * load_factor)
    return {
        "slots": slots,
        "record_size": RECORD_SIZE,
        "records": records,
        "hit": 1 << 32,
        "batch": 1,
        "seed": 0,
    }


def lookup_loop() -> Iterator[Row]:
    """Plain look-ups against the loop that anyone would write, on the same table, in turn."""
    compare = compiled()
    for size, accesses in ((256 << 10, 30000), (64 << 20, 10000)):
        parameters = table_of(size)
        arguments = [ctypes.c_uint64(parameters[name]) for name in ("slots", "record_size", "records", "hit")]
        salt = ctypes.c_uint64(0xE220A8397B1DCDAF)  # the first number of SplitMix64 from 0
        counter = ctypes.c_uint64(1)
        ours: list[float] = []
        theirs: list[float] = []
        with tp.Region(size) as region, _core.Session([(region, "lookup", 0, size, parameters)]) as session:
            rest = (*arguments, salt, ctypes.byref(counter), ctypes.c_uint64(accesses))
            base = ctypes.c_void_p(region.address)
            for _ in range(200):
                ours.extend(session.measure((accesses,), 1)["ns"][0] / accesses)
                compare.hand_written_lookups(base, *rest)  # to warm, as ours does
                theirs.append(compare.hand_written_lookups(base, *rest))
        assert min(theirs) > 0, "a record was not found"
        text = f"{low(ours):.3f} / {low(theirs):.3f} ns = {low(ours) / low(theirs):.4f}"
        yield f"look-up / hand-written loop, {format_size(size)}", text, "0.98 to 1.02"


def build() -> Iterator[Row]:
    """Building a table against independent random stores to as many of its slots."""
    compare = compiled()
    wanted = int(RECORDS / LOAD_FACTOR) * RECORD_SIZE
    available = tp.host()["memory.available"] - GIB
    size = wanted if wanted <= available else 1 << available.bit_length() - 1
    parameters = table_of(size, LOAD_FACTOR)
    records = parameters["records"]
    for pages in ("base", "thp"):
        with tp.Region(size, pages) as region:
            ours, theirs = [], []
            base = ctypes.c_void_p(region.address)
            arguments = [ctypes.c_uint64(parameters[name]) for name in ("slots", "record_size", "records")]
            for _ in range(2):
                theirs.append(compare.random_stores(base, *arguments) / records * 1e9)
                start = time.perf_counter()
                _core.Session([(region, "lookup", 0, size, parameters)]).close()
                ours.append((time.perf_counter() - start) / records * 1e9)
        text = f"{min(theirs):.1f} / {min(ours):.1f} ns = {min(theirs) / min(ours):.2f}"
        yield f"random store / record built, {records / 1e6:.0f} M, {pages}", text, "at least 0.5"


def batch() -> Iterator[Row]:
    """Plain look-ups against those in batches, in turn on the same region."""
    for pages in ("base", "thp"):
        for size in map(parse_size, BATCH_SIZES):
            records = table_of(size)["records"]
            lows: dict[int, list[float]] = {}
            with tp.Region(size, pages) as region:
                for _ in range(3):
                    for each in (1, 16, 32):
                        measured = tp.lookup(records, region=region, batch=each, max_seconds=1.0)
                        lows.setdefault(each, []).append(measured.low)
            plain = min(lows[1])
            text = ", ".join(f"{each}: {plain / min(lows[each]):.2f}" for each in (16, 32))
            goal = "beyond the LLC at least 1"
            yield f"plain / batch, {format_size(size)}, {pages}", f"{text} (plain {plain:.1f} ns)", goal


LOOKUP_PEAK = """
import re, tlbprobe as tp
measured = tp.lookup((1 << 26) * 95 // 100, load_factor=0.95, max_seconds=0.2)
peak = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]
print(measured.params["bytes"], int(peak) * 1024)
"""


def lookup_memory() -> Iterator[Row]:
    """Peak memory of a process that builds a table of 1 GiB, and looks up."""
    command = [sys.executable, "-P", "-c", LOOKUP_PEAK]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    table, peak = (int(word) / 2**20 for word in output.split())
    yield f"peak memory, table of {table:.0f} MiB", f"{peak:.0f} MiB", f"at most {1.05 * table + 64:.0f} MiB"


# --- memory, time ----------------------------------------------------------------------------------------

PEAK = """
import re, sys, tlbprobe as tp
tp.chase("1GiB", stride=int(sys.argv[1]), max_seconds=0.2)
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""


def memory() -> Iterator[Row]:
    """Peak memory of a process that chases over 1 GiB."""
    for stride in (64, 8, 128, 4096):
        command = [sys.executable, "-P", "-c", PEAK, str(stride)]
        peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1024
        yield f"peak memory, 1 GiB, stride {stride}", f"{peak:.0f} MiB", f"at most {1.10 * 1024 + 64:.0f} MiB"


def point() -> Iterator[Row]:
    """One point of 1 GiB to 1 %: all that comes after the first touch."""
    for pages in ("thp", "base"):
        start = time.perf_counter()
        measured = tp.chase("1GiB", pages)
        wall = time.perf_counter() - start
        touch = sum(measured.setup[step] for step in ("map", "populate"))
        after = sum(measured.setup.values()) - touch
        precision = (
            (measured.interval[1] - measured.interval[0]) / 2 / measured.low if measured.interval else 1
        )
        text = (
            f"{after:.2f} s to {precision:.2%}: {measured.low:.0f} ns (touch {touch:.2f} s, all {wall:.2f} s)"
        )
        yield f"1 GiB on {pages} after the first touch", text, "at most 1.8 s"


def length() -> Iterator[Row]:
    """Slices of half and of double length, in turn with those that were chosen: how far low moves."""
    for size in ("256KiB", "16MiB", "1GiB"):
        with tp.Region(size) as region:
            chosen = tp.chase(region)
            line = paging.cache_line_size()
            nodes = region.size // line
            parameters = node_parameters(nodes, line, "spread", 0)
            lows: dict[int, list[float]] = {}
            accesses = [max(1, int(chosen.accesses_per_slice * factor)) for factor in (0.5, 1, 2)]
            with _core.Session([(region, "chase", 0, region.size, parameters)]) as session:
                for _ in range(10):
                    for count in accesses:
                        slices = session.measure((count,), 60)["ns"][0] / count
                        lows.setdefault(count, []).extend(slices)
        half, one, double = (low(lows[count]) for count in accesses)
        text = f"half {half / one - 1:+.2%}, double {double / one - 1:+.2%}, of {accesses[1]} accesses"
        yield f"low by slice length, {size}", text, "within 1 %"


def curve() -> Iterator[Row]:
    """The whole default curve."""
    start = time.perf_counter()
    result = tp.curve(progress=False)
    wall = time.perf_counter() - start
    points = len(result.chase) + len(result.translation)
    yield "default curve", f"{wall:.1f} s for {points} points on {', '.join(result.policies)}", "at most 60 s"


def imports() -> Iterator[Row]:
    """Importing, beyond what NumPy costs."""

    def seconds(module: str) -> float:
        taken = []
        for _ in range(15):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-P", "-c", f"import {module}"], check=True)
            taken.append(time.perf_counter() - start)
        return float(np.median(taken))

    numpy, ours = seconds("numpy"), seconds("tlbprobe")
    yield (
        "import tlbprobe beyond NumPy",
        f"{(ours - numpy) * 1e3:.0f} ms ({numpy * 1e3:.0f} ms)",
        "at most 50 ms",
    )


def interrupts() -> Iterator[Row]:
    """Ctrl-C at any moment: how long until it is answered."""
    for pages in ("base", "thp"):
        with tp.Region(GIB, pages) as region:
            measuring = functools.partial(tp.chase, region, precision=1e-6, max_seconds=20)
            waits = [_answer(measuring, after) for after in np.linspace(0.01, 1.0, 12)]
        yield f"Ctrl-C while measuring, 1 GiB on {pages}", f"{max(waits) * 1e3:.0f} ms", "at most 100 ms"
        mapping = functools.partial(tp.chase, GIB, pages, precision=1e-6, max_seconds=20)
        waits = [_answer(mapping, after) for after in np.linspace(0.05, 2.0, 6)]
        yield f"the same, and the memory given back, {pages}", f"{max(waits) * 1e3:.0f} ms", ""


def _answer(work: Callable[[], object], after: float) -> float:
    """Seconds from a signal, sent after so many, to the exception."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, send)
    timer.start()
    try:
        work()
    except KeyboardInterrupt:
        return time.perf_counter() - sent[0]
    raise AssertionError("it was not interrupted")


WORKING = """
#include <stdlib.h>
int main(int count, char **words)
{
    size_t const size = strtoul(words[1], 0, 10) << 20, steps = strtoul(words[2], 0, 10);
    char *const memory = malloc(size);
    size_t state = 1, sum = count;
    for (size_t at = 0; at < size; at += 4096)
        memory[at] = 1;
    for (size_t step = 0; step < steps; step++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += memory[(state >> 20) % size];
    }
    return sum == 0;
}
"""


def watched() -> Iterator[Row]:
    """A program under stat against the same program without it, in turn: wall and CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "working.c"), Path(folder, "working")
        source.write_text(WORKING)
        subprocess.run([os.environ.get("CC", "gcc"), "-O2", source, "-o", binary], check=True)
        for megabytes, steps in ((1, 400_000_000), (512, 200_000_000)):
            words = [binary, str(megabytes), str(steps)]
            for touched in (False, True):
                times = np.array([_both(words, touched, first=k % 2 == 0) for k in range(10)])
                for name, column in (("wall", 0), ("CPU", 1)):
                    ratio, limits = analysis.paired_ratio(times[:, 1, column], times[:, 0, column])
                    low_end, high_end = limits or (np.nan, np.nan)
                    text = f"{ratio:.4f} (95 %: {low_end:.4f} to {high_end:.4f})"
                    what = f"stat / plain, {name}, {megabytes} MiB{', touched' * touched}"
                    yield what, f"{text} of {np.median(times[:, 0, column]):.2f} s", "at most 1.01"


def _both(words: list[Any], touched: bool, first: bool) -> list[tuple[float, float]]:
    """Wall and CPU seconds of a plain run and of one under stat, one of them first."""
    found = {}
    for watch in (first, not first):
        if watch:
            run = tp.stat(words, counters=(), touched=touched)
            found[watch] = run.wall, run.user + run.system
        else:
            with launching.Launched(words) as running:
                running.go()
                ended = running.finish()
            found[watch] = ended.wall, ended.user + ended.system
    return [found[False], found[True]]


def clock() -> Iterator[Row]:
    """What reading the clock costs, against the shortest slice."""
    read_ns, step_ns = _core.clock_calibrate()
    yield "clock", f"{read_ns:.1f} ns a read, steps of {step_ns} ns", "0.1 % of a slice of 100 us"


COUNTED = [
    (1, number, 0, 0) for number in (1, 2, 3, 5, 6)
]  # task clock, faults and switches: software events


def counters() -> Iterator[Row]:
    """Reading a group around every slice: what it takes, and whether the slices are the same."""
    slices = 20_000
    parameters = {"stride": 64, "access": 0}
    with (
        tp.Region(1 << 16) as region,
        _core.Session([(region, "stride", 0, 1 << 16, parameters)]) as session,
        _core.CounterGroup(COUNTED) as group,
    ):
        taken: dict[tuple[_core.CounterGroup, ...], list[float]] = {(): [], (group,): []}
        for _ in range(20):
            for groups, seconds in taken.items():
                start = time.perf_counter()
                session.measure((1,), slices, groups)
                seconds.append(time.perf_counter() - start)
    without, reading = (min(seconds) for seconds in taken.values())
    text = (
        f"{(reading - without) / slices / 2 * 1e6:.2f} us (a slice without: {without / slices * 1e6:.2f} us)"
    )
    yield f"reading a group of {len(COUNTED)} at a slice boundary", text, "at most 2 us"
    yield from _low_with_counters()
    tp.events()
    start = time.perf_counter()
    found = tp.events()
    text = f"{(time.perf_counter() - start) * 1e3:.1f} ms for {len(found)}"
    yield "events(), tried before", text, ""


def _low_with_counters() -> Iterator[Row]:
    line = paging.cache_line_size()
    for size, accesses in ((16 << 10, 90_000), (256 << 10, 25_000), (64 << 20, 2000)):
        parameters = node_parameters(size // line, line, "spread", 0)
        with (
            tp.Region(size) as region,
            _core.Session([(region, "chase", 0, size, parameters)]) as session,
            _core.CounterGroup(COUNTED) as group,
        ):
            plain: list[float] = []
            counted: list[float] = []
            for _ in range(100):
                plain.extend(session.measure((accesses,), 10)["ns"][0] / accesses)
                counted.extend(session.measure((accesses,), 10, (group,))["ns"][0] / accesses)
        text = f"{low(counted):.4g} / {low(plain):.4g} ns = {low(counted) / low(plain):.4f}"
        yield f"low with counters / without, {size >> 10} KiB", text, "0.99 to 1.01"


def facts() -> Iterator[Row]:
    """Facts of the host."""
    taken = []
    for _ in range(9):
        start = time.perf_counter()
        tp.host()
        taken.append(time.perf_counter() - start)
    yield "host()", f"{np.median(taken) * 1e3:.1f} ms, first {taken[0] * 1e3:.1f} ms", "at most 50 ms"


def faults() -> Iterator[Row]:
    """First writes to 1 GiB of base pages: whether the times add up, and what recording them takes."""
    m = tp.fault(GIB)
    pages = GIB // paging.base_page_size()
    net, whole = m.ns.sum() / m.wall_ns, (m.ns.sum() + m.ns.size * m.overhead_ns) / m.wall_ns
    yield "sum of page times / wall time, 1 GiB", f"{whole:.4f}, less the clock {net:.4f}", "0.98 to 1.02"
    read_ns, step_ns = _core.clock_calibrate()
    text = f"{m.overhead_ns:.0f} ns; a read {read_ns:.1f} ns, steps of {step_ns} ns"
    yield "clock in every time", text, "about one read"
    yield "recorded times", f"{m.ns.nbytes / pages:.2f} bytes a page", "at most 8"
    extra = m.faults["minor"] + m.faults["major"] - pages
    yield (
        "faults beside one a page",
        f"{extra} in {pages}, {m.median:.0f} ns each, {m.gib_per_second:.2f} GiB/s",
        "0",
    )


def shootdowns() -> Iterator[Row]:
    """What unmapping one page costs the caller and the others, by their number."""
    others = len(os.sched_getaffinity(0)) - 1
    for threads in sorted({0, 1, *(2**k for k in range(1, 7)), others}):
        if threads <= min(others, _core.THREADS_MOST - 1):
            m = tp.shootdown("4MiB", threads=threads)
            lost = "" if m.others_median is None else f", each other lost {m.others_median:.0f} ns"
            yield f"unmap of a page, {threads} other threads", f"{m.median:.0f} ns{lost}", ""


def anatomy() -> Iterator[Row]:
    """What the inference of a TLB makes of simulated machines; all 1500 are run by tests/bench/anatomy.py."""
    table: Callable[[int], Iterator[Row]] = runpy.run_path(str(HERE / "anatomy.py"))["table"]
    yield from table(150)


def simulated() -> Iterator[Row]:
    """A curve and an anatomy of a simulated processor of two levels: seconds, and the model's accesses."""
    asked: dict[str, tuple[Callable[[], object], float]] = {
        "curve, 16 KiB to 64 MiB": (lambda: tp.curve(tp.sizes("16KiB", "64MiB", 4)), 30),
        "anatomy": (tp.anatomy, 60),
    }
    for what, (measure, goal) in asked.items():
        with tp.simulated("skylake") as core:
            start = time.perf_counter()
            measure()
            seconds = time.perf_counter() - start
            counted = core.counters()
        speed = (counted["loads"] + counted["jumps"]) / seconds / 1e6
        text = f"{seconds:.0f} s, {seconds / goal:.2f} of the goal; {speed:.0f} million accesses a second"
        yield f"simulated {what}", text, f"{goal:.0f} s"


BENCHMARKS: dict[str, Callable[[], Iterator[Row]]] = {
    function.__name__: function
    for function in (
        clock,
        imports,
        facts,
        counters,
        loop,
        stride_loop,
        objects_loop,
        jump_loop,
        load,
        cycle,
        lookup_loop,
        build,
        batch,
        memory,
        lookup_memory,
        length,
        point,
        curve,
        watched,
        interrupts,
        faults,
        shootdowns,
        anatomy,
        simulated,
    )
}


def main(names: list[str]) -> int:
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        print(
            f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(BENCHMARKS)}", file=sys.stderr
        )
        return 2
    print(f"{'what':<48} {'goal':<28} measured")
    for name in names or BENCHMARKS:
        for what, text, goal in BENCHMARKS[name]():
            print(f"{what:<48} {goal:<28} {text}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
