"""Probes on simulated machines, from the public name to the model and back: against what must come out."""

import asyncio
import json
import threading
from pathlib import Path

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe.cores import current
from tlbprobe.cores.description import describe, parse
from tlbprobe.display.commands.main import main

pytest.importorskip("tlbprobe._simulated", reason="this build cannot simulate: so it is under a sanitizer")

EXACT = Path(__file__).parent / "machines" / "exact.toml"
KIB, MIB = 1 << 10, 1 << 20
PAGE = 4 * KIB


@pytest.fixture
def exact():
    """A machine on which a cycle is a nanosecond and every time can be worked out by hand."""
    with tp.simulated(EXACT) as machine:
        yield machine


def about(ns):
    """To 1 %: reading the clock is in it, too."""
    return pytest.approx(ns, rel=0.01, abs=0.01)


# --- what must come out ----------------------------------------------------------------------------------

# By tests/machines/exact.toml: caches of 32 KiB and 1 MiB that take 4 and 14 cycles, then memory, 100.


@pytest.mark.parametrize(("size", "ns"), [("4KiB", 4), ("32KiB", 4), ("256KiB", 14), ("8MiB", 100)])
def test_chase_takes_what_the_cache_takes(exact, size, ns):
    assert tp.chase(size, "thp").low == about(ns)


# 16 entries, then 64 in 16 sets that answer 8 cycles later, then a walk: 10 cycles and a load of 4.
@pytest.mark.parametrize(("pages", "ns"), [(2, 0), (16, 0), (17, 8), (32, 8), (64, 8), (128, 14), (200, 14)])
def test_translation_takes_what_the_level_takes(exact, pages, ns):
    found = tp.translation(pages << 21, "thp", stride="2MiB")
    assert found.cost == about(ns)
    assert found.spread.counters == {}


def test_the_least_page_walks_through_more_levels(exact):
    """As many pages of 4 KiB lie in one table: as far apart as tables, each needs its own entry above."""
    near, far = tp.translation(128 * PAGE), tp.translation(128 << 21, stride="2MiB")
    assert near.cost == about(14)
    assert far.cost > near.cost + 3.9  # an upper entry is loaded, too: 4 cycles at least


@pytest.mark.parametrize(("chains", "hit", "miss"), [(1, 4, 100), (2, 2, 50), (4, 1, 25), (16, 1, 12.5)])
def test_chains_overlap_up_to_the_misses_in_flight(exact, chains, hit, miss):
    """One access a cycle at most, and 8 misses at once."""
    assert tp.chase("4KiB", chains=chains).low == about(hit)
    assert tp.chase("8MiB", "thp", chains=chains).low == about(miss)


@pytest.mark.parametrize(
    ("access", "ns", "loads", "stores"), [("read", 1, 1, 0), ("write", 1, 0, 1), ("rmw", 2, 1, 1)]
)
def test_stride_is_bound_by_the_accesses_a_cycle(exact, access, ns, loads, stores):
    found = tp.stride("4KiB", access=access, counters=["loads", "stores"])
    assert found.low == about(ns)
    assert (found.counter("loads"), found.counter("stores")) == (loads, stores)


def test_lookups_are_bound_by_the_slots_that_they_read(exact):
    """Everything is in the first cache, and no look-up waits for another: a load a cycle."""
    found = tp.lookup("100", counters=["loads"])
    assert 1 < found.counter("loads") < 20
    assert found.low == pytest.approx(found.counter("loads"), rel=0.05)


@pytest.mark.parametrize("layout", ["scattered", "pooled", "split"])
def test_objects_are_six_lines_of_eight_loads_and_two_stores(exact, layout):
    found = tp.objects("4", layout=layout, counters=["loads", "stores"])
    assert (found.counter("loads"), found.counter("stores")) == (8, 2)
    assert found.low == about(10)  # what is in the first cache: an access a cycle


def test_objects_pay_for_the_pages_of_their_layout(exact):
    """Hot lines side by side are on fewer pages: fewer walks by as much as the count of pages says."""
    scattered, split = (
        tp.objects("1K", layout=layout, counters=["walks"]) for layout in ("scattered", "split")
    )
    assert scattered.counter("walks") > 4
    assert split.counter("walks") < 1
    assert split.low < scattered.low / 4


@pytest.mark.parametrize(("pages", "ns"), [(8, 4), (9, 12), (64, 12), (128, 18)])
def test_jump_takes_what_the_instruction_side_takes(exact, pages, ns):
    """8 entries, then those that code and data share."""
    assert tp.jump(pages * PAGE).low == about(ns)
    assert tp.jump(pages * PAGE, placement="packed").low == about(4)


def test_places_that_fall_into_one_set(exact):
    """Four ways of 16 sets: a fifth page in one of them pushes the others out."""
    beside = [PAGE * (16 * k + 1) + 64 * k for k in range(20)]
    held = tp.places("8MiB", offsets=beside[:16], counters=["walks"])
    pushed = tp.places("8MiB", offsets=beside, counters=["walks"])
    assert held.counter("walks") == 0
    assert pushed.counter("walks") == pytest.approx(1)


def test_counters_are_exact(exact):
    counters = ["loads", "walks", "stlb_hit", "cycles", "walk_active", "walk_pending", "l1_dtlb_misses"]
    found = tp.translation(128 << 21, "thp", stride="2MiB", counters=[*counters, "instructions"]).spread
    per_access = {name: found.counter(name) for name in counters}
    assert per_access["loads"] == per_access["walks"] == per_access["l1_dtlb_misses"] == 1
    assert per_access["stlb_hit"] == 0
    assert per_access["cycles"] == about(found.low)
    assert per_access["walk_active"] == per_access["walk_pending"] == about(14)
    assert found.walk_share == pytest.approx(14 / found.low, rel=0.01)
    assert "it counts cycles, loads" in found.refused["instructions"]


@pytest.mark.parametrize(("machine", "held"), [(EXACT, 2 * MIB), ("guest", PAGE)])
def test_effective_page_size(machine, held):
    """True huge pages, and those that a hypervisor backs by small ones."""
    with tp.simulated(machine), tp.Region("64MiB", "thp") as region:
        found = tp.effective_page_size(region)
        assert region.backing().page_size == 2 * MIB
    assert found.page_size == held
    assert "simulated" in str(found)


# --- pages and memory ------------------------------------------------------------------------------------


def test_pages_are_those_of_the_machine(exact):
    offered = {policy.name: policy.page_size for policy in tp.page_policies() if policy.offered}
    assert offered == {
        "base": PAGE,
        "default": None,
        "thp": 2 * MIB,
        "collapse": 2 * MIB,
        "hugetlb-1G": 1 << 30,
    }
    with tp.Region("1MiB", "hugetlb-1G") as region:
        assert (region.mapped_bytes, region.backing().page_size) == (1 << 30, 1 << 30)
        assert (region.backing().proof, region.backing().method) == ("simulated", "simulated: exact")
    with pytest.raises(ValueError, match="it has base, default"):
        tp.chase("1MiB", "thp-64K")


def test_larger_base_pages():
    with tp.simulated("apple-m1") as machine:
        assert machine.description.base_page == 16 * KIB
        found = tp.translation("1MiB", max_seconds=0.1)
        assert found.spread.params["nodes"] == 64
        assert found.backing.page_size == 16 * KIB


def test_memory_is_sparse(exact):
    """What is not touched takes no memory, whatever its size."""
    with tp.Region("2GiB", "hugetlb-1G") as region:
        before = resident()
        tp.chase(region, working_set="2GiB", stride="1GiB")
        assert resident() - before < 64 * MIB


def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_a_region_belongs_to_the_core_that_made_it():
    with tp.Region("64KiB") as real:
        with tp.simulated(EXACT):
            with pytest.raises(
                ValueError, match="belongs to this machine, and here measures simulated: exact"
            ):
                tp.chase(real)
            modelled = tp.Region("64KiB")
        with pytest.raises(ValueError, match="belongs to simulated: exact, and here measures this machine"):
            tp.chase(modelled)
        with tp.simulated(EXACT), pytest.raises(ValueError, match="belongs to simulated"):
            tp.chase(modelled)  # a machine of the same description is another one
        modelled.close()
        assert tp.chase(real, max_seconds=0.02).backing.proof == "proved"


def test_memory_that_was_given_back_can_be_mapped_again(exact):
    for _ in range(20):
        with tp.Region("2MiB", "thp"):
            pass
    regions = [tp.Region("2MiB", "thp") for _ in range(5)]
    del regions
    assert tp.chase("2MiB", "thp").low > 0


# --- whose core it is ------------------------------------------------------------------------------------


def test_threads_and_tasks_have_a_core_of_their_own(exact):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(str(current.current())))
    thread.start()
    thread.join()

    async def look(machine):
        with tp.simulated(machine):
            await asyncio.sleep(0)
            return str(current.current())

    async def both():
        return await asyncio.gather(look("two-levels"), look("hashed"))

    assert seen == ["this machine"]
    assert asyncio.run(both()) == ["simulated: two-levels", "simulated: hashed"]
    assert str(current.current()) == "simulated: exact"


def test_it_ends_with_the_block(exact):
    with pytest.raises(KeyError), tp.simulated("two-levels"):
        raise KeyError
    assert current.current() is exact


def test_the_same_seed_makes_the_same_run():
    def measured(seed):
        with tp.simulated("cortex-a53", seed=seed) as machine:
            found = tp.chase("256KiB"), tp.translation("256KiB", max_seconds=0.1).spread
            return [one.ns for one in found], machine.now()

    (first, time), (second, other) = measured(1), measured(1)
    assert time == other
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))
    assert measured(2)[1] != time


def test_nobody_waits_for_a_simulated_clock(exact):
    before = current.NATIVE.now()
    exact.wait(3600)
    assert current.NATIVE.now() - before < 60
    assert exact.now() >= 3600


def test_real_things_are_refused(exact):
    for call in (
        lambda: tp.fault("1MiB"),
        lambda: tp.shootdown("1MiB"),
        lambda: tp.fault_parts("1MiB"),
        lambda: tp.stat(["true"]),
        lambda: tp.whatif(["true"]),
    ):
        with pytest.raises(RuntimeError, match="not on simulated: exact"):
            call()
    with pytest.raises(ValueError, match="cpu=1"):
        tp.chase("4KiB", cpu=1)


@pytest.mark.parametrize("machine", ["skylark", "two-levels.txt", ""])
def test_unknown_machines_are_named(machine):
    with pytest.raises(ValueError, match="nor one of"), tp.simulated(machine):
        pass


def test_a_machine_of_ones_own(tmp_path):
    text = EXACT.read_text().replace("entries = 16 }", "entries = 4 }")
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with tp.simulated(path) as machine:
        assert machine.name == "mine"
        assert [tp.translation(pages * PAGE).cost for pages in (4, 5)] == [about(0), about(8)]


def test_what_the_model_refuses_names_the_place():
    described = describe(EXACT)
    broken = parse({**load_toml(EXACT), "ghz": 1.0}, "mine")
    assert broken.numbers(0) == described.numbers(0)


def load_toml(path):
    import tomllib

    return tomllib.loads(path.read_text())


def test_every_machine_measures():
    for described in tp.machines():
        with tp.simulated(described):
            assert 0 < tp.chase("8KiB", max_seconds=0.05).low < 10
        assert described.name in str(described)


# --- results say so --------------------------------------------------------------------------------------


@pytest.fixture
def results(exact):
    return {
        "measurement": tp.chase("4KiB"),
        "translation": tp.translation("64KiB"),
        "sweep": tp.sweep(tp.chase, size=["4KiB", "8KiB"], progress=False),
        "curve": tp.curve(["16KiB", "64KiB"], ["base", "thp"], progress=False),
        "anatomy": tp.anatomy("base", memory="1MiB", max_seconds=0.05),
    }


def test_titles_files_and_pictures_say_simulated(results, tmp_path):
    for kind, result in results.items():
        assert "simulated: exact" in result.title, kind
        assert "simulated: exact" in result._repr_html_(), kind
        result.save(tmp_path / "r.npz")
        loaded = tp.load(tmp_path / "r.npz")
        assert (loaded.simulated, loaded.title) == ("exact", result.title)
        figure = loaded.figure()
        texts = [
            text.get_text() for text in (*figure.texts, *(one for ax in figure.axes for one in ax.texts))
        ]
        assert "simulated: exact" in texts, kind
        assert not getattr(result, "hazards", ())


def test_hosts_are_those_of_the_machine(exact):
    host = tp.host()
    assert host.simulated == "exact"
    assert host["pages.base"] == PAGE
    assert host.tlb_reach(PAGE) == {1: 16 * PAGE, 2: 64 * PAGE}
    assert host.hazards == ()
    assert "simulated: exact" in str(host)


def test_results_of_hardware_say_nothing_of_the_kind():
    measured = tp.chase("4KiB", max_seconds=0.02)
    assert measured.simulated == ""
    assert "simulated" not in str(measured)


# --- the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["chase", "64K"],
        ["chase", "64K,128K"],
        ["translation", "64K"],
        ["curve", "--sizes", "64K,128K", "--pages", "base"],
        ["anatomy", "--memory", "1MiB", "--max-seconds", "0.5", "--pages", "base"],
        ["host"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_simulate(run, arguments):
    status, out, _ = run("--simulate", "two-levels", *arguments)
    assert status == 0
    assert "simulated: two-levels" in out.splitlines()[0]


def test_json_says_simulated(run):
    status, out, _ = run("--simulate", "two-levels", "chase", "64K", "--json")
    assert (status, json.loads(out)["simulated"]) == (0, "two-levels")


def test_commands_that_cannot_simulate_say_why(run):
    for arguments in (["fault", "64K"], ["stat", "--", "true"], ["whatif", "--", "true"]):
        status, out, err = run("--simulate", "two-levels", *arguments)
        assert (status, out) == (1, "")
        assert "not on simulated: two-levels" in err
    assert run("--simulate", "nothing", "chase", "64K")[0] == 2


# --- found by readers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, 3, b"skylake", []])
def test_what_is_no_machine_is_named(wrong):
    with pytest.raises(TypeError, match=r"machine=.* must be a name, a path"), tp.simulated(wrong):
        pytest.fail("it was one")


@pytest.mark.parametrize(
    ("wrong", "error"), [(-1, ValueError), (1 << 53, ValueError), (1.5, TypeError), ("1", TypeError)]
)
def test_a_wrong_seed_is_named(wrong, error):
    with pytest.raises(error, match=r"seed="), tp.simulated("two-levels", seed=wrong):
        pytest.fail("it was one")


def test_an_empty_machine_is_not_this_machine(capsys):
    assert main(["--simulate", "", "chase", "64KiB"]) == 2
    assert "machine='' is neither" in capsys.readouterr().err


def test_who_leaves_in_another_order_leaves_nothing_behind():
    first, second = tp.simulated("skylake"), tp.simulated("two-levels")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert current.current().name == "two-levels"
    second.__exit__(None, None, None)
    assert current.current().name == ""


def test_programs_are_of_this_machine(capsys):
    with tp.simulated("two-levels"), pytest.raises(RuntimeError, match="not on simulated: two-levels"):
        tp.program_mappings(1)
    assert main(["--simulate", "two-levels", "pages", "1MiB"]) == 0
    assert capsys.readouterr().out.startswith("pages are simulated: two-levels; memory is this machine's")


def test_tables_say_which_machine():
    with tp.simulated("two-levels"):
        swept = tp.sweep(tp.chase, size=["16KiB"], max_seconds=0.01)
    assert set(swept.to_numpy()["proof"]) == {"simulated: two-levels"}


def test_caches_and_levels_are_facts():
    with tp.simulated("skylake"):
        host = tp.host()
    assert (host["cache.L1d"], host["cache.L1d.ways"]) == (32 << 10, 8)
    assert (host["cache.L2"], host["cache.L3"], host["paging.levels"]) == (256 << 10, 8 << 20, 4)


CACHED = """
about = "caches hold all"
ghz = 1.0
pages = ["4KiB"]
tlb = [{ side = "both", entries = [{ pages = ["4KiB"], entries = 4096 }], source = "made up" }]
cache = [{ side = "both", size = "64MiB", ways = 16, cycles = 4, source = "made up" }]
memory = { cycles = 1000, source = "made up" }
walk = { cycles = 0, source = "made up" }
overlap = { window = 8, misses = 8, stores = 8, cycles = 1, source = "made up" }
"""


def test_caches_are_warm_however_short_the_time(tmp_path):
    (tmp_path / "cached.toml").write_text(CACHED)
    with tp.simulated(tmp_path / "cached.toml"):
        found = tp.chase("1MiB", max_seconds=0.001)
        assert found.low == pytest.approx(4, rel=0.01)
