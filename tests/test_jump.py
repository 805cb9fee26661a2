"""jump: cells of code of both instruction sets, the cycle they run in, and memory that is never both."""

import ctypes
import itertools
import platform
import random
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from pure_c import ASK, Kernel, Nodes, Poll, Run

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.machine import paging
from tlbprobe.units import format_size

CSRC = Path(__file__).parents[1] / "csrc"
LINE = paging.cache_line_size()
BASE = paging.base_page_size()
CELL = 32
EINVAL, ERANGE, EINTR = 22, 34, 4
QUICK = {"max_seconds": 0.02}


# --- cells, of either instruction set on any machine

WRITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
TARGET = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)
SETS = ["x86_64", "aarch64"]
REACH = {"x86_64": 1 << 31, "aarch64": 1 << 27}
UNTOUCHED = b"\x5a" * CELL

# By hand: what jumps from one address to another, and the distances in it.
X86 = "4883ef01 7405 e9 {} 488d05 {} c3" + "cc" * 13
ARM = "000400f1 40000054 {} 60000058 c0035fd6 000020d4 {}"
ENCODED = [
    ("x86_64", 0x1000, 0x2000, X86.format("f50f0000", "ee0f0000")),
    ("x86_64", 0x3000, 0x1000, X86.format("f5dfffff", "eedfffff")),
    ("x86_64", 0x7F0000000040, 0x7F0000000040, X86.format("f5ffffff", "eeffffff")),
    ("x86_64", 0x7F0000000000, 0x7F000000000B, X86.format("00000000", "f9ffffff")),
    ("x86_64", 0x7F0000000000, 0x7F008000000A, X86.format("ffffff7f", "f8ffff7f")),
    ("x86_64", 0x7F0080000000, 0x7F0000000012, X86.format("07000080", "00000080")),
    ("aarch64", 0x1000, 0x2000, ARM.format("fe030014", "0020000000000000")),
    ("aarch64", 0x3000, 0x1000, ARM.format("fef7ff17", "0010000000000000")),
    ("aarch64", 0x7F0000000040, 0x7F0000000040, ARM.format("feffff17", "40000000007f0000")),
    ("aarch64", 0x7F0000000000, 0x7F0000000008, ARM.format("00000014", "08000000007f0000")),
    ("aarch64", 0x7F0000000000, 0x7F0008000004, ARM.format("ffffff15", "04000008007f0000")),
    ("aarch64", 0x7F0008000000, 0x7F0000000008, ARM.format("00000016", "08000000007f0000")),
]
OUT_OF_REACH = [
    ("x86_64", 0x7F0000000000, 0x7F008000000B),
    ("x86_64", 0x7F0080000000, 0x7F0000000011),
    ("x86_64", 0x1000, 0x7F0000000000),
    ("aarch64", 0x7F0000000000, 0x7F0008000008),
    ("aarch64", 0x7F0008000000, 0x7F0000000004),
    ("aarch64", 0x1000, 0x2002),  # not on an instruction
    ("aarch64", 0x1000, 0x7F0000000000),
]


class Code(ctypes.Structure):
    _fields_ = [("reach", ctypes.c_uint64), ("write", WRITE), ("target", TARGET)]


@pytest.fixture(scope="module")
def library(compile_c):
    library = compile_c(CSRC / "cycle.c", CSRC / "code.c", CSRC / "kernels" / "jump.c")
    library.tlb_code_next.restype = ctypes.c_uint64
    library.tlb_code_next.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
    return library


def code_of(library, name):
    return Code.in_dll(library, f"tlb_code_{name}")


def written(code, address, following):
    """Status and bytes of a cell."""
    cell = ctypes.create_string_buffer(UNTOUCHED, CELL)
    return code.write(cell, address, following), cell.raw


def read_back(library, code, cell, address):
    return library.tlb_code_next(ctypes.byref(code), cell, address)


@pytest.mark.parametrize(("name", "address", "following", "expected"), ENCODED)
def test_cells_are_encoded_as_by_hand(library, name, address, following, expected):
    code = code_of(library, name)
    assert written(code, address, following) == (0, bytes.fromhex(expected))
    assert read_back(library, code, bytes.fromhex(expected), address) == following


@pytest.mark.parametrize(("name", "address", "following"), OUT_OF_REACH)
def test_what_no_jump_reaches_is_not_written(library, name, address, following):
    assert written(code_of(library, name), address, following) == (-ERANGE, UNTOUCHED)


@pytest.mark.parametrize("name", SETS)
def test_cells_within_reach_jump_to_each_other(library, name):
    code, draw = code_of(library, name), random.Random(1)
    assert code.reach == REACH[name]
    first, last = 1 << 40, (1 << 40) + code.reach - CELL
    between = [draw.randrange(first, last, CELL) for _ in range(200)]
    for address, following in [(first, last), (last, first), *itertools.pairwise(between)]:
        status, cell = written(code, address, following)
        assert (status, read_back(library, code, cell, address)) == (0, following)


@pytest.mark.parametrize("name", SETS)
def test_every_flipped_bit_is_noticed(library, name):
    code, address = code_of(library, name), 1 << 40
    _, cell = written(code, address, address + 12345 * CELL)
    for bit in range(8 * CELL):
        flipped = bytearray(cell)
        flipped[bit // 8] ^= 1 << bit % 8
        assert read_back(library, code, bytes(flipped), address) == 0, bit


def test_the_probe_knows_the_reach():
    assert REACH.get(platform.machine(), 0) == _core.JUMP_REACH


# --- the kernel


@pytest.fixture
def kernel(library):
    if platform.machine() not in SETS:
        pytest.skip("no code for this instruction set")
    return Kernel.in_dll(library, "tlb_kernel_jump")


@pytest.fixture
def region():
    with tp.Region("4MiB") as region:
        yield region


def run_in(region, nodes=4, spacing=4096, pages=1, lines=64, line=64, seed=0, size=None):
    """A run of the kernel in a region, not prepared."""
    size = region.mapped_bytes if size is None else size
    return Run(base=region.address, size=size, parameter=(nodes, spacing, pages, lines, line, seed))


def chased_order(library, nodes, seed):
    """Successors in the cycle that a chase has, from the addresses that it links."""
    row = np.zeros(nodes, np.uint64)
    given = Nodes(base=row.ctypes.data, count=nodes, spacing=8, pages=1, lines=1, line=8)
    assert library.tlb_cycle_link(ctypes.byref(given), ctypes.c_uint64(seed), ctypes.byref(Poll())) == 0
    return ((row - np.uint64(row.ctypes.data)) // np.uint64(8)).tolist()


def protection(address):
    """Permissions of the mapping of an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1]
    return None


PLACES = [
    (1, 64, 1, 1),
    (2, 4096, 1, 64),
    (1000, 64, 1, 1),
    (1000, 4096, 1, 64),
    (300, 4160, 1, 65),
    (100, 32768, 8, 64),
]


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize(("nodes", "spacing", "pages", "lines"), PLACES)
def test_cells_run_in_the_order_of_a_chase(library, kernel, region, nodes, spacing, pages, lines, seed):
    successor = chased_order(library, nodes, seed)
    run = run_in(region, nodes, spacing, pages, lines, seed=seed)
    library.tlb_node.restype = ctypes.c_uint64
    row = Nodes(base=region.address, count=nodes, spacing=spacing, pages=pages, lines=lines, line=64)
    address = [library.tlb_node(ctypes.byref(row), ctypes.c_uint64(i)) for i in range(nodes)]
    assert kernel.prepare(run, Poll()) == 0
    try:
        assert (run.lap, run.state[0]) == (nodes, address[0])
        cell = 0
        for accesses in (0, 1, 2, 0, 3, 999, 1000, 12345, *[1] * nodes):
            kernel.access(run, accesses)
            for _ in range(accesses):
                cell = successor[cell]
            assert run.state[0] == address[cell], accesses
        assert verified(kernel, run) == nodes
    finally:
        kernel.release(run)


def verified(kernel, run):
    found = ctypes.c_uint64(12345)
    assert kernel.verify(run, ctypes.byref(found), Poll()) == 0
    return found.value


def detour(code, cell):
    """Past a cell that is whole, and begins on no line, to where the cell that is left out would go."""
    left_out = code.target(cell, cell)
    between = left_out + CELL
    code.write(between, between, code.target(left_out, left_out))
    code.write(cell, cell, between)


@pytest.mark.parametrize(
    "damage",
    [
        lambda code, cell, _: ctypes.memset(cell + 1, 0, 1),
        lambda code, cell, _: ctypes.memset(cell, 0, CELL),
        lambda code, cell, _: code.write(cell, cell, cell),  # a cycle of this one alone
        lambda code, cell, run: code.write(cell, cell, run.state[0]),  # back too early
        lambda code, cell, run: code.write(cell, cell, run.base - CELL),
        lambda code, cell, run: code.write(cell, cell, run.base + run.size),
        lambda code, cell, run: code.write(cell, cell, run.base + run.size - CELL + 4),
        lambda code, cell, run: code.write(cell, cell, run.base + 16),
        lambda code, cell, _: detour(code, cell),
    ],
)
def test_damage_is_told_and_not_executed(library, kernel, region, damage):
    """The memory is not even executable when it is looked at."""
    run = run_in(region, nodes=50, lines=1)
    assert kernel.prepare(run, Poll()) == 0
    assert verified(kernel, run) == 50
    kernel.release(run)
    second = chased_order(library, 50, 0)[0]
    damage(code_of(library, platform.machine()), region.address + second * 4096, run)
    assert verified(kernel, run) != 50


def test_parameters_that_do_not_fit_write_nothing(kernel, region):
    whole = run_in(region).size
    wrong = [
        {"nodes": 0},
        {"nodes": whole // 4096 + 1},
        {"nodes": whole // 64 + 1, "spacing": 64, "lines": 1},
        {"spacing": 32, "lines": 1},  # less than a line
        {"line": 16, "lines": 1},
        {"line": 0, "lines": 1},
        {"line": 48, "spacing": 4800, "lines": 1},
        {"spacing": 4096 + 32, "lines": 1},
        {"lines": 65},
        {"size": whole - 64},
        {"size": whole + BASE // 2},
        {"size": 64, "nodes": 1},
        {"nodes": (1 << 63) // 4096},
    ]
    with memoryview(region) as view:
        view[:] = b"\x5a" * len(view)
        for parameters in wrong:
            run = run_in(region, **parameters)
            assert kernel.prepare(run, Poll()) == -EINVAL, parameters
            kernel.release(run)
        off_page = run_in(region, size=whole - BASE)
        off_page.base += 64
        assert kernel.prepare(off_page, Poll()) == -EINVAL
        assert bytes(view) == b"\x5a" * len(view)


def test_cells_beyond_reach_are_refused_untouched(kernel):
    """There is no memory at these addresses: a single write would end the process."""
    reach = _core.JUMP_REACH
    for spacing, status in [(reach, -ERANGE), (2 * reach, -ERANGE), (reach + 4096, -ERANGE)]:
        run = Run(base=1 << 40, size=4 * reach, parameter=(2, spacing, 1, 1, 64, 0))
        assert kernel.prepare(run, Poll()) == status


def test_interrupted_half_way_it_leaves_memory_as_it_was(kernel, region):
    asked = []

    @ASK
    def ask(_):
        asked.append(protection(region.address))
        return -EINTR if len(asked) > 2 else 0

    run = run_in(region, nodes=60000, spacing=64, lines=1)
    assert kernel.prepare(run, Poll(ask=ask)) == -EINTR
    kernel.release(run)
    assert set(asked) == {"rw-p"}
    with memoryview(region) as view:
        view[:] = bytes(len(view))


# --- never writable and executable at once


def test_memory_is_either_writable_or_executable(region):
    parameters = {"nodes": 1024, "spacing": 4096, "pages": 1, "lines": 1, "line": 64, "seed": 0}
    part = (region, "jump", 0, region.mapped_bytes, parameters)
    assert protection(region.address) == "rw-p"
    for _ in range(2):
        with _core.Session([part]) as session:
            assert protection(region.address) == "r-xp"
            session.pass_over()
            session.measure((1000,), 3)
            assert session.verify() == (1024,)
            assert protection(region.address) == "r-xp"
        assert protection(region.address) == "rw-p"
        with memoryview(region) as view:
            view[:] = b"\x5a" * len(view)


def test_another_thread_never_sees_both(region):
    parameters = {"nodes": 65536, "spacing": 64, "pages": 1, "lines": 1, "line": 64, "seed": 0}
    part = (region, "jump", 0, region.mapped_bytes, parameters)
    seen, done = set(), threading.Event()

    def watch():
        while not done.is_set():
            seen.add(protection(region.address))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(20):
        with _core.Session([part]) as session:
            for _ in range(100):
                if "r-xp" not in seen:
                    session.measure((10000,), 10)
    done.set()
    watcher.join()
    assert seen <= {"rw-p", "r-xp"}
    assert "r-xp" in seen


MEASURE = """
MPROTECT = {"x86_64": 10, "aarch64": 226}[platform.machine()]

def measure():
    return tp.jump("64KiB", verify=True, max_seconds=0.02).params["nodes"]

"""


def test_it_never_asks_for_both(run_python):
    """Not even for a moment that nobody sees: a filter refuses just that."""
    script = "refuse(MPROTECT, errno.EPERM, 2, 7); answer(measure())"
    assert run_python(MEASURE + script) == 65536 // BASE


@pytest.mark.parametrize(("name", "number"), [("EPERM", 1), ("EACCES", 13)])
def test_a_filter_that_forbids_executable_memory(run_python, name, number):
    script = f"""
refuse(MPROTECT, errno.{name}, 2, 5)
error = caught(measure)
with tp.Region("64KiB") as region:
    cells = dict(nodes=16, spacing=4096, pages=1, lines=1, line=64, seed=0)
    refused = caught(tp._core.Session, [(region, "jump", 0, 65536, cells)])
    with memoryview(region) as view:
        view[:] = bytes(65536)  # it is as it was
answer([error, refused[2], tp.chase("64KiB", max_seconds=0.02).low > 0])
"""
    (kind, text, code), refused, chased = run_python(MEASURE + script)
    assert (kind, code, refused, chased) == ("PermissionError", number, number, True)
    assert "executable memory" in text
    assert all(reason in text for reason in ("SELinux", "execmem", "seccomp", "PR_SET_MDWE"))


def test_memory_deny_write_execute(run_python):
    script = """
libc = ctypes.CDLL(None, use_errno=True)
denied = libc.prctl(65, 1, 0, 0, 0) == 0  # PR_SET_MDWE
answer(caught(measure) if denied else None)
"""
    error = run_python(MEASURE + script)
    if error is None:
        pytest.skip("this kernel has no PR_SET_MDWE (Linux 6.3)")
    kind, text, code = error
    assert (kind, code) == ("PermissionError", 13)
    assert "executable memory" in text
    assert "PR_SET_MDWE" in text


# --- the probe


def test_result_is_complete():
    measured = tp.jump("256KiB", seed=3, counters=["iTLB-load-misses"], verify=True, **QUICK)
    assert measured.probe == "jump"
    assert (measured.ns > 0).all()
    assert measured.low > 0
    assert {"map", "populate", "passes", "proof", "code", "verify", "measure"} <= measured.setup.keys()
    assert measured.refused.keys() == {"iTLB-load-misses"}
    assert measured.faults == {"minor": 0, "major": 0, "expected": 0}
    assert (measured.backing.page_size, measured.backing.proof) == (BASE, "proved")
    assert measured.params.pop("cpu") >= 0
    assert measured.params == {
        "bytes": 256 << 10,
        "stride": BASE,
        "placement": "spread",
        "nodes": (256 << 10) // BASE,
        "pages": "base",
        "strict": True,
        "touch": "random",
        "mapped_bytes": 256 << 10,
        "seed": 3,
        "precision": 0.01,
        "max_seconds": 0.02,
    }


@pytest.mark.parametrize(
    ("size", "stride", "nodes"),
    [
        (BASE, None, 1),
        (128, 128, 1),
        (4 * BASE + 1, None, 4),
        (100 * 128 + 5, 128, 100),
        ("1MiB", BASE + 128, (1 << 20) // (BASE + 128)),
        ("4MiB", 4 * BASE, (4 << 20) // (4 * BASE)),
    ],
)
@pytest.mark.parametrize("placement", ["spread", "packed"])
def test_cells_are_written_and_counted(size, stride, nodes, placement):
    measured = tp.jump(size, stride=stride, placement=placement, verify=True, **QUICK)
    assert measured.params["nodes"] == nodes
    used = nodes * LINE if placement == "packed" else measured.params["bytes"]
    assert measured.params["mapped_bytes"] == -(-used // BASE) * BASE


@pytest.mark.parametrize("name", ["default", "thp", "collapse", "hugetlb"])
def test_on_every_kind_of_page(name):
    policy = next((each for each in tp.page_policies() if each.name == name), None)
    if policy is None or not policy.offered or (policy.page_size or 0) > 32 << 20:
        pytest.skip(f"no {name!r} pages here")
    measured = tp.jump("256KiB", name, verify=True, strict=False, **QUICK)
    assert measured.backing.asked == name
    whole = policy.page_size or BASE
    assert measured.params["mapped_bytes"] % whole == 0
    assert measured.backing.page_size == whole or measured.warnings or name == "default"


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"size": 0}, ValueError, "size=0"),
        ({"size": None}, TypeError, "size=None"),
        ({"size": "64kB"}, ValueError, "64KiB"),
        ({"size": "64KiB", "stride": "128KiB"}, ValueError, "stride=131072 is larger than size=65536"),
        ({"stride": 0}, ValueError, "stride=0"),
        ({"stride": 32}, ValueError, "stride=32"),
        ({"stride": LINE + 8}, ValueError, f"stride={LINE + 8} must be a multiple of"),
        ({"placement": "beside"}, ValueError, "placement='beside'"),
        (
            {"size": 2 * REACH.get(platform.machine(), 0) + BASE},
            ValueError,
            "a direct jump of this processor",
        ),
        ({"size": "1T", "stride": 128, "placement": "packed"}, ValueError, "a direct jump"),
    ],
)
def test_wrong_parameters_are_named_before_anything_is_mapped(monkeypatch, arguments, error, said):
    monkeypatch.setattr(_core.Mapping, "advise", lambda *_: pytest.fail("it was mapped"))
    with pytest.raises(error, match=re.escape(said)):
        tp.jump(**{"size": "64KiB", **arguments})


def test_out_of_reach_names_what_fits():
    reach = _core.JUMP_REACH
    with pytest.raises(ValueError, match=rf"size={reach + BASE} .*give at most {format_size(reach)}$"):
        tp.jump(reach + BASE)
    with pytest.raises(ValueError, match=rf"give at most {format_size(reach * 4 * BASE // LINE)}$"):
        tp.jump(reach * 8 * BASE // LINE, stride=4 * BASE, placement="packed")


def test_a_region_is_refused(region):
    with pytest.raises(TypeError, match=r"size=<Region .*jump maps memory of its own"):
        tp.jump(region)
    with pytest.raises(TypeError, match="working_set"):
        tp.jump("64KiB", working_set="32KiB")


def test_it_can_be_swept():
    swept = tp.sweep(
        tp.jump, size=["64KiB", "128KiB"], placement=["spread", "packed"], progress=False, **QUICK
    )
    assert not swept.refused
    nodes = [size // BASE for size in (65536, 65536, 131072, 131072)]
    assert [point.params["nodes"] for _, point in swept] == nodes
