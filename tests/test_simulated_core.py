"""The core whose machines are simulated: what it costs there is what the description says, and nothing leaks.

The machine is the one of two levels to teach with: 8 entries, then 32 of 4 ways; a walk is 10 cycles and one
load of a table entry from the first cache; 2 GHz.
"""

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from leaks import grown, open_files, refused
from threads import in_threads

from tlbprobe import _core
from tlbprobe.cores.description import describe
from tlbprobe.record import RECORDS, SAMPLE_BYTES

if b"__asan_" in Path(_core.__file__).read_bytes():
    pytest.skip(
        "the address sanitizer and the hooks of the kernels exclude each other", allow_module_level=True
    )

_simulated = importlib.import_module("tlbprobe._simulated")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE, LINE = 4096, 64
TWO_LEVELS = describe("two-levels")
HIT, SECOND, WALK = 4 / 2, (4 + 8) / 2, (4 + 10 + 4) / 2  # ns
READ = 4  # ns of reading the clock
PROMPT = 1.0  # seconds in which Ctrl-C must be answered, generously: 0.1 s is the rule on an idle machine
WITHOUT_HUGE_PAGES = 15  # advice of madvise(2)
FIELDS = {"ns", "cpu_ns", "minor", "major", "switches"}
SPREAD = {"pages": 1, "lines": PAGE // LINE, "line": LINE, "seed": 1, "chains": 1, "store": 0}


def machine(seed=1, **changes):
    numbers = TWO_LEVELS.numbers(seed)
    for place, value in changes.items():
        numbers[int(place[1:])] = value
    return _simulated.Machine(numbers)


def mapping(size=MIB, on=(), page=PAGE, true_page=None, **more):
    made = _core.Mapping(size, alignment=page, base_page=PAGE, page=page, **more)
    for one in on:
        one.map(made.address, made.mapped_bytes, page, true_page or page)
    return made


def spread(region, nodes, offset=0, spacing=PAGE, **changes):
    given = {"nodes": nodes, "spacing": spacing, "window": nodes, **SPREAD, **changes}
    return region, "chase", offset, nodes * spacing, given


def packed(region, nodes, offset=0):
    return spread(region, nodes, offset, LINE, lines=1)


@pytest.fixture
def on():
    return machine()


@pytest.fixture
def region(on):
    return mapping(on=[on])


@pytest.fixture
def session(region, on):
    with _simulated.Session([spread(region, 64)], on) as session:
        yield session


def long(session):
    """Some seconds of work in one slice."""
    return session.measure((100_000_000,), 1)


# --- what it costs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pages", "ns"), [(1, HIT), (8, HIT), (9, SECOND), (32, SECOND), (64, WALK)])
def test_an_access_takes_what_the_description_says(on, region, pages, ns):
    with _simulated.Session([spread(region, pages)], on) as session:
        measured = session.measure((1000,), 20)["ns"]
    assert measured / 1000 == pytest.approx(ns, rel=0.01)


@pytest.mark.parametrize(("true_page", "ns"), [(2 * MIB, HIT), (PAGE, WALK)])
def test_huge_pages_are_what_they_truly_are(on, true_page, ns):
    region = mapping(2 * MIB, [on], 2 * MIB, true_page)
    with _simulated.Session([spread(region, 64)], on) as session:
        assert session.measure((1000,), 20)["ns"] / 1000 == pytest.approx(ns, rel=0.01)


@pytest.mark.smoke
def test_two_parts_take_turns(on, region):
    with _simulated.Session([spread(region, 64), packed(region, 64, 512 * KIB)], on) as session:
        assert session.laps == session.verify() == (64, 64)
        found = session.measure((1000, 2000), 30)
    assert found.keys() == FIELDS | {"witness_ns"}
    assert all(array.dtype == np.int64 for array in found.values())
    assert all(found[name].shape == (2, 30) for name in FIELDS)
    far, near = found["ns"] / [[1000], [2000]]
    assert far == pytest.approx(WALK, rel=0.01)
    assert near == pytest.approx(HIT, rel=0.01)
    assert (found["cpu_ns"] - found["ns"] == 2 * READ).all()
    assert (found["witness_ns"] == _simulated.WITNESS_ADDS / 2 + READ).all()
    assert not any(found[name].any() for name in ("minor", "major", "switches"))


def test_the_same_seed_gives_the_same_times():
    def times(seed):
        on = machine(seed)
        with _simulated.Session([spread(mapping(16 * MIB, [on]), 4096)], on) as session:
            return session.measure((777,), 50)["ns"].tolist(), on.clock_ns()

    assert times(1) == times(1)
    assert times(1) != times(2)


def test_a_long_slice_comes_out_as_it_would_in_one_piece(on, region):
    """Though it is run in pieces, which end between two rounds of all chains."""
    with _simulated.Session([spread(region, 63, chains=3)], on) as session:
        session.measure((9999,), 1)
        ((one,),) = session.measure((30_000_000 // 100,), 1)["ns"].tolist()
        many = session.measure((3000,), 100)["ns"]
    assert many.sum() - 100 * READ == pytest.approx(one - READ, rel=0.001)


# --- counters --------------------------------------------------------------------------------------------

SEEN = ("loads", "stores", "prefetches", "jumps")
PROBES = {record.kernel: record for record in RECORDS.values() if record.name == record.kernel}


def counted(session, on, names, accesses, slices=5):
    with _simulated.CounterGroup(names, on) as group:
        return session.measure(accesses, slices, (group,))["counted"]


@pytest.mark.parametrize("kernel", PROBES)
@pytest.mark.parametrize("accesses", [1, 999, 10_000])
def test_a_machine_sees_what_an_access_is(on, kernel, accesses):
    """No access of a kernel goes unseen, and none is seen that is its own business: as its record says."""
    sample = PROBES[kernel].sample
    region = mapping(2 * SAMPLE_BYTES, [on])
    if sample.word:
        at, word = sample.word
        np.frombuffer(region, np.uint64)[at // 8] = word
    with _simulated.Session([(region, kernel, 0, SAMPLE_BYTES, sample.fits)], on) as session:
        ((*rows,),) = counted(session, on, SEEN, (accesses,))[:, :, 2:].tolist()
    for row in rows:
        for name, found in zip(SEEN, row, strict=True):
            each = sample.does.get(name, 0)
            assert found >= accesses if each is None else found == each * accesses, name


def test_the_kernels_are_those_of_the_other_core():
    assert _simulated.kernels() == _core.kernels()
    assert _simulated.JUMP_REACH == _core.JUMP_REACH
    assert _simulated.WITNESS_ADDS == _core.WITNESS_ADDS
    assert _simulated.EVENTS_MOST == _core.EVENTS_MOST


def test_walks_are_the_misses_of_the_last_level(on, region):
    names = ["walks.data", "tlb_misses.data.2", "tlb_misses.data.0", "walk_active", "cycles", "loads"]
    with _simulated.Session([spread(region, 64), packed(region, 64, 512 * KIB)], on) as session:
        far, near = counted(session, on, names, (1000, 1000))
    enabled, running, walks, misses, first, active, cycles, loads = far.T
    assert (enabled == running).all()
    assert (enabled >= 1000 * WALK).all()
    assert (walks == 1000).all()
    assert (misses == 1000).all()
    assert (first == 1000).all()
    assert (active == 14 * 1000).all()
    assert cycles / 1000 == pytest.approx(2 * WALK, rel=0.01)
    assert (loads == 1000).all()
    assert (near[:, 2] == 0).all()


def test_counters_have_names(on, region):
    before = on.counters()
    assert tuple(before) == _simulated.COUNTERS
    assert set(before) > {
        "loads",
        "tlb_hits.data.0",
        "tlb_misses.code.7",
        "cache_hits.tables.8",
        "walks.code",
    }
    config = (Path(__file__).parents[1] / "csrc" / "simulated" / "model.h").read_text()
    struct = re.search(r"struct tlb_model_counters \{(.*?)\};", config, re.DOTALL)[1]
    fields = re.findall(r"\b(\w+)(?:\[[^;,]*\])?[,;]", re.sub(r"/\*.*?\*/", "", struct, flags=re.DOTALL))
    assert list(dict.fromkeys(name.split(".")[0] for name in before)) == fields
    with _simulated.Session([spread(region, 64)], on) as session:
        session.measure((100,), 1)
    after = on.counters()
    changed = {name for name in after if after[name] != before[name]}
    assert {"loads", "walks.data", "cache_hits.data.0", "cache_hits.tables.0", "cycles"} <= changed
    assert not {name for name in changed if re.search(r"stores|jumps|code|\.[4567]$", name)}


def test_reading_counters_takes_no_time(on, region):
    def end(groups):
        one = machine()
        one.map(region.address, region.mapped_bytes, PAGE, PAGE)
        opened = tuple(_simulated.CounterGroup(["walks.data"], one) for _ in range(groups))
        for group in opened:
            group.enable()
            for _ in range(10):
                group.read()
        one.counters()
        return one.clock_ns()

    assert end(0) == end(4) == READ


def test_a_group_counts_while_it_is_enabled(on, session):
    with _simulated.CounterGroup(["loads", "walks.data"], on) as group:
        session.measure((10,), 1)
        assert group.read() == (0, 0, (0, 0))
        group.enable()
        group.enable()
        session.measure((100,), 1)
        group.disable()
        session.measure((1000,), 1)
        enabled, running, values = group.read()
        assert enabled == running > 0
        assert values[0] == 64 + 100  # warming, and the slice
        group.reset()
        assert group.read() == (enabled, running, (0, 0))
        group.enable()
        group.reset()
        session.measure((100,), 1)
        assert group.read()[2][0] == 164
        assert group.read()[0] > enabled
    with pytest.raises(ValueError, match="closed"):
        group.read()
    group.close()


def test_groups_of_several_sizes(on, region):
    names = list(_simulated.COUNTERS)
    groups = [_simulated.CounterGroup(names[at : at + 16], on) for at in range(0, len(names), 16)]
    with _simulated.Session([spread(region, 64)], on) as session:
        counted = session.measure((100,), 3, tuple(groups))["counted"]
    assert counted.shape == (1, 3, len(names) + 2 * len(groups))
    assert counted[0, :, 2].tolist() == [100] * 3  # loads come first


# --- the clock -------------------------------------------------------------------------------------------


def test_the_clock_is_the_machines(on):
    assert on.clock_calibrate() == (READ, READ)
    before = on.clock_ns()
    assert on.clock_ns() == before + READ
    assert on.clock_moment() == (before + 2 * READ,) * 3
    begin = time.perf_counter()
    on.clock_wait(1000)
    assert time.perf_counter() - begin < 5
    assert on.clock_ns() == before + 3 * READ + 1000 * 10**9
    assert machine().clock_ns() == READ, "another machine has a clock of its own"


@pytest.mark.parametrize(
    ("seconds", "error"),
    [(-1e-9, ValueError), (float("nan"), ValueError), (1e6, ValueError), ("1", TypeError)],
)
def test_waits_that_make_no_sense_are_refused(on, seconds, error):
    on.clock_wait(50_000)
    with pytest.raises(error):
        on.clock_wait(seconds)
    with pytest.raises(ValueError, match="ends after 100000"):
        on.clock_wait(50_001)
    on.clock_wait(49_999)


# --- what is refused -------------------------------------------------------------------------------------


def test_wrong_numbers_are_named():
    for place, value, message in ((0, 0, "ghz: must be"), (7, 0.5, "overlap.window: must be a whole number")):
        with pytest.raises(ValueError, match=re.escape(message)):
            machine(**{f"_{place}": value})
    numbers = TWO_LEVELS.numbers(1)
    for wrong in (numbers[:-1], [*numbers, 0.0], []):
        with pytest.raises(ValueError, match=f"541 numbers, not {len(wrong)}"):
            _simulated.Machine(wrong)
    for wrong in (None, 1, [None] * 541, ["1"] * 541):
        with pytest.raises(TypeError):
            _simulated.Machine(wrong)
    with pytest.raises(TypeError):
        _simulated.Machine(numbers=numbers)


def test_ranges_that_cannot_be_are_named(on, region):
    address = region.address
    for given, message in (
        ((address, PAGE, PAGE, PAGE), "overlaps another"),
        ((1 << 44, PAGE, 5000, PAGE), "powers of two"),
        ((1 << 44, PAGE, PAGE, 2048), "no less than the base page"),
        ((1 << 44, 0, PAGE, PAGE), "not empty"),
    ):
        with pytest.raises(ValueError, match=message):
            on.map(*given)
    with pytest.raises(OSError, match="space"):
        on.map(1 << 50, (1 << 48) - GIB, PAGE, PAGE)
    with pytest.raises(ValueError, match=r"no range .* begins there"):
        on.unmap(address + PAGE)
    for wrong, error in ((-1, OverflowError), (1 << 64, OverflowError), (1.0, TypeError), (None, TypeError)):
        with pytest.raises(error):
            on.map(wrong, PAGE, PAGE, PAGE)
        with pytest.raises(error):
            on.unmap(wrong)
    on.unmap(address)
    on.map(address, region.mapped_bytes, PAGE, PAGE)


def test_memory_that_is_not_mapped_there_is_refused(on, session, region):
    session.measure((100,), 1)
    on.unmap(region.address)
    for _ in range(2):
        with pytest.raises(ValueError, match="not mapped in its machine"):
            session.measure((100,), 10)
    on.map(region.address, 32 * PAGE, PAGE, PAGE)
    with pytest.raises(ValueError, match="not mapped in its machine"):
        session.measure((100,), 10)
    on.unmap(region.address)
    on.map(region.address, region.mapped_bytes, PAGE, PAGE)
    assert session.measure((100,), 10)["ns"].shape == (1, 10)
    assert session.verify() == session.laps


def test_parts_are_those_of_the_other_core(on, region):
    part = spread(region, 64)
    for given, error in (
        (([part],), TypeError),
        (([part], None), TypeError),
        (([part], region), TypeError),
        (([("no mapping", *part[1:])], on), TypeError),
        (([part, part], on), ValueError),
        (([], on), ValueError),
    ):
        with pytest.raises(error):
            _simulated.Session(*given)
    with pytest.raises(TypeError):
        _simulated.Session(parts=[part], machine=on)
    with _simulated.Session([part], on) as session:
        with pytest.raises(RuntimeError, match="in use"):
            _core.Session([part])
        assert session.verify() == session.laps


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ([], ValueError, "1 to 16"),
        (_simulated.COUNTERS[:17], ValueError, "1 to 16"),
        (["wlaks"], ValueError, "no counter 'wlaks'"),
        ([1], TypeError, "a name"),
        (None, TypeError, "not iterable"),
    ],
)
def test_counters_that_there_are_not(on, names, error, message):
    with pytest.raises(error, match=message):
        _simulated.CounterGroup(names, on)
    with pytest.raises(TypeError):
        _simulated.CounterGroup(["loads"], None)


def test_groups_count_the_machine_of_the_session(on, session):
    other = _simulated.CounterGroup(["loads"], machine())
    with pytest.raises(ValueError, match="another machine"):
        session.measure((100,), 1, (other,))
    with pytest.raises(TypeError, match="tuple of CounterGroup"):
        session.measure((100,), 1, (_core,))
    group = _simulated.CounterGroup(["loads"], on)
    with pytest.raises(RuntimeError, match="in use"):
        session.measure((100,), 1, (group, group))
    assert session.measure((100,), 1, (group,))["counted"][0, 0, 2] == 100


def test_types_cannot_be_bent(on):
    for type_ in (_simulated.Machine, _simulated.Session, _simulated.CounterGroup):
        assert type_.__module__ == "tlbprobe._simulated"
        with pytest.raises(TypeError):
            type("Mine", (type_,), {})
        with pytest.raises(TypeError):
            type_.close = None


# --- threads, signals and processes ----------------------------------------------------------------------


def test_a_machine_serves_one_call_at_a_time(on, region):
    sessions = [_simulated.Session([spread(mapping(on=[on]), 64)], on) for _ in range(2)]
    outcomes = in_threads(*[lambda one=one: one.measure((3_000_000,), 1) for one in sessions])
    assert sorted(type(each).__name__ for each in outcomes) == ["RuntimeError", "dict"], outcomes
    assert "this machine is in use" in str(next(one for one in outcomes if isinstance(one, RuntimeError)))
    for one in sessions:
        one.measure((100,), 1)


def test_every_call_on_a_machine_in_use_is_refused(on, session, region):
    group = _simulated.CounterGroup(["loads"], on)
    calls = [
        on.clock_ns,
        on.clock_moment,
        on.clock_calibrate,
        on.counters,
        lambda: on.clock_wait(1),
        lambda: on.map(1 << 44, PAGE, PAGE, PAGE),
        lambda: on.unmap(region.address),
        group.read,
        group.enable,
    ]

    def late(call):
        time.sleep(0.1)
        call()

    result, *others = in_threads(
        lambda: session.measure((10_000_000,), 1), *[lambda call=call: late(call) for call in calls]
    )
    assert result["ns"].shape == (1, 1)
    assert all(isinstance(each, RuntimeError) and "in use" in str(each) for each in others), others


def test_two_machines_in_two_threads_give_what_each_gives_alone():
    def times():
        one = machine()
        with _simulated.Session([spread(mapping(4 * MIB, [one]), 1024)], one) as session:
            return session.measure((2000,), 300)["ns"].tolist()

    alone = times()
    assert in_threads(times, times) == [alone, alone]


def test_both_cores_at_the_same_time(on, session):
    there = mapping()
    with _core.Session([packed(there, 1024)]) as native:
        real, simulated = in_threads(
            lambda: native.measure((1_000_000,), 20), lambda: session.measure((100_000,), 20)
        )
    assert simulated["ns"] / 100_000 == pytest.approx(WALK, rel=0.01)
    assert (real["ns"] > 0).all()
    assert on.counters()["loads"] == 64 + 20 * 100_000


def alarmed(handler, seconds, call, every=0.0):
    """Call with a handler of signals that come meanwhile."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds, every)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupted(call):
    """Seconds from a signal to the exception of its handler."""

    def handler(*_):
        raise KeyboardInterrupt

    due = time.perf_counter() + 0.1
    with pytest.raises(KeyboardInterrupt):
        alarmed(handler, 0.1, call)
    return time.perf_counter() - due


def test_ctrl_c_in_a_long_slice(on, session):
    assert interrupted(lambda: session.measure((1 << 40,), 1)) < PROMPT
    assert on.counters()["loads"] > 0
    assert session.measure((1000,), 5)["ns"] / 1000 == pytest.approx(WALK, rel=0.01)
    assert session.verify() == session.laps


def test_ctrl_c_while_warming_and_with_counters(on, region):
    nodes = 1 << 14
    large = mapping(nodes * PAGE, [on])
    parts = [spread(large, nodes), packed(region, 64)]
    group = _simulated.CounterGroup(["loads"], on)
    with _simulated.Session(parts, on) as session:
        assert interrupted(lambda: session.measure((1 << 40, 100), 1000, (group,))) < PROMPT
        assert session.measure((1000, 1000), 5, (group,))["counted"][0, 0, 2] == 1000


def test_ctrl_c_while_time_passes():
    """Four processes of a million bursts a second: nobody could wait for that."""
    numbers = TWO_LEVELS.numbers(1)
    first = 541 - 8 * 3 - 2 - 2 - 4 * 6
    for burst in range(4):
        numbers[first + 6 * burst : first + 6 * burst + 6] = [1e6, 1e-3, 1e-3, 2, 0, 0]
    busy = _simulated.Machine(numbers)
    assert interrupted(lambda: busy.clock_wait(10_000)) < PROMPT
    assert busy.clock_ns() > 0


def test_a_signal_handler_may_use_other_machines_and_not_this_one(on, session):
    """While the measurement polls: the outer one goes on, and nothing of it is different."""
    expected = session.measure((2_000_000,), 2)["ns"].tolist()
    fresh, outcomes = machine(), []
    region = mapping(on=[fresh])

    def handler(*_):
        other = machine()
        other.map(region.address, region.mapped_bytes, PAGE, PAGE)
        with _simulated.Session([spread(region, 9)], other) as inner:
            outcomes.append(inner.measure((1000,), 3)["ns"].mean() / 1000)
        refused(fresh.clock_ns, RuntimeError)

    again = mapping(on=[fresh])
    with _simulated.Session([spread(again, 64)], fresh) as outer:
        found = alarmed(handler, 0.02, lambda: outer.measure((2_000_000,), 2), 0.02)
    assert found["ns"].tolist() == expected
    assert len(outcomes) > 2
    assert np.array(outcomes) == pytest.approx(SECOND, rel=0.01)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_has_machines_and_no_memory(on, session):
    expected = on.clock_ns() + READ
    child = os.fork()
    if child == 0:
        status = 1
        try:
            session.measure((100,), 1)
        except RuntimeError as error:
            with _simulated.Session([spread(mapping(on=[on]), 64)], on) as own:
                ns = own.measure((1000,), 5)["ns"] / 1000
            right = abs(ns - WALK).max() < 0.01 * WALK and on.clock_ns() > expected
            status = 0 if right and "belongs to process" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert on.clock_ns() == expected
    assert session.verify() == session.laps


# --- memory ----------------------------------------------------------------------------------------------


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_only_the_nodes_take_memory(on):
    """Thousands of nodes, gigabytes apart: a machine has a terabyte that this one has not."""
    nodes, spacing = 1 << 10, GIB
    region = mapping(nodes * spacing, [on], sparse=True)
    region.advise(WITHOUT_HUGE_PAGES)
    before = resident()
    with _simulated.Session([spread(region, nodes, spacing=spacing)], on) as session:
        session.pass_over()
        session.measure((10_000,), 5)
        assert session.verify() == (nodes,)
    assert resident() - before < 4 * nodes * os.sysconf("SC_PAGESIZE")


def test_a_pass_touches_nothing(on):
    region = mapping(GIB, [on], sparse=True)
    region.advise(WITHOUT_HUGE_PAGES)
    part = (region, "stride", 0, GIB, {"stride": GIB - 8, "access": 0})
    before = resident()
    with _simulated.Session([part], on) as session:
        session.pass_over()
    assert resident() - before < MIB


def with_session(region, on, use):
    with _simulated.Session([spread(region, 8)], on) as session:
        return use(session)


def with_group(on, use):
    with _simulated.CounterGroup(["loads", "walks.data"], on) as group:
        return use(group)


def mapped_again(on):
    on.map(1 << 44, MIB, PAGE, PAGE)
    refused(lambda: on.map(1 << 44, MIB, PAGE, PAGE), ValueError)
    on.unmap(1 << 44)


def measured(session, on):
    session.measure((10,), 50)
    refused(lambda: session.measure((0,), 50), ValueError)
    with_group(on, lambda group: session.measure((10,), 50, (group,)))
    refused(lambda: session.measure((10,), 50, (None,)), TypeError)


# Every callable and attribute, each of which leaves nothing behind, nor does its refusal.
LEAKS = {
    "kernels": lambda *_: _simulated.kernels(),
    "Machine": lambda *_: (machine(), refused(lambda: machine(_0=0), ValueError)),
    "Machine.map": lambda _, on: mapped_again(on),
    "Machine.unmap": lambda _, on: refused(lambda: on.unmap(1 << 44), ValueError),
    "Machine.clock_ns": lambda _, on: on.clock_ns(),
    "Machine.clock_wait": lambda _, on: (on.clock_wait(0), refused(lambda: on.clock_wait(-1), ValueError)),
    "Machine.clock_moment": lambda _, on: on.clock_moment(),
    "Machine.clock_calibrate": lambda _, on: on.clock_calibrate(),
    "Machine.counters": lambda _, on: on.counters(),
    "Session": lambda region, on: (
        _simulated.Session([spread(region, 8)], on).laps,
        refused(lambda: _simulated.Session([spread(region, 0)], on), ValueError),
        refused(lambda: _simulated.Session([spread(region, 8), None], on), TypeError),
        refused(lambda: _simulated.Session([spread(region, 8)], None), TypeError),
    ),
    "Session.counts": lambda region, on: with_session(region, on, lambda session: session.counts),
    "Session.laps": lambda region, on: with_session(region, on, lambda session: session.laps),
    "Session.pass_over": lambda region, on: with_session(region, on, lambda session: session.pass_over()),
    "Session.verify": lambda region, on: with_session(region, on, lambda session: session.verify()),
    "Session.measure": lambda region, on: with_session(region, on, lambda session: measured(session, on)),
    "Session.close": lambda region, on: _simulated.Session([spread(region, 8)], on).close(),
    "Session.__enter__": lambda region, on: with_session(region, on, id),
    "Session.__exit__": lambda region, on: with_session(region, on, id),
    "CounterGroup": lambda _, on: (
        _simulated.CounterGroup(["loads"], on),
        refused(lambda: _simulated.CounterGroup(["loads", "none"], on), ValueError),
        refused(lambda: _simulated.CounterGroup([None], on), TypeError),
    ),
    "CounterGroup.enable": lambda _, on: with_group(on, lambda group: group.enable()),
    "CounterGroup.disable": lambda _, on: with_group(on, lambda group: group.disable()),
    "CounterGroup.reset": lambda _, on: with_group(on, lambda group: group.reset()),
    "CounterGroup.read": lambda _, on: with_group(on, lambda group: group.read()),
    "CounterGroup.close": lambda _, on: with_group(on, lambda group: group.close()),
    "CounterGroup.__enter__": lambda _, on: with_group(on, id),
    "CounterGroup.__exit__": lambda _, on: with_group(on, id),
}


def test_the_list_of_leak_tests_is_complete():
    found = {name for name, value in vars(_simulated).items() if callable(value)}
    for owner in (_simulated.Machine, _simulated.Session, _simulated.CounterGroup):
        members = {name for name in vars(owner) if name[0] != "_" or name in ("__enter__", "__exit__")}
        found |= {f"{owner.__name__}.{name}" for name in members}
    assert found == set(LEAKS)


@pytest.mark.parametrize("name", LEAKS)
def test_nothing_leaks(on, region, name):
    times = {"Machine": 400, "Session.measure": 400}.get(name, 4000)
    before = open_files()
    assert any(grown(lambda: LEAKS[name](region, on), times) < 16 * times for _ in range(3))
    assert open_files() == before


def test_references_are_given_back(on, region):
    group, part = _simulated.CounterGroup(["loads"], on), spread(region, 8)
    before = sys.getrefcount(on), sys.getrefcount(region), sys.getrefcount(group)
    for _ in range(10):
        with _simulated.Session([part], on) as session:
            session.measure((10,), 1, (group,))
            assert sys.getrefcount(on) == before[0] + 1
        refused(lambda: _simulated.Session([part, part], on), ValueError)
    del session
    assert (sys.getrefcount(on), sys.getrefcount(region), sys.getrefcount(group)) == before
    del group
    assert sys.getrefcount(on) == before[0] - 1


# --- the object ------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm to list symbols with")
def test_the_hooks_are_hidden_and_none_is_missing():
    def listed(*options):
        command = ["nm", "--dynamic", *options, _simulated.__file__]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.split()[-1] for line in lines]

    assert listed("--defined-only") == ["PyInit__simulated"]
    assert not [name for name in listed("--undefined-only") if re.search("tsan|tlb_", name)]
