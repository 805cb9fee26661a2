"""The model of a processor as ctypes sees it, and kernels that are instrumented to drive it."""

import ctypes
import errno
import mmap
import subprocess
from pathlib import Path

from pure_c import U64, Kernel, Poll, Run

CSRC = Path(__file__).parents[1] / "csrc"
KERNELS = ("chase", "stride", "lookup", "objects", "jump", "places")
FLAGS = (
    "-std=c11",
    "-O2",
    "-D_GNU_SOURCE",
    "-DTLB_SIMULATED",
    "-fPIC",
    "-fno-semantic-interposition",
    f"-I{CSRC}",
)
NORESERVE = 0x4000  # memory that is mapped and mostly not there
# Two loads may become one of 16 bytes where loops or neighbours are made vectors.
INSTRUMENT = {
    "gcc": ("-fsanitize=thread", "-fno-tree-vectorize", "--param", "tsan-instrument-func-entry-exit=0"),
    "clang": (
        "-fsanitize=thread",
        "-fno-vectorize",
        "-fno-slp-vectorize",
        *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
        # Or the load of a load and store at one place goes unseen.
        *("-mllvm", "-tsan-instrument-read-before-write=1"),
    ),
}

DATA, CODE, BOTH = 1, 2, 3
PLAIN, FOLDED, HASHED = range(3)
LRU, PLRU, RANDOM = range(3)


def doubles(*names):
    return [(name, ctypes.c_double) for name in names]


class Sets(ctypes.Structure):
    _fields_ = doubles("entries", "ways", "index", "replacement")


class Array(ctypes.Structure):
    _fields_ = [("sets", Sets), ("pages", ctypes.c_double * 8)]


class Tlb(ctypes.Structure):
    _fields_ = [*doubles("side", "cycles"), ("arrays", Array * 4)]


class Cache(ctypes.Structure):
    _fields_ = doubles("side", "size", "line", "ways", "index", "replacement", "cycles")


class Walk(ctypes.Structure):
    _fields_ = [*doubles("levels", "walkers", "cycles", "cache"), ("upper", Sets * 4)]


class Overlap(ctypes.Structure):
    _fields_ = doubles("window", "misses", "stores", "cycles", "ahead", "jump_cycles")


class Burst(ctypes.Structure):
    _fields_ = doubles("rate", "least_ms", "most_ms", "factor", "added_ns", "stolen")


class Drift(ctypes.Structure):
    _fields_ = doubles("amplitude", "memory_ms")


class Steps(ctypes.Structure):
    _fields_ = doubles("every_ms", "factor")


class Neighbour(ctypes.Structure):
    _fields_ = doubles("cycles", "cache", "level")


class Config(ctypes.Structure):
    """struct tlb_model_config."""

    _fields_ = [
        *doubles("ghz", "clock_ns", "clock_step_ns", "seed", "base_page", "contiguous", "memory_cycles"),
        ("overlap", Overlap),
        ("walk", Walk),
        ("tlb", Tlb * 8),
        ("cache", Cache * 8),
        ("burst", Burst * 4),
        ("drift", Drift),
        ("steps", Steps),
        ("neighbour", Neighbour * 8),
    ]


class Counters(ctypes.Structure):
    """struct tlb_model_counters."""

    _fields_ = [
        *((name, U64) for name in ("loads", "stores", "prefetches", "jumps")),
        ("tlb_hits", U64 * 8 * 2),
        ("tlb_misses", U64 * 8 * 2),
        ("walks", U64 * 2),
        *((name, U64) for name in ("walk_loads", "walk_pending", "walk_active")),
        ("cache_hits", U64 * 9 * 3),
        ("cycles", U64),
    ]


def build(compiler, folder):
    """Kernels instrumented, all else as it is; no library of a sanitizer."""
    objects = []
    for source in [
        *(CSRC / "kernels" / f"{name}.c" for name in KERNELS),
        *sorted((CSRC / "simulated").glob("*.c")),
        *(CSRC / name for name in ("measure.c", "counting.c", "cycle.c", "code.c")),
    ]:
        extra = INSTRUMENT[compiler] if source.parent.name == "kernels" else ()
        objects.append(folder / f"{source.parent.name}-{source.stem}.o")
        subprocess.run([compiler, *FLAGS, *extra, "-c", source, "-o", objects[-1]], check=True)
    library = folder / "simulated.so"
    subprocess.run([compiler, "-shared", "-Wl,-Bsymbolic,-z,defs", *objects, "-o", library], check=True)
    core = ctypes.CDLL(str(library))
    for name in ("tlb_model_ns", "tlb_model_cpu_ns", "tlb_clock_ns", "tlb_clock_cpu_ns", "tlb_clock_witness"):
        getattr(core, name).restype = U64
    core.tlb_hook_use.restype = ctypes.c_void_p
    return core


class ConfigError(ValueError):
    """What the model says of a configuration."""


class Model:
    """A model, and what is mapped in it; the model of this thread while it is open."""

    def __init__(self, core, config):
        text = ctypes.create_string_buffer(160)
        self.core, self.model = core, ctypes.c_void_p()
        status = core.tlb_model_create(ctypes.byref(config), ctypes.byref(self.model), text)
        if status == -errno.EINVAL:
            raise ConfigError(text.value.decode())
        assert status == 0
        self.memory = {}

    def __enter__(self):
        self.core.tlb_hook_use(self.model)
        return self

    def __exit__(self, *_):
        self.core.tlb_hook_use(None)
        self.core.tlb_model_free(self.model)

    def map(self, size, page=4096, true_page=None):
        """Memory that is mapped: its address."""
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        sizes = (U64(base), U64(size), U64(page), U64(true_page or page))
        status = self.core.tlb_model_map(self.model, *sizes)
        assert status == 0, errno.errorcode[-status]
        self.memory[base] = memory
        return base

    def unmap(self, base):
        assert self.core.tlb_model_unmap(self.model, U64(base)) == 0

    def count(self):
        counters = Counters()
        self.core.tlb_model_count(self.model, ctypes.byref(counters))
        return counters

    def ns(self):
        return self.core.tlb_model_ns(self.model)

    def cpu_ns(self):
        return self.core.tlb_model_cpu_ns(self.model)

    def advance(self, ns):
        self.core.tlb_model_advance(self.model, U64(ns))

    def compute(self, cycles):
        self.core.tlb_model_compute(self.model, U64(cycles))

    def run(self, kernel, base, size, *parameters):
        return Prepared(self, kernel, base, size, parameters)


class Prepared:
    """A run of a kernel that is prepared."""

    def __init__(self, model, kernel, base, size, parameters):
        self.model, self.core = model, model.core
        self.kernel = Kernel.in_dll(self.core, f"tlb_kernel_{kernel}")
        self.run = Run(ctypes.addressof(self.kernel), base, size)
        self.run.parameter[: len(parameters)] = parameters
        self.prepare()

    def prepare(self):
        status = self.kernel.prepare(self.run, Poll())
        assert status == 0, errno.errorcode[-status]

    def access(self, accesses):
        return self.core.tlb_run_access(ctypes.byref(self.run), U64(accesses), ctypes.byref(Poll()))

    def verify(self):
        found = U64()
        assert self.kernel.verify(self.run, ctypes.byref(found), Poll()) == 0
        return found.value

    def timed(self, accesses):
        """Cycles of a slice of so many accesses, at 1 GHz."""
        begin = self.model.ns()
        assert self.access(accesses) == 0
        return self.model.ns() - begin

    def counted(self, accesses):
        """What a slice counted, by name: differences of all counters."""
        before = self.model.count()
        assert self.access(accesses) == 0
        return difference(before, self.model.count())


def difference(before, after):
    def less(one, other):
        if isinstance(one, int):
            return other - one
        return [less(a, b) for a, b in zip(one, other, strict=True)]

    return {name: less(getattr(before, name), getattr(after, name)) for name, _ in Counters._fields_}
