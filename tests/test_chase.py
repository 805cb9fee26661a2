"""chase: one dependent load an access, and what the probe makes of its parameters."""

import ctypes
import itertools
import os
import re
from pathlib import Path

import numpy as np
import pytest
from pure_c import Kernel, Poll, Run

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.machine import paging
from tlbprobe.measuring.nodes import node_parameters
from tlbprobe.memory import budget
from tlbprobe.memory import region as regions
from tlbprobe.units import parse_size

CSRC = Path(__file__).parents[1] / "csrc"
LINE = paging.cache_line_size()
BASE = paging.base_page_size()
QUICK = {"max_seconds": 0.02}


# --- the kernel


@pytest.fixture(scope="module")
def library(compile_c):
    return compile_c(CSRC / "cycle.c", CSRC / "kernels" / "chase.c")


def test_so_many_accesses_are_so_many_steps(library):
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    memory = np.zeros(8 * 1000, np.uint64)
    base = memory.ctypes.data
    run = Run(base=base, size=memory.nbytes, parameter=(1000, 64, 1, 1, 64, 5, 1000, 1, 0))
    assert kernel.prepare(run, Poll()) == 0
    assert (run.lap, run.state[0]) == (1000, base)
    node = base
    for accesses in (0, 1, 2, 15, 16, 17, 999, 1000, 12345):
        for _ in range(accesses):
            node = int(memory[(node - base) // 8])
        kernel.access(run, accesses)
        assert run.state[0] == node, accesses


def test_nothing_is_written_where_parameters_leave_the_bytes(library):
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    memory = np.full(1000, 7, np.uint64)
    for size in (0, 8, 999 * 8):
        run = Run(base=memory.ctypes.data, size=size, parameter=(1000, 8, 1, 1, 64, 0, 1000, 1, 0))
        assert kernel.prepare(run, Poll()) == -22
    assert (memory == 7).all()


@pytest.mark.parametrize("chains", range(1, 17))
def test_the_timed_loops_are_one_load_an_access(library, machine_code, chains):
    """Each load replaces the address that it came from, so the next one of its chain waits for it."""
    (loop,) = machine_code.loops(library, f"load_{chains}")
    memory = machine_code.memory(loop)
    dependent = [
        text
        for text in memory
        if (names := re.fullmatch(r"movq?\s+(?:0x0)?\((%\w+)\),\s*(%\w+)|ldr\s+(x\d+), \[(x\d+)\]", text))
        and len({name for name in names.groups() if name}) == 1
    ]
    spilled = [text for text in memory if text not in dependent]
    assert len(dependent) + len(spilled) // 2 >= chains
    assert chains > 8 or (len(dependent) == chains and not spilled), loop


@pytest.mark.parametrize("chains", [1, 2, 4])
def test_the_timed_loops_store_what_they_loaded(library, machine_code, chains):
    (loop,) = machine_code.loops(library, f"store_{chains}")
    memory = machine_code.memory(loop)
    stores = [text for text in memory if re.search(r",\s*(?:0x0)?\(%\w+\)$|^str", text)]
    assert (len(memory), len(stores)) == (2 * chains, chains), loop


def run_of(memory, nodes, spacing=64, *, pages=1, lines=1, window=None, chains=1, store=0, seed=5):
    where = (nodes, spacing, pages, lines, 64, seed, nodes if window is None else window, chains, store)
    return Run(base=memory.ctypes.data, size=memory.nbytes, parameter=where)


def successors(memory, nodes, spacing=64):
    """Index of the next node of each, where all lie at the beginning of their cells."""
    return ((memory[:: spacing // 8][:nodes] - np.uint64(memory.ctypes.data)) // np.uint64(spacing)).astype(
        int
    )


def cycle_of(successor, start):
    """Nodes from `start` until it comes back."""
    seen = [start]
    while successor[seen[-1]] != start:
        seen.append(int(successor[seen[-1]]))
        assert len(seen) <= len(successor)
    return seen


@pytest.mark.parametrize("chains", range(1, 17))
@pytest.mark.parametrize("nodes", [16, 17, 31, 1000])
def test_chains_are_cycles_of_their_own(library, nodes, chains):
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    memory = np.zeros(8 * nodes, np.uint64)
    run = run_of(memory, nodes, chains=chains)
    assert kernel.prepare(run, Poll()) == 0
    assert run.lap == nodes
    successor = successors(memory, nodes)
    firsts = [(run.state[chain] - memory.ctypes.data) // 64 for chain in range(chains)]
    cycles = [cycle_of(successor, first) for first in firsts]
    assert sorted(node for cycle in cycles for node in cycle) == list(range(nodes))
    assert max(map(len, cycles)) - min(map(len, cycles)) <= 1
    assert [min(cycle) for cycle in cycles] == sorted(firsts)  # one block after the other


@pytest.mark.parametrize("store", [0, 1])
@pytest.mark.parametrize("chains", range(1, 17))
def test_accesses_go_round_the_chains(library, chains, store):
    """Each chain does as many steps as it has accesses, and nothing is changed."""
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    memory = np.zeros(8 * 100, np.uint64)
    run = run_of(memory, 100, chains=chains, store=store)
    assert kernel.prepare(run, Poll()) == 0
    before = memory.copy()
    successor = successors(memory, 100)
    at = [(run.state[chain] - memory.ctypes.data) // 64 for chain in range(chains)]
    for accesses in (0, 1, chains, chains + 1, 2 * chains - 1, 97):
        for access in range(accesses):
            at[access % chains] = int(successor[at[access % chains]])
        kernel.access(run, accesses)
        assert [(run.state[chain] - memory.ctypes.data) // 64 for chain in range(chains)] == at
    assert (memory == before).all()


@pytest.mark.parametrize(("nodes", "window"), [(100, 2), (100, 10), (101, 10), (64, 64), (7, 5), (5, 1)])
def test_a_window_is_visited_whole_before_the_next(library, nodes, window):
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    memory = np.zeros(8 * nodes, np.uint64)
    orders = set()
    for seed in range(20):
        assert kernel.prepare(run_of(memory, nodes, window=window, seed=seed), Poll()) == 0
        order = cycle_of(successors(memory, nodes), 0)
        assert sorted(order) == list(range(nodes))
        windows = [node // window for node in order]
        changes = sum(one != other for one, other in zip(windows, windows[1:] + windows[:1], strict=True))
        # Every window is entered once; where there is one, it is never left.
        assert changes == (-(-nodes // window) if window < nodes else 0)
        orders.add(tuple(order))
    assert len(orders) > 1


def test_windows_come_in_random_order(library):
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    memory = np.zeros(8 * 1000, np.uint64)
    assert kernel.prepare(run_of(memory, 1000, window=10), Poll()) == 0
    entered = [node // 10 for node in cycle_of(successors(memory, 1000), 0)][::10]
    neighbours = sum(abs(one - other) == 1 for one, other in itertools.pairwise(entered))
    assert neighbours < 20  # 2 of 100 by chance; 99 in address order


@pytest.mark.parametrize(
    "changes",
    [{"chains": 0}, {"chains": 17}, {"nodes": 3, "chains": 4}, {"window": 0}, {"store": 2}, {"pages": 0}],
)
def test_nonsense_is_refused_unwritten(library, changes):
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    memory = np.full(8 * 100, 7, np.uint64)
    assert kernel.prepare(run_of(memory, **{"nodes": 100, **changes}), Poll()) == -22
    assert (memory == 7).all()


def test_a_cut_chain_is_told(library):
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    memory = np.zeros(8 * 100, np.uint64)
    run, found = run_of(memory, 100, chains=4), ctypes.c_uint64()
    assert kernel.prepare(run, Poll()) == 0
    assert kernel.verify(run, found, Poll()) == 0
    assert found.value == 100
    memory[8 * 30] = memory.ctypes.data + 64 * 30  # a node of the second chain that points to itself
    assert kernel.verify(run, found, Poll()) == 0
    assert found.value == 75


# --- the probe


def test_result_is_complete():
    measured = tp.chase("64KiB", seed=3, counters=["cycles", "walks"], verify=True, **QUICK)
    assert measured.probe == "chase"
    assert measured.ns.dtype == np.float64
    assert measured.ns.shape == measured.disturbed.shape
    assert (measured.ns > 0).all()
    assert measured.disturbed.dtype == np.bool_
    assert not measured.ns.flags.writeable
    assert measured.low > 0
    assert {"map", "populate", "passes", "proof", "cycle", "verify", "measure"} <= measured.setup.keys()
    assert all(seconds >= 0 for seconds in measured.setup.values())
    assert measured.refused.keys() | measured.counters.keys() == {"cycles", "walks"}
    assert all(measured.refused.values())
    assert all(values.shape == measured.ns.shape for values in measured.counters.values())
    assert (measured.backing.page_size, measured.backing.proof) == (BASE, "proved")
    cpu = measured.params.pop("cpu")
    assert cpu >= 0
    assert measured.params == {
        "bytes": 65536,
        "stride": LINE,
        "placement": "spread",
        "nodes": 65536 // LINE,
        "locality": None,
        "chains": 1,
        "access": "load",
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
        ({"chains": 0}, ValueError, "chains=0 is out of range, 1 to 16"),
        ({"chains": 17}, ValueError, "chains=17 is out of range, 1 to 16"),
        ({"chains": 4, "stride": "32KiB"}, ValueError, "chains=4 is out of range, 1 to 2"),
        ({"chains": 2.0}, TypeError, "chains=2.0"),
        ({"chains": True}, TypeError, "chains=True"),
        ({"access": "write"}, ValueError, "access='write' is none of load, store"),
        ({"locality": 64}, ValueError, "locality=64 must be a multiple of the stride of 64 bytes: from 128"),
        ({"locality": 200}, ValueError, "locality=200 must be a multiple"),
        ({"locality": "1MiB"}, ValueError, "locality='1MiB'"),
        ({"locality": 1.5}, TypeError, "locality=1.5"),
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
        ({"counters": ["wlaks"]}, ValueError, "'wlaks' is no event that is known: near are walks"),
    ],
)
def test_wrong_parameters_are_named_before_anything_is_mapped(monkeypatch, arguments, error, said):
    monkeypatch.setattr(_core.Mapping, "advise", lambda *_: pytest.fail("it was mapped"))
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
    with pytest.raises(ValueError, match="max_seconds=inf must be above 0 and below"):
        tp.chase("64KiB", max_seconds=float("inf"))


# --- address space with few pages


@pytest.mark.no_asan  # which needs memory of its own for what is freed
def test_only_pages_that_hold_a_node_are_touched(run_python):
    """Memory grows by the nodes and their page tables, and is given back, address space and all."""
    before, during, nodes, proof, after = run_python("""
        def memory():
            text = Path("/proc/self/status").read_text()
            names = "RssAnon", "VmPTE", "VmSize"
            return [int(re.search(name + r":\\s+(\\d+) kB", text)[1]) for name in names]
        import re
        tp.chase("1MiB", max_seconds=0.01)
        before = memory()
        found = []
        from tlbprobe.measuring.point import Point
        real = Point.time
        Point.time = lambda self, *more: (real(self, *more), found.append(memory()))
        m = tp.chase("8TiB", stride="1GiB", max_seconds=0.02, verify=True)
        answer([before, found[0], m.params["nodes"], [m.backing.page_size, m.backing.proof], memory()])
    """)
    page = BASE >> 10
    assert nodes == 8192
    assert proof == [BASE, "proved"]
    assert 0 <= during[0] - before[0] - nodes * page < 4096
    assert during[1] - before[1] >= nodes * page  # a table for each node at the lowest level alone
    assert during[2] - before[2] >= 8 << 30
    assert all(abs(one - other) < 4096 for one, other in zip(after, before, strict=True))


@pytest.mark.parametrize("stride", [2 * BASE, 3 * BASE, "2MiB", "1GiB"])
def test_nodes_of_sparse_memory(stride):
    measured = tp.chase(40 * parse_size(stride), stride=stride, verify=True, chains=3, **QUICK)
    assert measured.params["nodes"] == 40
    assert (measured.backing.page_size, measured.backing.shares) == (BASE, {BASE: 1.0})
    assert measured.faults == {"minor": 0, "major": 0, "expected": 0}


def test_other_policies_and_regions_are_mapped_whole():
    whole = tp.chase("4MiB", "default", stride="1MiB", strict=False, **QUICK)
    assert whole.setup["populate"] > 0
    with tp.Region("4MiB") as region:
        assert tp.chase(region, stride="1MiB", **QUICK).params["nodes"] == 4


def test_packed_lines_are_all_that_is_mapped():
    measured = tp.chase("1TiB", stride="1GiB", placement="packed", verify=True, **QUICK)
    assert measured.params["nodes"] == 1024
    assert measured.params["mapped_bytes"] == -(-1024 * LINE // BASE) * BASE


def test_pages_of_nodes_fill_tlb_sets_evenly():
    """Of 512 nodes 2 MiB apart, every value of the low bits of the page number comes equally often."""
    stride, nodes = 512 * BASE, 512
    with regions.SparseRegion(stride * nodes, nodes, "nodes") as region:
        given = node_parameters(nodes, stride, "spread", 0)
        with tp._core.Session([(region, "chase", 0, stride * nodes, given)]) as session:
            assert session.verify() == (nodes,)
            session.pass_over()
        pages = np.flatnonzero(present(region.address, region.mapped_bytes, BASE))
    assert len(pages) == nodes
    for bits in (1, 3, 5, 7, 9):
        counts = np.bincount(pages % (1 << bits), minlength=1 << bits)
        assert counts.min() == counts.max() == nodes >> bits


def present(address, size, page):
    """Whether each page of a range of our memory is there."""
    with open("/proc/self/pagemap", "rb", buffering=0) as file:  # noqa: PTH123 - unbuffered
        entries = np.frombuffer(os.pread(file.fileno(), 8 * (size // page), address // page * 8), np.uint64)
    return entries >> np.uint64(63) == 1


def test_too_much_of_it_is_refused_with_figures(monkeypatch):
    monkeypatch.setattr(_core.Mapping, "advise", lambda *_: pytest.fail("it was mapped"))
    with pytest.raises(
        MemoryError, match=r"chase of 67108864 nodes at a stride of 1 MiB needs .* \(page tables"
    ):
        tp.chase("64TiB", stride="1MiB")
    with pytest.raises(MemoryError, match=r"of address space"):
        tp.chase(1 << 62, stride=1 << 60)


def test_strict_overcommit_is_refused_by_name(tmp_path):
    setting = tmp_path / "proc/sys/vm/overcommit_memory"
    setting.parent.mkdir(parents=True)
    setting.write_text("2\n")
    with pytest.raises(
        MemoryError, match=r"vm.overcommit_memory=2 refuses; .* sysctl vm.overcommit_memory=0"
    ):
        budget.check_sparse_budget(1 << 40, 1, "it", tmp_path)
    setting.write_text("1\n")
    budget.check_sparse_budget(1 << 40, 1, "it", tmp_path)


@pytest.mark.parametrize(
    ("mapped", "touched", "tables"),
    [
        # Tables of 2 MiB, of 1 GiB and so on, until one would cover it all; a range may touch one more.
        (1 << 21, 1, 1),
        (1 << 30, 512, 512 + 2),
        (1 << 43, 8192, 8192 + 8192 + 17 + 2),
    ],
)
def test_page_tables_are_counted(mapped, touched, tables):
    assert budget.sparse_bytes(mapped, touched, 4096) == (touched + tables) * 4096


@pytest.mark.parametrize("chains", [2, 3, 4, 5])
def test_windows_are_whole_in_every_chain(library, chains):
    """Windows begin where they would without chains, so that one of a page lies on a page."""
    kernel = Kernel.in_dll(library, "tlb_kernel_chase")
    nodes, window = 640, 64
    memory = np.zeros(8 * nodes, np.uint64)
    run = run_of(memory, nodes, window=window, chains=chains)
    assert kernel.prepare(run, Poll()) == 0
    successor = successors(memory, nodes)
    seen = []
    for chain in range(chains):
        cycle = cycle_of(successor, (run.state[chain] - memory.ctypes.data) // 64)
        windows = [node // window for node in cycle]
        changes = sum(one != other for one, other in zip(windows, windows[1:] + windows[:1], strict=True))
        assert changes == len(set(windows))
        seen += cycle
    assert sorted(seen) == list(range(nodes))


@pytest.mark.parametrize("stride", [4104, 6000, 3 * BASE + 8])
def test_nodes_that_may_share_a_page_are_mapped_whole(stride):
    measured = tp.chase(50 * stride, stride=stride, verify=True, **QUICK)
    assert (measured.backing.page_size, measured.params["nodes"]) == (BASE, 50)
    assert measured.setup["populate"] > 0


def test_numpy_numbers_are_as_good_as_pythons():
    measured = tp.chase(
        "64KiB", chains=np.int64(3), cpu=np.int64(0), precision=np.float16(0.5), max_seconds=np.float16(0.05)
    )
    assert (measured.params["chains"], measured.params["cpu"]) == (3, 0)
    assert type(measured.params["max_seconds"]) is float


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"max_seconds": 1e308}, ValueError, "max_seconds=1e+308 must be above 0 and below 1e+06"),
        ({"max_seconds": 10**400}, ValueError, "max_seconds=a huge number"),
        ({"precision": np.complex64(0.1)}, TypeError, "precision="),
        ({"seed": np.array([5])}, TypeError, "seed=array([5])"),
        ({"chains": 10**400}, ValueError, "chains=a huge number"),
    ],
)
def test_odd_numbers_are_refused_by_name(arguments, error, said):
    with pytest.raises(error, match=re.escape(said)):
        tp.chase("64KiB", **arguments)


@pytest.mark.no_asan
def test_no_memory_beside_the_region_is_a_memory_error(run_python):
    kind, text, _ = run_python("""
        region = tp.Region(256 * MIB)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * BASE
        resource.setrlimit(resource.RLIMIT_AS, (used + 8 * MIB, used + 8 * MIB))
        answer(caught(tp.chase, region, locality=128, max_seconds=0.01))
    """)
    assert kind == "MemoryError"
    assert "chase: the kernel refused the memory that preparing 256 MiB needs" in text
