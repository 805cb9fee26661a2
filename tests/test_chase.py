"""chase: one dependent load an access, and what the probe makes of its parameters."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe import machine

CSRC = Path(__file__).parents[1] / "csrc"
LINE = machine.cache_line_size()
BASE = machine.base_page_size()
QUICK = {"max_seconds": 0.02}


# --- the kernel


class Run(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("base", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("parameter", ctypes.c_uint64 * 8),
        ("lap", ctypes.c_uint64),
        ("cursor", ctypes.c_void_p),
    ]


class Poll(ctypes.Structure):
    _fields_ = [("ask", ctypes.c_void_p), ("context", ctypes.c_void_p)]


PREPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Run), ctypes.POINTER(Poll))
ACCESS = ctypes.CFUNCTYPE(None, ctypes.POINTER(Run), ctypes.c_uint64)


class Kernel(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("parameters", ctypes.POINTER(ctypes.c_char_p)),
        ("prepare", PREPARE),
        ("access", ACCESS),
        ("verify", ctypes.c_void_p),
    ]


@pytest.fixture(scope="module")
def library(compile_c):
    return compile_c(CSRC / "cycle.c", CSRC / "kernels" / "chase.c")


def test_so_many_accesses_are_so_many_steps(library):
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    memory = np.zeros(8 * 1000, np.uint64)
    base = memory.ctypes.data
    run = Run(base=base, size=memory.nbytes, parameter=(1000, 64, 1, 64, 5))
    assert kernel.prepare(run, Poll()) == 0
    assert (run.lap, run.cursor) == (1000, base)
    node = base
    for accesses in (0, 1, 2, 15, 16, 17, 999, 1000, 12345):
        for _ in range(accesses):
            node = int(memory[(node - base) // 8])
        kernel.access(run, accesses)
        assert run.cursor == node, accesses


def test_nothing_is_written_where_parameters_leave_the_bytes(library):
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    memory = np.full(1000, 7, np.uint64)
    for size in (0, 8, 999 * 8):
        run = Run(base=memory.ctypes.data, size=size, parameter=(1000, 8, 1, 64, 0))
        assert kernel.prepare(run, Poll()) == -22
    assert (memory == 7).all()


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump to read machine code with")
def test_the_timed_loop_is_one_load_an_access(library):
    """Of the instructions between a jump back and its target, one names memory: it loads its own address."""
    dump = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", library._name], capture_output=True, text=True, check=True
    ).stdout
    body = re.search(r"<chase_access>:\n(.*?)\n\n", dump, re.DOTALL)[1]
    lines = [re.match(r"\s*([0-9a-f]+):\s+(.*)", line).groups() for line in body.splitlines()]
    jumps = [
        (int(address, 16), int(found[1], 16))
        for address, text in lines
        if (found := re.search(r"\s([0-9a-f]+) <chase_access", text))
    ]
    begin, end = next((target, at) for at, target in jumps if target < at)
    inside = [text for address, text in lines if begin <= int(address, 16) <= end]
    memory = [text for text in inside if re.search(r"[(\[]", text) and not text.startswith("lea")]
    assert len(memory) == 1, inside
    registers = re.fullmatch(r"movq?\s+\((%\w+)\),\s*(%\w+)|ldr\s+(x\d+), \[(x\d+)\]", memory[0].strip())
    assert registers, memory
    assert len({name for name in registers.groups() if name}) == 1  # the next load waits for this one


# --- the probe


def test_result_is_complete():
    measured = tp.chase("64KiB", seed=3, counters=["cycles", "dtlb"], verify=True, **QUICK)
    assert measured.probe == "chase"
    assert measured.ns.dtype == np.float64
    assert measured.ns.shape == measured.disturbed.shape
    assert (measured.ns > 0).all()
    assert measured.disturbed.dtype == np.bool_
    assert not measured.ns.flags.writeable
    assert measured.low > 0
    assert {"map", "populate", "passes", "proof", "cycle", "verify", "measure"} <= measured.setup.keys()
    assert all(seconds >= 0 for seconds in measured.setup.values())
    assert measured.refused.keys() == {"cycles", "dtlb"}
    assert all(measured.refused.values())
    assert measured.counters == {}
    assert (measured.backing.page_size, measured.backing.proof) == (BASE, "proved")
    cpu = measured.params.pop("cpu")
    assert cpu >= 0
    assert measured.params == {
        "bytes": 65536,
        "stride": LINE,
        "placement": "spread",
        "nodes": 65536 // LINE,
        "pages": "base",
        "strict": True,
        "touch": "random",
        "mapped_bytes": -(-65536 // BASE) * BASE,
        "seed": 3,
        "precision": 0.01,
        "max_seconds": 0.02,
    }


@pytest.mark.parametrize(
    ("size", "stride", "nodes"),
    [
        (LINE, None, 1),
        (8, 8, 1),
        (1000, 8, 125),
        (4 * BASE + 1, BASE, 4),
        ("64KiB", "1KiB", 64),
        (1000, 200, 5),
    ],
)
@pytest.mark.parametrize("placement", ["spread", "packed"])
def test_nodes_are_linked_and_walked(size, stride, nodes, placement):
    measured = tp.chase(size, stride=stride, placement=placement, verify=True, **QUICK)
    assert measured.params["nodes"] == nodes


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"size": 0}, ValueError, "size=0"),
        ({"size": -1}, ValueError, "size=-1"),
        ({"size": 1 << 63}, ValueError, "size="),
        ({"size": 1.5}, TypeError, "size=1.5"),
        ({"size": None}, TypeError, "size=None"),
        ({"size": "64kB"}, ValueError, "64KiB"),
        ({"stride": 0}, ValueError, "stride=0"),
        ({"stride": 4}, ValueError, "multiple of 8"),
        ({"stride": 12}, ValueError, "multiple of 8"),
        ({"stride": -64}, ValueError, "stride=-64"),
        ({"stride": "1MiB"}, ValueError, "larger than the working set"),
        ({"stride": 64.0}, TypeError, "stride=64.0"),
        ({"placement": "beside"}, ValueError, "placement='beside'"),
        ({"working_set": "1KiB"}, ValueError, "working_set='1KiB'"),
        ({"pages": "huge"}, ValueError, "pages='huge'"),
        ({"pages": 4096}, TypeError, "pages=4096"),
        ({"pages": "hugetlb-3M"}, ValueError, "pages='hugetlb-3M'"),
        ({"precision": 0}, ValueError, "precision=0"),
        ({"precision": 1}, ValueError, "precision=1"),
        ({"precision": float("nan")}, ValueError, "precision=nan"),
        ({"precision": "1%"}, TypeError, "precision='1%'"),
        ({"max_seconds": 0}, ValueError, "max_seconds=0"),
        ({"max_seconds": -1.0}, ValueError, "max_seconds=-1"),
        ({"max_seconds": float("inf")}, ValueError, "max_seconds=inf"),
        ({"max_seconds": float("nan")}, ValueError, "max_seconds=nan"),
        ({"max_seconds": None}, TypeError, "max_seconds=None"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": 1 << 64}, ValueError, "seed="),
        ({"seed": 1.0}, TypeError, "seed=1.0"),
        ({"seed": "x"}, TypeError, "seed='x'"),
        ({"seed": True}, TypeError, "seed=True"),
        ({"cpu": -1}, ValueError, "cpu=-1"),
        ({"cpu": 1 << 40}, ValueError, "cpu="),
        ({"cpu": "0"}, TypeError, "cpu='0'"),
        ({"cpu": 0.0}, TypeError, "cpu=0.0"),
        ({"cpu": False}, TypeError, "cpu=False"),
        ({"counters": "cycles"}, TypeError, "counters='cycles'"),
        ({"counters": [1]}, TypeError, "counters="),
        ({"counters": None}, TypeError, "counters=None"),
    ],
)
def test_wrong_parameters_are_named_before_anything_is_mapped(monkeypatch, arguments, error, said):
    monkeypatch.setattr(tp.pages._core.Mapping, "advise", lambda *_: pytest.fail("it was mapped"))
    with pytest.raises(error, match=re.escape(said)):
        tp.chase(**{"size": "64KiB", **arguments})


def test_extremes_of_parameters():
    for arguments in (
        {"seed": (1 << 64) - 1},
        {"seed": np.int64(5)},
        {"precision": 1e-300},
        {"precision": 1 - 1e-9},
        {"max_seconds": 1e-9},
        {"precision": np.float32(0.5), "max_seconds": np.float64(0.01)},
    ):
        measured = tp.chase("16KiB", **{**QUICK, **arguments})
        assert measured.ns.size >= 4
        assert measured.params["seed"] == int(arguments.get("seed", 0))


def test_too_few_slices_have_no_interval():
    measured = tp.chase("16KiB", max_seconds=1e-6)
    assert 4 <= measured.ns.size < 200
    assert measured.interval is None
    assert any("max_seconds" in warning for warning in measured.warnings)


def test_in_a_region():
    with tp.Region("256KiB") as region:
        assert tp.chase(region, **QUICK).params["bytes"] == 256 << 10
        part = tp.chase(region, "base", working_set="64KiB", **QUICK)
        assert part.params["bytes"] == 64 << 10
        assert part.params["mapped_bytes"] == region.mapped_bytes
        with pytest.raises(ValueError, match=r"pages='default' contradicts .*'base'"):
            tp.chase(region, "default", **QUICK)
        with pytest.raises(ValueError, match="working_set='1MiB' is more than"):
            tp.chase(region, working_set="1MiB", **QUICK)
        with pytest.raises(TypeError, match="working_set"):
            tp.chase(region, working_set=region, **QUICK)
    with pytest.raises(ValueError, match="closed"):
        tp.chase(region, **QUICK)


def test_an_alias_does_not_contradict_a_region():
    offered = {policy.kind: policy for policy in tp.page_policies() if policy.offered}
    if "thp" not in offered:
        pytest.skip("no transparent huge pages here")
    size = offered["thp"].page_size
    alias = f"thp-{size >> 20}M" if size >= 1 << 20 else f"thp-{size >> 10}K"
    with tp.Region(size, "thp", strict=False) as region:
        assert tp.chase(region, alias, **QUICK).params["pages"] == "thp"


def test_a_viewed_region_is_left_alone():
    with tp.Region("64KiB") as region:
        view = np.frombuffer(region, np.uint64)
        before = view.copy()
        with pytest.raises(BufferError, match="view"):
            tp.chase(region, **QUICK)
        assert (view == before).all()
        del view
        assert tp.chase(region, **QUICK).low > 0


def test_same_seed_same_order_whatever_the_pages():
    """Read back from the memory that was chased in: by policy, placement and address."""
    orders = set()
    for policy in tp.page_policies():
        if not policy.offered or (policy.page_size or 0) > 32 << 20:
            continue
        for placement in ("spread", "packed"):
            try:
                region = tp.Region("256KiB", policy.name, strict=False)
            except (MemoryError, OSError):
                continue
            with region:
                tp.chase(region, stride=LINE, placement=placement, seed=11, **QUICK)
                words = np.frombuffer(region, np.uint64)[: 32 << 10].copy()
                nodes = (words[:: LINE // 8] - np.uint64(region.address)) // np.uint64(LINE)
                orders.add(tuple(nodes.tolist()))
    assert len(orders) == 1


@pytest.mark.parametrize("name", ["strict", "verify"])
def test_a_word_is_no_flag(name):
    with pytest.raises(TypeError, match=f"{name}='no' must be True or False"):
        tp.chase("64KiB", **{name: "no"})


def test_an_empty_policy_is_no_policy():
    with pytest.raises(ValueError, match="pages='' is no page policy"):
        tp.chase("64KiB", "")


def test_for_ever_is_no_time():
    with pytest.raises(ValueError, match="max_seconds=inf must be positive and finite"):
        tp.chase("64KiB", max_seconds=float("inf"))
