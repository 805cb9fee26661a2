"""Counters: exact where the kernel counts, refused with words to act on, tried before they are believed."""

import ctypes
import errno
import itertools
import json
import math
import mmap
import os
import re
import resource
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.counters import groups, pmus
from tlbprobe.counters.events import Absent, Event, find, processor
from tlbprobe.counters.groups import EventTrial, EventVerdict, Group
from tlbprobe.machine import paging
from tlbprobe.measuring import slices
from tlbprobe.record import RECORDS

CSRC = Path(__file__).parents[1] / "csrc"
BASE = paging.base_page_size()
QUICK = {"max_seconds": 0.02}
TASK_CLOCK, PAGE_FAULTS, SWITCHES, MINOR, MAJOR = ((1, number, 0, 0) for number in (1, 2, 3, 5, 6))
NOT_THERE = (1, 1 << 40, 0, 0)  # no software event has that number

tsc = find(
    "msr/tsc/", processor()
)  # an event of a PMU that takes no counter of the core: x86 has it in guests too
needs_tsc = pytest.mark.skipif(isinstance(tsc, Absent), reason="this kernel shows no PMU named msr")


def group(*keys, **options):
    return _core.CounterGroup(keys, **options)


def stride_part(region, offset, pages, access=1):
    """Stores, one a page: each fault of a page that is not there is one."""
    return region, "stride", offset, pages * BASE, {"stride": BASE, "access": access}


def drop(region):
    """Give the pages of a region back: each faults again when it is next written."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert libc.madvise(region.address, region.mapped_bytes, mmap.MADV_DONTNEED) == 0


# --- groups ----------------------------------------------------------------------------------------------


def test_page_faults_of_known_touches_are_exact():
    """Warming and four slices of 64 stores each to pages that are not there; the rest find all of them."""
    with (
        tp.Region(320 * BASE) as region,
        _core.Session([stride_part(region, 0, 320)]) as session,
        group(PAGE_FAULTS, MINOR, MAJOR) as counted,
    ):
        drop(region)
        found = session.measure((64,), 7, (counted,))
    rows = found["counted"][0]
    assert rows[:, 2].tolist() == [64, 64, 64, 64, 0, 0, 0]
    assert rows[:, 3].tolist() == rows[:, 2].tolist() == found["minor"][0].tolist()
    assert rows[:, 4].tolist() == [0] * 7
    assert (rows[:, 0] == rows[:, 1]).all()
    assert (rows[:, 0] >= found["ns"][0]).all(), "it is enabled throughout the slice"


def test_counting_itself_makes_no_fault():
    """Its rows are memory that was never written before."""
    with (
        tp.Region("64KiB") as region,
        _core.Session([stride_part(region, 0, 16)]) as session,
        group(PAGE_FAULTS, MINOR, MAJOR) as counted,
    ):
        found = session.measure((1,), 50_000, (counted,))
    assert found["minor"].sum() == 0
    assert found["counted"][0][:, 2].sum() == 0


def test_runs_in_turn_are_counted_apart():
    with tp.Region(512 * BASE) as region:
        parts = [stride_part(region, 0, 256), stride_part(region, 256 * BASE, 256)]
        with _core.Session(parts) as session, group(PAGE_FAULTS) as counted:
            drop(region)
            rows = session.measure((32, 16), 4, (counted,))["counted"]
    assert rows.shape == (2, 4, 3)
    assert rows[0, :, 2].tolist() == [32, 32, 32, 32], "each slice is warmed by as many accesses before it"
    assert rows[1, :, 2].tolist() == [16, 16, 16, 16]


def test_context_switches_are_those_of_the_thread():
    before = resource.getrusage(resource.RUSAGE_THREAD)
    with group(SWITCHES, PAGE_FAULTS) as counted:
        counted.enable()
        for _ in range(20):
            time.sleep(0.0005)
        counted.disable()
        _, _, (switches, _) = counted.read()
    after = resource.getrusage(resource.RUSAGE_THREAD)
    outside = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
    assert 20 <= switches <= outside


def test_a_group_counts_from_enabling_to_disabling():
    with group(TASK_CLOCK, PAGE_FAULTS) as counted:
        assert counted.read() == (0, 0, (0, 0))
        counted.enable()
        first = counted.read()
        counted.disable()
        stopped = counted.read()
        assert stopped[0] >= first[0] > 0
        assert stopped[0] == stopped[1], "software never waits for a counter"
        sum(range(100_000))
        assert counted.read() == stopped
        counted.reset()
        assert counted.read() == (*stopped[:2], (0, 0))
        assert counted.peek() is None, "no register holds what software counts"
        assert os.fstat(counted.fileno())
    with pytest.raises(ValueError, match="closed"):
        counted.read()


def test_use_after_closing_is_refused():
    counted = group(PAGE_FAULTS)
    number = counted.fileno()
    counted.close()
    counted.close()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(number)
    for use in (counted.enable, counted.disable, counted.reset, counted.read, counted.peek, counted.fileno):
        with pytest.raises(ValueError, match="closed"):
            use()
    with (
        tp.Region("64KiB") as region,
        _core.Session([stride_part(region, 0, 1)]) as session,
        pytest.raises(ValueError, match="closed"),
    ):
        session.measure((1,), 1, (counted,))


@pytest.mark.parametrize("index", [0, 1, 3])
def test_an_error_names_the_event_that_failed(index):
    keys = [PAGE_FAULTS] * index + [NOT_THERE, PAGE_FAULTS]
    with pytest.raises(OSError, match="No such file") as refused:
        group(*keys)
    assert refused.value.errno == errno.ENOENT
    assert refused.value.event == index
    assert f"event {index} of the group: type 1, config 0x10000000000" in refused.value.__notes__[0]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (((),), ValueError),
        (([PAGE_FAULTS] * (_core.EVENTS_MOST + 1),), ValueError),
        ((None,), TypeError),
        (([None],), TypeError),
        (([[1, 2, 0, 0]],), TypeError),
        (([(1, 2, 0)],), TypeError),
        (([(1, 2, 0, 0, 0)],), TypeError),
        (([(1, 2.0, 0, 0)],), TypeError),
        (([(-1, 2, 0, 0)],), OverflowError),
        (([(1 << 32, 2, 0, 0)],), OverflowError),
        (([(1, 1 << 64, 0, 0)],), OverflowError),
        ((), TypeError),
        (([PAGE_FAULTS], 0), TypeError),
    ],
)
def test_bad_arguments_are_refused(arguments, error):
    with pytest.raises(error):
        _core.CounterGroup(*arguments)


def test_bad_pids_are_refused():
    with pytest.raises(ValueError, match="pid=-1"):
        group(PAGE_FAULTS, pid=-1)
    with pytest.raises(OverflowError):
        group(PAGE_FAULTS, pid=1 << 40)
    with pytest.raises(ProcessLookupError):
        group(PAGE_FAULTS, pid=(1 << 31) - 1)


def test_as_many_events_as_a_group_may_have():
    with group(*[TASK_CLOCK] * _core.EVENTS_MOST) as counted:
        counted.enable()
        counted.disable()
        _, _, values = counted.read()
    assert len(values) == _core.EVENTS_MOST
    assert all(value > 0 for value in values)


# --- other threads and processes -------------------------------------------------------------------------


def test_another_thread_is_counted_and_cannot_be_measured():
    ready, go = threading.Event(), threading.Event()

    def touch():
        ready.set()
        go.wait()
        with mmap.mmap(-1, 256 * BASE) as memory:
            for page in range(256):
                memory[page * BASE] = 1

    thread = threading.Thread(target=touch)
    thread.start()
    ready.wait()
    with group(PAGE_FAULTS, pid=thread.native_id) as counted:
        counted.enable()
        assert counted.peek() is None
        with (
            tp.Region("64KiB") as region,
            _core.Session([stride_part(region, 0, 1)]) as session,
            pytest.raises(RuntimeError, match=f"counts thread {thread.native_id}, not the one that measures"),
        ):
            session.measure((1,), 1, (counted,))
        go.set()
        thread.join()
        _, _, (faults,) = counted.read()
    assert faults >= (1 if paging.thp_mode() == "always" else 256)


CHILD = """
def child_touches(pages):
    memory = mmap.mmap(-1, pages * BASE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    pid = os.fork()
    if pid == 0:
        for page in range(pages):
            memory[page * BASE] = 1
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

from tlbprobe import _core
"""


def test_children_count_where_they_are_inherited(run_python):
    alone, with_child = run_python(
        CHILD
        + """
found = []
for inherit in (False, True):
    with _core.CounterGroup([(1, 2, 0, 0), (1, 5, 0, 0), (1, 1, 0, 0)], inherit=inherit) as counted:
        counted.enable()
        child_touches(4096)
        counted.disable()
        found.append(counted.read())
answer(found)
"""
    )
    assert with_child[2][0] >= 4096
    assert with_child[2][0] == with_child[2][1]
    assert alone[2][0] < 2048
    for enabled, running, _ in (alone, with_child):
        assert enabled == running > 0


def test_counting_begins_with_another_program(run_python):
    before, after = run_python(
        """
        from tlbprobe import _core
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(read, 1)
            os.execv(sys.executable, [sys.executable, "-S", "-c", "pass"])
        with _core.CounterGroup([(1, 2, 0, 0)], pid=pid, inherit=True, enable_on_exec=True) as counted:
            before = counted.read()
            os.write(write, b"x")
            assert os.waitpid(pid, 0)[1] == 0
            answer([before, counted.read()])
        """
    )
    assert before == [0, 0, [0]]
    assert after[2][0] > 50


def test_a_forked_child_may_close_what_its_parent_opened(run_python):
    assert run_python(
        """
        from tlbprobe import _core
        counted = _core.CounterGroup([(1, 2, 0, 0)])
        pid = os.fork()
        if pid == 0:
            part = {"stride": 64, "access": 0}
            with tp.Region("64KiB") as region, _core.Session([(region, "stride", 0, 65536, part)]) as session:
                said = caught(session.measure, (1,), 1, (counted,))[0]
            counted.close()
            os._exit(said != "RuntimeError")
        status = os.waitpid(pid, 0)[1]
        counted.enable()
        answer(status == 0 and counted.read()[0] > 0)
        """
    )


# --- around slices ---------------------------------------------------------------------------------------


def test_groups_of_the_hardware_take_turns_and_software_counts_always(two_turns):
    session, software, first, second = two_turns
    rows = session.measure((1000,), 6, (software, first, second))["counted"][0]
    assert rows.shape == (6, 4 + 3 + 3)
    assert (rows[:, 0] > 0).all()
    assert (rows[0::2, 4] > 0).all()
    assert (rows[1::2, 7] > 0).all()
    assert not rows[1::2, 4:7].any(), "nothing where others have their turn"
    assert not rows[0::2, 7:10].any()
    alone = session.measure((1000,), 4, (first,))["counted"][0]
    assert (alone[:, 0] > 0).all(), "one group has every turn"
    for counted in (software, first, second):
        stopped = counted.read()
        assert counted.read() == stopped, "stopped when it is over"


@pytest.fixture
def two_turns():
    if isinstance(tsc, Absent):
        pytest.skip(str(tsc))
    with (
        tp.Region("64KiB") as region,
        _core.Session([(region, "stride", 0, 65536, {"stride": 64, "access": 0})]) as session,
        group(TASK_CLOCK, PAGE_FAULTS) as software,
        group(tsc.key) as first,
        group(tsc.key) as second,
    ):
        yield session, software, first, second


def test_bad_groups_are_refused_and_let_go(two_turns):
    session, software, first, _ = two_turns
    for given, error in (((software, software), RuntimeError), ((None,), TypeError), ([software], TypeError)):
        with pytest.raises(error):
            session.measure((1,), 1, given)
    with pytest.raises(ValueError, match="at most 32 groups"):
        session.measure((1,), 1, (software,) * 33)
    assert session.measure((1,), 1, (software, first))["counted"].shape == (1, 1, 7)
    assert "counted" not in session.measure((1,), 1, ())


def test_a_group_in_use_cannot_be_closed():
    """Ctrl-C comes in the middle of a measurement: then Python code runs in its thread."""
    said = []
    with tp.Region("1MiB") as region, _core.Session([stride_part(region, 0, 256)]) as session:
        counted = group(TASK_CLOCK)

        def close_it():
            time.sleep(0.05)
            try:
                counted.close()
            except RuntimeError as error:
                said.append(str(error))

        thread = threading.Thread(target=close_it)
        thread.start()
        session.measure((100_000,), 1000, (counted,))
        thread.join()
        counted.close()
    assert said == ["this CounterGroup is in use by another call"]


def test_two_threads_on_one_group_give_one_result_and_errors():
    """While it is measured with, nobody else starts, stops, reads or closes it."""
    refused = []
    with tp.Region("1MiB") as region, _core.Session([stride_part(region, 0, 256)]) as session:
        counted = group(TASK_CLOCK)
        names = ("enable", "disable", "reset", "read", "peek", "fileno", "close")

        def use_it():
            time.sleep(0.05)
            for name in names:
                try:
                    getattr(counted, name)()
                except RuntimeError as error:
                    refused.append((name, str(error)))

        thread = threading.Thread(target=use_it)
        thread.start()
        found = session.measure((100_000,), 1000, (counted,))
        thread.join()
        assert found["counted"].shape == (1, 1000, 3)
        assert counted.read()[1] > 0
        counted.close()
    assert refused == [(name, "this CounterGroup is in use by another call") for name in names]


def test_what_reading_costs_is_taken_away():
    """The CPU clock of the slice and the counter of it differ by what neither reads itself."""
    with tp.Region("64KiB") as region:
        part = (region, "stride", 0, 65536, {"stride": 64, "access": 0})
        with _core.Session([part]) as session, group(TASK_CLOCK) as counted:
            found = session.measure((100_000,), 50, (counted,))
    beyond = found["counted"][0][:, 2] - found["ns"][0]
    assert abs(np.median(beyond)) < 0.05 * np.median(found["ns"][0]) + 3000


ORDER = """
#include "tlbprobe.h"
char log_[4096];
size_t logged;
static void note(char what) { log_[logged++] = what; }
uint64_t tlb_ticks(void) { return 0; }
size_t tlb_counting_width(const struct tlb_counting *c) { (void)c; return 1; }
uint64_t tlb_counting_turns(const struct tlb_counting *c) { (void)c; return 2; }
int tlb_counting_turn(const struct tlb_counting *c, uint64_t k)
{
    (void)c, note((char)('0' + k % 2));
    return 0;
}
void tlb_counting_stop(const struct tlb_counting *c) { (void)c; note('s'); }
void tlb_counting_clear(const struct tlb_counting *c, uint64_t *row) { (void)c, (void)row; }
int tlb_counting_begin(const struct tlb_counting *c, uint64_t k, uint64_t *row)
{
    (void)c, (void)k, note('('), *row = 0;
    return FAILS_AT == logged ? -5 : 0;
}
int tlb_counting_end(const struct tlb_counting *c, uint64_t k, uint64_t *row)
{
    (void)c, (void)k, (void)row, note(')');
    return 0;
}
void tlb_counting_learn(const struct tlb_counting *c, const uint64_t *row) { (void)c, (void)row, note('l'); }
void tlb_counting_discount(const struct tlb_counting *c, uint64_t *row) { (void)c, (void)row; note('d'); }
static void access(struct tlb_run *run, uint64_t accesses) { (void)run, (void)accesses; note('a'); }
static const struct tlb_kernel kernel = {.name = "log", .access = access};
int measure(bool with, uint64_t slices)
{
    struct tlb_run run = {.kernel = &kernel, .lap = 9};
    struct tlb_run *const runs[] = {&run};
    struct tlb_slice out[8];
    uint64_t witness[9], rows[9] = {0}, accesses[] = {5};
    struct tlb_counting const counting = {.rows = rows, .cost = rows + 8};
    struct tlb_poll const never = {0};
    logged = 0;
    return tlb_measure(runs, accesses, 1, slices, out, witness, with ? &counting : NULL, &never);
}
"""


def order_of(compile_c, tmp_path, fails_at):
    source = tmp_path / f"order{fails_at}.c"
    source.write_text(ORDER.replace("FAILS_AT", str(fails_at)))
    library = compile_c(CSRC / "measure.c", CSRC / "clock.c", source)

    def measure(counting, slices):
        status = library.measure(counting, ctypes.c_uint64(slices))
        size = ctypes.c_size_t.in_dll(library, "logged").value
        return status, (ctypes.c_char * 4096).in_dll(library, "log_").raw[:size].decode()

    return measure


def test_counters_are_read_outside_the_accesses(compile_c, tmp_path):
    """By construction: first slices of nothing tell the cost, then each slice is between two readings."""
    measure = order_of(compile_c, tmp_path, 9999)
    assert measure(False, 3) == (0, "aaaa"), "the first one warms"
    cost = "0()l1()l" * 8
    assert measure(True, 3) == (0, f"{cost}0a(a)d1(a)d0(a)ds")


def test_an_error_of_reading_ends_the_measurement(compile_c, tmp_path):
    calibration = len("0()l1()l" * 8)
    status, log = order_of(compile_c, tmp_path, calibration + len("0a("))(True, 3)
    assert status == -5
    assert log.endswith("0a(a)ds")
    status, log = order_of(compile_c, tmp_path, 2)(True, 3)
    assert (status, log) == (-5, "0()ls")


TURNS = """
#include "tlbprobe.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
char log_[1024];
uint64_t tlb_ticks(void) { return 0; }
int note(int fd, unsigned long request, ...)
{
    const char *const what = request == 0x2400 ? "+" : request == 0x2401 ? "-" : "?";
    sprintf(log_ + strlen(log_), "%s%d", what, fd);
    errno = EIO;
    return fd == 13 ? -1 : 0;
}
int turns(const int *files, const int *hardware, size_t count, uint64_t rounds)
{
    struct tlb_counters groups[8] = {0};
    struct tlb_counters *pointers[8];
    for (size_t g = 0; g < count; g++) {
        groups[g].fd[0] = files[g], groups[g].hardware = hardware[g], groups[g].count = 1;
        pointers[g] = &groups[g];
    }
    struct tlb_counting const counting = {.groups = pointers, .count = count};
    int status = 0;
    log_[0] = 0;
    for (uint64_t k = 0; k < rounds && status == 0; k++) {
        strcat(log_, " ");
        status = tlb_counting_turn(&counting, k);
    }
    tlb_counting_stop(&counting);
    return status;
}
void discount(const uint64_t (*nothing)[3], size_t count, uint64_t *row)
{
    struct tlb_counters group = {.count = 1};
    struct tlb_counters *const groups[] = {&group};
    uint64_t cost[3] = {0};
    struct tlb_counting const counting = {.groups = groups, .count = 1, .cost = cost};
    for (size_t i = 0; i < count; i++)
        tlb_counting_learn(&counting, nothing[i]);
    tlb_counting_discount(&counting, row);
}
"""


def turns(compile_c, tmp_path, *groups, rounds):
    source = tmp_path / "turns.c"
    source.write_text(TURNS)
    library = compile_c(CSRC / "counting.c", CSRC / "counters.c", source, ioctl="note")
    array = ctypes.c_int * len(groups)
    files, hardware = array(*(file for file, _ in groups)), array(*(kind == "hardware" for _, kind in groups))
    status = library.turns(files, hardware, ctypes.c_size_t(len(groups)), ctypes.c_uint64(rounds))
    return status, (ctypes.c_char * 1024).in_dll(library, "log_").value.decode().split(" ")[1:]


def test_a_group_is_started_after_the_others_are_stopped(compile_c, tmp_path):
    """Started while others hold its counters it would not get them when they stop."""
    groups = [(3, "software"), (4, "hardware"), (5, "hardware"), (6, "hardware")]
    status, log = turns(compile_c, tmp_path, *groups, rounds=5)
    assert status == 0
    assert log == ["-5-6+3+4", "-4+5", "-5+6", "-6+4", "-4+5-3-4-5-6"]
    assert turns(compile_c, tmp_path, *groups[:2], rounds=3)[1] == ["+3+4", "", "-3-4"]
    assert turns(compile_c, tmp_path, groups[0], rounds=3)[1] == ["+3", "", "-3"]
    failed = turns(compile_c, tmp_path, (4, "hardware"), (13, "hardware"), rounds=3)
    assert failed == (-errno.EIO, ["-13-4-13"]), "all are stopped after an error too"


@pytest.mark.parametrize(
    ("nothing", "row", "left"),
    [
        ([(5, 5, 9), (5, 5, 7), (5, 5, 8)], (10, 10, 107), 100),
        ([(5, 0, 0), (5, 5, 7), (5, 0, 0)], (10, 10, 107), 100),  # without a counter it says nothing
        ([(5, 5, 9), (5, 5, 0)], (10, 10, 107), 107),
        ([(5, 5, 9)], (10, 10, 3), 0),
        ([(5, 0, 0)], (10, 10, 107), 107),
    ],
)
def test_what_a_slice_of_nothing_counts_is_taken_away(compile_c, tmp_path, nothing, row, left):
    source = tmp_path / "turns.c"
    source.write_text(TURNS)
    library = compile_c(CSRC / "counting.c", CSRC / "counters.c", source, ioctl="note")
    flat = [number for each in nothing for number in each]
    values = (ctypes.c_uint64 * 3)(*row)
    library.discount((ctypes.c_uint64 * len(flat))(*flat), ctypes.c_size_t(len(nothing)), values)
    assert list(values) == [*row[:2], left]


# --- reading without the kernel --------------------------------------------------------------------------


class Page(ctypes.Structure):
    """The start of struct perf_event_mmap_page."""

    _fields_ = [
        ("version", ctypes.c_uint32), ("compat_version", ctypes.c_uint32), ("lock", ctypes.c_uint32),
        ("index", ctypes.c_uint32), ("offset", ctypes.c_int64), ("time_enabled", ctypes.c_uint64),
        ("time_running", ctypes.c_uint64), ("capabilities", ctypes.c_uint64), ("pmc_width", ctypes.c_uint16),
        ("time_shift", ctypes.c_uint16), ("time_mult", ctypes.c_uint32), ("time_offset", ctypes.c_uint64),
        ("time_zero", ctypes.c_uint64), ("size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
        ("time_cycles", ctypes.c_uint64), ("time_mask", ctypes.c_uint64),
    ]  # fmt: skip


class Peek(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("enabled_ns", "running_ns", "value")]


RDPMC, TIME, SHORT = 1 << 2, 1 << 3, 1 << 5
READER = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64))


@pytest.fixture
def peek(compile_c, tmp_path):
    """`peek(page, registers, ticks)`: what is read of a page, with registers and ticks of our own."""
    source = tmp_path / "ticks.c"
    source.write_text("#include <stdint.h>\nuint64_t ticks; uint64_t tlb_ticks(void) { return ticks; }\n")
    library = compile_c(CSRC / "counters.c", source)

    def call(page, registers, ticks=0, then=lambda: None):
        ctypes.c_uint64.in_dll(library, "ticks").value = ticks
        asked = []

        def read(number, value):
            asked.append(number)
            then()
            value[0] = registers.get(number, 0)
            return number in registers

        found = Peek()
        status = library.tlb_counter_peek(ctypes.byref(page), READER(read), ctypes.byref(found))
        return (found.enabled_ns, found.running_ns, found.value) if status == 0 else status, asked

    return call


def page_of(**changes):
    plain = {
        "index": 3,
        "capabilities": RDPMC | TIME,
        "pmc_width": 48,
        "time_mult": 1 << 10,
        "time_shift": 10,
    }
    return Page(**{**plain, **changes})


def test_a_counter_is_extended_and_added_to_what_the_kernel_has(peek):
    page = page_of(offset=1 << 50, time_enabled=100, time_running=60, time_offset=5)
    assert peek(page, {2: 7}, ticks=20) == ((125, 85, (1 << 50) + 7), [2])
    assert peek(page, {2: (1 << 48) - 3})[0][2] == (1 << 50) - 3, "a counter counts up to zero from below"
    assert peek(page_of(pmc_width=64, offset=9), {2: 1 << 63})[0][2] == (1 << 63) + 9
    assert peek(page_of(pmc_width=1), {2: 1})[0][2] == (1 << 64) - 1


def test_times_are_counted_on_by_the_tick_counter(peek):
    page = page_of(time_mult=3 << 8, time_shift=10, time_enabled=1000, time_running=1000)
    assert peek(page, {2: 0}, ticks=4096)[0][:2] == (1000 + 3072, 1000 + 3072)
    large = (1 << 60) + 12345
    assert peek(page, {2: 0}, ticks=large)[0][0] == 1000 + (large >> 10) * 768 + ((large & 1023) * 768 >> 10)
    short = page_of(capabilities=RDPMC | TIME | SHORT, time_mask=0xFFFF, time_cycles=0x12FFF0)
    assert peek(short, {2: 0}, ticks=0x10)[0][0] == 0x130010, "the counter wrapped since"


@pytest.mark.parametrize(
    "changes",
    [
        {"index": 0},
        {"capabilities": RDPMC},
        {"capabilities": TIME},
        {"capabilities": 0},
        {"pmc_width": 0},
        {"pmc_width": 65},
        {"index": 99},
    ],
)
def test_what_cannot_be_read_in_user_space_is_left_to_the_kernel(peek, changes):
    assert peek(page_of(**changes), {2: 7})[0] == -errno.EAGAIN


def test_a_page_that_changes_while_it_is_read_is_read_again(peek):
    page = page_of(offset=1)
    changes = iter([10, 20])

    def change():
        if (offset := next(changes, None)) is not None:
            page.lock, page.offset = page.lock + 1, offset

    assert peek(page, {2: 7}, then=change) == ((0, 0, 27), [2, 2, 2])


TARGETS = {  # prefix of the tools: what each register is read by
    "x86_64": {"rdpmc"},
    "aarch64": {"pmccntr_el0", *(f"pmevcntr{number}_el0" for number in range(31))},
}


@pytest.mark.parametrize("target", TARGETS)
def test_registers_are_read_on_every_instruction_set(tmp_path, target):
    prefix = "" if os.uname().machine == target else f"{target}-linux-gnu-"
    tools = [f"{prefix}gcc", f"{prefix}objdump"]
    if not all(map(shutil.which, tools)):
        pytest.skip(f"no {' or '.join(tools)} here")
    made = tmp_path / "counters.o"
    flags = ["-std=c11", "-O2", "-D_GNU_SOURCE", f"-I{CSRC}", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([tools[0], *flags, "-c", str(CSRC / "counters.c"), "-o", str(made)], check=True)
    dump = subprocess.run([tools[1], "-d", str(made)], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"rdpmc|pm\w*cntr\w*_el0", dump)) == TARGETS[target]


# --- why not ---------------------------------------------------------------------------------------------


WALKS = Event("walks", "page walks", 4, 0x0E08, kind="walks")
FAULTS = Event("page-faults", "page faults", 1, 2)
SYSCTL = "sudo sysctl kernel.perf_event_paranoid="
IN_DOCKER = {"process.seccomp": "filter", "container.kind": "docker"}
GUEST = {"virtualisation.guest": True, "perf.pmu": "none", "perf.paranoid": 2, "process.seccomp": "off"}


@pytest.mark.parametrize(
    ("event", "code", "host", "reason", "command"),
    [
        (WALKS, errno.EACCES, {"perf.paranoid": 4}, "perf_event_paranoid is 4", SYSCTL + "2"),
        (WALKS, errno.EACCES, {"perf.paranoid": 3}, "perf_event_paranoid is 3", SYSCTL + "2"),
        (FAULTS, errno.EACCES, {"perf.paranoid": 2}, "not permitted to this user", SYSCTL + "1"),
        (FAULTS, errno.EACCES, {}, "paranoid is unknown", SYSCTL + "1"),
        (WALKS, errno.EPERM, IN_DOCKER, "the seccomp filter of docker", "docker run --cap-add PERFMON"),
        (WALKS, errno.EPERM, {"process.seccomp": "filter"}, "a seccomp filter refuses", ""),
        (WALKS, errno.EPERM, {"process.seccomp": "off"}, "a security module or a locked-down kernel", ""),
        (WALKS, errno.ENOENT, GUEST, "the hypervisor gives this virtual machine none", "host,pmu=on"),
        (WALKS, errno.ENOENT, {**GUEST, "virtualisation.guest": False}, "the kernel shows no PMU", ""),
        (WALKS, errno.ENOENT, {**GUEST, "perf.pmu": None}, "the hypervisor gives", "host,pmu=on"),
        (WALKS, errno.ENOENT, {**GUEST, "perf.pmu": "cpu"}, "the PMU here (cpu) has no such event", ""),
        (WALKS, errno.EOPNOTSUPP, {"perf.pmu": "armv8_pmuv3_0"}, "(armv8_pmuv3_0) has no such event", ""),
        (WALKS, errno.EINVAL, {"perf.pmu": "cpu"}, "has no such event", ""),
        (WALKS, errno.ENODEV, {"perf.pmu": "cpu"}, "has no such event", ""),
        (FAULTS, errno.ENOENT, GUEST, "this kernel does not count it", ""),
        (WALKS, errno.ENOSYS, {}, "has no perf_event_open", ""),
        (WALKS, errno.EMFILE, {}, "as many files open", "ulimit -n"),
        (WALKS, errno.EBUSY, {}, "for itself alone", ""),
        (WALKS, errno.E2BIG, {}, f"(errno {errno.E2BIG})", ""),
    ],
)  # fmt: skip
def test_reasons_are_words_to_act_on(event, code, host, reason, command):
    found = groups.why_refused(event, code, host)
    assert (found.name, found.meaning) == (event.name, event.meaning)
    assert reason in found.reason
    assert command in found.command
    assert bool(command) == bool(found.command)
    assert str(found) == found.reason + (f"; to allow it: {found.command}" if command else "")


SECCOMP = """
PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}[platform.machine()]
refuse(PERF_EVENT_OPEN, getattr(errno, %r))
measured = tp.chase("64KiB", max_seconds=0.02, counters=["page-faults", "walks"])
answer([measured.low > 0, list(measured.counters), measured.refused])
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("EPERM", "seccomp filter"),
        ("EACCES", "kernel.perf_event_paranoid"),
        ("ENOSYS", "no perf_event_open"),
        ("EMFILE", "as many files open"),
        ("EBUSY", "for itself alone"),
        ("ENOENT", "this kernel does not count it"),
        ("EOPNOTSUPP", "this kernel does not count it"),
        ("ENODEV", "this kernel does not count it"),
        ("EINVAL", "this kernel does not count it"),
        ("E2BIG", "Argument list too long"),
        ("ENOSPC", "No space left"),
        ("ENOMEM", "Cannot allocate memory"),
        ("ESRCH", "no such thread"),
    ],
)
def test_every_refusal_of_the_kernel_becomes_a_reason(run_python, name, said):
    """Forced by a filter of the system call: the measurement goes on without counters."""
    went_on, counted, refused = run_python(SECCOMP % name)
    assert went_on
    assert counted == []
    assert said in refused["page-faults"]
    assert refused.keys() == {"page-faults", "walks"}


def test_an_unprivileged_user_counts_what_is_allowed(run_python):
    """User space alone where the level is 2; what happens in the kernel is then refused, not zero."""
    level, found, refused, warnings = run_python(
        """
        from tlbprobe.machine import facts
        level = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
        tp.chase("64KiB", max_seconds=0.02)  # which imports what another user may not be allowed to read
        facts._recent_hosts().clear()
        if os.getuid() == 0:
            os.setuid(65534)
        asked = ["page-faults", "context-switches", "task-clock"]
        measured = tp.stride("256KiB", accesses=100_000, counters=asked)
        answer([level, {name: len(values) for name, values in measured.counters.items()}, measured.refused,
                measured.warnings])
        """
    )
    if level > 2:
        assert found == {}
        assert all("kernel.perf_event_paranoid=2" in reason for reason in refused.values())
    elif level == 2:
        assert found.keys() == {"page-faults", "task-clock"}
        assert "it happens in the kernel" in refused["context-switches"]
        assert "sudo sysctl kernel.perf_event_paranoid=1" in refused["context-switches"]
        assert any("user space alone" in warning for warning in warnings)
    else:
        assert found.keys() == {"page-faults", "context-switches", "task-clock"}


@pytest.mark.skipif(pmus.find_pmu("uprobe") is None, reason="this kernel shows no PMU named uprobe")
def test_a_pmu_that_counts_no_thread_is_named():
    measured = tp.chase("64KiB", counters=["uprobe/config=1/"], **QUICK)
    assert measured.refused == {
        "uprobe/config=1/": "the PMU 'uprobe' refuses it: no such event, or none of one thread, or none "
        "without the kernel"
    }


def test_somebody_elses_thread_is_refused(run_python):
    said = run_python(
        """
        from tlbprobe import _core
        if os.getuid() != 0:
            answer("PermissionError")
        else:
            os.setuid(65534)
            answer(caught(_core.CounterGroup, [(1, 2, 0, 0)], pid=1, exclude_kernel=True)[0])
        """
    )
    assert said == "PermissionError"


# --- values ----------------------------------------------------------------------------------------------


def test_scaling():
    values = groups.scaled(
        np.array([10, 10, 10, 0]), np.array([100, 100, 100, 100]), np.array([100, 50, 0, 100])
    )
    assert values.tolist()[:2] == [10, 20]
    assert math.isnan(values[2]), "never running is missing, not zero"
    assert values[3] == 0
    assert math.isnan(groups.scaled(np.array([0]), np.array([0]), np.array([0]))[0])


def test_columns_of_several_groups():
    events = [[WALKS, FAULTS], [Event("cycles", "", 0, 0)]]
    rows = np.array([[8, 8, 40, 4, 0, 0, 0], [0, 0, 0, 0, 9, 3, 12], [8, 4, 40, 4, 0, 0, 0]])
    found = groups.columns(rows, events, accesses=4)
    assert found["walks"].per_access[[0, 2]].tolist() == [10, 20]
    assert found["page-faults"].per_access[[0, 2]].tolist() == [1, 2]
    assert np.isnan(found["walks"].per_access[1])
    assert found["cycles"].per_access[1] == 9
    assert found["walks"].ran == 0.75
    assert found["cycles"].ran == pytest.approx(1 / 3)
    nothing = groups.columns(np.zeros((3, 3), np.int64), [[WALKS]], 4)["walks"]
    assert np.isnan(nothing.per_access).all()
    assert math.isnan(nothing.ran)


def counting_of(*events, **changes):
    return groups.Counting([Group((event,), None) for event in events], **changes)


def test_scaled_values_are_marked_and_missing_ones_have_a_reason():
    cycles, idle, late = (Event(name, "", 0, 0) for name in ("cycles", "idle", "late"))
    rows = np.array([[10, 5, 8, 10, 0, 0, 0, 0, 0]] * 4)
    found = counting_of(cycles, idle, late).read(rows, 2)
    assert found.values.keys() == {"cycles"}
    assert found.values["cycles"].tolist() == [8.0] * 4
    assert found.warnings == [
        "cycles had a counter for 50.0% of the time, since others use them: its values are scaled"
    ]
    assert "never had a counter in the timed part" in found.refused["idle"]
    assert "had no turn: 3 groups of counters take turns" in found.refused["late"]


def test_without_counters_nothing_is_read():
    found = groups.Counting(absent={"walks": Absent("walks", "no", "do it")}).read(None, 10)
    assert (found.values, found.warnings, found.refused) == ({}, [], {"walks": "no; to allow it: do it"})


# --- groups that the hardware has room for ---------------------------------------------------------------


class Hardware:
    """A machine of so many counters: a group of more never runs, one of far more does not open."""

    def __init__(self, room, taken=0, busy=0):
        self.room, self.taken, self.busy = room, taken, busy
        self.open = 0

    def __call__(self, keys, exclude_kernel=False):
        if len(keys) > 2 * self.room:
            raise OSError(errno.EINVAL, "too many")
        return Opened(self, len(keys))


class Opened:
    def __init__(self, hardware, size):
        self.hardware, self.size = hardware, size
        hardware.open += 1

    def enable(self):
        pass

    def disable(self):
        pass

    def read(self):
        self.hardware.busy -= 1
        fits = self.size <= self.hardware.room - self.hardware.taken and self.hardware.busy < 0
        return 10, 10 * fits, (0,) * self.size

    def close(self):
        self.hardware.open -= 1


def hardware_events(count):
    return [Event(f"e{number}", "", 4, number) for number in range(count)]


@pytest.mark.parametrize(
    ("room", "events", "sizes"),
    [(4, 3, [3]), (4, 4, [4]), (4, 5, [4, 1]), (4, 9, [4, 4, 1]), (1, 3, [1, 1, 1]), (6, 0, [])],
)
def test_events_go_in_as_few_groups_as_there_is_room_for(monkeypatch, room, events, sizes):
    hardware = Hardware(room)
    monkeypatch.setattr(groups._core, "CounterGroup", hardware)
    packed = groups.pack([*hardware_events(events), FAULTS], user_only=False)
    assert [len(one.events) for one in packed.groups] == [1, *sizes]
    assert packed.groups[0].events == (FAULTS,), "software first, and apart"
    assert [event for one in packed.groups[1:] for event in one.events] == hardware_events(events)
    assert packed.absent == {}
    assert hardware.open == len(sizes) + 1
    packed.close()
    assert hardware.open == 0


def test_a_counter_that_others_use_is_waited_for(monkeypatch):
    monkeypatch.setattr(groups._core, "CounterGroup", Hardware(4, busy=50))
    packed = groups.pack(hardware_events(2), user_only=False)
    assert [len(one.events) for one in packed.groups] == [2]


def test_a_counter_that_others_hold_is_missing(monkeypatch):
    hardware = Hardware(4, taken=4)
    monkeypatch.setattr(groups._core, "CounterGroup", hardware)
    monkeypatch.setattr(groups, "recent_host", lambda: {"perf.nmi_watchdog": True})
    packed = groups.pack(hardware_events(2), user_only=False)
    assert packed.groups == []
    assert hardware.open == 0
    for event in hardware_events(2):
        assert (
            "never gets a counter: the NMI watchdog or another program holds them"
            in packed.absent[event.name].reason
        )
        assert packed.absent[event.name].command == "sudo sysctl kernel.nmi_watchdog=0"


# --- a counter must prove itself -------------------------------------------------------------------------


def trial(far=1.0, near=0.0, stores=1.0, ns=50.0):
    return EventTrial(far, near, stores, ns, ns, ns)


@pytest.mark.parametrize(
    ("kind", "found", "status", "evidence"),
    [
        ("walks", trial(0.98, 0.01), "counts", "0.98 for each access of loads from 8192 pages"),
        ("walks", trial(0.0), "dead", "stays at 0 over 16384 loads from 8192 pages"),
        ("walks", trial(0.1), "dead", "too little: 0.1"),
        ("walks", trial(1e4, 0.01), "dead", "the impossible: 1e+04"),
        ("walks", trial(0.9, 0.9), "dead", "no less, 0.9, from 512 pages"),
        ("walks", trial(math.nan), "untried", "no counter when it was tried"),
        ("cycles", trial(150), "counts", "3 for each ns"),
        ("cycles", trial(1), "dead", "too little"),
        ("cycles", trial(1e4), "dead", "impossible: 200 for each ns"),
        ("cycles", trial(0), "dead", "stays at 0"),
        ("instructions", trial(4), "counts", "4 for each access"),
        ("instructions", trial(0.5), "dead", "too little"),
        ("loads", trial(1), "counts", ""),
        ("stores", trial(0, stores=1), "counts", "1 for each access of stores"),
        ("stores", trial(5, stores=0), "dead", "stays at 0 over 16384 stores"),
        ("store_walks", trial(stores=0.9), "counts", ""),
        ("store_walks", trial(stores=0), "dead", "stays at 0"),
        ("walk_cycles", trial(40, 0.5), "counts", "0.8 for each ns"),
        ("walk_cycles", trial(1e5, 0.5), "dead", "impossible"),
        ("walk_cycles", trial(40, 41), "dead", "no less"),
        ("store_walk_cycles", trial(stores=20), "counts", ""),
        ("first_level_misses", trial(0, near=0.8), "counts", "512 pages"),
        ("first_level_misses", trial(9, near=0), "dead", "stays at 0"),
        ("stall", trial(30), "counts", ""),
        ("stall", trial(0), "dead", "stays at 0"),
        ("walks_of_base_pages", trial(1), "counts", ""),
        ("walks_of_base_pages", trial(0), "dead", "stays at 0"),
        ("", trial(0), "untried", "nothing here makes it count"),
    ],
)
def test_judging(kind, found, status, evidence):
    verdict = groups.judge_event(Event("x", "", 4, 1, kind=kind), found)
    assert verdict.status == status
    assert evidence in verdict.evidence


def test_where_not_even_cycles_count_nothing_does():
    dead = EventVerdict("dead", "it stays at 0")
    unknown = Event("walks_2m", "", 4, 1)
    assert groups.judge_event(unknown, trial(), dead) == EventVerdict(
        "dead", "not even cycles count here: it stays at 0"
    )
    assert groups.judge_event(unknown, trial(), EventVerdict("counts", "")).status == "untried"
    base = Event("walks_4k", "", 4, 1, kind="walks_of_base_pages")
    assert groups.judge_event(base, trial(0), None, base_page=65536).status == "untried"


@pytest.fixture
def untried():
    groups.forget_trials()
    yield
    groups.forget_trials()


def with_kind(kind):
    return Event("tsc", "ticks", *tsc.key, kind=kind)


@needs_tsc
def test_trials_on_a_counter_that_is_known(untried):
    """The time-stamp counter counts as cycles do."""
    as_cycles = groups.prove([with_kind("cycles"), FAULTS], False, processor())
    assert as_cycles.keys() == {"tsc"}, "the kernel's own events need no trial"
    assert as_cycles["tsc"].status == "counts"
    assert "for each ns of dependent loads" in as_cycles["tsc"].evidence
    groups.forget_trials()
    assert groups.prove([tsc], False, processor())["msr/tsc/"] == groups.UNTRIED


def test_an_event_is_tried_once_a_process(untried, monkeypatch):
    """User space alone is another counter; a new event is tried without the old ones."""
    tried = []

    def try_out(events, user_only):
        tried.append(([event.name for event in events.values()], user_only))
        return {key: trial(150.0) for key in events}, ""

    monkeypatch.setattr(groups, "_try_out", try_out)
    one, other = hardware_events(2)
    for events, user_only in (([one], False), ([one], False), ([one, other], False), ([one], True)):
        verdicts = groups.prove([*events, FAULTS], user_only, processor())
        assert verdicts == {event.name: groups.UNTRIED for event in events}
    assert tried == [(["control", "e0"], False), (["control", "e1"], False), (["control", "e0"], True)]


def test_an_event_that_got_no_counter_is_tried_again(untried, monkeypatch):
    tried = []
    outcomes = [({}, "no memory"), ({(4, 0, 0, 0): trial(math.nan)}, ""), ({(4, 0, 0, 0): trial(0.9)}, "")]
    monkeypatch.setattr(groups, "_try_out", lambda *_: tried.append(1) or outcomes[len(tried) - 1])
    event = Event("walks", "", 4, 0, kind="walks")
    found = [groups.prove([event], False, processor())["walks"] for _ in range(4)]
    assert [verdict.status for verdict in found] == ["untried", "untried", "counts", "counts"]
    assert found[0].evidence == "no memory"
    assert len(tried) == 3


@needs_tsc
def test_what_cannot_be_tried_is_believed_and_said_to_be_untried(untried, monkeypatch):
    def too_large(groups):
        raise MemoryError("it would not fit")

    monkeypatch.setattr(groups, "_known_work", too_large)
    verdict = groups.prove([with_kind("walks")], False, processor())["tsc"]
    assert verdict == EventVerdict("untried", "it could not be tried: it would not fit")


@needs_tsc
def test_a_dead_counter_is_refused_with_its_evidence(untried, monkeypatch):
    dead = EventVerdict("dead", "it stays at 0 over 16384 loads")
    monkeypatch.setattr(groups, "_verdicts", {(tsc.key, False): dead, (tsc.key, True): dead})
    measured = tp.chase("64KiB", counters=["msr/tsc/", "page-faults"], **QUICK)
    assert measured.refused == {"msr/tsc/": "dead here: it stays at 0 over 16384 loads"}
    assert measured.counters.keys() == {"page-faults"}


# --- in every probe --------------------------------------------------------------------------------------


@needs_tsc
@pytest.mark.parametrize("name", [name for name, record in RECORDS.items() if record.kernel])
def test_every_probe_counts_per_access(name):
    counters = ["task-clock", "page-faults", "msr/tsc/"]
    measured = RECORDS[name].function(RECORDS[name].sample.first, counters=counters, **QUICK)
    runs = [measured.spread, measured.packed] if isinstance(measured, tp.Translation) else [measured]
    for run in runs:
        assert list(run.counters) == ["task-clock", "page-faults", "msr/tsc/"]
        assert all(values.shape == run.ns.shape for values in run.counters.values())
        assert all(values.dtype == np.float64 for values in run.counters.values())
        assert (
            run.counters["page-faults"].sum() * run.accesses_per_slice
            == run.faults["minor"] + run.faults["major"]
        )
        assert run.counter("task-clock") == pytest.approx(run.median, rel=0.3, abs=0.2)
        assert run.refused == {}
        assert "counters" in run.setup


@needs_tsc
def test_more_events_than_counters_take_turns(monkeypatch):
    """As on a machine of one counter: two events, each in half of the slices."""
    fitting = groups._open_fitting
    monkeypatch.setattr(
        groups, "_open_fitting", lambda events, user: fitting(events, user) if len(events) == 1 else None
    )
    other = "msr/config=0/"
    measured = tp.stride("64KiB", accesses=3_000_000, counters=["msr/tsc/", other, "task-clock"])
    one, two = measured.counters["msr/tsc/"], measured.counters[other]
    assert np.isnan(one).tolist() == (np.arange(one.size) % 2 == 1).tolist()
    assert np.isnan(two).tolist() == (np.arange(one.size) % 2 == 0).tolist()
    assert not np.isnan(measured.counters["task-clock"]).any()
    assert f"counted in {-(-one.size // 2)} of {one.size} slices" in str(measured)
    assert not any("scaled" in warning for warning in measured.warnings)
    assert json.dumps(measured.summary(), allow_nan=False)


@needs_tsc
def test_fewer_slices_than_groups_leave_some_without_a_turn(monkeypatch):
    fitting = groups._open_fitting
    monkeypatch.setattr(
        groups, "_open_fitting", lambda events, user: fitting(events, user) if len(events) == 1 else None
    )
    measured = tp.stride("64KiB", accesses=10, counters=["msr/tsc/", "msr/config=0/"])
    assert measured.counters.keys() == {"msr/tsc/"}
    assert "had no turn" in measured.refused["msr/config=0/"]


def test_fixed_work_is_counted_too():
    measured = tp.stride("256KiB", "base", stride=BASE, accesses=5_000_000, counters=["task-clock"])
    assert measured.counters["task-clock"].shape == measured.ns.shape


def test_nothing_is_opened_where_nothing_is_asked(run_python):
    assert run_python(
        """
        PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}[platform.machine()]
        libc = ctypes.CDLL(None)
        before = len(os.listdir("/proc/self/fd"))
        tp.chase("64KiB", max_seconds=0.02, counters=["page-faults"])
        after = len(os.listdir("/proc/self/fd"))
        from tlbprobe.counters import groups
        groups._attempt = groups.processor = None
        answer(before == after and tp.chase("64KiB", max_seconds=0.02).counters == {})
        """
    )


@pytest.mark.parametrize("wrong", ["cycles", 3, None, [1], [None], {"cycles"}, b"tlb", np.array(["tlb"])])
def test_what_is_no_list_of_names(wrong):
    with pytest.raises(TypeError, match="counters="):
        tp.chase("64KiB", counters=wrong, **QUICK)


@pytest.mark.parametrize("wrong", [["wlaks"], ["tlb", "cylces"], [""], ["cpu/event=1/u"], ["msr/nonsense/"]])
def test_unknown_names_are_refused_before_anything_is_mapped(monkeypatch, wrong):
    if wrong == ["msr/nonsense/"] and isinstance(tsc, Absent):
        pytest.skip(str(tsc))

    class NoRegion(tp.Region):
        def __init__(self, *_, **__):
            pytest.fail("something was mapped")

    monkeypatch.setattr("tlbprobe.measuring.point.Region", NoRegion)
    for probe in (tp.chase, tp.translation, tp.stride):
        with pytest.raises(ValueError, match="counters"):
            probe("64KiB", counters=wrong, **QUICK)
    with pytest.raises(ValueError, match="counters"):
        tp.sweep(tp.chase, size=["64KiB"], counters=wrong, progress=False)


def test_the_named_set_stands_for_itself():
    measured = tp.chase("64KiB", counters="tlb", **QUICK)
    told = measured.counters.keys() | measured.refused.keys()
    assert {"cycles", "instructions", "loads", "stlb_hit", "walks"} < told
    assert told == tp.chase("64KiB", counters=["tlb"], **QUICK).refused.keys() | measured.counters.keys()


def test_results_with_counters_are_saved_and_read(tmp_path):
    measured = tp.chase("64KiB", counters=["task-clock", "walks"], **QUICK)
    measured.save(tmp_path / "m.npz")
    loaded = tp.load(tmp_path / "m.npz")
    for name, values in measured.counters.items():
        assert np.array_equal(loaded.counters[name], values, equal_nan=True)
    assert loaded.refused == measured.refused


# --- what is derived -------------------------------------------------------------------------------------


def counted(made, **values):
    given = {name.replace("__", "-"): np.full(240, value) for name, value in values.items()}
    return made.measurement(counters=given)


def test_ratios_need_their_parts(made):
    full = counted(made, cycles=200.0, instructions=50.0, walk_active=60.0, walks=0.5, loads=2.0)
    assert (full.walk_share, full.ipc, full.miss_rate) == (0.3, 0.25, 0.25)
    assert counted(made, cycles=200.0, walk_pending=300.0).walk_share == 1.5
    assert counted(made, cycles=200.0, walk_pending=300.0, walk_active=100.0).walk_share == 0.5
    for part in (
        {},
        {"cycles": 1.0},
        {"walk_active": 1.0},
        {"walks": 1.0},
        {"loads": 1.0, "instructions": 2.0},
    ):
        run = counted(made, **part)
        assert (run.walk_share, run.ipc, run.miss_rate) == (None, None, None)
    assert counted(made, cycles=0.0, instructions=1.0).ipc is None


def test_the_miss_rate_of_the_kernels_names(made):
    names = {"dTLB-loads": np.full(240, 4.0), "dTLB-load-misses": np.full(240, 1.0)}
    assert made.measurement(counters=names).miss_rate == 0.25
    walks = {"walks": np.full(240, 0.1), "loads": np.full(240, 1.0)}
    assert made.measurement(counters={**names, **walks}).miss_rate == 0.1


def test_medians_leave_missing_slices_out(made):
    values = np.where(np.arange(240) % 2, np.nan, 7.0)
    run = made.measurement(counters={"cycles": values, "none": np.full(240, np.nan)})
    assert run.counter("cycles") == 7.0
    assert run.counter("none") is None
    assert run.counter("walks") is None
    assert run.summary()["counters"] == {"cycles": 7.0, "none": None}
    assert "7 per access, counted in 120 of 240 slices" in str(run)


def test_results_say_what_was_counted_and_why_not(made):
    run = counted(made, cycles=200.0, walk_active=60.0)
    assert "walk share" in str(run)
    assert run.summary()["walk_share"] == 0.3
    assert run.summary()["ipc"] is None
    refused = made.measurement(refused={"a": "no PMU", "b": "no PMU", "c": "dead"})
    lines = [line.split(None, 1) for line in str(refused).splitlines()[1:]]
    assert [text for name, text in lines if name == "refused"] == ["a, b: no PMU", "c: dead"]
    both = tp.Translation(counted(made, walks=1.0), counted(made, walks=0.25))
    assert "1 per access of spread nodes, 0.25 of packed ones" in str(both)


def test_sweeps_have_a_column_for_each_counter(made):
    def probe(size, pages=None, *, counters=()):
        return made.measurement(
            size=size, counters={"cycles": np.full(240, size / 4.0), "walk_active": np.full(240, 1.0)},
            refused={"loads": "no PMU"},
        )  # fmt: skip

    sweep = tp.sweep(probe, size=[64, 128], counters=["cycles"], progress=False)
    table = sweep.to_numpy()
    assert table["cycles"].tolist() == [16, 32]
    assert table["walk_share"].tolist() == [1 / 16, 1 / 32]
    assert "ipc" not in table.dtype.names
    assert "2 of 2 points: loads: no PMU" in str(sweep)


# --- all events ------------------------------------------------------------------------------------------


def test_events_of_this_machine():
    found = tp.events()
    names = [event.name for event in found]
    assert len(set(names)) == len(names)
    assert {"walks", "walk_active", "cycles", "dTLB-load-misses", "page-faults", "context-switches"} <= set(
        names
    )
    for event in found:
        assert event.status in ("counts", "untried", "dead", "refused")
        assert event.meaning
        assert event.reason or event.status == "counts"
        assert event.status == "refused" or (event.encoding and event.source)
        assert event.name in str(event)
    software = {event.name: event for event in found if event.source.endswith("perf_event.h")}
    assert software["page-faults"].status in ("counts", "refused")


def test_events_pins_and_lets_go():
    before = os.sched_getaffinity(0)
    tp.events(max(before))
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ValueError, match="cpu=4095"):
        tp.events(4095)
    with pytest.raises(TypeError, match="cpu='0'"):
        tp.events("0")


def test_what_cannot_be_allowed_is_found_by_trying(monkeypatch):
    """As for an unprivileged user: what needs the kernel is refused, the rest is counted without it."""

    def attempt(event, user_only):
        return 0 if user_only else errno.EACCES

    monkeypatch.setattr(groups, "_attempt", attempt)
    on = processor()
    found = groups.allowed(
        find(name, on) for name in ("page-faults", "context-switches", "nonsense-free"[:0] or "cs")
    )
    assert [event.name for event in found.events] == ["page-faults"]
    assert found.user_only
    assert found.absent.keys() == {"context-switches", "cs"}


def test_timed_without_counters_has_none():
    with tp.Region("64KiB") as region, _core.Session([stride_part(region, 0, 16)]) as session:
        ((timed, *_), _) = slices.measure(session, precision=0.5, max_seconds=0.02)
    assert timed.counted is None
    assert list(itertools.islice(groups.columns(np.zeros((1, 0), np.int64), [], 1), 1)) == []


@pytest.mark.parametrize("probe", [tp.fault, tp.shootdown])
def test_single_accesses_are_not_counted(probe):
    measured = probe("64KiB", counters=["page-faults"])
    assert "every access has its own time" in measured.refused["page-faults"]
    assert measured.counters == {}
    with pytest.raises(ValueError, match="page-fault"):
        probe("64KiB", counters=["page-fault-s"])


def test_events_by_name():
    found = tp.events(names=["task-clock", "walks"])
    assert [event.name for event in found] == ["task-clock", "walks"]
    with pytest.raises(ValueError, match="near are walks"):
        tp.events(names=["WALKSS"])


def test_a_number_as_perf_writes_it_is_refused_for_the_same_reason():
    """Where there is no PMU; what is no number is an error all the same."""
    raw, written = tp.events(names=["r1008", "cpu/event=0x08,umask=0x10,cmask=1/"])
    if raw.status == "refused":
        assert (written.status, written.reason, written.command) == (raw.status, raw.reason, raw.command)
    with pytest.raises(ValueError, match="zz"):
        tp.events(names=["cpu/event=zz/"])


def test_what_nobody_can_encode_counts_nothing_else(tmp_path):
    """Where the kernel counts but /sys is hidden, as in some containers."""
    event = find("cpu/event=0x08,umask=0x10/", processor(tmp_path, 0))
    assert event.type not in range(5)
    with pytest.raises(OSError, match=r".") as refused:
        _core.CounterGroup([event.key])
    assert refused.value.errno in (errno.ENOENT, errno.EINVAL)
