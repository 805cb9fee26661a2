"""Faults: exact counts of every kind on every kind of page, and whatever bad input and bad luck may come."""

import contextlib
import errno
import itertools
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.machine import files, paging
from tlbprobe.measuring import children
from tlbprobe.memory.policies import default_page, find_policy
from tlbprobe.probes import fault
from tlbprobe.sweeps import fault_parts
from tlbprobe.units import format_size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BASE, PMD = paging.base_page_size(), paging.pmd_size()
THP = "/sys/kernel/mm/transparent_hugepage"
ANONYMOUS = [name for name, kind in fault.FAULT_KINDS.items() if not kind.file]
FORKS = ("fork_parent", "fork_child")
CHUNKED = ("fill", "populate_write", "map_populate")
ONE_THREAD = (*CHUNKED, "pread")
ON_DISK = ("private_file", "shared_file", "pread")


def offered(name):
    return any(policy.offered and policy.name == name for policy in tp.page_policies())


def kinds_on(policy):
    """Kinds of faults that a kind of pages has; where memset(3) writes, AddressSanitizer faults too."""
    kinds = [name for name in ANONYMOUS if policy in fault.FAULT_KINDS[name].policies]
    return [pytest.param(name, marks=pytest.mark.no_asan) if name == "fill" else name for name in kinds]


def counted(m):
    return m.faults["minor"] + m.faults["major"]


# --- counts ----------------------------------------------------------------------------------------------


def pages_of(size, step, page):
    """Pages that touches are in."""
    return len({place // page for place in range(0, size, step)})


def certain(kind, page, size, step, threads, zero):
    """Faults that the kernel has no choice about: an oracle that shares no code with what it checks.

    `page` is the one that the kernel gives, `zero` what it said of zero pages.
    """
    if kind in ("second", "pread"):
        return 0
    if kind in CHUNKED:
        return size // page
    if threads > 1 and step < page:
        return None  # two of them may come to one page at a time
    if kind in ("read", "write", "refault_dontneed", *FORKS):
        return pages_of(size, step, page)
    if kind == "write_after_read":
        return zero // BASE if page == BASE and zero is not None else None
    return None


def check_counts(kind, name, page, size, steps, decided_by_kernel=(), times=1):
    """Every order, number of threads and step: what is certain is exact, all else is bounded."""
    threads = (1,) if kind in ONE_THREAD else (1, 2)
    orders = ("sequential",) if kind in CHUNKED else ("sequential", "random")
    combinations = itertools.product(orders, threads, (None,) if kind in CHUNKED else steps, range(times))
    for order, several, step, _ in combinations:
        m = tp.fault(size, name, kind=kind, order=order, threads=several, step=step)
        where = f"{kind} on {name}, {order}, {several} threads, steps of {step}: {m.faults}, {m.counts}"
        stepped = page if step is None else step
        exact = certain(kind, page, size, stepped, several, m.counts.get("zero_page_bytes"))
        if stepped in decided_by_kernel:
            exact = None
        assert m.faults["expected"] == exact, where
        assert counted(m) == exact if exact is not None else counted(m) <= m.counts["faults_at_most"], where
        assert m.warnings == (), where
        assert m.counts["touches"] <= -(-size // stepped), where


@pytest.mark.parametrize("name", ["base", "default"])
@pytest.mark.parametrize("kind", kinds_on("base"))
def test_counts_on_base_pages(kind, name):
    if name == "default" and default_page() != BASE:
        pytest.skip("memory without advice may get other pages here")
    size = 99 * BASE if kind not in CHUNKED else 2 * MIB
    check_counts(kind, name, BASE, size, (None, 3 * BASE, 98 * BASE), times=3 if name == "base" else 1)


# Larger pages run through the same C as base pages: there the sanitizers see it, and here it is counts alone.
@pytest.mark.no_asan
@pytest.mark.skipif(not offered("thp"), reason="no transparent huge pages")
@pytest.mark.parametrize("kind", kinds_on("thp"))
def test_counts_on_huge_pages(kind):
    steps = (None, BASE, 5 * BASE, 2 * PMD)
    kept = [step for step in steps if step and step != PMD] if kind in FORKS else ()
    check_counts(kind, "thp", PMD, 4 * PMD, steps, kept)


@pytest.fixture(params=[64 * KIB, 512 * KIB])
def between(request, setting):
    """A policy of pages between base and PMD size, switched on for the time being."""
    size = request.param
    if PMD is None or not BASE < size < PMD:
        pytest.skip(f"no transparent huge pages of {size >> 10} KiB")
    setting(f"{THP}/hugepages-{size >> 10}kB/enabled", "madvise")
    return find_policy(f"thp-{size >> 10}K")


@pytest.mark.no_asan
@pytest.mark.parametrize("kind", kinds_on("mthp"))
def test_counts_on_pages_between(kind, between):
    page = between.page_size
    kept = (BASE, 5 * BASE, 2 * page) if kind in FORKS else (BASE, 5 * BASE) if kind == "read" else ()
    if kind == "write_after_read":
        kept = (page, BASE, 5 * BASE, 2 * page)
    check_counts(kind, between.name, page, 8 * page, (None, BASE, 5 * BASE, 2 * page), kept)


@pytest.fixture
def pool(setting):
    """Reserve eight huge pages of the default size."""
    size = paging.default_hugetlb_size()
    if size is None or size > 64 * MIB:
        pytest.skip("no pool of a size that a test may fill")
    setting(f"/sys/kernel/mm/hugepages/hugepages-{size >> 10}kB/nr_hugepages", 8)
    if paging.hugetlb_pools()[size].available != 8:
        pytest.skip("the kernel could not fill the pool")
    yield size
    assert paging.hugetlb_pools()[size].free == 8, "all came back"


@pytest.mark.no_asan
@pytest.mark.parametrize("kind", kinds_on("hugetlb"))
def test_counts_on_reserved_pages(kind, pool):
    check_counts(kind, "hugetlb", pool, 4 * pool, (None, BASE, 5 * BASE, 2 * pool))


def test_counts_of_memory_that_is_a_file_on_reserved_pages(pool):
    for access, order, step in itertools.product(
        ("read", "write"), ("sequential", "random"), (None, 5 * BASE)
    ):
        m = tp.fault(4 * pool, "hugetlb", kind="memfd", access=access, order=order, step=step)
        assert counted(m) == m.faults["expected"] == 4


@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("step", [None, 4 * BASE])
def test_counts_of_private_writes_to_a_file(order, threads, step):
    """Each copies a page: exactly one fault."""
    for _ in range(3):
        m = tp.fault(99 * BASE, kind="private_file", order=order, threads=threads, step=step)
        assert counted(m) == m.faults["expected"] == m.ns.size == -(-99 * BASE // (step or BASE))
        assert m.warnings == ()


@pytest.mark.parametrize("access", ["read", "write"])
def test_counts_of_memory_that_is_a_file(access):
    m = tp.fault(99 * BASE, kind="memfd", access=access)
    assert m.faults["expected"] == (99 if access == "write" and paging.shmem_is_small() else None)
    assert m.warnings == ()
    assert 1 <= counted(m) <= 99


@pytest.mark.parametrize(
    ("kind", "access"), [("private_file", "read"), ("shared_file", "read"), ("shared_file", "write")]
)
def test_counts_that_are_the_page_caches_choice(kind, access):
    m = tp.fault(99 * BASE, kind=kind, access=access)
    assert m.faults["expected"] is None
    assert 1 <= counted(m) <= m.counts["faults_at_most"] == 99


def test_counts_of_reading_a_file():
    m = tp.fault(99 * BASE, kind="pread", order="random")
    assert (counted(m), m.faults["expected"], m.ns.size) == (0, 0, 99)


@pytest.mark.parametrize("touched", [1, 2, 511, 512, 513, 1000, 1024, 1025])
def test_blocks_share_the_touches_evenly(touched):
    m = tp.fault(touched * BASE, kind="second")
    assert 1 <= m.touches_per_time <= fault.BLOCK
    assert m.ns.size == -(-touched // fault.BLOCK)
    assert touched - m.ns.size < m.ns.size * m.touches_per_time <= touched
    assert m.counts["touches"] == m.ns.size * m.touches_per_time
    assert m.index.tolist() == [k * m.touches_per_time for k in range(m.ns.size)]


@pytest.mark.skipif(not offered("thp"), reason="no transparent huge pages")
def test_a_last_page_that_no_step_reaches():
    """Steps of three pages jump over the beginning of the second huge page, and end before it."""
    m = tp.fault(PMD + BASE, "thp", step=3 * BASE)
    assert counted(m) == m.faults["expected"] == pages_of(PMD + BASE, 3 * BASE, PMD)
    assert m.backing.page_size == PMD


def test_a_quarter_of_a_million_pages():
    """Eight bytes a page are recorded, and recording them is no fault of the timed part."""
    m = tp.fault(1 << 18 << BASE.bit_length() - 1, kind="read")
    assert counted(m) == m.faults["expected"] == m.ns.size == 262_144
    assert m.ns.nbytes == 8 * 262_144


def test_faults_after_populating():
    for kind in ("populate_write", "map_populate"):
        m = tp.fault(MIB, kind=kind)
        assert m.after.size == MIB // BASE
        assert m.counts["faults_after"] == 0


# --- what is recorded ------------------------------------------------------------------------------------


def test_places_in_order_and_in_random_order():
    m = tp.fault(50 * BASE)
    assert m.index.tolist() == list(range(50))
    one, same, other = (tp.fault(50 * BASE, order="random", seed=seed).index.tolist() for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(one) == sorted(other) == m.index.tolist()
    assert m.params["order"] == "sequential"


@pytest.mark.parametrize("threads", [1, 2, 3, 64])
def test_threads_touch_a_part_each(threads):
    m = tp.fault(50 * BASE, threads=threads)
    assert m.thread.dtype == np.int16
    assert (np.diff(m.thread) >= 0).all()
    sizes = np.bincount(m.thread, minlength=threads)
    assert sizes.sum() == 50
    assert sizes.max() - sizes.min() <= 1
    assert m.params["threads"] == threads
    assert (m.params["cpu"] is None) == (threads > 1)


@pytest.mark.parametrize("size", [MIB, 4 * MIB, 6 * MIB, 10 * MIB])
def test_chunks(size):
    m = tp.fault(size, kind="fill")
    assert m.ns.size == -(-size // fault.CHUNK)
    assert m.bytes_per_time * m.ns.size == pytest.approx(size, rel=1e-3)
    assert (m.index * m.params["step"] < size).all()
    assert m.gib_per_second == pytest.approx(size / m.wall_ns * 1e9 / GIB, rel=1e-3)
    assert m.per_base_page * size / BASE == pytest.approx(m.ns.sum(), rel=1e-2)
    assert tp.fault(size, kind="map_populate").ns.size == 1


def test_times_add_up_to_the_whole():
    """Whatever comes between two touches, an interrupt or another process, belongs to one of them."""
    for kind in ("write", "read", "second", "fill", "populate_write", "fork_child", "fork_parent", "pread"):
        m = tp.fault("16MiB", kind=kind)
        whole = m.ns.sum() * m.touches_per_time + m.overhead_ns * m.ns.size
        assert whole == pytest.approx(m.wall_ns, rel=0.1), kind
        assert whole <= m.wall_ns
    m = tp.fault("16MiB", threads=2)
    assert max(m.ns[m.thread == t].sum() for t in (0, 1)) <= m.wall_ns


def test_the_clock_is_subtracted():
    read_ns, step_ns = _core.clock_calibrate()
    for kind in ("write", "second", "fill", "map_populate", "pread"):
        m = tp.fault(MIB, kind=kind)
        assert 0 < m.overhead_ns <= 20 * max(read_ns, step_ns)
        assert f"{m.overhead_ns:.2f} ns a reading" in str(m)
        assert m.ns.min() >= -m.overhead_ns


def test_sizes_of_the_process():
    """Virtual is what was mapped, resident what was touched; the zero page is neither mine nor counted."""
    size = 32 * MIB
    margins = (PMD or BASE) + 4 * BASE
    dense, sparse, read = (tp.fault(size, **more) for more in ({}, {"step": 8 * BASE}, {"kind": "read"}))
    if "resident_bytes" not in dense.counts:
        pytest.skip("no /proc/self/statm")
    for m in (dense, sparse, read):
        assert size <= m.counts["virtual_bytes"] <= size + margins
        assert m.counts["resident_bytes"]["mapped"] < size / 16
    touched = [m.counts["resident_bytes"]["touched"] for m in (dense, sparse, read)]
    assert touched[0] == pytest.approx(size, rel=0.1)
    assert touched[1] == pytest.approx(size / 8, rel=0.5)
    if tp.fault(MIB, kind="write_after_read").counts.get("zero_page_bytes") == MIB:
        assert touched[2] < size / 16


def test_zero_pages():
    """All that was read is of the zero page, or nothing is where the kernel has none."""
    m = tp.fault(99 * BASE, kind="write_after_read", step=3 * BASE)
    zero = m.counts.get("zero_page_bytes")
    if zero is None:
        pytest.skip("nothing tells what is a zero page")
    assert zero in (0, 33 * BASE)
    assert counted(m) == m.faults["expected"] == zero // BASE


@pytest.mark.parametrize("kind", FORKS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("step", [1, 2, 7, 99])
def test_only_what_is_written_is_copied(kind, threads, step):
    m = tp.fault(99 * BASE, kind=kind, step=step * BASE, threads=threads)
    written = -(-99 // step)
    assert counted(m) == m.faults["expected"] == m.ns.size == written
    assert m.counts.get("copied_bytes", written * BASE) == written * BASE
    assert {"prepare", "fork"} <= m.setup.keys()


def test_copies_of_reserved_pages(pool):
    for kind in FORKS:
        m = tp.fault(4 * pool, "hugetlb", kind=kind, step=2 * pool)
        assert counted(m) == m.faults["expected"] == 2
        assert m.counts.get("copied_bytes", 2 * pool) == 2 * pool


def test_a_pool_that_is_empty_when_a_copy_is_needed(monkeypatch, pool):
    """Whoever owns the pages takes them from the forked process; that one gets no page, and a signal."""
    monkeypatch.setattr("tlbprobe.probes.fault.check_budget", lambda *_: None)
    assert counted(tp.fault(8 * pool, "hugetlb", kind="fork_parent")) == 8
    with pytest.raises(MemoryError, match=r"no huge page was left|ran out of memory"):
        tp.fault(8 * pool, "hugetlb", kind="fork_child")
    with pytest.raises(MemoryError, match="while mapping"):
        tp.fault(9 * pool, "hugetlb")


def test_steps_of_the_set_up():
    assert tp.fault(MIB).setup.keys() == {"map", "unmap"}
    assert tp.fault(MIB, kind="second").setup.keys() == {"map", "prepare", "unmap"}
    assert tp.fault(MIB, kind="refault_dontneed").setup.keys() == {"map", "prepare", "discard", "unmap"}


def test_it_is_a_measurement():
    m = tp.fault(MIB, counters=["cycles"], seed=np.int64(3))
    assert isinstance(m, tp.Measurement)
    assert m.low is m.interval is m.cycles is m.core_ghz is None
    assert m.estimate == m.median
    assert m.refused.keys() == {"cycles"}
    assert m.params["seed"] == 3
    assert not m.index.flags.writeable
    assert m.quantile(0) <= m.quantile(0.5) == m.median <= m.quantile(1)


# --- proof -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["write", "second", "fill", "populate_write", "refault_dontneed", "refault_free"]
)
@pytest.mark.parametrize("name", ["base", "thp"])
def test_pages_are_proved(kind, name):
    if not offered(name):
        pytest.skip(f"this machine does not offer {name!r}")
    m = tp.fault("8MiB", name, kind=kind)
    assert (m.backing.asked, m.backing.proof) == (name, "proved")
    assert m.backing.page_size == (PMD if name == "thp" else BASE)


def test_pages_between_are_consistent_with_their_faults(between):
    for kind in ("write", "second", "refault_free", "populate_write"):
        m = tp.fault(8 * between.page_size, between.name, kind=kind)
        assert (m.backing.page_size, m.backing.proof) == (between.page_size, "consistent")


def test_pages_are_proved_without_the_scan(run_python):
    """Before Linux 6.7, smaps tells; and nothing tells of zero pages, so their faults are not expected."""
    found = run_python(
        """
        refuse(IOCTL, errno.ENOTTY, 1, PAGEMAP_SCAN)
        runs = [tp.fault("8MiB", name) for name in ("base", "thp") if policies.find_policy(name).offered]
        read = tp.fault("1MiB", kind="write_after_read")
        backings = [m.backing for m in (*runs, tp.shootdown("1MiB"))]
        answer([[(one.page_size, one.proof, one.method) for one in backings],
                read.faults["expected"], "zero_page_bytes" in read.counts])
        """
    )
    sizes = (BASE, PMD, BASE) if len(found[0]) == 3 else (BASE, BASE)
    assert found[0] == [[size, "proved", "smaps"] for size in sizes]
    assert found[1:] == [None, False]


@pytest.fixture
def altered(monkeypatch):
    """Alter what the measuring process found."""

    def alter(change):
        real = _core.fault

        def fake(*arguments, **keywords):
            found = real(*arguments, **keywords)
            change(found)
            return found

        monkeypatch.setattr(_core, "fault", fake)

    return alter


def test_other_pages_than_asked(altered):
    altered(lambda found: found["scan"].update(present=found["scan"]["present"] // 2))
    with pytest.raises(tp.BackingError, match="512 KiB not in memory") as error:
        tp.fault(MIB)
    assert (error.value.asked, error.value.found.proof) == ("base", "unknown")
    assert "not in memory" in "".join(tp.fault(MIB, strict=False).warnings)


def test_nothing_tells_which_pages_they_are(altered):
    altered(lambda found: found.update(scan=None))
    with pytest.raises(tp.BackingError, match="neither PAGEMAP_SCAN nor smaps"):
        tp.fault(MIB)
    assert tp.fault(MIB, strict=False).backing.page_size is None


def test_other_faults_than_expected_are_said(altered):
    altered(lambda found: found["touched"].update(minor=found["touched"]["minor"] + 2, major=1))
    m = tp.fault(4 * BASE)
    assert m.warnings == ("7 page faults were counted where 4 were expected",)
    assert "6 minor, 1 major; 4 expected" in str(m)


# --- wrong parameters ------------------------------------------------------------------------------------


def wrong(error, words, **parameters):
    return pytest.param(parameters, error, words, id=", ".join(f"{k}={v!r}" for k, v in parameters.items()))


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        wrong(ValueError, "kind='touch' is none of read, write", kind="touch"),
        wrong(ValueError, r"kind=\['write'\] is none of", kind=["write"]),
        wrong(ValueError, "order='backwards' is none of sequential, random", order="backwards"),
        wrong(ValueError, "access='execute' is none of", access="execute"),
        wrong(ValueError, "access='read' is for files", access="read"),
        wrong(ValueError, "access='write' makes no sense with kind='pread'", kind="pread", access="write"),
        wrong(ValueError, "threads=0 is out of range, 1 to 64", threads=0),
        wrong(ValueError, "threads=65 is out of range", threads=65),
        wrong(TypeError, "threads=True must be a whole number", threads=True),
        wrong(TypeError, "threads='2' must be a whole number", threads="2"),
        wrong(ValueError, "threads=2 makes no sense with kind='fill'", kind="fill", threads=2),
        wrong(ValueError, "threads=2 makes no sense with kind='pread'", kind="pread", threads=2),
        wrong(ValueError, "step='4KiB' makes no sense with kind='fill'", kind="fill", step="4KiB"),
        wrong(ValueError, "order='random' makes no sense with kind='fill'", kind="fill", order="random"),
        wrong(ValueError, "step=100 must be a multiple of the base page", step=100),
        wrong(ValueError, "step='2MiB' must be .* at most the size, 1 MiB", step="2MiB"),
        wrong(ValueError, "step=0", step=0),
        wrong(ValueError, "size=0", size=0),
        wrong(ValueError, "size='lots'", size="lots"),
        wrong(TypeError, "size=None", size=None),
        wrong(ValueError, "pages='colossal' is no page policy", pages="colossal"),
        wrong(ValueError, "cpu=0 makes no sense with threads=2", cpu=min(os.sched_getaffinity(0)), threads=2)
        if 0 in os.sched_getaffinity(0)
        else wrong(ValueError, "cpu=99999", cpu=99999),
        wrong(ValueError, "cpu=99999 is not one", cpu=99999),
        wrong(ValueError, "seed=-1 is out of range", seed=-1),
        wrong(TypeError, "strict='no' must be True or False", strict="no"),
        wrong(TypeError, "counters='cycles' must be a sequence", counters="cycles"),
        wrong(ValueError, "cache='hot' is none of warm, cold", cache="hot"),
        wrong(ValueError, "cache='cold' is for files on a disk: kind='write'", cache="cold"),
        wrong(ValueError, "cache='cold' is for files on a disk: kind='memfd'", cache="cold", kind="memfd"),
        wrong(ValueError, "path='x' is for files: kind='write' has none", path="x"),
        wrong(ValueError, "path='x' is for files: kind='memfd' has none", path="x", kind="memfd"),
        wrong(TypeError, "path=3 must be the path of a file", path=3, kind="private_file"),
        wrong(
            ValueError,
            "access='write' would change the file of path=",
            path="x",
            kind="shared_file",
            access="write",
        ),
    ],
)  # fmt: skip
def test_wrong_parameters(monkeypatch, parameters, error, words):
    monkeypatch.setattr(_core, "fault", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(error, match=words):
        tp.fault(**{"size": MIB, **parameters})


@pytest.mark.parametrize("kind", fault.FAULT_KINDS)
def test_kinds_that_make_no_sense_on_some_pages(kind, monkeypatch):
    monkeypatch.setattr(_core, "fault", lambda *_, **__: pytest.fail("measured"))
    for policy in tp.page_policies():
        if policy.kind not in fault.FAULT_KINDS[kind].policies:
            with pytest.raises(ValueError, match=f"pages='{policy.name}' makes no sense with kind='{kind}'"):
                tp.fault(MIB, policy.name, kind=kind)


@pytest.mark.skipif(PMD is None, reason="no transparent huge pages")
def test_a_policy_that_is_not_offered(setting):
    """Refused with what would offer it, or measured on the pages that there are instead."""
    setting(f"{THP}/enabled", "never")
    for probe in (tp.fault, tp.shootdown):
        with pytest.raises(tp.BackingError, match="'never'; to offer it: echo madvise"):
            probe(4 * PMD, "thp")
        m = probe(4 * PMD, "thp", strict=False)
        assert m.warnings == (f"pages='thp' was asked, but found were {format_size(BASE)} pages proved",)
        assert (m.backing.asked, m.backing.page_size, m.faults["expected"]) == ("thp", BASE, None)


CORE = {"size": 16 * BASE, "alignment": BASE, "base_page": BASE, "page": BASE, "huge_shift": 0, "piece": 0}
CORE |= {"advice": -1, "without_thp": False, "fd": -1, "shared": False, "write": True, "step": BASE}
CORE |= {"count": 16, "block": 1, "chunk": BASE, "after": False, "order": None, "threads": 1, "cpus": (-1,)}


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 17},
        {"count": 0},
        {"count": 1 << 40, "step": 1, "size": 1 << 41},
        {"step": 0},
        {"step": 2 * BASE},
        {"step": 1 << 62},
        {"block": 0},
        {"block": 3},
        {"block": 2, "after": True},
        {"chunk": 0},
        {"threads": 0, "cpus": ()},
        {"threads": 65, "cpus": (-1,) * 65},
        {"threads": 2},
        {"size": 0},
        {"size": 16 * BASE + 1},
        {"page": 32 * BASE},
        {"base_page": 0},
        {"alignment": 3 * BASE},
        {"alignment": 0},
        {"huge_shift": 41},
        {"huge_shift": -1},
        {"piece": 1},
        {"order": np.zeros(15, np.uint32)},
        {"order": np.full(16, 16, np.uint32)},
        {"order": np.zeros((4, 4), np.uint32)},
    ],
)
def test_the_compiled_part_checks_for_itself(changes):
    with pytest.raises(ValueError, match=r"fit|order|cpus|deep|out of range"):
        _core.fault("write", **{**CORE, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"size": 1.5}, TypeError, "fault(): size=1.5 must be an integer"),
        ({"size": 1 << 70}, ValueError, f"fault(): size={1 << 70} is out of range, 1 to {sys.maxsize}"),
        ({"step": -1}, ValueError, f"fault(): step=-1 is out of range, 1 to {sys.maxsize}"),
        ({"fd": 1 << 31}, ValueError, f"fault(): fd={1 << 31} is out of range, -1 to {(1 << 31) - 1}"),
        ({"huge_shift": 41}, ValueError, "fault(): huge_shift=41 is out of range, 0 to 40"),
        ({"cpus": [-1]}, TypeError, "fault(): cpus=[-1] must be a tuple"),
        ({"cpus": (-1, -1)}, ValueError, "cpus must have 1 numbers, one for each thread, and not 2"),
        ({"sparse": True}, TypeError, "fault() has no argument 'sparse'"),
        ({"kind": "write"}, TypeError, "fault(): kind is given twice"),
    ],
)
def test_errors_of_the_compiled_part_name_the_parameter(changes, error, said):
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        _core.fault("write", **{**CORE, **changes})


def test_arguments_of_the_compiled_part():
    optional = {"huge_shift", "piece"}
    for name in CORE.keys() - optional:
        less = {other: value for other, value in CORE.items() if other != name}
        with pytest.raises(TypeError, match=rf"fault\(\) needs the argument '{name}'"):
            _core.fault("write", **less)
    with pytest.raises(TypeError, match="needs the argument 'kind'"):
        _core.fault(**CORE)
    with pytest.raises(TypeError, match=r"kind=1 must be a string"):
        _core.fault(1, **CORE)
    with pytest.raises(TypeError, match=r"takes one positional argument, not 2"):
        _core.fault("write", 1, **CORE)
    found = _core.fault(kind="write", **{name: CORE[name] for name in CORE.keys() - optional})
    assert found["ns"].size == 16


def test_kinds_of_the_compiled_part():
    with pytest.raises(ValueError, match="no kind of fault 'x'"):
        _core.fault("x", **CORE)
    header = (Path(__file__).parents[1] / "csrc" / "tlbprobe.h").read_text()
    listed = header.partition("#define TLB_FAULT_KINDS(X)")[2].partition("/*")[0]
    assert set(re.findall(r"X\((\w+)\)", listed)) == {kind.core for kind in fault.FAULT_KINDS.values()}
    assert set(fault.FAULT_KINDS) == set(get_args(fault.KindName))


def test_more_touches_than_can_be_counted(monkeypatch):
    monkeypatch.setattr(_core, "fault", lambda *_, **__: pytest.fail("measured"))
    size = (1 << 32) * BASE
    with pytest.raises(ValueError, match=f"has {1 << 32} touches, more than .*: use a larger step"):
        tp.fault(size, kind="pread")


def test_what_went_wrong_is_told_as_it_is():
    step, error, killed_by = _core.fault("write", **CORE | {"advice": 12345})
    assert (step, error, killed_by) == ("mapping", errno.EINVAL, 0)
    step, error, killed_by = _core.fault("file", **CORE | {"fd": 9999})
    assert (step, error, killed_by) == ("mapping", errno.EBADF, 0)


@pytest.mark.parametrize(
    ("ended", "on_file", "error", "words"),
    [
        (("touching", 0, signal.SIGBUS), True, OSError, "became shorter while it was mapped"),
        (("touching", 0, signal.SIGBUS), False, MemoryError, "no huge page was left"),
        (("touching", 0, signal.SIGKILL), False, MemoryError, "killed: the kernel, or a control group"),
        (("touching", 0, signal.SIGSEGV), False, RuntimeError, "signal 11 .Segmentation fault"),
        (("mapping", errno.ENOMEM, 0), False, MemoryError, "while mapping: a limit"),
        (("populating", errno.EFAULT, 0), False, MemoryError, "while populating"),
        (("populating", errno.EINVAL, 0), False, OSError, "MADV_POPULATE_WRITE needs Linux 5.14"),
        (("reading", errno.ENODATA, 0), True, OSError, "became shorter while reading"),
        (("reading", errno.EIO, 0), True, OSError, "Input/output error while reading"),
        (("forking", errno.EAGAIN, 0), False, OSError, "while forking"),
        (("forking", errno.ECHILD, 0), False, RuntimeError, "how it ended was not told"),
    ],
)
def test_words_of_failures(ended, on_file, error, words):
    with pytest.raises(error, match=words):
        raise children.failure(*ended, file=on_file)


# --- files -----------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a file"
    path.write_bytes(b"\x5a" * 16 * BASE)
    return path


@pytest.fixture
def descriptors():
    """No file descriptor may stay open."""
    before = sorted(Path("/proc/self/fd").iterdir())
    yield
    assert sorted(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("kind", ON_DISK)
def test_a_given_file_is_only_read(file, kind):
    content = file.read_bytes()
    m = tp.fault(16 * BASE, kind=kind, path=file)
    assert m.ns.size == 16
    assert m.counts["cached_bytes"] == 16 * BASE
    assert file.read_bytes() == content
    assert str(file) not in json.dumps(m.summary())
    if kind != "pread":
        assert tp.fault(16 * BASE, kind=kind, path=str(file), access="read").faults["major"] == 0


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_file_that_ends_within_a_page(file, kind):
    os.truncate(file, 15 * BASE + 1)
    assert tp.fault(15 * BASE + 1, kind=kind, path=file).ns.size == 16
    with pytest.raises(ValueError, match=r"path='.*a file' has .*, less than the 64 KiB that are to be"):
        tp.fault(16 * BASE, kind=kind, path=file)


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("kind", ON_DISK)
def test_paths_that_are_no_files(tmp_path, kind):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ValueError, match="is no regular file"):
            tp.fault(BASE, kind=kind, path=path)
    with pytest.raises(FileNotFoundError, match="none"):
        tp.fault(BASE, kind=kind, path=tmp_path / "none")
    with pytest.raises(ValueError, match="path='' is no regular file"):
        tp.fault(BASE, kind=kind, path="")
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="has 0 B, less than"):
        tp.fault(BASE, kind=kind, path=tmp_path / "empty")


def test_a_file_that_may_not_be_read(run_python, file):
    """As nobody, if we are root, from whom nothing is kept."""
    file.chmod(0)
    for folder in (file.parent, *file.parent.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o111)
    found = run_python(
        f"""
        if os.geteuid() == 0:
            os.setgroups([]), os.setgid(65534), os.setuid(65534)
        answer(caught(tp.fault, BASE, kind="private_file", path={str(file)!r}))
        """
    )
    assert found[0] == "PermissionError"
    assert "a file" in found[1]


def truncated(monkeypatch, path):
    """Let a file shrink between opening and mapping it, so that the first touch meets nothing."""
    real = _core.fault

    def shrink(*arguments, **keywords):
        os.truncate(path, 0)
        return real(*arguments, **keywords)

    monkeypatch.setattr(_core, "fault", shrink)


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_that_shrinks(monkeypatch, file, kind, threads):
    if kind in ONE_THREAD and threads > 1:
        pytest.skip("reads alone")
    truncated(monkeypatch, file)
    with pytest.raises(OSError, match="the file became shorter") as error:
        tp.fault(16 * BASE, kind=kind, path=file, threads=threads)
    assert error.value.errno == errno.EIO


def test_a_file_that_shrinks_at_any_moment(file):
    """Sooner or later in the middle of the touches; the next measurement is as good as ever."""
    shrunk = False
    for attempt in range(200):
        os.truncate(file, 4000 * BASE)
        timer = threading.Timer(1e-3 * (attempt % 20), os.truncate, (file, 0))
        timer.start()
        try:
            tp.fault(4000 * BASE, kind="private_file", path=file)
        except ValueError as error:
            assert "less than" in str(error)  # noqa: PT017 - one of several outcomes
        except OSError as error:
            assert "became shorter" in str(error)  # noqa: PT017 - one of several outcomes
            shrunk = True
        timer.join()
        if shrunk and attempt >= 20:
            break
    assert shrunk
    assert counted(tp.fault(9 * BASE)) == 9


@pytest.mark.no_asan
def test_a_signal_in_the_measuring_process_is_silent(file, tmp_path):
    """Neither a traceback by faulthandler, which the interpreter has installed, nor a core."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    script = f"""
import faulthandler, os, resource, tlbprobe as tp
from tlbprobe import _core
faulthandler.enable()
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
real = _core.fault
def shrink(*arguments, **keywords):
    os.truncate({str(file)!r}, 0)
    return real(*arguments, **keywords)
_core.fault = shrink
try:
    tp.fault({BASE}, kind="private_file", path={str(file)!r})
except OSError as error:
    print(error.errno)
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{errno.EIO}\n", "")
    assert list(folder.iterdir()) == []


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder that temporary files go to, and that is empty afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fills_meanwhile(monkeypatch, temporary, error):
    real, written = os.write, []

    def write(fd, block):
        written.append(fd)
        if len(written) == 3:
            raise OSError(error, os.strerror(error))
        return real(fd, block[: len(block) // 2])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match=os.strerror(error)) as raised:
        tp.fault(12 * MIB, kind="shared_file")
    notes = "".join(getattr(raised.value, "__notes__", ()))
    assert (str(temporary) in notes and "TMPDIR" in notes) == (error != errno.EIO)


def test_writes_in_parts(monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, block: real(fd, block[:70_001]))
    assert tp.fault(MIB, kind="pread").ns.size == MIB // BASE


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("kind", ["shared_file", "pread"])
def test_a_disk_that_is_too_small_is_not_filled(monkeypatch, temporary, kind):
    monkeypatch.setattr(os, "write", lambda *_: pytest.fail("written"))
    monkeypatch.setattr(files, "file_system", lambda *_: "ext4")
    with pytest.raises(OSError, match=r"No space left on device: .* are left") as error:
        tp.fault("15TiB", kind=kind, access="read")
    assert error.value.errno == errno.ENOSPC
    assert "the temporary file of 15 TiB goes where TMPDIR says" in error.value.__notes__[0]


def test_a_small_tmpfs(temporary):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", temporary], capture_output=True)
    if done.returncode:
        pytest.skip("only root may mount a file system to fill")
    try:
        assert files.file_system(temporary.stat().st_dev) == "tmpfs"
        with pytest.raises(OSError, match="No space left"):
            tp.fault(2 * MIB, kind="shared_file")
        assert tp.fault(MIB // 2, kind="shared_file").ns.size == MIB // 2 // BASE
        with pytest.raises(OSError, match="cache='cold': 512 KiB of the file stayed") as error:
            tp.fault(MIB // 2, kind="shared_file", cache="cold")
        assert error.value.errno == errno.EOPNOTSUPP
        with pytest.raises(MemoryError, match="MemAvailable"):
            tp.fault("1024TiB", kind="pread")
    finally:
        subprocess.run(["umount", temporary], check=True)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
@pytest.mark.parametrize("kind", ON_DISK)
def test_a_file_in_memory_is_never_cold(kind):
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        if files.file_system(os.fstat(file.fileno()).st_dev) != "tmpfs":
            pytest.skip("/dev/shm is no tmpfs")
        file.write(b"1" * 4 * BASE)
        file.flush()
        with pytest.raises(
            OSError, match=r"cache='cold': 16 KiB of the file stayed in the page cache.*tmpfs"
        ):
            tp.fault(4 * BASE, kind=kind, path=file.name, cache="cold")
        assert tp.fault(4 * BASE, kind=kind, path=file.name).counts["cached_bytes"] == 4 * BASE


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_cold_file(kind):
    if files.file_system(Path(tempfile.gettempdir()).stat().st_dev) not in ("ext4", "xfs", "btrfs"):
        pytest.skip("the temporary folder is not on a disk whose cache can be dropped")
    m = tp.fault(99 * BASE, kind=kind, cache="cold")
    assert m.counts["cached_bytes"] == 0
    assert m.params["cache"] == "cold"
    assert m.faults["major"] >= (kind != "pread")
    assert m.warnings == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_the_kernel_does_not_tell_of_files_of_others(run_python):
    """To whom a file does not belong, all of it looks cached."""
    if Path("/etc/passwd").stat().st_size < 100:
        pytest.skip("no file to read")
    found = run_python(
        """
        tp.fault(BASE)  # imports what nobody may not be able to read
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        m = tp.fault(100, kind="shared_file", path="/etc/passwd", cache="cold")
        answer([m.counts, m.warnings])
        """
    )
    assert "cached_bytes" not in found[0]
    assert "whether the file was cold is not known" in found[1][0]


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EISDIR, errno.ENOSPC])
def test_a_file_system_that_knows_no_files_without_names(monkeypatch, temporary, error):
    def refuse(folder, flags):
        raise OSError(error, os.strerror(error), folder)

    monkeypatch.setattr(_core, "open_unnamed", refuse)
    if error == errno.ENOSPC:
        with pytest.raises(OSError, match="No space left"):
            tp.fault(MIB, kind="shared_file")
    else:
        assert tp.fault(MIB, kind="shared_file").counts["cached_bytes"] == MIB
    assert list(temporary.iterdir()) == []


def test_temporary_files_go_where_tmpdir_says(tmp_path):
    script = (
        "import tempfile, tlbprobe as tp; print(tp.fault('1MiB', kind='pread').ns.size, tempfile.tempdir)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == f"{MIB // BASE} {tmp_path}\n"
    assert list(tmp_path.iterdir()) == []


# --- limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "fork_child", "memfd", "private_file"])
def test_what_cannot_fit_is_refused_with_figures(monkeypatch, kind):
    monkeypatch.setattr(_core, "fault", lambda *_, **__: pytest.fail("measured"))
    monkeypatch.setattr(os, "write", lambda *_: pytest.fail("written"))
    needed = "20[45]. TiB" if kind in FORKS else "10[23]. TiB"
    with pytest.raises(MemoryError, match=rf"fault\(size='1024 TiB', kind='{kind}'\) needs {needed}"):
        tp.fault("1024TiB", kind=kind)


@pytest.mark.no_asan
def test_address_space_and_data_limits(run_python):
    found = run_python(
        """
        tp.fault("1MiB")
        used = int(Path("/proc/self/statm").read_text().split()[0]) * BASE
        data = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) * KIB
        found = []
        for limit, bytes in ((resource.RLIMIT_AS, used + 96 * MIB), (resource.RLIMIT_DATA, data + 32 * MIB)):
            resource.setrlimit(limit, (bytes, resource.RLIM_INFINITY))
            found += [caught(tp.fault, 256 * MIB, **more) for more in ({}, {"kind": "fill"}, {"threads": 2})]
            found += [caught(tp.shootdown, 256 * MIB, step=MIB)]
            found += [tp.fault("4MiB").ns.size]
            resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        answer(found)
        """
    )
    assert found[4] == found[9] == 4 * MIB // BASE
    for kind, text, _ in found[:4]:
        assert kind == "MemoryError"
        assert "RLIMIT_AS" in text
    for kind, text, _ in found[5:9]:
        assert kind == "MemoryError"
        assert "ulimit -d" in text


def test_a_file_size_limit(run_python, tmp_path):
    """The signal that comes with it is the interpreter's to ignore."""
    found = run_python(
        f"""
        import tempfile
        tempfile.tempdir = {str(tmp_path)!r}
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
        answer([caught(tp.fault, 4 * MIB, kind="shared_file"), os.listdir({str(tmp_path)!r})])
        """
    )
    assert found[0][0] == "OSError"
    assert found[0][2] == errno.EFBIG
    assert "TMPDIR" in found[0][1]
    assert found[1] == []


@pytest.mark.no_asan
@pytest.mark.parametrize("kind", ["write", "fork_child", "populate_write"])
def test_a_control_group_kills_the_measuring_process_alone(run_python, group, kind):
    """Where nobody saw it coming: the budget, which would have refused it, is told nothing here."""
    version_1 = ":memory:" in Path("/proc/self/cgroup").read_text()
    path = group("memory", {"memory.limit_in_bytes" if version_1 else "memory.max": 192 * MIB})
    found = run_python(
        f"""
        Path({str(path)!r}, "cgroup.procs").write_text(str(os.getpid()))
        first = caught(tp.fault, 256 * MIB, kind={kind!r})
        sys.modules["tlbprobe.probes.fault"].check_budget = lambda *_: None
        answer([first, caught(tp.fault, 256 * MIB, kind={kind!r}), tp.fault(MIB).ns.size])
        """
    )
    assert found[0][0] == found[1][0] == "MemoryError"
    assert "control group limit" in found[0][1]
    assert "killed" in found[1][1] or "while" in found[1][1]
    assert found[2] == MIB // BASE


# --- processes -------------------------------------------------------------------------------------------

# Of a script in a session of its own: everyone in it but ourselves, once those who are dying are gone.
SESSION = """
def others():
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == os.getsid(0) and fields[0] not in "ZX" and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found

def left(seconds=10):
    end = time.monotonic() + seconds
    while others() and time.monotonic() < end:
        time.sleep(0.01)
    return others()
"""

INTERRUPTED = (
    SESSION
    + """
import tempfile
def descriptors():
    found = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            found.append(f"{one.name}: {os.readlink(one)}")
        except OSError:  # of the list itself
            pass
    return found
os.setsid()
tempfile.tempdir = os.environ["TMPDIR"]
tp.fault("1MiB")
before = descriptors()
taken, ended = [], 0
for kind, everyone, wait in {cases}:
    sent = []
    def send():
        sent.append(time.monotonic())
        os.killpg(0, signal.SIGINT) if everyone else os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(wait, send)
    try:
        timer.start()
        {call}
        timer.cancel()
        timer.join()
        time.sleep(0)
        ended += 1
    except KeyboardInterrupt:
        taken.append(time.monotonic() - sent[0])
        timer.join()
more = [name for name in descriptors() if name not in before]
answer([taken, ended, left(), more, os.listdir(tempfile.tempdir), tp.fault("1MiB").faults["minor"]])
"""
)


@pytest.mark.parametrize("everyone", [False, True])
@pytest.mark.parametrize(
    ("call", "kinds"),
    [
        ("tp.fault('256MiB', kind=kind)", ["write", "fork_parent", "fork_child", "private_file"]),
        ("tp.fault('64MiB', kind=kind, threads=2, order='random')", ["second", "refault_dontneed"]),
        ("tp.shootdown('16MiB', kind=kind)", ["protect", "unmap"]),
    ],
)
def test_ctrl_c(run_python, monkeypatch, tmp_path, call, kinds, everyone):
    """At several moments, to us alone or from a terminal to all: no process, no file, and no long wait."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    cases = [(kind, everyone, wait) for kind in kinds for wait in (0.002, 0.01, 0.04, 0.1)]
    script = INTERRUPTED.replace("{cases}", repr(cases)).replace("{call}", call)
    taken, ended, left, descriptors, files, faults = run_python(script)
    assert len(taken) + ended == len(cases)
    assert taken, "all were too fast to be interrupted"
    assert max(taken) < 5, "a tenth of a second on a machine that is not busy"
    assert (left, descriptors, files, faults) == ([], [], [], MIB // BASE)


def test_other_signals_are_for_the_caller(run_python):
    """A handler of the interpreter's runs once, in the interpreter, and the measurement goes on."""
    found = run_python(
        SESSION
        + """
os.setsid()
heard = []
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
    signal.signal(number, lambda number, frame: heard.append(number))
reader, writer = os.pipe2(os.O_NONBLOCK)
signal.set_wakeup_fd(writer)
sent = []
def send():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
        os.killpg(0, number)
        time.sleep(0.005)
        sent.append(number)
timer = threading.Timer(0.01, send)
timer.start()
m = tp.fault("64MiB", kind="fork_child")
timer.join()
answer([m.faults["minor"], sorted(heard), sorted(os.read(reader, 100))])
"""
    )
    numbers = sorted((signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT))
    assert found == [64 * MIB // BASE, numbers, numbers]


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "collect"])
def test_whoever_collects_children_himself(run_python, handler):
    """Then nobody tells us how it ended, but the result is there all the same."""
    found = run_python(
        f"""
        from contextlib import suppress
        def collect(*_):
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        def collecting():
            while True:
                collect()
        signal.signal(signal.SIGCHLD, {handler})
        if {handler!r} == "collect":
            threading.Thread(target=collecting, daemon=True).start()
        answer([tp.fault("1MiB", kind=kind).faults["minor"] for kind in ("write", "fork_child") * 10])
        """
    )
    assert found == [MIB // BASE] * 20


KILLED = """
import os, sys, tempfile, tlbprobe as tp
os.setsid()
print(os.getsid(0), flush=True)
while True:
    {call}
"""


@pytest.mark.parametrize(
    ("call", "processes"),
    [
        ("tp.fault('256MiB')", 2),
        ("tp.fault('128MiB', kind='fork_child')", 3),
        ("tp.fault('128MiB', kind='fork_parent')", 3),
        ("tp.fault('128MiB', kind='private_file', threads=2)", 2),
        ("tp.shootdown('16MiB')", 2),
    ],
)
def test_whoever_measures_is_killed(tmp_path, call, processes):
    """Nothing that was started for it lives on, and no file stays."""
    command = [sys.executable, "-P", "-c", KILLED.replace("{call}", call)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        session = int(process.stdout.readline())
        seen = until(lambda: len(in_session(session)) >= processes)
        process.kill()
    assert seen, "the measuring process was never there"
    assert until(lambda: not in_session(session)), in_session(session)
    assert list(tmp_path.iterdir()) == []


def in_session(session):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(process.name))
    return found


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.002)
    return bool(true())


def test_a_kernel_that_has_no_pidfd(run_python):
    assert run_python("refuse(434, errno.ENOSYS); answer(tp.fault(MIB).ns.size)") == MIB // BASE


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of clone(2) is another")
def test_no_process_and_no_thread_can_be_started(run_python):
    """The flags of a thread are in the first argument; a process has SIGCHLD there."""
    found = run_python(
        SESSION
        + """
os.setsid()
refuse(56, errno.EAGAIN, 0, 0x50F00)
found = [caught(tp.fault, MIB, threads=2), caught(tp.shootdown, MIB, threads=1), tp.fault(MIB).ns.size]
refuse(56, errno.EAGAIN, 0, signal.SIGCHLD)
answer([*found, caught(tp.fault, MIB), caught(tp.shootdown, MIB), left()])
"""
    )
    words = [text for _, text, _ in (*found[:2], *found[3:5])]
    assert "while touching" in words[0]
    assert "while starting threads" in words[1] or len(os.sched_getaffinity(0)) < 2
    assert found[2] == MIB // BASE
    assert all("while starting a process of its own" in text for text in words[2:])
    assert found[5] == []


def test_forks_of_a_process_with_threads(run_python):
    """That allocate, compute and measure themselves meanwhile, one of them on a small stack."""
    found = run_python(
        """
        stop, found = threading.Event(), []
        def work():
            while not stop.is_set():
                a = np.random.default_rng(0).random((200, 200))
                (a @ a).sum(), [bytes(n) for n in range(0, 20000, 1000)]
        def measure():
            for kind in ("write", "fork_child", "pread", "second"):
                for threads in (1, 2):
                    if kind != "pread" or threads == 1:
                        found.append(tp.fault("1MiB", kind=kind, threads=threads).warnings)
            tp.shootdown("64KiB")
        threads = [threading.Thread(target=work) for _ in range(3)]
        threading.stack_size(256 * KIB)
        threads += [threading.Thread(target=measure) for _ in range(2)]
        threading.stack_size(0)
        for thread in threads:
            thread.start()
        measure()
        for thread in threads[3:]:
            thread.join()
        stop.set()
        answer(found)
        """
    )
    assert found == [[]] * 21


# --- results ---------------------------------------------------------------------------------------------


def test_saved_and_loaded(tmp_path):
    for number, m in enumerate(
        (tp.fault(MIB, order="random", threads=2), tp.fault(MIB, kind="populate_write"))
    ):
        m.save(tmp_path / str(number))
        loaded = tp.load(tmp_path / str(number))
        assert type(loaded) is tp.PageTimes
        assert str(loaded) == str(m)
        assert loaded.summary() == m.summary()
        for name in m.arrays:
            one, other = getattr(m, name), getattr(loaded, name)
            assert one.dtype == other.dtype
            assert (one == other).all()


@pytest.mark.parametrize("kind", fault.FAULT_KINDS)
def test_every_kind_speaks_and_draws(kind):
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.use("agg")
    m = tp.fault(MIB, kind=kind)
    text = str(m)
    assert fault.FAULT_KINDS[kind].about in text
    assert f"fault: {kind} of 1 MiB on" in text
    assert json.loads(json.dumps(m.summary(), allow_nan=False))["times"] == m.ns.size
    figure = m.figure()
    figure.canvas.draw()
    for ax in figure.axes:
        check_positive(ax)
        assert ax.get_xlabel()
        assert ax.get_ylabel()
    assert kind in figure.get_suptitle()
    ax = Figure().add_subplot()
    assert m.plot(ax) is ax


def check_positive(ax):
    for scale, limits in ((ax.get_xscale(), ax.get_xlim()), (ax.get_yscale(), ax.get_ylim())):
        assert scale == "linear" or min(limits) > 0


@pytest.mark.parametrize(
    "times", [[1000.0], [0.0], [-3.0] * 5, [700.0] * 50, [1e3, 1e9], [5, 5, 1e4], [0.5] * 3, [2000, 2600]]
)
def test_odd_times_can_be_drawn(made, times):
    """A single one, all equal, none that a clock can see: each with a tick that can be read."""
    m = made.page_times(times)
    figure = m.figure()
    figure.canvas.draw()
    distribution, places = figure.axes
    for axis in (distribution.xaxis, places.yaxis):
        low, high = axis.get_view_interval()
        assert 0 < low < high
        assert any(low <= tick <= high for tick in axis.get_majorticklocs())
    drawn = sum(patch.get_data().values.sum() for patch in distribution.patches)
    assert drawn == len(times), "every time is in a bar"


def test_modes_are_named(made):
    times = np.concatenate([np.full(500, 400.0), np.full(100, 20_000.0)])
    names = [text.get_text() for text in made.page_times(times).figure().axes[0].texts]
    assert len(names) == 2
    assert names[0].endswith(" ns")
    assert names[1].endswith(" us")


def test_threads_have_colours(made):
    m = made.page_times(thread=np.arange(64) // 32)
    ax = m.plot()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["thread 0", "thread 1"]


def test_a_sweep_over_kinds_and_pages(tmp_path):
    swept = tp.sweep(
        tp.fault,
        size="1MiB",
        kind=["write", "read", "second", "pread"],
        pages=["base", "default"],
        progress=False,
    )
    assert set(swept.refused) == {("pread", "base")}
    assert "makes no sense with kind='pread'" in swept["pread", "base"].reason
    table = swept.to_numpy()
    assert {"kind", "pages", "median_ns", "mean_ns", "touches", "faults_minor", "faults_expected"} <= set(
        table.dtype.names
    )
    row = table[(table["kind"] == "write") & (table["pages"] == "base")][0]
    assert row["faults_minor"] == row["faults_expected"] == row["slices"] == MIB // BASE
    assert math.isnan(row["low_ns"])
    swept.save(tmp_path / "s")
    assert tp.load(tmp_path / "s").to_numpy().tolist()[0][:2] == ("write", "base")
    swept.to_csv(tmp_path / "s.csv")
    assert (tmp_path / "s.csv").read_text().count("\n") == 9
    assert json.dumps(swept.summary(), allow_nan=False)
    swept.plot().figure.canvas.draw()


def test_a_sweep_over_sizes_and_steps():
    swept = tp.sweep(tp.fault, size=["64KiB", "1MiB"], step=["16KiB", "64K"], progress=False)
    assert swept.axes == {"size": [65536, MIB], "step": [16384, 65536]}
    assert [point.ns.size for _, point in swept] == [4, 1, 64, 16]


# --- parts -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts():
    return tp.fault_parts("8MiB")


def test_every_part_has_a_figure_or_a_reason(parts):
    assert [part.name for part in parts.parts] == [*fault_parts.PARTS, *fault_parts.SLOPE]
    for part in parts.parts:
        assert part.how
        assert part.ns is None or (math.isfinite(part.ns) and part.per)
        assert part is parts[part.name]
    with pytest.raises(KeyError):
        parts["nothing"]
    assert {"write", *fault_parts.BESIDE_WRITES} <= parts.runs.keys()
    for name, run in parts.runs.items():
        assert run.params["bytes"] == 8 * MIB
        assert run.warnings == (), name
    assert "GiB/s" in parts["whole first write"].how


def test_parts_saved_loaded_and_drawn(parts, tmp_path):
    parts.save(tmp_path / "p")
    loaded = tp.load(tmp_path / "p")
    assert str(loaded) == str(parts)
    assert loaded.parts == parts.parts
    assert loaded.summary() == parts.summary()
    assert json.dumps(parts.summary(), allow_nan=False)
    ax = parts.plot()
    ax.figure.canvas.draw()
    check_positive(ax)


@pytest.fixture
def by_hand(made):
    """Runs of which every part is known."""

    def run(ns, **changes):
        return made.page_times([ns] * 64, **changes)

    zero, after = {"zero_page_bytes": 4096}, {"faults_after": 0}
    quick = {"map": 1e-6, "unmap": 64 * 50e-9}
    huge = {"page_size": 2 << 20, "pages": "thp"}
    chunk = {"params": run(1).params | {"bytes_per_time": 4 * BASE}}
    return {
        "write": run(1000),
        "read": run(400),
        "write_after_read": run(1000, counts=zero),
        "second": run(2, setup=quick),
        "populate_write": run(3200, counts=after, after=np.full(64, 7002.0), **chunk),
        "fork_child": run(1500),
        "write on thp": run(1000 + 511 * 100, **huge),
    }


def separated(runs, **missing):
    return {part.name: part for part in fault_parts._separate(runs, missing)}


def test_parts_are_what_they_are_said_to_be(by_hand):
    found = {name: part.ns for name, part in separated(by_hand).items()}
    assert found == pytest.approx(
        {
            "mapping": 1000,
            "trap and kernel path": 400,
            "allocation and clearing": 600,
            "trap alone": 200,
            "copying": 500,
            "hidden by a hypervisor": 7000,
            "second touch": 2,
            "unmapping": 50,
            "whole first write": 1000,
            "fixed cost of a fault": 900,
            "cost by size": 100,
        }
    )


def test_parts_that_cannot_be_separated(by_hand, made):
    def why(name, **changes):
        part = separated({**by_hand, **changes})[name]
        assert part.ns is None
        return part.how

    same, none = by_hand["write"], made.page_times([1.0] * 64, counts={"zero_page_bytes": 0})
    assert "no zero page" in why("trap and kernel path", write_after_read=none)
    assert "no zero page" in why("allocation and clearing", write_after_read=none)
    assert "-500 ns, which is noise" in why("allocation and clearing", read=by_hand["fork_child"])
    assert "0 ns, which is noise" in why("copying", fork_child=same)
    fast = made.page_times([2.0] * 64, counts={"faults_after": 0}, after=[3.0])
    assert "1 ns, within what the clock can tell" in why("hidden by a hypervisor", populate_write=fast)
    faulted = made.page_times([2.0] * 64, counts={"faults_after": 5}, after=[9e9])
    assert "5 first accesses after" in why("hidden by a hypervisor", populate_write=faulted)
    assert "only one size of pages" in why("cost by size", **{"write on thp": same})
    steep = made.page_times([1e9] * 64, page_size=2 << 20, pages="thp")
    assert "lie on none" in why("fixed cost of a fault", **{"write on thp": steep})


def test_a_kind_that_fails_is_a_reason(monkeypatch):
    """MADV_POPULATE_WRITE is not known before Linux 5.14; forks need twice the memory."""
    real = fault_parts.fault

    def fail(size, *arguments, kind="write", **keywords):
        if kind == "populate_write":
            raise OSError(errno.ENOSYS, "MADV_POPULATE_WRITE needs Linux 5.14")
        if kind == "fork_child":
            raise MemoryError("it needs twice as much")
        return real(size, *arguments, kind=kind, **keywords)

    monkeypatch.setattr(fault_parts, "fault", fail)
    found = tp.fault_parts("1MiB")
    for name in ("trap alone", "hidden by a hypervisor"):
        assert found[name].ns is None
        assert "needs Linux 5.14" in found[name].how
    assert found["copying"] == fault_parts.FaultPart(
        "copying", None, "", "fork_child: it needs twice as much"
    )
    assert found["second touch"].ns is not None


def test_a_pool_that_is_too_small_is_a_reason(pool):
    """Offered, since there are pages, but fewer than it takes: the other parts are there all the same."""
    found = tp.fault_parts(16 * pool)
    assert not [name for name in found.runs if "hugetlb" in name]
    for name in fault_parts.SLOPE:
        assert "write on hugetlb: fault(size=" in found[name].how
        assert "largest size that would fit is" in found[name].how
    assert found["whole first write"].ns > 0


@pytest.mark.parametrize("size", [BASE, 3 * BASE])
def test_parts_of_a_few_pages(size):
    assert tp.fault_parts(size)["whole first write"].ns > 0


def test_wrong_parameters_of_parts():
    for parameters, words in (({"size": 0}, "size=0"),):
        with pytest.raises(ValueError, match=words):
            tp.fault_parts(**{"size": MIB, **parameters})
    with pytest.raises(MemoryError):
        tp.fault_parts("1024TiB")


# --- the command -----------------------------------------------------------------------------------------


def test_command(run, tmp_path):
    status, out, err = run("fault", "1MiB", "--out", tmp_path / "f", "--plot", tmp_path / "f.png")
    assert (status, err) == (0, "")
    assert "fault: write of 1 MiB on 'base' pages, sequential, 1 thread\n" in out
    assert f"{MIB // BASE:,} minor, 0 major; {MIB // BASE:,} expected" in out
    assert tp.load(tmp_path / "f").ns.size == MIB // BASE
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_command_with_lists(run, tmp_path):
    lists = ("--kind", "write,second", "--order", "random", "--threads", "1,2", "--step", "4K,16K")
    status, out, err = run("fault", "64K,1MiB", *lists, "--out", tmp_path / "f", "--plot", tmp_path / "f.png")
    assert (status, err) == (0, "")
    assert len(tp.load(tmp_path / "f")) == 16
    assert "expected" in out
    _, out, _ = run("fault", "64K", *lists, "--csv")
    assert out.startswith("kind,threads,step,low_ns,")
    assert out.count("\n") == 9
    _, out, _ = run("fault", "64K", "--json")
    assert json.loads(out)["faults"]["expected"] == 65536 // BASE
    _, out, _ = run("fault", "64K", "--csv")
    assert out.count("\n") == 2


def test_command_for_parts(run, tmp_path):
    status, out, err = run("fault", "1MiB", "--parts", "--out", tmp_path / "p", "--plot", tmp_path / "p.svg")
    assert (status, err) == (0, "")
    assert "where the time of a page fault goes, on 1 MiB each" in out
    assert all(name in out for name in (*fault_parts.PARTS, *fault_parts.SLOPE))
    assert tp.load(tmp_path / "p").kind == "fault_parts"
    assert run("fault", "1MiB", "--parts", "--csv")[1].startswith("part,ns,per,how\nmapping,")
    assert len(json.loads(run("fault", "1MiB", "--parts", "--json")[1])["parts"]) == 11


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["1MiB", "--parts", "--kind", "read"], 2, "--kind makes no sense with --parts"),
        (["1MiB", "--parts", "--no-strict"], 2, "--strict makes no sense with --parts"),
        (["1MiB,2MiB", "--parts"], 2, "size='1MiB,2MiB'"),
        (["1MiB", "--kind", "touch"], 2, "'touch' is none of read, write"),
        (["1MiB", "--kind", "pread", "--pages", "thp"], 2, "makes no sense"),
        (["1MiB", "--kind", "pread", "--path", "/proc/none"], 1, "/proc/none"),
        (["1024TiB"], 1, "MemAvailable"),
    ],
)
def test_wrong_commands(run, arguments, status, words):
    found, out, err = run("fault", *arguments)
    assert (found, out) == (status, "")
    assert words in err


# --- the machine -----------------------------------------------------------------------------------------


def test_types_of_file_systems(tmp_path):
    assert files.file_system(5, tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    mounts = "21 1 0:5 / / rw shared:1 - tmpfs none rw\n22 1 8:1 / /disk rw - ext4 /dev/a rw\ngarbled 0:9\n"
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    assert files.file_system(os.makedev(0, 5), tmp_path) == "tmpfs"
    assert files.file_system(os.makedev(8, 1), tmp_path) == "ext4"
    assert files.file_system(os.makedev(0, 9), tmp_path) is None


@pytest.mark.parametrize(
    ("whole", "sized", "small"),
    [
        ("always within_size advise [never] deny force", None, True),
        ("always within_size [advise] never deny force", "always [inherit] within_size advise never", True),
        ("[always] within_size advise never deny force", None, False),
        ("always within_size advise never deny [force]", None, False),
        ("always within_size advise [never] deny force", "[always] inherit within_size advise never", False),
        (None, None, True),
    ],
)
def test_sizes_of_shared_memory(tmp_path, whole, sized, small):
    for path, text in (("shmem_enabled", whole), ("hugepages-64kB/shmem_enabled", sized)):
        if text:
            file = tmp_path / paging.THP / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
    assert paging.shmem_is_small(tmp_path) == small
