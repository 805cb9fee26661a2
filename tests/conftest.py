"""Settings of the machine that are put back, processes of their own, and limits to run into."""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tlbprobe import (
    Backing,
    Curve,
    FaultParts,
    Measurement,
    PageTimes,
    ProgramRun,
    Refusal,
    ShootdownTimes,
    Sweep,
    Translation,
    Trial,
)
from tlbprobe.display.commands.main import main
from tlbprobe.hierarchy.anatomy import Anatomy, Part
from tlbprobe.hierarchy.claims import Claim
from tlbprobe.hierarchy.inference import Cost, Dearer, Entries, MeasuredLevel, Side, WalkStep
from tlbprobe.machine.limits import control_groups
from tlbprobe.sweeps.curve import view_sizes
from tlbprobe.sweeps.fault_parts import FaultPart


def pytest_configure():
    """Under nohup or in the background of a shell some signals are ignored, and by all that starts then."""
    defaults = {"SIGINT": signal.default_int_handler, "SIGQUIT": signal.SIG_DFL, "SIGHUP": signal.SIG_DFL}
    for name, handler in defaults.items():
        if signal.getsignal(getattr(signal, name)) == signal.SIG_IGN:
            signal.signal(getattr(signal, name), handler)


CSRC = Path(__file__).parents[1] / "csrc"
COMPILER = os.environ.get("CC", "gcc")

# What a script of `run_python` finds: `answer` returns a value to the test, `refuse` filters a system call.
PRELUDE = '''
import ctypes, errno, gc, json, mmap, os, platform, re, resource, signal, sys, threading, time, warnings
from pathlib import Path
import numpy as np
import tlbprobe as tp
from tlbprobe.machine import files, limits, paging
from tlbprobe.memory import backing, budget, folios, policies
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BASE, PMD = paging.base_page_size(), paging.pmd_size()

def answer(value):
    print(json.dumps(value), flush=True)

def caught(call, *arguments, **keywords):
    """Name of what a call raises, its message with notes, and its errno."""
    try:
        call(*arguments, **keywords)
    except BaseException as error:
        text = "\\n".join([str(error), *getattr(error, "__notes__", ())])
        return type(error).__name__, text, getattr(error, "errno", None)
    return None

MADVISE, IOCTL, OPENAT = {"x86_64": (28, 16, 257), "aarch64": (233, 29, 56)}[platform.machine()]
PAGEMAP_SCAN = 0xC0606610

def refuse(call, error, argument=None, value=0):
    """Let a system call fail from now on, where an argument has a value if one is given."""
    class Filter(ctypes.Structure):
        _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte),
                    ("k", ctypes.c_uint)]
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]
    load, equal, leave = 0x20, 0x15, 0x06
    low_half = 0 if argument is None else 16 + 8 * argument
    expected = call if argument is None else value
    lines = [(load, 0, 0, 0), (equal, 0, 3, call), (load, 0, 0, low_half), (equal, 0, 1, expected),
             (leave, 0, 0, 0x00050000 | error), (leave, 0, 0, 0x7FFF0000)]
    program = Program(len(lines), (Filter * len(lines))(*lines))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, os.strerror(ctypes.get_errno())
'''


@pytest.fixture
def run_python():
    """Run a script in a process of its own; what it gave to `answer`. No signal may end it."""

    def run(script, seconds=60):
        done = subprocess.run(
            [sys.executable, "-P", "-c", PRELUDE + textwrap.dedent(script)],
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def setting():
    """Write a file of /sys; what it said is put back, in whatever way the test ends."""
    before = {}

    def write(path, value):
        try:
            text = Path(path).read_text().strip()
            chosen = re.search(r"\[(\w+)\]", text)
            Path(path).write_text(str(value))
        except OSError as error:
            pytest.skip(f"cannot set {path}: {error.strerror}")
        before.setdefault(path, chosen[1] if chosen else text)

    yield write
    for path, text in reversed(before.items()):
        Path(path).write_text(text)


@pytest.fixture
def group():
    """Make a control group below our own: `group(controller, {file: value})` is its directory."""
    made, enabled = [], []

    def make(controller, limits):
        mine = next(control_groups("/", {controller}), None)
        if mine is None:
            pytest.skip(f"no control group has the controller {controller!r}")
        parent = Path("/", *mine)
        switch = parent / "cgroup.subtree_control"
        try:
            if switch.exists() and controller not in switch.read_text().split():
                switch.write_text(f"+{controller}")
                enabled.append((switch, f"-{controller}"))
            made.append(parent / f"tlbprobe-test-{os.getpid()}-{len(made)}")
            made[-1].mkdir()
            for name, value in limits.items():
                (made[-1] / name).write_text(str(value))
        except OSError as error:
            pytest.skip(f"cannot limit a control group: {error}")
        return made[-1]

    yield make
    for path in made:
        if path.exists():
            path.rmdir()
    for switch, value in enabled:
        switch.write_text(value)


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory):
    """Compile C files, and load them: to drive the pure C part without Python in between."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no C compiler {COMPILER!r}")
    loaded = {}

    def load(*sources, **macros):
        key = (sources, tuple(sorted(macros.items())))
        if key not in loaded:
            library = tmp_path_factory.mktemp("c") / "library.so"
            flags = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{CSRC}"]
            flags += [f"-D{name}={value}" for name, value in macros.items()]
            subprocess.run([COMPILER, *flags, *map(str, sources), "-o", str(library)], check=True)
            loaded[key] = ctypes.CDLL(str(library))
        return loaded[key]

    return load


def loops_in(library, function):
    """Instructions of every innermost loop of a function, by objdump: from a jump back to its target."""
    if shutil.which("objdump") is None:
        pytest.skip("no objdump to read machine code with")
    command = ["objdump", "-d", "--no-show-raw-insn", library._name]
    dump = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    body = re.search(rf"<{function}>:\n(.*?)\n\n", dump, re.DOTALL)[1]
    lines = [re.match(r"\s*([0-9a-f]+):\s+(.*)", line).groups() for line in body.splitlines()]
    code = {int(address, 16): text.strip() for address, text in lines}
    jump = re.compile(rf"\s([0-9a-f]+) <{function}")
    targets = [(int(found[1], 16), at) for at, text in code.items() if (found := jump.search(text))]
    back = [(begin, end) for begin, end in targets if begin < end]
    inner = [
        one
        for one in back
        if not any(one != other and one[0] <= other[0] < other[1] <= one[1] for other in back)
    ]
    return [[text for at, text in code.items() if begin <= at <= end] for begin, end in sorted(inner)]


def memory_operands(instructions):
    """Those instructions that read or write memory."""
    return [
        text for text in instructions if re.search(r"[(\[]", text) and not text.startswith(("lea", "nop"))
    ]


@pytest.fixture(scope="session")
def machine_code():
    """Read what the compiler made of a loop: `.loops(library, function)`, `.memory(instructions)`."""
    return SimpleNamespace(loops=loops_in, memory=memory_operands)


def make_measurement(
    low=2.0, slices=240, pages="base", page_size=4096, size=1 << 20, *, of=Measurement, **changes
):
    noise = np.random.default_rng(size % 1000 + slices).exponential(0.02, slices)
    fields = {
        "probe": "chase",
        "ns": low * (1 + noise),
        "accesses_per_slice": 1000,
        "disturbed": np.arange(slices) % 10 == 0,
        "core_ghz": 3.0,
        "setup": {"map": 1e-4, "populate": 0.1, "cycle": 0.01, "passes": 1e-3, "measure": 0.3},
        "faults": {"minor": 0, "major": 0, "expected": 0},
        "params": {"bytes": size, "nodes": size // 64, "mapped_bytes": size, "seed": 7},
        "backing": Backing(pages, page_size, {page_size or 4096: 1.0}, "proved", "PAGEMAP_SCAN"),
        "host": {"facts": [{"name": "cpu.name", "value": "Some CPU"}], "tlb": []},
        "started": "2026-01-02T03:04:05.678+00:00",
    }
    return of(**{**fields, **changes})


def make_translation(cost=1.5, slices=240, **changes):
    runs = (make_measurement(low, slices, **changes) for low in (2.0 + cost, 2.0))
    return Translation(*runs)


def make_curve(policies, sizes, refused=()):
    """A curve with the page sizes of `policies`; points in `refused`, (size, name), are refusals."""
    points = {"chase": {}, "translation": {}}
    for name, page_size in policies.items():
        for size in sizes:
            about = {"pages": name, "page_size": page_size, "size": size}
            no = Refusal("MemoryError", f"pages={name!r}: the pool has 0 B left")
            out = (size, name) in refused
            points["chase"][size, name] = no if out else make_measurement(1 + size / 1e5, **about)
            points["translation"][size, name] = no if out else make_translation(size / 1e6, **about)
    axes = {"size": list(sizes), "pages": list(policies)}
    made = {probe: Sweep(probe, axes, found) for probe, found in points.items()}
    return Curve(**made, view=view_sizes(sizes), notes=["hugetlb: none free; to offer it: echo 1"])


def make_page_times(ns=None, kind="write", pages="base", page_size=4096, counts=None, **changes):
    times = np.linspace(400.0, 900.0, 64) if ns is None else np.asarray(ns, float)
    params = {"bytes": 4096 * times.size, "kind": kind, "order": "sequential", "threads": 1, "step": 4096}
    params |= {"access": "write", "block": 1, "bytes_per_time": page_size or 4096, "cache": "warm"}
    fields = {
        "probe": "fault",
        "ns": times,
        "accesses_per_slice": 1,
        "disturbed": [],
        "setup": {"map": 1e-5, "unmap": 6.4e-6},
        "faults": {"minor": times.size, "major": 0, "expected": times.size},
        "params": params | {"mapped_bytes": 4096 * times.size, "pages": pages, "seed": 0},
        "backing": Backing(pages, page_size, {page_size or 4096: 1.0}, "proved", "PAGEMAP_SCAN"),
        "counts": {"touches": times.size} | (counts or {}),
        "index": np.arange(times.size),
        "thread": np.zeros(times.size),
        "overhead_ns": 20.0,
        "wall_ns": float(times.sum()) + 20.0 * times.size,
    }
    return make_measurement(of=PageTimes, **{"core_ghz": None, **fields, **changes})


def make_shootdown(calls=32, threads=2, **changes):
    random = np.random.default_rng(calls)
    params = {"bytes": 4096 * calls, "kind": "unmap", "threads": threads, "step": 4096, "pages": "base"}
    fields = {
        "probe": "shootdown",
        "ns": 3000 + random.exponential(500, calls),
        "accesses_per_slice": 1,
        "disturbed": [],
        "core_ghz": None,
        "setup": {"map": 1e-5, "populate": 1e-4},
        "faults": {"minor": None, "major": None, "expected": None},
        "params": params | {"mapped_bytes": 4096 * calls, "seed": 0, "cpu": 0},
        "counts": {"interrupts": calls * threads},
        "others": 900 + random.exponential(100, (threads, calls)),
        "quiet_ns": np.full(threads, 40.0),
        "overhead_ns": 20.0,
    }
    return make_measurement(of=ShootdownTimes, **{**fields, **changes})


def make_fault_parts(**runs):
    runs = runs or {"write": make_page_times(), "write on thp": make_page_times([2e5] * 8, page_size=2 << 20)}
    parts = (FaultPart("trap", 250.0, "a page", "by hand"), FaultPart("copying", None, "", "it is not known"))
    return FaultParts(1 << 18, parts, runs)


def make_anatomy():
    """Two levels, of which the ways of the second are not identifiable; no instruction side."""
    hit, walk = Cost(1.9, 1.88, 1.92, 81), Cost(35.0, 33.5, 36.5, 7306)
    first = MeasuredLevel(Entries((72, 72), "sharp", (70, 80)), None, hit, ways=72, sets=1)
    second = MeasuredLevel(
        Entries((3072, 3072), "onset", (2900, 3600)),
        hit,
        walk,
        reasons={"ways": "the machine was too disturbed"},
    )
    nodes = tuple(8 * 2**k for k in range(12))
    costs = [0.0 if n <= 72 else 1.9 if n <= 3072 else 35.0 for n in nodes]
    spread = tuple(1.1 + cost for cost in costs)
    side = Side((first, second), (Dearer((12288, 14613), 36.0, 210.0),), nodes, spread, (1.1,) * 12, 0.002)
    claims = (Claim(1, 72, (72, 72), "agree"), Claim(2, 2048, (3072, 3072), "disagree"))
    conflicts = np.linspace(0, 300, 12).reshape(3, 4)
    data = Part(
        "data", "base", 4096, "", side, claims, conflicts, (128, 256, 512), (4, 8, 12, 16), seconds=2.5
    )
    none = Side((), (), (), (), (), 0.0)
    code = Part("instruction", "base", 4096, "", none, reason="there is no such kernel")
    steps = (WalkStep(1, walk), WalkStep(512, Cost(120.0, 110.0, 130.0, 7306)))
    paging = {"lowest": (16, 64), "next": "the cost rises little by little"}
    started = "2026-01-02T03:04:05.678+00:00"
    return Anatomy(
        (data, code), steps, paging, {"facts": [], "tlb": []}, {"seed": 0}, started, "1", ("busy",)
    )


def make_program_run(samples=20, **changes):
    seconds = np.arange(samples) * 0.1
    fields = {
        "program": "app",
        "attached": False,
        "status": 0,
        "signal": None,
        "wall": 2.0,
        "user": 1.5,
        "system": 0.25,
        "faults": {"minor": 4321, "major": 1},
        "switches": {"voluntary": 12, "involuntary": 34},
        "peak": 64 << 20,
        "seconds": seconds,
        "processes": 1 + (seconds > 1),
        "resident": (1 + np.arange(samples)) << 20,
        "proportional": (1 + np.arange(samples)) << 20,
        "huge": (np.arange(samples) // 2) << 20,
        "touched": np.where(seconds == 0, np.nan, 5e5),
        "sampling": {"seconds": 0.01, "interval": 0.01},
        "counters": {"cycles": 4e9, "walk_active": 0.5e9},
        "refused": {"walks": "not on this model", "instructions": "not on this model"},
        "host": {"facts": [{"name": "cpu.name", "value": "Some CPU"}], "tlb": []},
        "started": "2026-01-02T03:04:05.678+00:00",
        "warnings": ("it was odd",),
    }
    return ProgramRun(**{**fields, **changes})


def make_trial(rounds=8, variants=("as it is", "refused", "offered"), ratios=(1.0, 1.01, 0.8), **changes):
    """Times of the variants by their ratios, with huge pages in the one that is offered some."""
    noise = np.random.default_rng(rounds).normal(0, 0.004, (rounds, len(variants)))
    wall = np.asarray(ratios) * (1 + noise)
    huge = np.array([64.0 * (1 << 20) * (name in ("offered", "thp")) for name in variants])
    same = np.ones((rounds, 1))
    fields = {
        "program": "app",
        "what": "command",
        "variants": variants,
        "reference": variants[0],
        "order": np.argsort(noise, axis=1),
        "wall": wall,
        "cpu": wall * 0.9,
        "system": wall * 0.1,
        "minor": same * (100 + np.arange(len(variants))),
        "major": same * np.zeros(len(variants)),
        "peak": same * np.full(len(variants), np.nan),
        "resident": same * np.full(len(variants), 80.0 * (1 << 20)),
        "huge": same * huge,
        "exit_resident": same * np.full(len(variants), np.nan),
        "exit_huge": same * np.full(len(variants), np.nan),
        "page": 2 << 20,
        "status": 0,
        "params": {"rounds": rounds, "seed": 0, "thp": "madvise"},
        "refused": {"advised only": "so it is"},
        "host": {"facts": [{"name": "cpu.name", "value": "Some CPU"}], "tlb": []},
        "started": "2026-01-02T03:04:05.678+00:00",
        "warnings": ("it was odd",),
    }
    return Trial(**{**fields, **changes})


@pytest.fixture
def run(capfd, monkeypatch):
    """Run a command in this process: its status, stdout and stderr."""

    def call(*arguments):
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        return status, *capfd.readouterr()

    monkeypatch.setenv("COLUMNS", "118")
    return call


@pytest.fixture(scope="session")
def made():
    """Functions that make results by hand: nothing is measured."""
    return SimpleNamespace(
        measurement=make_measurement,
        translation=make_translation,
        curve=make_curve,
        page_times=make_page_times,
        shootdown=make_shootdown,
        fault_parts=make_fault_parts,
        program_run=make_program_run,
        trial=make_trial,
    )


@pytest.fixture(scope="session")
def examples():
    """One result of every kind that can be saved."""
    curve = make_curve({"base": 4096, "thp": 2 << 20}, [1 << 16, 1 << 20], [(1 << 20, "thp")])
    return {
        "measurement": make_measurement(),
        "translation": make_translation(),
        "refusal": Refusal("MemoryError", "it would not fit"),
        "sweep": curve.chase,
        "curve": curve,
        "page_times": make_page_times(
            after=np.linspace(1, 90, 64), counts={"faults_after": 0}, warnings=("one more fault",)
        ),
        "shootdown_times": make_shootdown(),
        "fault_parts": make_fault_parts(),
        "anatomy": make_anatomy(),
        "program_run": make_program_run(),
        "trial": make_trial(backing={"offered": Backing("thp", 2 << 20, {2 << 20: 1.0}, "proved", "smaps")}),
    }
