"""stride: which bytes are accessed and how often, by the memory itself; and the probe's fixed work."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pure_c import Kernel, Poll, Run

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.display.commands.main import main
from tlbprobe.machine import paging
from tlbprobe.measuring import slices as slicing
from tlbprobe.measuring.point import Point

CSRC = Path(__file__).parents[1] / "csrc"
LINE = paging.cache_line_size()
BASE = paging.base_page_size()
QUICK = {"max_seconds": 0.02}
READ, WRITE, RMW = range(3)


# --- the kernel


GUARD = 256
AT, SUM = 0, 4  # words of the kernel's state


class Walk:
    """The kernel on random bytes, with others around them that nothing may change."""

    def __init__(self, library, size, stride, access):
        self.kernel = Kernel.in_dll(library, "tlb_kernel_stride")
        self.all = np.random.default_rng(size).integers(0, 128, size + 2 * GUARD, np.uint8)
        self.bytes = self.all[GUARD : GUARD + size]
        self.guards = self.all[:GUARD].copy(), self.all[GUARD + size :].copy()
        self.size, self.stride, self.done = size, stride, 0
        self.run = Run(base=self.bytes.ctypes.data, size=size, parameter=(stride, access))
        self.status = self.kernel.prepare(self.run, Poll())

    def go(self, accesses):
        """Go on so many accesses: how often each byte must have been visited by them."""
        k = np.arange(self.done, self.done + accesses, dtype=np.uint64)
        self.kernel.access(self.run, accesses)
        self.done += accesses
        return np.bincount(
            (k * np.uint64(self.stride) % np.uint64(self.size)).astype(np.int64), minlength=self.size
        )

    def outside_is_whole(self):
        before, after = self.guards
        return (self.all[:GUARD] == before).all() and (self.all[GUARD + self.size :] == after).all()


# Strides that divide the size and that do not, primes, the size itself, one more or less than a part of it.
WALKS = [
    *[(4096, stride) for stride in (1, 64, 1024, 2047, 2048, 2049, 3000, 4093, 4095, 4096)],
    *[(65536, 4160), (65537, 4160), (4099, 64), (1000, 7), (97, 89), (1, 1), (2, 1), (2, 2), (3, 2)],
]
SLICES = (0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 0, 1000, 4096, 12345)
walks = pytest.mark.parametrize(("size", "stride"), WALKS)


@pytest.fixture(scope="module")
def library(compile_c):
    return compile_c(CSRC / "kernels" / "stride.c")


@walks
def test_every_byte_is_increased_as_often_as_it_is_visited(library, size, stride):
    walk = Walk(library, size, stride, RMW)
    expected = walk.bytes.copy()
    for accesses in SLICES:
        expected += walk.go(accesses).astype(np.uint8)
        assert (walk.bytes == expected).all(), accesses
    assert walk.outside_is_whole()


@given(data=st.data())
@settings(deadline=None)
def test_slices_may_end_anywhere(library, data):
    size = data.draw(st.integers(1, 5000))
    walk = Walk(library, size, data.draw(st.integers(1, size)), RMW)
    before = walk.bytes.copy()
    visits = sum(walk.go(n) for n in data.draw(st.lists(st.integers(0, 7000), min_size=1, max_size=8)))
    assert (walk.bytes == before + visits.astype(np.uint8)).all()
    assert walk.outside_is_whole()


@walks
def test_exactly_the_visited_bytes_are_written(library, size, stride):
    walk = Walk(library, size, stride, WRITE)
    before = walk.bytes.copy()
    for accesses in SLICES:
        walk.bytes[:] = before
        visited = walk.go(accesses) > 0
        assert ((walk.bytes != before) == visited).all(), accesses
    assert walk.outside_is_whole()


@walks
def test_what_is_read_is_summed_and_left_alone(library, size, stride):
    walk = Walk(library, size, stride, READ)
    before = walk.all.copy()
    for accesses in SLICES:
        already = walk.run.state[SUM]
        visits = walk.go(accesses)
        assert walk.run.state[SUM] - already == int(visits @ walk.bytes.astype(np.int64)), accesses
    assert (walk.all == before).all()


@walks
def test_after_a_lap_it_begins_again(library, size, stride):
    walk = Walk(library, size, stride, RMW)
    assert walk.run.lap == size // math.gcd(size, stride)
    visits = walk.go(walk.run.lap)
    assert walk.run.state[AT] == 0
    assert set(visits[visits > 0]) == {1}
    assert np.count_nonzero(visits) == walk.run.lap


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        (4096, (0, READ)),
        (4096, (4097, READ)),
        (4096, ((1 << 64) - 1, RMW)),
        (4096, (64, 3)),
        (4096, (64, (1 << 64) - 1)),
        (0, (0, READ)),
        (0, (1, READ)),
    ],
)
def test_what_would_leave_the_bytes_is_refused(library, size, parameters):
    walk = Walk(library, size, *parameters)
    assert walk.status == -22
    assert not any(walk.run.state)
    assert walk.outside_is_whole()


@pytest.mark.parametrize("access", ["read", "write", "rmw"])
def test_the_timed_loops_are_one_byte_an_access(library, machine_code, access):
    """Of whole crossings and of a part of one: nothing in them but the access, a step and the way back."""
    byte = r"movzbl?\s|movb\s|(add|inc)b\s|mov\s+%(\w+l|r\d+b),|ldrb|strb"
    loops = machine_code.loops(library, f"{access}_bytes")
    assert loops
    for loop in loops:
        memory = machine_code.memory(loop)
        assert all(re.match(byte, text) for text in memory), loop
        stores = [text for text in memory if re.search(r",\s*\((%\w+)\)$|^strb|^(add|inc)b", text)]
        assert len(stores) == (access != "read"), loop
        loads = [text for text in memory if text not in stores]
        assert len(loads) == (access == "read" or (access == "rmw" and "(add|inc)b" not in stores[0])), loop
        assert not [text for text in loop if re.search(r"[xyz]mm\d|\b[vq]\d+\b", text)], loop
        assert not [text for text in loop if re.match(r"i?div|i?mul|cmov|udiv|msub|csel", text)], loop
        assert len([text for text in loop if re.match(r"j|b\.|cbn?z|tbn?z", text)]) == 1, loop


# --- the probe


def test_result_is_complete():
    measured = tp.stride("64KiB", seed=3, counters=["cycles"], **QUICK)
    assert measured.probe == "stride"
    assert (measured.ns > 0).all()
    assert measured.refused.keys() | measured.counters.keys() == {"cycles"}
    assert {"map", "populate", "prepare", "passes", "proof", "measure"} <= measured.setup.keys()
    assert (measured.backing.page_size, measured.backing.proof) == (BASE, "proved")
    assert measured.faults == {"minor": 0, "major": 0, "expected": 0}
    assert measured.params.pop("cpu") >= 0
    assert measured.params == {
        "bytes": 65536,
        "stride": LINE,
        "access": "read",
        "accesses": None,
        "passes": None,
        "pages": "base",
        "strict": True,
        "touch": "random",
        "mapped_bytes": -(-65536 // BASE) * BASE,
        "seed": 3,
        "precision": 0.01,
        "max_seconds": 0.02,
    }


@pytest.mark.parametrize(
    ("size", "stride", "asked", "accesses"),
    [
        ("64KiB", 64, {"passes": 64}, 64 * 1024),
        ("64KiB", 4160, {"passes": "4K"}, 4000 * 16),
        ("64KiB", "64KiB", {"passes": 1000}, 1000),
        (1000, 7, {"passes": 100}, 100 * 143),
        ("64KiB", 4160, {"accesses": "100K"}, 100_000),
        ("64KiB", 64, {"accesses": 1}, 1),
        ("64KiB", 64, {"accesses": 1_299_709}, None),  # a prime: the slices do not come out even
    ],
)
def test_fixed_work_is_timed_exactly(size, stride, asked, accesses):
    measured = tp.stride(size, stride=stride, max_seconds=1e-9, **asked)
    timed = measured.ns.size * measured.accesses_per_slice
    assert measured.params["accesses"] == timed
    assert measured.params["passes"] == {64: 64, "4K": 4000}.get(asked.get("passes"), asked.get("passes"))
    if accesses is None:
        assert asked["accesses"] - measured.ns.size < timed <= asked["accesses"]
    else:
        assert timed == accesses
    assert 0 < measured.ns.sum() * measured.accesses_per_slice <= 1e9 * measured.setup["measure"]


@pytest.mark.parametrize(("access", "changed"), [("read", False), ("write", True), ("rmw", True)])
def test_only_the_visited_bytes_of_a_region_change(access, changed):
    with tp.Region("64KiB") as region:
        with memoryview(region) as view:
            view[:] = b"\x07" * len(view)
        tp.stride(region, working_set=10_000, stride=80, accesses=1_000_001, access=access)
        memory = np.frombuffer(region, np.uint8).copy()
    visited = np.zeros(memory.size, bool)
    visited[:10_000:80] = True
    assert (memory[~visited] == 7).all()
    assert (memory[visited] != 7).any() == changed, "of 256 increments nothing is to be seen"
    assert access != "write" or (memory[visited] == 0xA5).all()


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"stride": 0}, ValueError, "stride=0"),
        ({"stride": -64}, ValueError, "stride=-64"),
        (
            {"stride": 65537},
            ValueError,
            "stride=65537 is out of range: from 1 byte to the working set of 65536",
        ),
        ({"size": LINE - 1}, ValueError, f"stride={LINE} is out of range"),
        ({"stride": 64.0}, TypeError, "stride=64.0"),
        ({"access": "load"}, ValueError, "access='load' is none of read, write, rmw"),
        ({"access": 1}, ValueError, "access=1"),
        ({"accesses": 0}, ValueError, "accesses=0 is out of range: from 1 to 2**62"),
        ({"accesses": -5}, ValueError, "accesses=-5"),
        ({"accesses": 1 << 63}, ValueError, "accesses="),
        ({"accesses": "4Mi"}, ValueError, "accesses='4Mi'"),
        ({"accesses": 1.5}, TypeError, "accesses=1.5"),
        ({"accesses": True}, TypeError, "accesses=True"),
        ({"passes": 0}, ValueError, "passes=0"),
        ({"passes": "0.5"}, ValueError, "passes='0.5'"),
        ({"passes": (1 << 52) + 1}, ValueError, f"passes={(1 << 52) + 1} of 1024 accesses are out of range"),
        ({"passes": "5000000G"}, ValueError, f"from 1 to {1 << 52} passes"),
        ({"passes": 1 << 63}, ValueError, "passes="),
        ({"passes": 2.0}, TypeError, "passes=2.0"),
        ({"passes": 8, "accesses": "4M"}, ValueError, "accesses='4M' and passes=8"),
        ({"working_set": "1KiB"}, ValueError, "working_set='1KiB'"),
        ({"size": "64kB"}, ValueError, "64KiB"),
    ],
)
def test_wrong_parameters_are_named_before_anything_is_mapped(monkeypatch, arguments, error, said):
    monkeypatch.setattr(_core.Mapping, "advise", lambda *_: pytest.fail("it was mapped"))
    with pytest.raises(error, match=re.escape(said)):
        tp.stride(**{"size": "64KiB", "stride": LINE if "size" in arguments else 64, **arguments})


def test_the_most_passes_are_as_many_as_are_said(monkeypatch):
    """Nobody can wait for them: the measurement is replaced by what it was asked for."""
    asked = []
    monkeypatch.setattr(Point, "time", lambda _, session, accesses: asked.append(accesses))
    monkeypatch.setattr(Point, "result", lambda *_: None)
    with pytest.raises(ValueError, match="not enough values"):  # nothing was timed
        tp.stride("64KiB", stride=64, passes=1 << 52)
    assert asked == [1 << 62]


def test_in_a_region():
    with tp.Region("256KiB") as region:
        assert tp.stride(region, **QUICK).params["bytes"] == 256 << 10
        assert (
            tp.stride(region, "base", working_set="64KiB", stride=4160, **QUICK).params["bytes"] == 64 << 10
        )
        with pytest.raises(ValueError, match="working_set='1MiB' is more than"):
            tp.stride(region, working_set="1MiB", **QUICK)
        with pytest.raises(ValueError, match="stride=65537 is out of range"):
            tp.stride(region, working_set="64KiB", stride=65537, **QUICK)


def test_a_sweep_of_strides_and_of_fixed_work():
    swept = tp.sweep(
        tp.stride, size="64KiB", stride=[64, "4160"], passes=["1K", 8], access=["read", "rmw"], progress=False
    )
    assert swept.axes == {"stride": [64, 4160], "passes": [1000, 8], "access": ["read", "rmw"]}
    assert not swept.refused
    for step, passes in itertools.product((64, 4160), (1000, 8)):
        assert swept[step, passes, "read"].params["accesses"] == passes * -(-65536 // step)


def test_the_command(capfd):
    arguments = ["--stride", "4160", "--passes", "2K", "--access", "rmw", "--json"]
    assert main(["stride", "64K", *arguments]) == 0
    params = json.loads(capfd.readouterr().out)["params"]
    assert [params[name] for name in ("stride", "passes", "access", "accesses")] == [
        4160,
        2000,
        "rmw",
        32_000,
    ]


# --- fixed work, on a simulated session


class Simulated:
    """A session of so many nanoseconds an access, the first calls of which are disturbed."""

    laps = (1,)

    def __init__(self, per_access, disturbed=0):
        self.per_access, self.disturbed = per_access, disturbed
        self.calls = []

    def measure(self, accesses, slices, groups=()):
        self.calls.append((*accesses, slices))
        times = 1000 if len(self.calls) <= self.disturbed else 1
        ns = np.full((1, slices), max(1, round(accesses[0] * self.per_access * times)))
        zeros = np.zeros(ns.shape, np.int64)
        return {"ns": ns, "cpu_ns": ns, "minor": zeros, "major": zeros, "switches": zeros} | {
            "witness_ns": np.full(slices + 1, 4096)
        }


@pytest.mark.parametrize("accesses", [1, 7, 1000, 1 << 20, 4_000_000, 15_485_863, 10**8, 10**8 + 7])
@pytest.mark.parametrize("per_access", [0.3, 6.5, 140.0])
def test_so_many_accesses_are_timed_in_even_slices(accesses, per_access):
    session = Simulated(per_access)
    ((found,), warnings) = slicing.measure_fixed(session, accesses)
    left_over = accesses - found.ns.size * found.accesses
    assert 0 <= left_over < found.ns.size
    assert (session.calls[-1] == (left_over, 1)) == (left_over > 0)
    timed = [slices for length, slices in session.calls if length == found.accesses]
    assert sum(timed) >= found.ns.size
    shortest = slicing.shortest_slice_ns()
    short = accesses * per_access < slicing.TOO_SHORT * shortest
    assert short or 0.9 * slicing.TOO_SHORT * shortest < found.accesses * per_access < 2.2 * shortest
    assert any("so few" in warning for warning in warnings) == short
    assert short or found.ns == pytest.approx(per_access, rel=0.01)


@pytest.mark.parametrize("disturbed", range(1 + slicing.PILOTS))  # of a lap and the pilots, all but one
def test_a_disturbed_start_does_not_cut_the_slices_short(disturbed):
    ((found,), _) = slicing.measure_fixed(Simulated(1.0, disturbed), 4_000_000)
    assert found.accesses * 1.0 >= slicing.TOO_SHORT * slicing.shortest_slice_ns()


def test_slices_of_fixed_work_go_by_batches(monkeypatch):
    monkeypatch.setattr(slicing, "MOST_SLICES", 7)
    session = Simulated(100.0)
    ((found,), _) = slicing.measure_fixed(session, 100_000)
    assert found.ns.size * found.accesses == 100_000
    batches = [slices for length, slices in session.calls if length == found.accesses]
    assert max(batches) == 7
    assert sum(batches) == found.ns.size


@pytest.mark.parametrize(
    ("accesses", "length", "slices"),
    [
        (1, 100, 1),
        (100, 100, 1),
        (199, 100, 1),
        (200, 100, 2),
        (1 << 20, 30_000, 32),
        (4_000_000, 30_000, 128),
        (101 * 97, 97, 101),
        (10_007, 1000, 10),  # a prime
        (1 << 62, 1, 1 << 62),
        ((1 << 61) - 1, 100_000, ((1 << 61) - 1) // 100_000),  # a prime: not all of them are tried
    ],
)
def test_slices_come_out_even_where_they_can(accesses, length, slices):
    assert slicing.even_slices(accesses, length) == slices
