"""The life of a Region: mapped, populated, viewed, measured, forked, interrupted, closed; nothing leaks."""

import contextlib
import copy
import gc
import pickle
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.machine import paging

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BASE = paging.base_page_size()
PMD = paging.pmd_size()
COUNTS_FAULTS = pytest.mark.no_asan  # whose own memory takes faults too
OFFERED = [policy.name for policy in tp.page_policies() if policy.offered]


def mapped_ranges():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in lines]


def is_mapped(address):
    return any(start <= address < end for start, end in mapped_ranges())


@pytest.fixture
def region():
    with tp.Region(MIB, "base") as region:
        yield region


# --- mapping and populating ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OFFERED)
@pytest.mark.parametrize("size", [1, BASE - 1, BASE, BASE + 1, MIB + 1, (PMD or MIB) + BASE])
def test_whole_pages_are_mapped_aligned_and_proved(name, size):
    with tp.Region(size, name) as region:
        page = region.policy.page_size or BASE
        assert region.size == size
        assert region.mapped_bytes == -(-size // page) * page
        assert region.address % max(page, PMD or 0) == 0
        assert region.base_page == BASE
        assert not region.closed
        found = region.backing()
        assert found.asked == name
        assert found.proof in ("proved", "consistent")
        assert sum(found.shares.values()) == pytest.approx(1)
        assert found.page_size == (region.policy.page_size or found.page_size)


@COUNTS_FAULTS
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4 * MIB), st.sampled_from(["random", "sequential"]))
def test_populating_base_pages_takes_exactly_one_fault_each(size, touch):
    with tp.Region(size, "base", touch=touch) as region:
        assert region.faults == region.mapped_bytes // BASE


@COUNTS_FAULTS
@pytest.mark.skipif("thp" not in OFFERED, reason="no transparent huge pages")
def test_populating_huge_pages_takes_exactly_one_fault_each():
    with tp.Region(5 * PMD, "thp") as region:
        assert region.faults == 5
    with tp.Region(2 * PMD, "collapse") as region:
        assert region.faults == 2 * PMD // BASE or region.faults == 2  # under 'always'


@pytest.mark.parametrize("touch", ["random", "sequential"])
def test_every_page_is_written(touch):
    with tp.Region(3 * MIB + 1, "base", touch=touch) as region:
        first = np.frombuffer(region, np.uint8)[::BASE].copy()
    assert first.size == -(-(3 * MIB + 1) // BASE)
    assert (first == 1).all()


def test_setup_names_each_step():
    with tp.Region(BASE) as region:
        assert list(region.setup) == ["map", "populate", "first_pass", "second_pass", "proof"]
        assert all(seconds >= 0 for seconds in region.setup.values())


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "name"),
    [
        ((0,), {}, ValueError, "size="),
        ((-1,), {}, ValueError, "size="),
        (("1MB",), {}, ValueError, "size="),
        ((1 << 80,), {}, ValueError, "size="),
        ((1.5,), {}, TypeError, "size="),
        ((True,), {}, TypeError, "size="),
        ((BASE, "huge"), {}, ValueError, "pages="),
        ((BASE, 4096), {}, TypeError, "pages="),
        ((BASE,), {"touch": "backwards"}, ValueError, "touch="),
        ((BASE,), {"touch": None}, ValueError, "touch="),
        ((BASE, "base", False), {}, TypeError, "positional"),
        ((), {}, TypeError, "size"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_is_mapped(
    monkeypatch, arguments, keywords, error, name
):
    monkeypatch.setattr(tp.Region, "_map", lambda *_: pytest.fail("mapped"))
    with pytest.raises(error, match=name):
        tp.Region(*arguments, **keywords)


@pytest.mark.parametrize("size", [0, -1, MIB + 1, 1 << 70])
def test_no_more_can_be_backed_than_is_mapped(region, size):
    with pytest.raises(ValueError, match="working_set="):
        region.backing(size)


def test_a_region_cannot_be_mapped_twice(region):
    address = region.address
    with pytest.raises(RuntimeError, match="mapped already"):
        region.__init__(2 * MIB, "default")
    assert (region.address, region.pages, region.size) == (address, "base", MIB)


def test_a_region_cannot_be_copied(region):
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="pickle"):
            copying(region)


# --- the compiled part defends itself --------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 0},
        {"size": -BASE},
        {"size": BASE + 1},
        {"alignment": 3 * BASE},
        {"alignment": BASE // 2},
        {"alignment": 0},
        {"page": 0},
        {"page": 2 * BASE},
        {"base_page": 0},
        {"base_page": -BASE},
        {"piece": -1},
        {"piece": 1},
        {"huge_shift": -1},
        {"huge_shift": 64},
    ],
    ids=str,
)
def test_mappings_that_make_no_sense_are_refused(arguments):
    sound = {"size": BASE, "alignment": BASE, "base_page": BASE, "page": BASE}
    wanted = {**sound, **arguments}
    with pytest.raises(ValueError, match=r"do not fit|out of range"):
        _core.Mapping(wanted.pop("size"), **wanted)
    _core.Mapping(sound.pop("size"), **sound).close()


def test_mappings_that_no_address_space_holds_are_refused():
    for size in (1 << 62, (1 << 63) - BASE):
        with pytest.raises(OSError, match="memory"):
            _core.Mapping(size, alignment=1 << 62, base_page=BASE, page=BASE)
    with pytest.raises(ValueError, match=rf"^Mapping\(\): size={1 << 63} is out of range, 1 to "):
        _core.Mapping(1 << 63, alignment=BASE, base_page=BASE, page=BASE)


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (-1, 1),
        (0, 0),
        (0, -1),
        (0, MIB + 1),
        (MIB, 1),
        (1, MIB),
        (1 << 62, 1 << 62),
        (sys.maxsize, sys.maxsize),
    ],
)
def test_ranges_outside_are_refused(region, offset, size):
    for call in (region.scan, region.pass_over):
        with pytest.raises(ValueError, match="leave the"):
            call(offset, size)


def test_scan_tells_parts_apart():
    mapping = _core.Mapping(64 * BASE, alignment=BASE, base_page=BASE, page=BASE)
    assert mapping.scan(0, 64 * BASE) == {"present": 0, "huge": 0, "zero": 0, "swapped": 0}
    assert mapping.touch(True, 7) > 0
    assert mapping.scan(BASE, 63 * BASE)["present"] == 63 * BASE
    mapping.close()


# --- closing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OFFERED)
def test_closing_gives_the_memory_back(name):
    region = tp.Region(MIB, name)
    address = region.address
    assert is_mapped(address)
    assert region.close() is None
    assert not is_mapped(address)
    assert region.closed
    assert region.mapped_bytes == 0
    assert "closed" in repr(region)
    region.close()


USES = {
    "address": lambda region: region.address,
    "advise": lambda region: region.advise(0),
    "touch": lambda region: region.touch(False, 0),
    "populate": lambda region: region.populate(),
    "collapse": lambda region: region.collapse(),
    "pass_over": lambda region: region.pass_over(0, BASE),
    "scan": lambda region: region.scan(0, BASE),
    "backing": lambda region: region.backing(),
    "backing of a part": lambda region: region.backing(BASE),
    "check_backing": lambda region: region.check_backing(),
    "view": memoryview,
    "chase": lambda region: tp.chase(region, max_seconds=0.05),
    "chase of a part": lambda region: tp.chase(region, working_set="64K", max_seconds=0.05),
    "translation": lambda region: tp.translation(region, working_set="64K", max_seconds=0.05),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_region_says_that_it_is_closed(use):
    region = tp.Region(MIB)
    region.close()
    with pytest.raises(ValueError, match="closed"):
        USES[use](region)


def test_a_region_that_was_never_mapped_is_closed():
    region = tp.Region.__new__(tp.Region)
    assert region.closed
    with pytest.raises(ValueError, match="closed"):
        region.scan(0, 1)
    region.close()


def test_a_context_closes_whatever_happens():
    with pytest.raises(KeyboardInterrupt), tp.Region(MIB) as region:
        raise KeyboardInterrupt
    assert region.closed


@pytest.mark.parametrize("step", ["_advise", "_populate", "_warm", "_read_hugetlb_size", "check_backing"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ZeroDivisionError])
def test_what_goes_wrong_in_the_middle_leaves_no_mapping(monkeypatch, step, error):
    addresses = []

    def fail(region):
        addresses.append(region.address)
        raise error

    monkeypatch.setattr(tp.Region, step, fail)
    with pytest.raises(error):
        tp.Region(MIB)
    assert not is_mapped(*addresses)


# --- views -----------------------------------------------------------------------------------------------


def test_a_view_is_the_memory(region):
    view = np.frombuffer(region, np.uint64)
    assert view.nbytes == region.mapped_bytes
    assert view.ctypes.data == region.address
    assert view.flags.writeable
    view[:] = 7
    assert (np.frombuffer(region, np.uint64) == 7).all()


def test_a_viewed_region_is_neither_closed_nor_measured(region):
    view, second = np.frombuffer(region, np.uint8), memoryview(region)
    names = ("advise", "touch", "populate", "collapse", "pass_over", "chase", "translation")
    for use in (*(USES[name] for name in names), tp.Region.close):
        with pytest.raises(BufferError, match=r"view\(s\) alive"):
            use(region)
    assert region.backing().proof == "proved"
    del view
    with pytest.raises(BufferError, match="1 view"):
        region.close()
    second.release()
    assert tp.chase(region, max_seconds=0.05).low > 0


def test_memory_lives_as_long_as_its_views():
    region = tp.Region(MIB)
    address, view = region.address, np.frombuffer(region, np.uint8)
    del region
    gc.collect()
    view[:] = 3
    assert (view == 3).all()
    del view
    gc.collect()
    assert not is_mapped(address)


def test_memory_goes_with_the_last_reference():
    region = tp.Region(MIB)
    region.myself = region  # a cycle, for the collector
    address = region.address
    del region
    gc.collect()
    assert not is_mapped(address)


# --- threads ---------------------------------------------------------------------------------------------


def together(*calls):
    """Results or errors of calls that start at once, each in a thread."""
    found, barrier = [None] * len(calls), threading.Barrier(len(calls))

    def run(i):
        barrier.wait()
        try:
            found[i] = calls[i]()
        except Exception as error:
            found[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_two_threads_on_one_region_give_one_result_and_one_error(region):
    long = {"max_seconds": 1.0, "precision": 1e-9}
    found = together(lambda: tp.chase(region, **long), lambda: tp.chase(region, **long))
    errors = [one for one in found if isinstance(one, Exception)]
    assert [type(error) for error in errors] == [RuntimeError]
    assert "in use by another measurement" in str(errors[0])
    assert tp.chase(region, max_seconds=0.05, verify=True).low > 0


def test_threads_that_view_one_region_all_see_it(region):
    def view():
        for _ in range(1000):
            with memoryview(region) as seen:
                assert len(seen) == MIB
        return "done"

    assert together(*[view] * 4) == ["done"] * 4
    region.close()


def test_two_threads_on_two_regions_give_two_results(region):
    with tp.Region(MIB, "default") as other:
        found = together(*(lambda r=r: tp.chase(r, max_seconds=0.1) for r in (region, other)))
    assert [type(one) for one in found] == [tp.Measurement] * 2


def test_a_busy_region_refuses_every_other_use(region):
    done = []

    def measure():
        while not done:
            try:
                done.append(tp.chase(region, max_seconds=1.0, precision=1e-9))
            except RuntimeError:
                continue  # the other thread happened to be at it

    thread = threading.Thread(target=measure)
    thread.start()
    while not done:
        time.sleep(0.05)
        try:
            region.pass_over(0, BASE)
        except RuntimeError:
            break
    for name in ("advise", "touch", "populate", "pass_over", "chase"):
        with pytest.raises(RuntimeError, match="in use by another measurement"):
            USES[name](region)
    with pytest.raises(RuntimeError, match="in use by another measurement"):
        region.close()
    with pytest.raises(BufferError, match="being measured"):
        memoryview(region)
    assert not done, "the measurement ended before the test did"
    thread.join()
    assert done[0].low > 0


def test_many_threads_that_misuse_one_region_do_no_harm(region):
    def abuse(seed):
        for i in range(20):
            for use in (tp.chase, tp.translation):
                with contextlib.suppress(RuntimeError, BufferError):
                    use(region, working_set="256K", seed=seed + i, max_seconds=0.002)
            with contextlib.suppress(BufferError):
                np.frombuffer(region, np.uint8)[:] = 255
        return "done"

    assert together(*(lambda k=k: abuse(100 * k) for k in range(4))) == ["done"] * 4


# --- fork ------------------------------------------------------------------------------------------------

FORK = """
def in_child(function):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(write)
    text = open(read).read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(text)

def ranges(address):
    return [line for line in Path("/proc/self/maps").read_text().splitlines()
            if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)]
"""


def test_a_forked_child_has_no_region_and_does_no_harm(run_python):
    found = run_python(
        FORK
        + """
region = tp.Region(MIB, "base")
address = region.address
np.frombuffer(region, np.uint8)[:] = 9

def child():
    global region
    uses = [lambda: region.address, lambda: region.touch(False, 0), lambda: region.scan(0, BASE),
            lambda: region.pass_over(0, BASE), lambda: memoryview(region), lambda: region.backing(),
            lambda: tp.chase(region, max_seconds=0.05)]
    errors = [caught(use) for use in uses]
    inherited = ranges(address)
    own = tp.chase("64K", max_seconds=0.05).low > 0
    closed = caught(region.close), region.closed
    del region
    gc.collect()
    return [errors, inherited, own, closed]

seen = in_child(child)
whole = bool((np.frombuffer(region, np.uint8) == 9).all())
answer([seen, whole, tp.chase(region, max_seconds=0.05).faults["minor"]])
"""
    )
    (errors, inherited, own, closed), whole, faults = found
    for kind, text, _ in errors:
        assert kind == "RuntimeError"
        assert "create a Region in the child" in text
    assert inherited == []
    assert own
    assert closed == [None, True]
    assert whole
    assert faults == 0, "no copy on write"


def test_fork_during_a_measurement(run_python):
    found = run_python(
        FORK
        + """
region, results = tp.Region(MIB, "base"), []
def measure():
    results.append(tp.chase(region, max_seconds=1.0, precision=1e-9))
thread = threading.Thread(target=measure)
thread.start()
time.sleep(0.3)
seen = in_child(lambda: [caught(region.close), caught(lambda: region.address)])
thread.join()
answer([seen, results[0].low > 0, results[0].backing.proof])
"""
    )
    assert found[0][0] is None
    assert found[0][1][0] in ("ValueError", "RuntimeError")
    assert found[1:] == [True, "proved"]


# --- Ctrl-C ----------------------------------------------------------------------------------------------

INTERRUPT = """
def mappings():
    return Path("/proc/self/maps").read_text().count(chr(10))

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * BASE

sent = []
def interrupt_after(seconds):
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    sent.clear()
    timer = threading.Timer(seconds, send)
    timer.start()
    return timer

tp.chase("64K", max_seconds=0.05)  # what is loaded once is no leak
interrupt_after(60).cancel()
"""


@pytest.mark.no_asan
@pytest.mark.parametrize("name", [name for name in OFFERED if name in ("base", "thp", "collapse")])
def test_ctrl_c_while_populating(run_python, name):
    found = run_python(
        INTERRUPT
        + f"""
before, rest, waits = mappings(), resident(), []
for delay in (0.02, 0.05, 0.1, 0.15, 0.2, 0.01):
    timer = interrupt_after(delay)
    try:
        try:
            tp.Region(512 * MIB, {name!r}).close()
            timer.join()
            time.sleep(0.1)
        finally:
            timer.join()
    except KeyboardInterrupt:
        waits.append(time.monotonic() - sent[0])
gc.collect()
usable = tp.chase("64K", {name!r}, max_seconds=0.05).low > 0
answer([waits, mappings() - before, resident() - rest, usable])
"""
    )
    waits, mappings, resident, usable = found
    assert len(waits) == 6
    assert max(waits) < 1
    assert mappings <= 3
    assert resident < 64 * MIB
    assert usable


@pytest.mark.no_asan
def test_ctrl_c_while_closing(run_python):
    """What an interrupt kept close() from giving back, a second close() does."""
    found = run_python(
        INTERRUPT
        + """
before, rest, waits, closed, left = mappings(), resident(), [], [], []
for delay in (0.001, 0.005, 0.01, 0.02):
    region = tp.Region(512 * MIB, "base")
    timer = interrupt_after(delay)
    try:
        try:
            region.close()
            timer.join()
            time.sleep(0.1)
        finally:
            timer.join()
    except KeyboardInterrupt:
        waits.append(time.monotonic() - sent[0])
    region.close()
    closed.append(region.closed and caught(region.scan, 0, BASE)[0] == "ValueError")
    left.append(resident() - rest)
answer([waits, mappings() - before, max(left), closed])
"""
    )
    waits, mappings, resident, closed = found
    assert len(waits) == 4
    assert max(waits) < 1
    assert mappings <= 3
    assert resident < 64 * MIB
    assert closed == [True] * 4


# --- leaks -----------------------------------------------------------------------------------------------


@pytest.mark.no_asan
def test_nothing_leaks_over_many_lives(run_python):
    found = run_python(
        INTERRUPT
        + """
def live(name):
    with tp.Region(4 * BASE, name) as region:
        region.backing()
        memoryview(region).release()
        caught(region.backing, 1 << 40)
        caught(region.scan, -1, 1)
    caught(tp.Region, "1MB")
    caught(tp.Region, 1 << 61)
    caught(tp.Region, BASE, "nothing")
    caught(region.scan, 0, 1)
    tp.Region(BASE, name)

def round(count):
    for _ in range(count):
        live("base"), live("default")
    gc.collect()
    return mappings(), resident(), sys.getrefcount(tp.Region), len(os.listdir("/proc/self/fd"))

first, last = round(20), round(60)
answer([b - a for a, b in zip(first, last)])
"""
    )
    mappings, resident, references, files = found
    assert mappings <= 1
    assert resident < 2 * MIB
    assert references <= 2
    assert files == 0


@pytest.mark.no_asan
def test_memory_is_given_back(run_python):
    found = run_python(
        INTERRUPT
        + """
rest = resident()
held = []
for name in ("base", *(["thp"] if paging.thp_mode() in ("always", "madvise") else [])):
    with tp.Region(64 * MIB, name):
        held.append(resident() - rest)
    held.append(resident() - rest)
answer(held)
"""
    )
    assert all(size >= 60 * MIB for size in found[::2])
    assert all(size < 16 * MIB for size in found[1::2])
