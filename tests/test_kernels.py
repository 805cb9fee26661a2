"""The contract over all kernels, and leaks: of every kernel and of every function of _core."""

import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from leaks import grown, open_files, refused

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.machine import paging
from tlbprobe.record import RECORDS, SAMPLE_BYTES

HEADER = (Path(__file__).parents[1] / "csrc" / "tlbprobe.h").read_text()
KERNELS = _core.kernels()
SIZE = SAMPLE_BYTES
BASE = paging.base_page_size()

PROBES = {record.kernel: record for record in RECORDS.values() if record.name == record.kernel}
FIT = {name: record.sample.fits for name, record in PROBES.items()}
LEAVE = {name: record.sample.leaves for name, record in PROBES.items()}
NOTHING_TO_VERIFY = {name for name, record in PROBES.items() if "verify" not in record.parameters}


@pytest.fixture(scope="module")
def region():
    with tp.Region(2 * SIZE) as region:
        yield region


@pytest.fixture(params=sorted(KERNELS))
def kernel(request):
    return request.param


def fit(region, kernel, offset=0):
    """A part of a session, with what its kernel reads put there."""
    if PROBES[kernel].sample.word:
        at, word = PROBES[kernel].sample.word
        np.frombuffer(region, np.uint64)[(offset + at) // 8] = word
    return region, kernel, offset, SIZE, FIT[kernel]


def test_the_lists_agree():
    listed = re.search(r"#define TLB_KERNELS\(X\)((?: X\(\w+\))+)", HEADER)[1]
    assert re.findall(r"X\((\w+)\)", listed) == list(KERNELS)
    files = (Path(__file__).parents[1] / "csrc" / "kernels").glob("*.c")
    assert {path.stem for path in files} == set(KERNELS)
    assert set(PROBES) == set(KERNELS)
    assert all(getattr(tp, name) is record.function for name, record in RECORDS.items())
    assert all((Path(__file__).parent / f"test_{name}.py").exists() for name in RECORDS)


WRONG = {
    "pages": "huge",
    "strict": 1,
    "verify": 1,
    "cpu": -1,
    "precision": 0,
    "max_seconds": 0,
    "counters": "x",
}


@pytest.mark.parametrize(
    ("record", "name", "value"),
    [
        (record, name, value)
        for record in RECORDS.values()
        for name, value in {**WRONG, "counters": "x", **record.sample.wrong}.items()
        if name in record.parameters
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_wrong_parameter_is_named_before_anything_is_mapped(monkeypatch, record, name, value):
    monkeypatch.setattr(_core.Mapping, "advise", lambda *_: pytest.fail("it was mapped"))
    with pytest.raises((ValueError, TypeError), match=rf"\b{name}="):
        record.function(record.sample.first, **{name: value})


def test_parameters_have_names_and_room(kernel):
    names = KERNELS[kernel]
    room = int(re.search(r"TLB_PARAMETERS = (\d+)", HEADER)[1])
    assert 1 <= len(names) <= room
    assert len(set(names)) == len(names)
    assert set(FIT[kernel]) == set(names)


def test_every_parameter_is_needed_and_no_other_taken(region, kernel):
    for name in KERNELS[kernel]:
        less = {other: value for other, value in FIT[kernel].items() if other != name}
        with pytest.raises(TypeError, match=f"needs the parameter '{name}'"):
            _core.Session([(region, kernel, 0, SIZE, less)])
    with pytest.raises(TypeError, match=r"parameters, .* were given"):
        _core.Session([(region, kernel, 0, SIZE, FIT[kernel] | {"another": 1})])


def test_no_byte_beyond_its_own_is_written(region, kernel):
    with memoryview(region) as view:
        view[:] = b"\x5a" * len(view)
    with _core.Session([fit(region, kernel, SIZE // 2)]) as session:
        session.measure((1000,), 10)
        session.pass_over()
    memory = np.frombuffer(region, np.uint8)
    assert (memory[: SIZE // 2] == 0x5A).all()
    assert (memory[SIZE // 2 + SIZE : 2 * SIZE] == 0x5A).all()


def test_parameters_that_leave_the_bytes_are_refused_unwritten(region, kernel):
    before = np.frombuffer(region, np.uint8).copy()
    with pytest.raises(ValueError, match=f"'{kernel}' leave its {SIZE} bytes"):
        _core.Session([(region, kernel, 0, SIZE, LEAVE[kernel])])
    assert (np.frombuffer(region, np.uint8) == before).all()


def test_a_lap_is_what_is_counted(region, kernel):
    with _core.Session([fit(region, kernel)]) as session:
        assert session.laps[0] >= 1
        if kernel in NOTHING_TO_VERIFY:
            with pytest.raises(NotImplementedError, match=kernel):
                session.verify()
            return
        assert session.verify() == session.laps
        session.measure((session.laps[0] + 1,), 3)
        assert session.verify() == session.laps


def test_what_accesses_find_is_what_they_must_find(region, kernel):
    """Of kernels that check themselves, as many as accesses there were: warming, then the slices."""
    with _core.Session([fit(region, kernel)]) as session:
        assert session.counts == ((0, 0),)
        session.measure((100,), 3)
        ((expected, found),) = session.counts
        assert expected == found


def test_memory_is_ordinary_again_afterwards(region, kernel):
    for _ in range(3):
        _core.Session([fit(region, kernel)]).close()
        with memoryview(region) as view:
            view[:SIZE] = b"\xa5" * SIZE
            assert bytes(view[:SIZE]) == b"\xa5" * SIZE
    refused(lambda: _core.Session([(region, kernel, 0, SIZE, LEAVE[kernel])]), ValueError)
    with memoryview(region) as view:
        view[:SIZE] = bytes(SIZE)


def test_probe_takes_what_every_probe_takes(kernel):
    common = {"seed": 1, "precision": 0.5, "max_seconds": 0.02, "counters": ["page-faults"]}
    measured = PROBES[kernel].function(PROBES[kernel].sample.first, "base", **common)
    assert measured.probe == kernel
    assert {"bytes", "pages", "seed", "cpu", "precision", "max_seconds"} <= measured.params.keys()
    assert measured.refused.keys() | measured.counters.keys() == {"page-faults"}


# --- leaks


def part(region, **changes):
    return region, "chase", 0, SIZE, FIT["chase"] | changes


def with_session(region, use):
    with _core.Session([part(region)]) as session:
        return use(session)


def unnamed():
    with contextlib.suppress(OSError):  # not every file system can do it
        os.close(_core.open_unnamed(tempfile.gettempdir(), 0))


def group(*more):
    return _core.CounterGroup([(1, 2, 0, 0), *more])


def with_group(use):
    with group((1, 1, 0, 0)) as counters:
        return use(counters)


def mapping(region):
    page = region.base_page
    return _core.Mapping(4 * page, alignment=page, base_page=page, page=page)


PLAIN = {"size": SIZE, "alignment": BASE, "base_page": BASE, "page": BASE, "huge_shift": 0, "piece": 0}


def fault(kind="write", **changes):
    file = {"advice": -1, "without_thp": False, "fd": -1, "shared": False, "write": True, "after": False}
    count = {"step": BASE, "count": SIZE // BASE, "block": 1, "chunk": SIZE, "threads": 1, "cpus": (-1,)}
    return _core.fault(kind, **{**PLAIN, **file, **count, "order": None, **changes})


def shootdown(kind="unmap", **changes):
    return _core.shootdown(
        kind, **{**PLAIN, "advice": -1, "step": SIZE, "calls": 1, "cpus": (-1,), **changes}
    )


# Every callable and attribute of _core, each of which leaves nothing behind, nor does its refusal.
LEAKS = {
    "kernels": lambda _: _core.kernels(),
    "open_unnamed": lambda _: (unnamed(), refused(lambda: _core.open_unnamed("/proc/none", 0), OSError)),
    "clock_ns": lambda _: _core.clock_ns(),
    "clock_wait": lambda _: (_core.clock_wait(0), refused(lambda: _core.clock_wait(-1), ValueError)),
    "clock_moment": lambda _: _core.clock_moment(),
    "clock_calibrate": lambda _: _core.clock_calibrate(),
    "cpu": lambda _: _core.cpu(),
    "cpuid": lambda _: (_core.cpuid(0, 0), refused(lambda: _core.cpuid("0", 0), TypeError)),
    "fault": lambda _: (
        fault(order=np.arange(SIZE // BASE, dtype=np.uint32)[::-1]),
        fault(advice=12345),
        refused(lambda: fault(order=np.full(SIZE // BASE, SIZE // BASE, np.uint32)), ValueError),
        refused(lambda: fault(cpus=(None,)), TypeError),
    ),
    "shootdown": lambda _: (
        shootdown(cpus=(-1, -1)),
        shootdown(advice=12345),
        refused(lambda: shootdown(cpus=()), ValueError),
        refused(lambda: shootdown(cpus=(None,)), TypeError),
    ),
    "Mapping": lambda region: (mapping(region), refused(lambda: _core.Mapping(-1), ValueError)),
    "Mapping.address": lambda region: region.address,
    "Mapping.mapped_bytes": lambda region: region.mapped_bytes,
    "Mapping.base_page": lambda region: region.base_page,
    "Mapping.closed": lambda region: region.closed,
    "Mapping.advise": lambda region: (region.advise(15), refused(lambda: region.advise(12345), OSError)),
    "Mapping.touch": lambda region: (region.touch(True, 1), refused(lambda: region.touch(True), TypeError)),
    "Mapping.populate": lambda region: region.populate(),
    "Mapping.collapse": lambda region: collapse(region),
    "Mapping.pass_over": lambda region: (
        region.pass_over(0, SIZE),
        refused(lambda: region.pass_over(0, 1 << 40), ValueError),
    ),
    "Mapping.scan": lambda region: scan(region),
    "Mapping.close": lambda region: mapping(region).close(),
    "Mapping.__buffer__": lambda region: memoryview(region).release(),
    "Session": lambda region: (
        _core.Session([part(region)]).laps,
        refused(lambda: _core.Session([part(region, nodes=0)]), ValueError),
        refused(lambda: _core.Session([part(region), part(region)]), ValueError),
        refused(lambda: _core.Session([part(region), None]), TypeError),
    ),
    "Session.counts": lambda region: with_session(region, lambda session: session.counts),
    "Session.laps": lambda region: with_session(region, lambda session: session.laps),
    "Session.pass_over": lambda region: with_session(region, lambda session: session.pass_over()),
    "Session.verify": lambda region: with_session(region, lambda session: session.verify()),
    "Session.measure": lambda region: with_session(
        region,
        lambda session: (
            session.measure((10,), 100),
            refused(lambda: session.measure((0,), 100), ValueError),
            with_group(lambda counters: session.measure((10,), 100, (counters,))),
            refused(lambda: session.measure((10,), 100, (None,)), TypeError),
        ),
    ),
    "Session.close": lambda region: _core.Session([part(region)]).close(),
    "Session.__enter__": lambda region: with_session(region, id),
    "Session.__exit__": lambda region: with_session(region, id),
    "program_launch": lambda _: refused(lambda: _core.program_launch((), (), (), 0, 0, 0, 0), TypeError),
    "program_go": lambda _: refused(lambda: _core.program_go("", 0), TypeError),
    "program_trace": lambda _: refused(lambda: _core.program_trace(0), OSError),
    "program_resume": lambda _: _core.program_resume(os.getpid()),
    "program_wait": lambda _: refused(lambda: _core.program_wait(1), OSError),
    "CounterGroup": lambda _: (
        group(),
        refused(lambda: group((1, 1 << 40, 0, 0)), OSError),
        refused(lambda: group(None), TypeError),
        refused(lambda: group((-1, 0, 0, 0)), OverflowError),
    ),
    "CounterGroup.enable": lambda _: with_group(lambda counters: counters.enable()),
    "CounterGroup.disable": lambda _: with_group(lambda counters: counters.disable()),
    "CounterGroup.reset": lambda _: with_group(lambda counters: counters.reset()),
    "CounterGroup.read": lambda _: with_group(lambda counters: counters.read()),
    "CounterGroup.peek": lambda _: with_group(lambda counters: counters.peek()),
    "CounterGroup.fileno": lambda _: with_group(lambda counters: counters.fileno()),
    "CounterGroup.close": lambda _: (
        group().close(),
        refused(lambda: with_group(lambda counters: (counters.close(), counters.read())), ValueError),
    ),
    "CounterGroup.__enter__": lambda _: with_group(id),
    "CounterGroup.__exit__": lambda _: with_group(id),
}


def collapse(region):
    with contextlib.suppress(OSError):  # advised otherwise, or older than Linux 6.1
        region.collapse()


def scan(region):
    with contextlib.suppress(OSError):
        region.scan(0, SIZE)


def test_the_list_of_leak_tests_is_complete():
    found = {name for name, value in vars(_core).items() if callable(value)}
    for owner in (_core.Mapping, _core.Session, _core.CounterGroup):
        members = {name for name in vars(owner) if name[0] != "_" or name in ("__enter__", "__exit__")}
        found |= {f"{owner.__name__}.{name}" for name in members}
    assert found | {"Mapping.__buffer__"} == set(LEAKS)  # named so from Python 3.12 on


@pytest.mark.no_asan
@pytest.mark.parametrize("name", LEAKS)
def test_nothing_leaks(region, name):
    """An object of 16 bytes a call would be 64 KB here; what grows once, such as a cache, does not count.

    Of what forks there are fewer calls, and a leak shows from a page on.
    """
    times = {"Session.measure": 400, "fault": 40, "shootdown": 40}.get(name, 4000)
    before = open_files()
    assert any(grown(lambda: LEAKS[name](region), times) < 16 * times for _ in range(3))
    assert open_files() == before


def test_references_are_given_back(region):
    given, before = part(region), sys.getrefcount(region)
    counts = [sys.getrefcount(each) for each in given]
    for _ in range(10):
        with _core.Session([given]) as session:
            session.measure((10,), 1)
            assert sys.getrefcount(region) == before + 1
        refused(lambda: _core.Session([given, given]), ValueError)
    del session
    assert [sys.getrefcount(each) for each in given] == counts
