"""Touches in C: which bytes they touch, in which order, and what they record."""

import ctypes
import errno
from pathlib import Path

import numpy as np
import pytest

CSRC = Path(__file__).parents[1] / "csrc"
STEP, PAGES = 512, 64  # of no machine in particular: to a touch, a page is a step
U64 = ctypes.c_uint64


class Faults(ctypes.Structure):
    _fields_ = [("minor", U64), ("major", U64)]


class Touches(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        ("step", U64),
        ("order", ctypes.c_void_p),
        ("write", ctypes.c_bool),
        ("count", U64),
        ("block", U64),
        ("threads", ctypes.c_uint),
        ("cpus", ctypes.c_void_p),
        ("ns", ctypes.c_void_p),
    ]


class Touched(ctypes.Structure):
    _fields_ = [("faults", Faults), ("overhead_ns", U64), ("wall_ns", U64)]


@pytest.fixture(scope="module")
def library(compile_c):
    return compile_c(*(CSRC / f"{name}.c" for name in ("touch", "child", "clock", "machine")))


@pytest.fixture
def touch(library):
    """Touch memory that is zero before: the steps that were written, the times, and what else was found."""

    def run(count=PAGES, order=None, write=True, block=1, threads=1, cpus=None):
        memory = np.zeros(PAGES * STEP, np.uint8)
        ns = np.full(count // block + 1, 2**64 - 1, np.uint64)
        about, touched = Touches(memory.ctypes.data, STEP), Touched()
        kept = [None if given is None else np.ascontiguousarray(given) for given in (order, cpus)]
        about.order, about.cpus = (None if one is None else one.ctypes.data for one in kept)
        about.write, about.count, about.block, about.threads = write, count, block, threads
        about.ns = ns.ctypes.data
        assert library.tlb_touch(ctypes.byref(about), ctypes.byref(touched)) == 0
        assert ns[-1] == 2**64 - 1, "no time beyond the last"
        assert not memory.reshape(PAGES, STEP)[:, 1:].any(), "only the first byte of a page"
        return np.flatnonzero(memory[::STEP]).tolist(), ns[:-1], touched

    return run


@pytest.mark.parametrize("threads", [1, 2, 3, 64])
@pytest.mark.parametrize("count", [1, 7, 63, 64])
def test_each_page_is_written_once(touch, count, threads):
    written, ns, _ = touch(count, threads=threads)
    assert written == list(range(count))
    assert (ns < 60e9).all()


def test_order(touch):
    order = np.random.default_rng(1).permutation(PAGES).astype(np.uint32)
    assert touch(20, order=order)[0] == sorted(order[:20])
    assert touch(10, order=order, threads=3)[0] == sorted(order[:10])


@pytest.mark.parametrize("threads", [1, 2])
def test_reads_write_nothing(touch, threads):
    written, ns, _ = touch(write=False, threads=threads)
    assert written == []
    assert ns.size == PAGES


@pytest.mark.parametrize("block", [1, 2, 16, 64])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_blocks_share_a_time(touch, block, threads):
    written, ns, _ = touch(block=block, threads=threads)
    assert written == list(range(PAGES))
    assert ns.size == PAGES // block
    assert (ns < 60e9).all()


def test_times_add_up_to_the_wall_time(touch):
    """Whatever comes between two touches belongs to one of them: but for the two outermost readings."""
    for _ in range(20):
        _, ns, touched = touch()
        between = touched.wall_ns - int(ns.sum())
        assert between >= 0
        if between <= 20 * touched.overhead_ns + 1000:  # no interrupt at the very begin or end
            return
    pytest.fail("times do not add up")


def test_whatever_cpu_a_thread_is_given(touch):
    assert touch(cpus=np.array([0, 0, 0], np.intc), threads=3)[0] == list(range(PAGES))
    assert touch(cpus=np.array([-1, 5000], np.intc), threads=2)[0] == list(range(PAGES)), "no such CPU"


@pytest.mark.parametrize(
    ("values", "median"), [([5], 5), ([3, 1, 2], 2), ([9, 1, 5, 7], 7), ([2**64 - 1, 0, 1], 1)]
)
def test_median(library, values, median):
    library.tlb_median.restype = U64
    assert library.tlb_median((U64 * len(values))(*values), ctypes.c_size_t(len(values))) == median


def test_run_on(library):
    assert library.tlb_run_on(-1) == 0
    assert library.tlb_run_on(5000) == -errno.EINVAL


def test_faults_are_those_in_between(library):
    import mmap

    faults = Faults()
    with mmap.mmap(-1, 16 * mmap.PAGESIZE) as memory:
        library.tlb_faults_begin(ctypes.byref(faults))
        for page in range(16):
            memory[page * mmap.PAGESIZE] = 1
        library.tlb_faults_end(ctypes.byref(faults))
    assert faults.minor + faults.major >= 1
    library.tlb_faults_begin(ctypes.byref(faults))
    library.tlb_faults_end(ctypes.byref(faults))
    assert (faults.minor, faults.major) == (0, 0)
