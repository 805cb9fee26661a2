"""The slice loop: contracts, exclusion, interruption, pinning, the adaptive stop on simulated slices."""

import contextlib
import ctypes
import itertools
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from threads import in_threads

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.cores.current import NATIVE
from tlbprobe.machine import cpus
from tlbprobe.measuring import slices
from tlbprobe.results import analysis

CSRC = Path(__file__).parents[1] / "csrc"
MIB = 1 << 20
PROMPT = 1.0  # seconds in which Ctrl-C must be answered, generously: 0.1 s is the rule on an idle machine
LONG = {"precision": 1e-9, "max_seconds": 60.0}  # of a measurement that is not meant to end by itself
QUICK = {"max_seconds": 0.02}
ALONE = {"pages": 1, "lines": 1, "line": 64, "seed": 0, "window": 1 << 40, "chains": 1, "store": 0}
FIELDS = {"ns", "cpu_ns", "minor", "major", "switches"}


def chase_part(region, offset=0, size=65536, **changes):
    given = {"nodes": size // 64, "spacing": 64, **ALONE, **changes}
    return region, "chase", offset, size, given


@pytest.fixture
def region():
    with tp.Region("1MiB") as region:
        yield region


@pytest.fixture
def session(region):
    with _core.Session([chase_part(region)]) as session:
        yield session


def unpinned():
    return os.sched_getaffinity(0)


# --- slices


@pytest.mark.parametrize("parts", [1, 2, 16])
@pytest.mark.parametrize("slices", [1, 2, 50])
def test_shapes(region, parts, slices):
    with _core.Session([chase_part(region, 65536 * k) for k in range(parts)]) as session:
        assert session.laps == (1024,) * parts
        found = session.measure((100,) * parts, slices)
        assert found.keys() == FIELDS | {"witness_ns"}
        assert all(array.dtype == np.int64 for array in found.values())
        assert all(found[name].shape == (parts, slices) for name in FIELDS)
        assert found["witness_ns"].shape == (slices + 1,)
        assert (found["ns"] > 0).all()
        assert (found["cpu_ns"] > 0).all()
        assert (found["witness_ns"] > 0).all()
        assert all((array >= 0).all() for array in found.values())
        assert found["minor"].sum() == found["major"].sum() == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (((100,), 0), ValueError),
        (((100,), -1), ValueError),
        (((100,), (1 << 24) + 1), ValueError),
        (((100,), 1 << 80), OverflowError),
        (((100,), 1.0), TypeError),
        (((0,), 1), ValueError),
        (((-1,), 1), OverflowError),
        (((1 << 64,), 1), OverflowError),
        (((1.0,), 1), TypeError),
        (((None,), 1), TypeError),
        (((), 1), ValueError),
        (((1, 1), 1), ValueError),
        (([1], 1), TypeError),
        ((1, 1), TypeError),
        ((), TypeError),
    ],
)
def test_bad_arguments_of_measure_are_refused(session, arguments, error):
    with pytest.raises(error):
        session.measure(*arguments)
    assert session.measure((100,), 1)["ns"].shape == (1, 1)


GIVEN = {"nodes": 2, "spacing": 64, **ALONE}


@pytest.mark.parametrize(
    ("part", "error"),
    [
        (("no mapping", "chase", 0, 4096, GIVEN), TypeError),
        (("chase", 0, 4096), TypeError),
        (("chase", 0, 4096, GIVEN, 1), TypeError),
        (("stroll", 0, 4096, GIVEN), ValueError),
        (("chase\0", 0, 4096, GIVEN), ValueError),
        ((None, 0, 4096, GIVEN), TypeError),
        (("chase", -1, 4096, GIVEN), ValueError),
        (("chase", 0, 0, GIVEN), ValueError),
        (("chase", 0, -4096, GIVEN), ValueError),
        (("chase", 0, MIB + 1, GIVEN), ValueError),
        (("chase", MIB, 1, GIVEN), ValueError),
        (("chase", sys.maxsize, sys.maxsize, GIVEN), ValueError),
        (("chase", 1 << 70, 1, GIVEN), OverflowError),
        (("chase", 0, 72, GIVEN | {"nodes": 3}), ValueError),
        (("chase", 0, 71, GIVEN), ValueError),
        (("chase", 0, 4096, GIVEN | {"lines": 2, "line": 0}), ValueError),
        (("chase", 0, 4096, GIVEN | {"nodes": 0}), ValueError),
        (("chase", 0, 4096, GIVEN | {"nodes": 1 << 63}), ValueError),
        (("chase", 0, 4096, GIVEN | {"spacing": (1 << 64) - 8}), ValueError),
        (("chase", 0, 4096, GIVEN | {"nodes": -1}), OverflowError),
        (("chase", 0, 4096, GIVEN | {"nodes": 1 << 64}), OverflowError),
        (("chase", 0, 4096, GIVEN | {"nodes": 1.0}), TypeError),
        (("chase", 0, 4096, GIVEN | {"nodes": None}), TypeError),
        (("chase", 0, 4096, GIVEN | {"more": 1}), TypeError),
        (("chase", 0, 4096, {}), TypeError),
        (("chase", 0, 4096, dict.fromkeys(range(100_000), 1)), TypeError),
        (("chase", 0, 4096, [("nodes", 2)]), TypeError),
    ],
)
def test_bad_parts_are_refused_and_the_mapping_is_left_alone(region, part, error):
    before = np.frombuffer(region, np.uint64).copy()
    with pytest.raises(error):
        _core.Session([part if part[0] == "no mapping" else (region, *part)])
    assert (np.frombuffer(region, np.uint64) == before).all()
    with _core.Session([chase_part(region)]) as session:
        assert session.verify() == session.laps


@pytest.mark.parametrize("parts", [None, 3, "chase", [], [None], [[1, 2, 3, 4, 5]], {}])
def test_what_is_no_list_of_parts_is_refused(parts):
    with pytest.raises((TypeError, ValueError)):
        _core.Session(parts)


def test_parts_may_not_overlap(region):
    with pytest.raises(ValueError, match=r"parts 0 and 1 .* overlap"):
        _core.Session([chase_part(region), chase_part(region, 65536 - 8)])
    with pytest.raises(ValueError, match="1 to 16 parts, not 17"):
        _core.Session([chase_part(region, 4096 * k, 4096) for k in range(17)])
    with _core.Session([chase_part(region), chase_part(region, 65536)]) as session:
        assert session.verify() == (1024, 1024)


def test_parts_of_two_mappings(region):
    with tp.Region("64KiB") as other:
        with _core.Session([chase_part(region), chase_part(other)]) as session:
            assert session.measure((10, 20), 3)["ns"].shape == (2, 3)
            with pytest.raises(RuntimeError, match="in use"):
                tp.chase(other)
        with _core.Session([chase_part(other)]), pytest.raises(RuntimeError, match="in use"):
            _core.Session([chase_part(region), chase_part(other)])
        with _core.Session([chase_part(region)]):
            pass  # the one that could be had was let go again


def test_runs_take_turns_and_are_warmed_by_a_lap_or_a_slice(compile_c, tmp_path):
    """By construction: kernels that write down when they ran."""
    source = tmp_path / "order.c"
    source.write_text(
        """
        #include "tlbprobe.h"
        uint64_t log_[64], logged;
        uint64_t tlb_ticks(void) { return 0; }
        static void access(struct tlb_run *run, uint64_t accesses)
        {
            log_[logged++] = run->lap * 1000 + accesses;
        }
        static const struct tlb_kernel kernel = {.name = "log", .access = access};
        int measure(int count, uint64_t slices, const uint64_t *laps, const uint64_t *accesses)
        {
            struct tlb_run run[2] = {{.kernel = &kernel}, {.kernel = &kernel}};
            run[0].lap = laps[0], run[1].lap = laps[1];
            struct tlb_run *const runs[2] = {&run[0], &run[1]};
            struct tlb_slice out[32];
            uint64_t witness[33];
            logged = 0;
            struct tlb_poll const never = {0};
            return tlb_measure(runs, accesses, (size_t)count, slices, out, witness, NULL, &never);
        }
        """
    )
    files = (CSRC / f"{name}.c" for name in ("measure", "clock", "counters", "counting"))
    library = compile_c(*files, source)
    two = ctypes.c_uint64 * 2

    def log(count, slices):
        assert library.measure(count, ctypes.c_uint64(slices), two(3, 800), two(10, 20)) == 0
        return (ctypes.c_uint64 * 64).in_dll(library, "log_")[
            : ctypes.c_uint64.in_dll(library, "logged").value
        ]

    a_warm, a, b_warm, b = 3003, 3010, 800_020, 800_020
    assert log(2, 3) == [a_warm, a, b_warm, b] * 3
    assert log(1, 4) == [a_warm, a, a, a, a]


# --- what happens in the timed part is said


def replace_pages(region):
    """Put fresh page-table entries over the same bytes: every first access is a minor fault again."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address, size = region.address, region.mapped_bytes
    file = os.memfd_create("pages")
    try:
        os.write(file, ctypes.string_at(address, size))
        fixed = 0x10
        flags = mmap.MAP_SHARED | fixed
        assert libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0) == address
    finally:
        os.close(file)


def test_faults_of_a_slice_are_counted_in_it(region):
    """Eight nodes too far apart for one fault to map two of them: four are warmed, four are timed."""
    part = chase_part(region, size=MIB, nodes=8, spacing=MIB // 8)
    with _core.Session([part]) as session:
        replace_pages(region)
        minor = session.measure((4,), 3)["minor"][0]
    assert 1 <= minor[0] <= 4
    assert minor[1:].tolist() == [0, 0]


def test_faults_of_the_timed_part_are_said():
    def take_again_and_again():  # once may fall between two batches, where nothing is timed
        for _ in range(12):
            time.sleep(0.07)
            replace_pages(region)

    with tp.Region("1MiB", strict=False) as region:
        taken = threading.Thread(target=take_again_and_again)
        taken.start()
        measured = tp.chase(region, precision=1e-9, max_seconds=1.0)
        taken.join()
    minor = measured.faults["minor"]
    assert minor >= 1
    assert measured.faults == {"minor": minor, "major": 0, "expected": 0}
    assert any(f"{minor} minor and 0 major page faults" in warning for warning in measured.warnings)
    assert measured.disturbed.any()


def test_without_faults_nothing_is_said():
    measured = tp.chase("64KiB", **QUICK)
    assert measured.faults == {"minor": 0, "major": 0, "expected": 0}
    assert not any("fault" in warning for warning in measured.warnings)


# --- pinning


def test_pinned_while_measuring_and_unpinned_afterwards(region):
    before = unpinned()
    last = max(before)
    seen = []

    def look():
        tid = threading.main_thread().native_id
        while not seen or len(seen[-1]) > 1:
            seen.append(os.sched_getaffinity(tid))

    watcher = threading.Thread(target=look)
    watcher.start()
    measured = tp.chase(region, cpu=last, precision=1e-9, max_seconds=0.3)
    watcher.join()
    assert measured.params["cpu"] == last
    assert seen[-1] == {last}
    assert unpinned() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_unpinned_after_an_exception(error):
    before = unpinned()

    def fail():
        with cpus.pinned(None) as cpu:
            assert unpinned() == {cpu}
            raise error

    with pytest.raises(error):
        fail()
    assert unpinned() == before
    with pytest.raises(OSError, match="argument") as refused, cpus.pinned(1 << 20):
        pass
    assert "cpu=1048576" in refused.value.__notes__[0]
    assert unpinned() == before


# --- threads


def test_another_thread_makes_progress_meanwhile(session):
    count = itertools.count()
    stop = threading.Event()

    def work():
        while not stop.is_set():
            next(count)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        before = next(count)
        session.measure((20_000_000,), 1)  # one slice of tens of milliseconds, without any polling
        assert next(count) > before + 1
    finally:
        stop.set()
        worker.join()


def test_two_threads_on_one_region_make_one_result_and_one_error(region):
    for _ in range(20):
        outcomes = in_threads(*[lambda: tp.chase(region, max_seconds=0.05, precision=1e-9)] * 2)
        kinds = sorted(type(outcome).__name__ for outcome in outcomes)
        assert kinds == ["Measurement", "RuntimeError"], outcomes
        assert "in use" in str(next(each for each in outcomes if isinstance(each, RuntimeError)))
    assert tp.chase(region, verify=True, **QUICK).low > 0


def test_two_threads_on_two_regions_make_two_results():
    outcomes = in_threads(*[lambda: tp.chase("1MiB", verify=True, **QUICK)] * 2)
    assert all(isinstance(outcome, tp.Measurement) for outcome in outcomes)


def test_nobody_gets_in_between_the_steps_of_a_measurement(region):
    """From the first node written to the last one read: whatever would change the bytes is refused."""
    with _core.Session([chase_part(region)]) as session:
        for refused in (
            lambda: _core.Session([chase_part(region, 65536)]),
            lambda: tp.chase(region),
            lambda: region.touch(False, 0),
            lambda: region.populate(),
            lambda: region.pass_over(0, 4096),
            lambda: region.close(),
        ):
            with pytest.raises(RuntimeError, match="in use"):
                refused()
        with pytest.raises(BufferError, match="being measured"):
            memoryview(region)
        assert region.backing().page_size == region.base_page  # reading changes nothing
        assert session.verify() == session.laps
    assert len(memoryview(region)) == MIB


def test_one_call_of_a_session_at_a_time(session):
    def late(call):
        time.sleep(0.05)
        call()

    def long():
        return session.measure((300_000_000,), 1)

    calls = (
        session.close,
        session.pass_over,
        session.verify,
        lambda: session.measure((1,), 1),
        lambda: session.counts,
    )
    result, *refused = in_threads(long, *[lambda call=call: late(call) for call in calls])
    assert result["ns"].shape == (1, 1)
    assert all(isinstance(each, RuntimeError) and "in use" in str(each) for each in refused), refused


def test_two_threads_on_one_session_make_one_result_and_one_error(session):
    for _ in range(3):
        outcomes = in_threads(*[lambda: session.measure((100_000_000,), 1)] * 2)
        assert sorted(type(each).__name__ for each in outcomes) == ["RuntimeError", "dict"], outcomes
    assert session.verify() == session.laps


def test_threads_that_open_and_close_sessions_of_one_region_take_turns(region):
    """Whoever gets it has it alone."""

    def work():
        had = 0
        for _ in range(300):
            with contextlib.suppress(RuntimeError), _core.Session([chase_part(region, size=4096)]) as session:
                had += session.verify() == session.laps
        return had

    assert sum(in_threads(*[work] * 4)) >= 300
    region.close()


def test_closed_sessions_are_refused(region):
    session = _core.Session([chase_part(region)])
    session.close()
    session.close()
    for call in (session.pass_over, session.verify, lambda: session.measure((1,), 1)):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert session.laps == (1024,)
    region.close()
    with pytest.raises(ValueError, match="closed"):
        _core.Session([chase_part(region)])


def test_a_dropped_session_lets_its_mappings_go(region):
    session = _core.Session([chase_part(region)])
    del session
    with _core.Session([chase_part(region)]), pytest.raises(RuntimeError, match="in use"):
        region.close()
    region.close()


def test_types_cannot_be_bent(region):
    with pytest.raises(TypeError):
        type("Mine", (_core.Session,), {})
    with pytest.raises(TypeError):
        _core.Session.measure = None
    with pytest.raises(TypeError):
        _core.Session.measure(region, (1,), 1)
    with pytest.raises(ValueError, match="closed"):
        _core.Session([chase_part(_core.Mapping.__new__(_core.Mapping))])
    with _core.Session([chase_part(region)]) as session:
        session.__init__([chase_part(region, 65536)])  # it is made once: this does nothing
        assert session.verify() == session.laps == (1024,)


# --- processes


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_during_a_measurement_loses_nothing(region):
    statuses = []

    def fork():
        for _ in range(5):
            time.sleep(0.05)
            child = os.fork()
            if child == 0:
                try:
                    tp.chase(region)
                except RuntimeError as error:
                    os._exit(0 if "belongs to process" in str(error) else 3)
                os._exit(4)
            statuses.append(os.waitpid(child, 0)[1])

    forker = threading.Thread(target=fork)
    forker.start()
    measured = tp.chase(region, precision=1e-9, max_seconds=0.6)
    forker.join()
    assert statuses == [0] * 5
    assert measured.ns.size > 200
    # A fork makes the stack copy-on-write, but not the region: its pages are in no child.
    assert measured.faults["minor"] < MIB // region.base_page
    assert tp.chase(region, verify=True, **QUICK).low > 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_session_is_not_inherited(session):
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (session.pass_over, session.verify, lambda: session.measure((1,), 1)):
            try:
                call()
            except RuntimeError:
                refused += 1
        session.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert session.verify() == session.laps


DAEMON = """
import threading, time
import tlbprobe as tp
def forever():
    tp.chase("1MiB", precision=1e-9, max_seconds=30)
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.5)
print("leaving")
"""


def test_interpreter_may_end_during_a_measurement():
    command = [sys.executable, "-P", "-c", DAEMON]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "leaving\n"), done.stderr


# --- signals


class Interrupt:
    """Sends SIGINT after some time; `waited` says how long the answer took."""

    def __init__(self, seconds):
        self.timer = threading.Timer(seconds, self.send)

    def send(self):
        self.sent = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    def __enter__(self):
        self.timer.start()
        return self

    def __exit__(self, *_):
        self.waited = time.perf_counter() - self.sent
        self.timer.join()


def interrupted(seconds, call):
    """Seconds from Ctrl-C to KeyboardInterrupt."""
    interrupt = Interrupt(seconds)

    def forever():
        with interrupt:
            while True:
                call()

    with pytest.raises(KeyboardInterrupt):
        forever()
    return interrupt.waited


@pytest.fixture(scope="module")
def large():
    with tp.Region("256MiB", "default", strict=False) as region:
        yield region


def test_ctrl_c_while_building_a_cycle(large):
    part = chase_part(large, size=large.mapped_bytes, nodes=large.mapped_bytes // 8, spacing=8)
    assert interrupted(0.1, lambda: _core.Session([part])) < PROMPT
    assert tp.chase(large, verify=True, **QUICK).low > 0


@pytest.mark.parametrize("method", ["pass_over", "verify"])
def test_ctrl_c_in_passes_and_walks(large, method):
    part = chase_part(large, size=large.mapped_bytes, nodes=large.mapped_bytes // 64)
    with _core.Session([part]) as session:
        assert interrupted(0.1, getattr(session, method)) < PROMPT
        assert session.verify() == session.laps


def test_ctrl_c_while_measuring(large):
    before = unpinned()
    assert interrupted(0.3, lambda: tp.chase(large, **LONG)) < PROMPT
    assert interrupted(0.3, lambda: tp.translation(large, working_set="128MiB", **LONG)) < PROMPT
    assert unpinned() == before
    assert tp.chase(large, verify=True, **QUICK).low > 0


def test_ctrl_c_keeps_the_region_even_with_its_traceback(region):
    """As in a notebook, which remembers the last exception with all its frames."""
    kept = []
    for _ in range(3):
        timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        try:
            tp.chase(region, **LONG)
        except KeyboardInterrupt as error:
            kept.append(error)
        timer.join()
        assert tp.chase(region, verify=True, **QUICK).low > 0
    region.close()
    assert len(kept) == 3


def test_a_signal_handler_that_measures_is_refused(region):
    """While the measurement polls, and between its steps: the outer one goes on."""
    outcomes = []

    def handler(*_):
        try:
            outcomes.append(tp.chase(region, **QUICK))
        except RuntimeError as error:
            outcomes.append(error)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.013)
    try:
        measured = tp.chase(region, precision=1e-9, max_seconds=0.5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert measured.ns.size > 4
    assert len(outcomes) > 5
    assert {type(outcome) for outcome in outcomes} <= {RuntimeError, tp.Measurement}
    refused = [outcome for outcome in outcomes if isinstance(outcome, RuntimeError)]
    assert len(refused) > 5
    assert all("in use" in str(error) for error in refused)


def test_an_exception_of_a_signal_handler_comes_through(region):
    def handler(*_):
        raise LookupError("mine")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(LookupError, match="mine"):
            tp.chase(region, **LONG)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert tp.chase(region, **QUICK).low > 0


def test_a_worker_is_not_interrupted(region):
    """Ctrl-C belongs to the main thread: a measurement in a worker goes on to its end."""
    result, done = [], threading.Event()

    def work():
        result.append(tp.chase(region, max_seconds=0.5, precision=1e-9))
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    assert interrupted(0.1, done.wait) < PROMPT
    worker.join()
    assert result[0].low > 0


# --- the clock


def test_clock_moments_advance_together():
    first = slices.Moment.now()
    time.sleep(0.01)
    second = slices.Moment.now()
    assert second.raw_ns - first.raw_ns >= 9e6
    assert second.monotonic_ns > first.monotonic_ns
    assert (second.ticks > first.ticks) == (first.ticks > 0)
    read_ns, step_ns = _core.clock_calibrate()
    assert read_ns > 0
    assert step_ns >= 1
    assert slices.shortest_slice_ns() >= max(NATIVE.shortest_ns, 999 * read_ns)


def test_the_clock_can_be_waited_for():
    raw, first = slices.Moment.now().raw_ns, _core.clock_ns()
    for seconds in (0, 0.003, 0.025):
        before = _core.clock_ns()
        _core.clock_wait(seconds)
        assert _core.clock_ns() - before >= seconds * 1e9
    assert raw <= first <= _core.clock_ns() <= slices.Moment.now().raw_ns, "it is one clock"


@pytest.mark.parametrize(
    ("seconds", "error"),
    [(-1e-9, ValueError), (float("nan"), ValueError), (float("inf"), ValueError), ("1", TypeError)],
)
def test_waits_that_make_no_sense_are_refused(seconds, error):
    with pytest.raises(error):
        _core.clock_wait(seconds)


def test_other_threads_go_on_while_the_clock_is_waited_for():
    done = threading.Event()
    threading.Timer(0.01, done.set).start()
    before = _core.clock_ns()
    while not done.is_set():
        _core.clock_wait(0.5)
    assert _core.clock_ns() - before < 5e9


def test_ctrl_c_while_the_clock_is_waited_for():
    assert interrupted(0.1, lambda: _core.clock_wait(60)) < PROMPT


def test_only_one_file_reads_the_clock():
    """So that another one can stand in for it, and nothing that is measured notices.

    When to look for signals is asked of real time: by one more file, and once.
    """
    calls = re.compile(r"clock_gettime|RUSAGE_THREAD|gettimeofday")
    found = {path: len(calls.findall(path.read_text())) for path in CSRC.rglob("*.c")}
    polling = CSRC / "python" / "common.c"
    assert {path for path, count in found.items() if count} == {CSRC / "clock.c", polling}
    assert found[polling] == 1


@pytest.mark.parametrize(
    ("raw", "monotonic", "ticks", "rate", "said"),
    [
        (10e6, 10e6, 30e6, 3.0, ""),
        (10e6, 10.009e6, 30e6, 3.0, ""),
        (10e6, 10.011e6, 30e6, 3.0, "CLOCK_MONOTONIC "),
        (10e6, 9.98e6, 30e6, 3.0, "CLOCK_MONOTONIC "),
        (10e6, 0, 30e6, 3.0, "CLOCK_MONOTONIC "),
        (10e6, 10e6, 20e6, 3.0, "the tick counter"),
        (10e6, 10e6, 0, 3.0, "the tick counter"),
        (10e6, 10e6, 0, None, ""),
        (10e6, 10e6, 0, 0.0, ""),
        (4e6, 9e6, 0, 3.0, ""),  # too short to tell
        (0, 0, 0, 3.0, ""),
    ],
)
def test_clock_complaints(raw, monotonic, ticks, rate, said):
    start = slices.Moment(1_000, 5_000, 7_000)
    end = slices.Moment(1_000 + int(raw), 5_000 + int(monotonic), 7_000 + int(ticks))
    complaint = slices.clock_complaint(start, end, rate)
    assert said in complaint
    assert bool(complaint) == bool(said)


# --- slice length and adaptive stop, on simulated slices


class Simulated:
    """A session of simulated parts: nanoseconds per access, noise, and a time that passes by itself."""

    def __init__(self, *per_access, noise=0.0, cold=1.0, seed=0):
        self.per_access = np.array(per_access)
        self.laps = (300_000,) * len(per_access)
        self.noise, self.cold = noise, cold
        self.walked = 0
        self.random = np.random.default_rng(seed)
        self.now = 0.0
        self.calls = []

    def measure(self, accesses, slices, groups=()):
        self.calls.append((accesses, slices))
        each = self.per_access * (self.cold if self.walked < self.laps[0] else 1.0)
        self.walked += accesses[0] * (slices + 1)
        ns = np.outer(np.array(accesses) * each, np.ones(slices))
        ns *= 1 + self.random.exponential(self.noise, ns.shape) if self.noise else 1
        warmed = 2 if len(accesses) > 1 else 1 + 1 / slices
        self.now += ns.sum() * warmed * 1e-9
        zeros = np.zeros(ns.shape, np.int64)
        whole = ns.round().astype(np.int64)
        witness = np.full(slices + 1, 16384 // 4)
        return {"ns": whole, "cpu_ns": whole, "minor": zeros, "major": zeros, "switches": zeros} | {
            "witness_ns": witness
        }


@pytest.fixture
def simulate(monkeypatch):
    def simulate(session, **limits):
        monkeypatch.setattr(NATIVE, "now", lambda: session.now)
        found, warnings = slices.measure(session, **{"precision": 0.01, "max_seconds": 5.0, **limits})
        monkeypatch.undo()
        return found, warnings

    slices.tick_rate()  # which sleeps by the real clock
    return simulate


def unsettled(warnings):
    return any("depend on their length" in warning for warning in warnings)


@pytest.mark.parametrize("per_access", [(0.3,), (1.0,), (100.0,), (5e3,), (1.0, 80.0), (80.0, 80.0, 1.0)])
@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_slices_are_long_enough_and_stop_when_precise(simulate, per_access, noise):
    session = Simulated(*per_access, noise=noise)
    found, warnings = simulate(session)
    assert warnings == ()
    for part, true in zip(found, per_access, strict=True):
        assert part.ns.size >= analysis.FIRST_BATCH
        assert part.accesses * true >= slices.TOO_SHORT * NATIVE.shortest_ns
        assert part.accesses * true <= 2 * slices.LONGEST_NS
        assert part.ns.size == found[0].ns.size
        assert analysis.precise(part.ns, 0.01)
        assert part.core_ghz == pytest.approx(4.0)
    assert session.now < 1.0


def test_cold_caches_do_not_shorten_the_slices(simulate):
    """The first accesses of all miss every cache, and the slices were measured by them."""
    session = Simulated(1.0, cold=100.0)
    (found,), warnings = simulate(session)
    assert found.accesses * 1.0 >= slices.TOO_SHORT * NATIVE.shortest_ns
    assert warnings == ()


def test_noise_is_answered_by_longer_slices(simulate):
    class Averaging(Simulated):
        def measure(self, accesses, slices, groups=()):
            self.noise = 3.0 / np.sqrt(accesses[0])
            return super().measure(accesses, slices)

    (found,), _ = simulate(Averaging(100.0), max_seconds=60.0)
    assert found.accesses * 100 > 1.5 * NATIVE.shortest_ns


@pytest.mark.parametrize("seconds", [0.2, 1.0, 10.0])
def test_max_seconds_are_honoured(simulate, seconds):
    for per_access in ((1.0,), (100.0, 1.0)):
        session = Simulated(*per_access, noise=0.3)
        (found, *_), _ = simulate(session, precision=1e-12, max_seconds=seconds)
        assert 0.5 * seconds < session.now < 1.1 * seconds
        assert found.ns.size >= slices.LEAST_SLICES


def test_all_the_time_in_the_world_is_not_taken(simulate):
    session = Simulated(100.0, noise=0.01)
    simulate(session, max_seconds=1e300)
    assert session.now < 10


def test_caches_are_left_as_accesses_leave_them_before_the_first_slice(simulate):
    """A lap, or what goes into a twentieth of a second, or a tenth of the time there is."""
    for per_access, seconds, walked in ((1.0, 5.0, 300_000), (500.0, 5.0, 100_000), (500.0, 0.05, 10_000)):
        session = Simulated(per_access)
        simulate(session, max_seconds=seconds)
        laps = itertools.takewhile(lambda call: call[0] == (slices.LAP_ACCESSES,), session.calls)
        done = sum(2 * accesses for (accesses,), _ in laps)
        assert walked <= done <= 1.2 * walked + 2 * slices.LAP_ACCESSES


@pytest.mark.parametrize("seconds", [1e-300, 1e-9, 1e-3])
def test_never_less_than_a_few_slices(simulate, seconds):
    (found,), warnings = simulate(Simulated(100.0, noise=0.1), max_seconds=seconds)
    assert found.ns.size >= slices.LEAST_SLICES
    assert unsettled(warnings)


def test_what_does_not_settle_is_said(simulate):
    (found,), warnings = simulate(Simulated(100.0, noise=5.0), max_seconds=30.0)
    assert unsettled(warnings)
    assert found.accesses * 100 <= 2 * slices.LONGEST_NS


def test_batches_stay_within_what_one_call_takes(simulate):
    session = Simulated(1000.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "MOST_SLICES", 1000)
        patch.setattr(analysis, "precise", lambda *_: False)
        simulate(session, max_seconds=1.0)
    assert max(slices for _, slices in session.calls) == 1000
    assert slices.MOST_SLICES <= 1 << 24
