"""The model of a processor: what it sees of kernels, and that it takes the time that its configuration says.

Expected figures are worked out here, by hand or by small models that know nothing of the C code.
"""

import ctypes
import errno
import itertools
import shutil

import numpy as np
import pytest
from pure_c import U64, Poll
from simulated_c import (
    BOTH,
    CODE,
    DATA,
    FOLDED,
    HASHED,
    LRU,
    PLAIN,
    PLRU,
    RANDOM,
    Burst,
    Cache,
    Config,
    ConfigError,
    Drift,
    Model,
    Neighbour,
    Overlap,
    Sets,
    Steps,
    Tlb,
    Walk,
    build,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE = 4096
FIRST_PAGE = GIB // PAGE  # the model's address of what is mapped first is 1 GiB
L1, L2, WALK, HIT, MEMORY = 0, 7, 20, 5, 200  # cycles
OVERLAP = (64, 16, 16, 1, 1, 1)


@pytest.fixture(scope="module", params=["gcc", "clang"])
def core(request, tmp_path_factory):
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param}")
    return build(request.param, tmp_path_factory.mktemp(request.param))


def tlb(side, cycles, *arrays):
    """A level; an array is (entries, ways, index, replacement), and page sizes."""
    level = Tlb(side, cycles)
    for array, (sets, pages) in zip(level.arrays, arrays, strict=False):
        array.sets = Sets(*sets)
        array.pages[: len(pages)] = pages
    return level


def machine(tlbs=(), caches=None, upper=((32,),), walk=(4, 1, WALK, 0), overlap=OVERLAP, **more):
    """At 1 GHz, with clocks that cost nothing. By default one cache that holds everything, so that a load
    takes HIT cycles, and a walk WALK and HIT for each of its loads."""
    config = Config(ghz=1, clock_ns=0, clock_step_ns=1, seed=1, base_page=PAGE, memory_cycles=MEMORY)
    config.overlap, config.walk = Overlap(*overlap), Walk(*walk)
    for place, sets in zip(config.walk.upper, upper, strict=False):
        place.entries = sets[0]
    for i, level in enumerate(tlbs):
        config.tlb[i] = level
    if caches is None:
        caches = [Cache(DATA, 4 * MIB, 64, 0, 0, 0, HIT), Cache(CODE, 4 * MIB, 64, 0, 0, 0, HIT)]
    for i, cache in enumerate(caches):
        config.cache[i] = cache
    for name, value in more.items():
        setattr(config, name, value)
    return config


def two_levels(first=16, second=64, pages=(PAGE,)):
    return [tlb(DATA, L1, ((first,), pages)), tlb(BOTH, L2, ((second,), pages))]


LARGE = [tlb(BOTH, 0, ((4096,), (PAGE, 2 * MIB)))]  # no page ever misses


def spread(model, nodes, spacing=PAGE, page=PAGE, true_page=None, chains=1, lines=1):
    """A chase with a node every so many bytes, after two laps."""
    base = model.map(nodes * spacing, page, true_page)
    run = model.run("chase", base, nodes * spacing, nodes, spacing, 1, lines, 64, 7, nodes, chains, 0)
    run.access(2 * nodes)
    return run


def packed(model, nodes, chains=1):
    return spread(model, nodes, 64, chains=chains)


def places(model, pages, page=PAGE):
    """A chase over pages by their number, after two laps."""
    size = (max(pages) + 1) * page
    base = model.map(size)
    ctypes.memmove(base, np.array([at * page for at in pages], np.uint64).ctypes.data, 8 * len(pages))
    run = model.run("places", base, size, len(pages), 0, 7)
    run.access(2 * len(pages))
    return run


# --- what the model sees of each kernel ------------------------------------------------------------------


def seen(counts):
    return tuple(counts[name] for name in ("loads", "stores", "prefetches", "jumps"))


@pytest.mark.parametrize("chains", [1, 3, 16])
@pytest.mark.parametrize("store", [0, 1])
def test_a_chase_is_a_load_and_maybe_a_store(core, chains, store):
    with Model(core, machine(LARGE)) as model:
        base = model.map(64 * KIB)
        run = model.run("chase", base, 64 * KIB, 1000, 64, 1, 1, 64, 7, 1000, chains, store)
        assert seen(run.counted(12345)) == (12345, 12345 * store, 0, 0)


@pytest.mark.parametrize(("access", "expected"), [(0, (1, 0)), (1, (0, 1)), (2, (1, 1))])
def test_a_stride_reads_writes_or_both(core, access, expected):
    with Model(core, machine(LARGE)) as model:
        base = model.map(64 * KIB)
        run = model.run("stride", base, 64 * KIB, 72, access)
        assert seen(run.counted(5000)) == (5000 * expected[0], 5000 * expected[1], 0, 0)


def test_places_are_loads(core):
    with Model(core, machine(LARGE)) as model:
        assert seen(places(model, [3, 5, 9, 1, 0]).counted(777)) == (777, 0, 0, 0)


def mix(word):
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def loads_of_lookups(run, base, records, slots, hit, queries):
    """Words that look-ups load, by the table that is there: keys up to the right one, then its value."""
    counter, salt = run.run.state[0], run.run.state[1]
    table = np.frombuffer((ctypes.c_char * (16 * slots)).from_address(base), np.uint64)[::2].tolist()
    loads = 0
    for _ in range(queries):
        counter = (counter + 0x9E3779B97F4A7C15) % 2**64
        word = mix(counter)
        key = (word * records >> 64) + 1 + (records if word % 2**32 >= hit else 0)
        slot = mix(key ^ salt) * slots >> 64
        while table[slot] not in (0, key):
            loads, slot = loads + 1, (slot + 1) % slots
        loads += 1 + (table[slot] == key)
    return loads


@pytest.mark.parametrize("batch", [1, 8])
def test_lookups_load_what_they_probe(core, batch):
    records, slots, hit, queries = 3000, 4000, 3 << 30, 2001
    with Model(core, machine(LARGE)) as model:
        base = model.map(64 * KIB)
        run = model.run("lookup", base, 16 * slots, records, slots, 16, hit, batch, 5)
        expected = loads_of_lookups(run, base, records, slots, hit, queries)
        counts = run.counted(queries)
        assert seen(counts) == (expected, 0, queries if batch > 1 else 0, 0)
        assert run.run.expected == run.run.found


@pytest.mark.parametrize("write", [0, 1])
@pytest.mark.parametrize("layout", [0, 1, 2])
def test_a_request_loads_six_lines(core, layout, write):
    """Directory, five objects by their pointers, and three fields of the last. A cache of a single line is
    missed by each line but the last, which several accesses in a row are to."""
    one_line = [Cache(DATA, 64, 64, 0, 0, 0, HIT)]
    with Model(core, machine(LARGE, one_line)) as model:
        base = model.map(MIB)
        run = model.run("objects", base, MIB, 200, layout, write, 3)
        counts = run.counted(500)
        assert seen(counts) == (500 * 8, 500 * 2 * write, 0, 0)
        assert counts["cache_hits"][0][8] == 500 * 6


def test_a_jump_is_a_jump(core):
    with Model(core, machine(LARGE)) as model:
        base = model.map(64 * KIB)
        run = model.run("jump", base, 64 * KIB, 1000, 64, 1, 1, 64, 7)
        assert seen(run.counted(2500)) == (0, 0, 0, 2500)
        assert run.verify() == 1000
        run.kernel.release(run.run)


def test_only_accesses_within_a_run_are_seen(core):
    with Model(core, machine(LARGE)) as model:
        base = model.map(64 * KIB)
        before = model.count()
        run = model.run("chase", base, 64 * KIB, 1024, 64, 1, 1, 64, 7, 1024, 1, 0)
        assert run.verify() == 1024
        run.kernel.access(run.run, 100)
        after = model.count()
        assert bytes(before) == bytes(after)
        model.unmap(base)
        assert run.access(1) == -errno.EFAULT


def test_without_a_model_kernels_run_and_clocks_stand(core):
    with Model(core, machine(LARGE)) as model:
        run = packed(model, 16)
        core.tlb_hook_use(None)
        assert run.access(1000) == 0
        assert core.tlb_clock_ns() == core.tlb_clock_cpu_ns() == core.tlb_clock_witness() == 0
        core.tlb_hook_use(model.model)


# --- TLBs and walks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "cycles"),
    [(1, HIT), (16, HIT), (17, HIT + L2), (64, HIT + L2), (65, HIT + WALK + HIT), (300, HIT + WALK + HIT)],
)
def test_lru_holds_its_entries_and_no_more(core, pages, cycles):
    """A cycle of one page more than entries misses them all; the walk's tables are known but for the last."""
    with Model(core, machine(two_levels())) as model:
        assert spread(model, pages).timed(3 * pages) == 3 * pages * cycles + 1
        assert packed(model, 300).timed(300) == 300 * HIT + 1


def test_sets_of_few_ways_do_as_well(core):
    first = tlb(DATA, 0, ((8, 4), (PAGE,)))
    with Model(core, machine([first])) as model:
        assert spread(model, 8).timed(80) == 80 * HIT + 1
        assert spread(model, 16).timed(80) == 80 * (HIT + WALK + HIT) + 1


def set_of(index, page, bits):
    groups = [page >> at & ((1 << bits) - 1) for at in range(0, 40, bits)]
    if index == PLAIN:
        return groups[0]
    return groups[0] ^ groups[1] if index == FOLDED else int(np.bitwise_xor.reduce(groups))


@pytest.mark.parametrize("index", [PLAIN, FOLDED, HASHED])
@pytest.mark.parametrize("ways", [4, 20])
def test_pages_of_one_set_collide(core, index, ways):
    """As many as ways hit; one more misses, all of them."""
    bits = 4
    level = tlb(DATA, 0, ((ways << bits, ways, index, LRU), (PAGE,)))
    same = [at for at in range(2000) if set_of(index, FIRST_PAGE + at, bits) == 3]
    with Model(core, machine([level], upper=((32,), (32,)))) as model:
        assert places(model, same[:ways]).timed(100) == 100 * HIT + 1
    with Model(core, machine([level], upper=((32,), (32,)))) as model:
        run = places(model, same[: ways + 1])
        assert run.timed(100) == 100 * (HIT + WALK + HIT) + 1


@pytest.mark.parametrize("sets", [3, 5, 12])
def test_any_number_of_sets_is_taken_modulo(core, sets):
    level = tlb(DATA, 0, ((2 * sets, 2), (PAGE,)))
    same = [at for at in range(100) if (FIRST_PAGE + at) % sets == 1]
    for pages, cycles in ((2, HIT), (3, HIT + WALK + HIT)):
        with Model(core, machine([level])) as model:
            assert places(model, same[:pages]).timed(60) == 60 * cycles + 1


def order_of(run, base, spacing):
    """The nodes that a chase will visit, from where it is on, for a lap."""
    nodes = run.run.parameter[0]
    words = np.frombuffer((ctypes.c_char * (nodes * spacing)).from_address(base), np.uint64)[:: spacing // 8]
    order, at = [], (run.run.state[0] - base) // spacing
    for _ in range(nodes):
        order.append(at)
        at = (int(words[at]) - base) // spacing
    return order


class TreePlru:
    """One set: for each range of ways a bit, whether the victim is in its second half."""

    def __init__(self, ways):
        self.ways, self.bits, self.keys = ways, {}, []

    def touch(self, way):
        low, high = 0, self.ways
        while high - low > 1:
            middle = (low + high) // 2
            self.bits[low, high] = way < middle  # to the half that was not used
            low, high = (low, middle) if way < middle else (middle, high)

    def victim(self):
        low, high = 0, self.ways
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.bits.get((low, high), False) else (low, middle)
        return low

    def access(self, key):
        if key in self.keys:
            self.touch(self.keys.index(key))
            return True
        if len(self.keys) < self.ways:
            self.keys.append(key)
            self.touch(len(self.keys) - 1)
        else:
            way = self.victim()
            self.keys[way] = key
            self.touch(way)
        return False


@pytest.mark.parametrize(("entries", "ways"), [(8, 0), (32, 8), (64, 0), (128, 32)])
def test_tree_plru_is_that_of_the_book(core, entries, ways):
    nodes, laps = entries + entries // 4, 12
    level = tlb(DATA, 0, ((entries, ways, PLAIN, PLRU), (PAGE,)))
    with Model(core, machine([level])) as model:
        base = model.map(nodes * PAGE)
        run = model.run("chase", base, nodes * PAGE, nodes, PAGE, 1, 1, 64, 7, nodes, 1, 0)
        order = order_of(run, base, PAGE)
        sets = [TreePlru(ways or entries) for _ in range(entries // (ways or entries))]
        hits = sum(sets[at % len(sets)].access(at) for _ in range(laps) for at in order)
        counts = run.counted(laps * nodes)
    assert 0 < hits < laps * nodes
    assert (counts["tlb_hits"][0][0], counts["tlb_misses"][0][0]) == (hits, laps * nodes - hits)


@pytest.mark.parametrize(("entries", "ways"), [(8, 0), (32, 4), (40, 0)])
def test_random_replacement_hits_as_often_as_chance_has_it(core, entries, ways):
    nodes, laps = entries + entries // 4, 4000
    level = tlb(DATA, 0, ((entries, ways, PLAIN, RANDOM), (PAGE,)))
    with Model(core, machine([level])) as model:
        counts = spread(model, nodes).counted(laps * nodes)
    rng = np.random.default_rng(1)
    each = ways or entries
    sets = [{} for _ in range(entries // each)]
    hits = 0
    for lap in range(600):
        for at in range(nodes):
            held = sets[at % len(sets)]
            if at in held:
                hits += lap >= 100
            elif len(held) < each:
                held[at] = None
            else:
                held.pop(list(held)[rng.integers(each)])
                held[at] = None
    assert counts["tlb_hits"][0][0] / (laps * nodes) == pytest.approx(hits / (500 * nodes), rel=0.03)


@pytest.mark.parametrize(
    ("levels", "upper", "loads"),
    [
        (4, (), 4),
        (5, (), 5),
        (3, (), 3),
        (4, ((32,),), 1),
        (4, ((4,), (32,)), 2),
        (4, ((4,), (4,), (4,)), 3),
        (5, ((4,), (4,), (4,), (4,)), 3),
        (5, ((4,), (4,), (0,), (4,)), 4),
    ],
)
def test_a_walk_loads_what_its_caches_do_not_hold(core, levels, upper, loads):
    """Eight pages a GiB apart, each with an entry of its own but in the upper two of five levels."""
    config = machine([tlb(DATA, 0, ((4,), (PAGE,)))], upper=upper, walk=(levels, 1, WALK, 0))
    with Model(core, config) as model:
        run = spread(model, 8, GIB)
        counts = run.counted(80)
        assert (counts["walks"][0], counts["walk_loads"]) == (80, 80 * loads)
        assert run.timed(80) == 80 * (HIT + WALK + loads * HIT) + 1


def test_tables_are_cached_as_data_is(core):
    """Pages 32 KiB apart have a table line each: 512 lines of data and as many of tables do not fit 512 lines
    of the cache; and the line of 8 neighbours' entries is loaded once."""
    small = [Cache(DATA, 512 * 64, 64, 0, 0, 0, HIT)]
    with Model(core, machine([tlb(DATA, 0, ((4,), (PAGE,)))], small)) as model:
        run = spread(model, 512, 8 * PAGE)
        assert run.timed(512) == 512 * (MEMORY + WALK + MEMORY) + 1
    with Model(core, machine([tlb(DATA, 0, ((4,), (PAGE,)))], small)) as model:
        run = spread(model, 400, PAGE)
        assert run.timed(400) == 400 * (HIT + WALK + HIT) + 1


def test_walks_may_begin_at_the_second_cache(core):
    caches = [Cache(DATA, 4 * MIB, 64, 0, 0, 0, HIT), Cache(DATA, 4 * MIB, 64, 0, 0, 0, 14)]
    config = machine([tlb(DATA, 0, ((4,), (PAGE,)))], caches, walk=(4, 1, WALK, 1))
    with Model(core, config) as model:
        assert spread(model, 100).timed(200) == 200 * (HIT + WALK + 14) + 1


def test_larger_pages_need_fewer_entries_and_shorter_walks(core):
    tlbs = two_levels(8, 16, (PAGE, 2 * MIB))
    with Model(core, machine(tlbs, upper=((32,), (32,)))) as model:
        run = spread(model, 512, 32 * KIB, 2 * MIB)  # 8 pages
        assert run.timed(1000) == 1000 * HIT + 1
        run = spread(model, 64, 2 * MIB, 2 * MIB)
        counts = run.counted(64)
        assert (counts["walks"][0], counts["walk_loads"]) == (64, 64)  # from the PDPTE on: the PDE alone
        backed = spread(model, 512, 32 * KIB, 2 * MIB, PAGE)
        assert backed.counted(512)["walks"][0] == 512
        run = spread(model, 512, 32 * KIB, GIB)  # pieces of 2 MiB, of which both levels hold some
        assert run.timed(1000) == 1000 * HIT + 1


def test_a_level_that_holds_no_such_page_never_hits(core):
    tlbs = [tlb(DATA, 0, ((8,), (2 * MIB,))), tlb(DATA, L2, ((64,), (PAGE,)))]
    with Model(core, machine(tlbs)) as model:
        assert spread(model, 2).timed(100) == 100 * (HIT + L2) + 1


@pytest.mark.parametrize("shared", [False, True])
def test_sizes_may_share_an_array_or_not(core, shared):
    arrays = [((16,), (PAGE, 2 * MIB))] if shared else [((16,), (PAGE,)), ((16,), (2 * MIB,))]
    with Model(core, machine([tlb(DATA, 0, *arrays)])) as model:
        small = spread(model, 10)
        large = spread(model, 10, 2 * MIB, 2 * MIB)
        assert small.counted(10)["walks"][0] == (10 if shared else 0)
        assert large.counted(10)["walks"][0] == (10 if shared else 0)


@pytest.mark.parametrize(("base_page", "table"), [(16 * KIB, 2048), (64 * KIB, 8192)])
def test_larger_base_pages_have_larger_tables(core, base_page, table):
    config = machine(
        [tlb(DATA, 0, ((4,), (base_page,)))], upper=(), walk=(3, 1, WALK, 0), base_page=base_page
    )
    with Model(core, config) as model:
        assert spread(model, 32, base_page, base_page).counted(32)["walk_loads"] == 96
        block = base_page * base_page // 8  # of a whole table: a walk has one load less
        assert spread(model, 32, block, block).counted(32)["walk_loads"] == 64


# --- caches ----------------------------------------------------------------------------------------------

LEVELS = [Cache(DATA, 32 * KIB, 64, 8, 0, 0, HIT), Cache(DATA, 256 * KIB, 64, 4, 0, 0, 14)]


@pytest.mark.parametrize(
    ("size", "cycles"), [(32 * KIB, HIT), (64 * KIB, 14), (256 * KIB, 14), (512 * KIB, MEMORY)]
)
def test_contiguous_frames_fill_caches_evenly(core, size, cycles):
    with Model(core, machine(LARGE, LEVELS, contiguous=1)) as model:
        run = packed(model, size // 64)
        assert run.timed(size // 64) == size // 64 * cycles + 1


def test_random_frames_do_not(core):
    """A second cache of 4 ways is missed by what just fits, if 1024 sets are chosen 4 bits at random."""
    with Model(core, machine(LARGE, LEVELS)) as model:
        counts = packed(model, 256 * KIB // 64).counted(4096)
    hits, missed = counts["cache_hits"][0][1], counts["cache_hits"][0][8]
    assert hits + missed == 4096
    assert 0.2 < missed / 4096 < 0.8  # a set in 16 has Poisson(4) pages: P(> 4) of its lines is 0.57


def test_lines_of_levels_may_differ(core):
    caches = [Cache(DATA, 4 * KIB, 64, 0, 0, 0, HIT), Cache(DATA, MIB, 128, 0, 0, 0, 14)]
    with Model(core, machine(LARGE, caches)) as model:
        base = model.map(64 * KIB)
        counts = model.run("stride", base, 64 * KIB, 64, 0).counted(1024)
    assert (counts["cache_hits"][0][8], counts["cache_hits"][0][1]) == (512, 512)


# --- overlap ---------------------------------------------------------------------------------------------

COLD = [Cache(DATA, 64, 64, 0, 0, 0, HIT)]  # a line: everything else comes from memory


@pytest.mark.parametrize("chains", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("misses", [6, 32])
def test_chains_overlap_up_to_the_misses_in_flight(core, chains, misses):
    with Model(core, machine(LARGE, COLD, overlap=(64, misses, 16, 1, 1, 1))) as model:
        cycles = packed(model, 960, chains).timed(9600) / 9600
    assert cycles == pytest.approx(MEMORY / min(chains, misses), rel=0.01)


@pytest.mark.parametrize("window", [1, 4, 10])
def test_a_window_bounds_what_is_in_flight(core, window):
    with Model(core, machine(LARGE, COLD, overlap=(window, 32, 16, 1, 1, 1))) as model:
        cycles = packed(model, 960, 16).timed(9600) / 9600
    assert cycles == pytest.approx(MEMORY / window, rel=0.02)


def test_chains_close_together_do_not_wait_for_each_other(core):
    """All in one line: each waits for the load of its own pointer, not for the last into its line."""
    with Model(core, machine(LARGE)) as model:
        run = spread(model, 8, 8, chains=4)
        assert run.timed(9600) / 9600 == pytest.approx(HIT / 4, rel=0.01)


@pytest.mark.parametrize("interval", [0.5, 1, 3])
def test_independent_accesses_that_hit_go_at_the_rate_of_issue(core, interval):
    with Model(core, machine(LARGE, overlap=(64, 12, 16, interval, 1, 1))) as model:
        base = model.map(16 * KIB)
        run = model.run("stride", base, 16 * KIB, 64, 0)
        run.access(512)
        assert run.timed(1000) == 1000 * interval + HIT


@pytest.mark.parametrize("walkers", [1, 2, 4])
def test_walkers_bound_independent_walks(core, walkers):
    config = machine([tlb(DATA, 0, ((4,), (PAGE,)))], walk=(4, walkers, WALK, 0))
    with Model(core, config) as model:
        base = model.map(256 * PAGE)
        run = model.run("stride", base, 256 * PAGE, PAGE, 0)
        run.access(512)
        before = model.ns()
        counts = run.counted(2000)
        cycles = model.ns() - before
    assert cycles / 2000 == pytest.approx((WALK + HIT) / walkers, rel=0.01)
    assert counts["walk_pending"] == 2000 * (WALK + HIT)
    assert counts["walk_active"] == pytest.approx(cycles, abs=10)


def test_walks_one_by_one_are_active_as_long_as_pending(core):
    with Model(core, machine([tlb(DATA, 0, ((4,), (PAGE,)))])) as model:
        counts = spread(model, 100).counted(1000)
    assert counts["walk_active"] == counts["walk_pending"] == 1000 * (WALK + HIT)
    assert counts["cycles"] == 1000 * (WALK + 2 * HIT) + 1


class Direct:
    """Accesses one by one, to bytes of one range."""

    def __init__(self, model, size=MIB):
        self.model, self.base = model, model.map(size)
        assert model.core.tlb_model_enter(model.model, U64(self.base), U64(size)) == 0

    def load(self, at, pointing_to=None):
        value = 0 if pointing_to is None else self.base + pointing_to
        self.model.core.tlb_model_load(self.model.model, U64(self.base + at), U64(value))

    def store(self, at):
        self.model.core.tlb_model_store(self.model.model, U64(self.base + at))

    def prefetch(self, at):
        self.model.core.tlb_model_prefetch(self.model.model, U64(self.base + at))


def test_a_second_access_to_a_line_on_its_way_waits_for_it(core):
    """Whoever loads a pointer from a line that is on its way has it no sooner than the line."""
    for first in ("load", "prefetch", "store"):
        with Model(core, machine(LARGE, COLD)) as model:
            direct = Direct(model)
            direct.load(0)
            begin = model.ns()
            getattr(direct, first)(64)
            direct.load(72, pointing_to=256)
            direct.load(256)
            assert model.ns() - begin == 1 + MEMORY + MEMORY


def test_a_second_access_to_a_page_on_its_way_waits_for_the_walk(core):
    config = machine([tlb(DATA, 0, ((4,), (PAGE,)))], COLD, upper=())
    with Model(core, config) as model:
        direct = Direct(model)
        direct.load(0)
        direct.load(640, pointing_to=1280)
        direct.load(1280)
        assert model.ns() == 1 + (WALK + 4 * MEMORY) + MEMORY + MEMORY


def test_a_miss_fills_every_level(core):
    caches = [Cache(DATA, 4 * KIB, 64, 0, 0, 0, HIT), Cache(DATA, MIB, 64, 0, 0, 0, 14)]
    with Model(core, machine(two_levels(), caches)) as model:
        direct = Direct(model)
        for _ in range(3):
            direct.load(0)
        counts = model.count()
    assert [list(counts.tlb_misses[0])[:2], list(counts.tlb_hits[0])[:2]] == [[1, 1], [2, 0]]
    assert list(counts.cache_hits[0])[:2] == [2, 0]


def test_a_free_slot_is_taken_before_one_that_will_be(core):
    """Of two misses one is still on its way when the other, to the second cache, is done: a third goes on."""
    caches = [Cache(DATA, 64, 64, 0, 0, 0, HIT), Cache(DATA, MIB, 64, 0, 0, 0, 14)]
    with Model(core, machine(LARGE, caches, overlap=(64, 2, 16, 1, 1, 1))) as model:
        direct = Direct(model)
        direct.load(0)
        direct.load(64)
        begin = model.ns()
        direct.load(128)
        direct.load(0)
        direct.load(192)
        assert model.ns() - begin == 2 + 14 + MEMORY


def test_prefetches_leave_the_window_and_keep_their_slots(core):
    for misses, cycles in ((16, 16 + MEMORY), (4, 1 + 4 * MEMORY)):
        with Model(core, machine(LARGE, COLD, overlap=(2, misses, 16, 1, 1, 1))) as model:
            direct = Direct(model)
            direct.load(0)
            begin = model.ns()
            for line in range(1, 17):
                direct.prefetch(64 * line)
            assert model.ns() - begin == pytest.approx(cycles, abs=16 if misses == 4 else 0)


@pytest.mark.parametrize(("stores", "cycles"), [(1, MEMORY), (4, MEMORY / 4), (64, MEMORY / 16)])
def test_stores_wait_in_a_buffer_and_for_slots(core, stores, cycles):
    with Model(core, machine(LARGE, COLD, overlap=(64, 16, stores, 1, 1, 1))) as model:
        base = model.map(MIB)
        run = model.run("stride", base, MIB, 64, 1)
        run.access(MIB // 64)
        assert run.timed(10000) / 10000 == pytest.approx(cycles, rel=0.01)


def test_a_store_delays_no_load(core):
    """Loads that hit go on beside stores that miss, as long as the buffer has room."""
    two = [Cache(DATA, 128, 64, 0, 0, 0, HIT)]
    with Model(core, machine(LARGE, two, overlap=(8, 16, 64, 1, 1, 1))) as model:
        direct = Direct(model)
        direct.load(0)
        begin = model.ns()
        for line in range(1, 11):
            direct.store(64 * line)
            direct.load(0)
        assert model.ns() - begin == 20 - 1 + MEMORY  # the last store entered one before the last


def test_requests_overlap_and_the_loads_of_one_do_not(core):
    """Six lines of a request one after the other; of eight loads, two more are to the last line."""
    overlap = [(8, 32), (1, 32), (80, 100)]
    times = []
    for window, misses in overlap:
        with Model(core, machine(LARGE, COLD, overlap=(window, misses, 16, 1, 1, 1))) as model:
            base = model.map(8 * MIB)
            run = model.run("objects", base, 8 * MIB, 2000, 0, 0, 3)
            run.access(20000)
            times.append(run.timed(2000) / 2000)
            if window > 1:
                assert run.timed(1) == 1 + 6 * MEMORY
    assert times[1] == pytest.approx(6 * MEMORY + 2 * HIT, rel=0.01)  # nothing overlaps
    assert times[2] < 6 * MEMORY / 8  # ten requests do
    assert times[2] < times[0] < times[1]


# --- code ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pages", "extra"), [(8, 0), (9, L2), (64, L2), (65, WALK + HIT)])
def test_jumps_miss_the_instruction_tlb(core, pages, extra):
    tlbs = [*two_levels(), tlb(CODE, 0, ((8,), (PAGE,)))]
    tlbs[1:] = tlbs[:0:-1]  # the code's own level stands before the shared one
    with Model(core, machine(tlbs)) as model:
        base = model.map(pages * PAGE)
        run = model.run("jump", base, pages * PAGE, pages, PAGE, 1, 64, 64, 7)
        run.access(2 * pages)
        assert run.timed(3 * pages) == 3 * pages * (HIT + extra) + 1
        assert run.counted(pages)["walks"] == [0, pages if pages > 64 else 0]
        run.kernel.release(run.run)


@pytest.mark.parametrize(("ahead", "cycles"), [(1, HIT + L2), (2, (HIT + L2) / 2), (100, 2)])
def test_fetch_runs_ahead_of_jumps(core, ahead, cycles):
    tlbs = [tlb(CODE, 0, ((8,), (PAGE,))), tlb(CODE, L2, ((64,), (PAGE,)))]
    with Model(core, machine(tlbs, overlap=(64, 16, 16, 1, ahead, 2))) as model:
        base = model.map(32 * PAGE)
        run = model.run("jump", base, 32 * PAGE, 32, PAGE, 1, 64, 64, 7)
        run.access(64)
        assert run.timed(3200) / 3200 == pytest.approx(cycles, rel=0.01)
        run.kernel.release(run.run)


def test_code_and_data_share_levels_and_nothing_else(core):
    tlbs = [tlb(DATA, 0, ((8,), (PAGE,))), tlb(CODE, 0, ((8,), (PAGE,))), tlb(BOTH, L2, ((16,), (PAGE,)))]
    with Model(core, machine(tlbs)) as model:
        data = spread(model, 8)
        base = model.map(12 * PAGE)
        code = model.run("jump", base, 12 * PAGE, 12, PAGE, 1, 64, 64, 7)
        code.access(24)
        assert data.counted(8)["tlb_hits"][0][0] == 8  # its own level still holds them
        counts = code.counted(12)
        assert (counts["tlb_misses"][1][1], counts["tlb_hits"][1][2]) == (12, 12)
        code.kernel.release(code.run)


# --- mapping and determinism -----------------------------------------------------------------------------


def test_what_may_be_mapped(core):
    with Model(core, machine(LARGE)) as model:
        base = model.map(64 * KIB)

        def status(base, size, page=PAGE, true_page=PAGE):
            return core.tlb_model_map(model.model, U64(base), U64(size), U64(page), U64(true_page))

        assert status(base + 4096, 4096) == -errno.EEXIST
        assert status(1 << 40, 4096, 5000) == -errno.EINVAL
        assert status(1 << 40, 4096, PAGE, 2048) == -errno.EINVAL
        assert status(1 << 40, 0) == -errno.EINVAL
        assert status(1 << 48, 1 << 47) == 0
        assert status(1 << 50, 1 << 47) == -errno.ENOSPC
        assert core.tlb_model_unmap(model.model, U64(base + 4096)) == -errno.ENOENT
        for other in (base, 1 << 48):
            model.unmap(other)
        assert status(1 << 50, 1 << 47) == 0  # addresses begin anew where nothing is mapped


def noisy(**more):
    """Everything that is random, at once."""
    caches = [Cache(DATA, 32 * KIB, 64, 8, 0, RANDOM, HIT), Cache(DATA, 256 * KIB, 64, 8, 0, PLRU, 14)]
    config = machine([tlb(DATA, 0, ((32, 4, 0, RANDOM), (PAGE,)))], caches, **more)
    config.burst[0] = Burst(100, 1, 2, 2, 3, 0.25)
    config.drift, config.steps = Drift(0.1, 3), Steps(2, 0.75)
    config.neighbour[0] = Neighbour(5000, 0, 0)
    return config


def times_of(core, config):
    with Model(core, config) as model:
        run = spread(model, 512, PAGE, lines=64)
        return [run.timed(1000) for _ in range(200)]


def test_the_same_seed_gives_the_same_times(core):
    times = times_of(core, noisy())
    assert times == times_of(core, noisy())
    assert times != times_of(core, noisy(seed=2))
    assert len(set(times)) > 50


# --- disturbance -----------------------------------------------------------------------------------------


def samples(model, run, count, pause):
    """Cycles of slices of 100 accesses, with pauses in between."""
    times = []
    for _ in range(count):
        times.append(run.timed(100))
        model.advance(pause)
    return np.array(times)


def lengths(on):
    """Of each stretch in which something is on, but for those at the ends."""
    edges = np.flatnonzero(np.diff(on.astype(int)))
    bounds = np.concatenate(([0], edges + 1, [len(on)]))
    return np.array([b - a for a, b in itertools.pairwise(bounds[1:-1]) if on[a]])


def test_bursts_are_as_long_and_as_many_as_configured(core):
    config = machine(LARGE)
    config.burst[0] = Burst(20, 5, 15, 2, 0, 0)
    with Model(core, config) as model:
        times = samples(model, packed(model, 64), 60000, 500_000 - 501)
    quiet, slow = 100 * HIT + 1, 100 * HIT * 2 + 2
    assert np.isin(times, [quiet, slow]).mean() > 0.999
    on = times > (quiet + slow) / 2
    assert on.mean() == pytest.approx(10 / (10 + 50), rel=0.1)
    found = lengths(on) / 2  # ms
    assert 4.5 <= found.min() <= 6
    assert 14 <= np.quantile(found, 0.95) <= 15.5  # a burst may begin just after another one
    assert found.mean() == pytest.approx(10, rel=0.05)
    apart = lengths(~on) / 2
    assert apart.mean() == pytest.approx(50, rel=0.1)
    assert apart.std() == pytest.approx(50, rel=0.15)  # as of an exponential distribution


def test_added_time_is_of_each_latency(core):
    config = machine(LARGE, ghz=2)
    config.burst[0] = Burst(1e6, 1e5, 1e5, 1, 10, 0)
    with Model(core, config) as model:
        model.advance(1_000_000)
        run = packed(model, 64)
        assert run.timed(1000) == pytest.approx(1000 * (HIT / 2 + 10), abs=2)


def test_stolen_time_is_wall_time_without_cpu_time(core):
    config = machine(LARGE)
    config.burst[0] = Burst(1e6, 1e5, 1e5, 1, 0, 0.75)
    with Model(core, config) as model:
        model.advance(1_000_000)
        run = packed(model, 64)
        wall, cpu = model.ns(), model.cpu_ns()
        run.access(1000)
        model.compute(5000)
        cpu_spent, wall_spent = model.cpu_ns() - cpu, model.ns() - wall
        assert wall_spent == pytest.approx(4 * cpu_spent, abs=4)
        assert cpu_spent == 1000 * HIT + 5000 + 1


def test_the_core_clock_steps(core):
    config = machine(LARGE)
    config.steps = Steps(10, 0.5)
    with Model(core, config) as model:
        times = np.array([(core.tlb_clock_witness(), model.advance(300_000))[0] for _ in range(20000)])
    slow = times > 1.5 * 16384
    assert np.isin(times, [16384, 2 * 16384]).mean() > 0.9
    assert slow.mean() == pytest.approx(0.5, abs=0.05)
    assert lengths(slow).mean() * 0.32 == pytest.approx(10, rel=0.1)


def test_drift_is_slow(core):
    config = machine(LARGE)
    config.drift = Drift(0.2, 16)
    with Model(core, config) as model:
        factors = samples(model, packed(model, 64), 40000, 1_000_000) / (100 * HIT + 1)
    assert factors.min() >= 1
    assert factors.mean() == pytest.approx(1 + 0.2 * (2 / np.pi) ** 0.5, abs=0.01)

    def correlation(lag):
        return np.corrcoef(factors[:-lag], factors[lag:])[0, 1]

    assert correlation(1) > 0.8
    assert correlation(4) > 0.4
    assert abs(correlation(100)) < 0.1


@pytest.mark.parametrize("ways", [0, 4])
def test_neighbours_take_entries(core, ways):
    """Of 64 entries half are ours: every other one that is taken is missed once."""
    config = machine([tlb(DATA, 0, ((64, ways), (PAGE,)))])
    config.neighbour[0] = Neighbour(1000, 0, 0)
    with Model(core, config) as model:
        counts = spread(model, 32).counted(1_000_000)
    assert counts["walks"][0] == pytest.approx(counts["cycles"] / 1000 / 2, rel=0.05)


def test_neighbours_take_lines_and_a_long_wait_costs_little(core):
    caches = [Cache(DATA, 32 * KIB, 64, 8, 0, 0, HIT)]
    config = machine(LARGE, caches)
    config.neighbour[0] = Neighbour(1000, 1, 0)
    with Model(core, config) as model:
        run = packed(model, 256)
        assert run.counted(256)["cache_hits"][0][0] > 200
        model.advance(10**12)  # a thousand seconds
        assert run.counted(256)["cache_hits"][0][0] < 30


def test_without_disturbance_time_is_exact(core):
    with Model(core, machine(LARGE, ghz=2.5, clock_ns=20, clock_step_ns=4)) as model:
        begin = model.ns()
        assert begin == 20
        model.advance(1000)
        assert model.ns() == begin + 1020
        assert model.cpu_ns() == 20 * 3  # this reading, and the two before
        model.compute(2500)
        assert model.ns() == begin + 1020 + 20 + 1000 + 20
        run = packed(model, 64)
        wall = run.timed(1000)
        assert wall % 4 == 0
        assert wall == pytest.approx(1000 * HIT / 2.5 + 20, abs=4)
        assert model.count().cycles == pytest.approx((model.ns() - 20 - 1000) * 2.5, abs=10)


# --- the clocks of the core ------------------------------------------------------------------------------


class Cost(ctypes.Structure):
    _fields_ = [("read_ns", ctypes.c_double), ("step_ns", U64)]


def test_the_clocks_of_the_core_are_the_models(core):
    with Model(core, machine(LARGE, ghz=2, clock_ns=20)) as model:
        cost, moment = Cost(), (U64 * 3)()
        core.tlb_clock_calibrate(ctypes.byref(cost))
        assert (cost.read_ns, cost.step_ns) == (20, 20)
        assert core.tlb_clock_witness() == 16384 / 2 + 20
        core.tlb_clock_moment(moment)
        assert moment[0] == moment[1] == moment[2] == model.ns() - 20
        begin = core.tlb_clock_ns()
        core.tlb_clock_wait(U64(10**9))
        assert core.tlb_clock_ns() - begin == 10**9 + 20


class Slice(ctypes.Structure):
    _fields_ = [(name, U64) for name in ("ns", "cpu_ns", "minor", "major", "switches")]


def test_the_slice_loop_measures_on_the_model(core):
    """Spread and packed in turn, warmed as ever: their difference is what the walk costs, to the cycle."""
    config = machine([tlb(DATA, 0, ((16,), (PAGE,)))], ghz=2, clock_ns=20)
    with Model(core, config) as model:
        runs = [spread(model, 64), packed(model, 64)]
        pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(run.run) for run in runs))
        accesses, slices, witness = (U64 * 2)(1000, 1000), (Slice * 20)(), (U64 * 11)()
        status = core.tlb_measure(
            pointers, accesses, ctypes.c_size_t(2), U64(10), slices, witness, None, ctypes.byref(Poll())
        )
        assert status == 0
        spread_ns, packed_ns = ([one.ns for one in slices[at : at + 10]] for at in (0, 10))
        walks, hits = 1000 * (WALK + 2 * HIT) / 2, 1000 * HIT / 2
        assert {*spread_ns} <= {walks + 20, walks + 21}
        assert {*packed_ns} <= {hits + 20, hits + 21}
        assert all(one.cpu_ns == one.ns + 40 for one in slices)
        assert all(one.minor == one.major == one.switches == 0 for one in slices)
        assert {*witness} == {16384 / 2 + 20}
        for run in runs:
            model.unmap(run.run.base)
        assert (
            core.tlb_measure(
                pointers, accesses, ctypes.c_size_t(2), U64(10), slices, witness, None, ctypes.byref(Poll())
            )
            == -errno.EFAULT
        )


# --- configurations --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("ghz", 0, "ghz: must be 0.01 to 100"),
        ("ghz", float("nan"), "ghz: must be"),
        ("seed", 0.5, "seed: must be a whole number"),
        ("base_page", 5000, "base_page: must be 4096"),
        ("clock_step_ns", 0, "clock_step_ns: must be a whole number, 1 to"),
        ("overlap.window", 0, "overlap.window: must be a whole number, 1 to 4096"),
        ("overlap.cycles", 0, "overlap.cycles: must be"),
        ("walk.levels", 6, "walk.levels: must be a whole number, 3 to 5"),
        ("walk.upper.1.ways", 7, "walk.upper[1].ways: must be a divisor of the 32 entries"),
        ("tlb.1.side", 4, "tlb[1].side: must be a whole number, 1 to 3"),
        ("tlb.0.arrays.0.sets.ways", 3, "tlb[0].arrays[0].ways: must be a divisor of the 16 entries"),
        ("tlb.0.arrays.0.sets.replacement", 3, "tlb[0].arrays[0].replacement: must be"),
        ("tlb.0.arrays.0.pages.0", 0, "tlb[0].arrays[0].pages: must be one size or more"),
        ("tlb.0.arrays.0.pages.0", 2048, "tlb[0].arrays[0].pages: must be powers of two"),
        ("cache.0.line", 48, "cache[0].line: must be a power of two"),
        ("cache.1.size", 100, "cache[1].size: must be lines of 64 bytes"),
        ("cache.0.ways", 5, "cache[0].ways: must be a divisor"),
        ("burst.2.factor", 0.5, "burst[2].factor: must be 1 to"),
        ("burst.2.stolen", 1, "burst[2].stolen: must be 0 to 0.999"),
        ("drift.memory_ms", 0, "drift.memory_ms: must be"),
        ("steps.factor", 2, "steps.factor: must be"),
        ("neighbour.3.level", 2, "neighbour[3].level: must be one of its 2 levels"),
    ],
)
def test_what_is_wrong_is_named(core, path, value, message):
    config = machine(two_levels())
    config.walk.upper[1] = Sets(32)
    config.burst[2] = Burst(1, 1, 2, 1, 0, 0)
    config.drift, config.steps = Drift(1, 1), Steps(1, 0.5)
    config.neighbour[3] = Neighbour(1000, 0, 1)
    with Model(core, config):
        pass
    *parts, last = path.split(".")
    place = config
    for part in parts:
        place = place[int(part)] if part.isdigit() else getattr(place, part)
    if last.isdigit():
        place[int(last)] = value
    else:
        setattr(place, last, value)
    with pytest.raises(ConfigError) as error:
        Model(core, config)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (Sets(24, 6, PLAIN, PLRU), "ways: must be a power of two for tree-PLRU"),
        (Sets(24, 4, FOLDED, LRU), "index: must be plain, as 6 sets are no power of two"),
        (Sets(24.5, 4), "entries: must be a whole number"),
        (Sets(-1, 4), "entries: must be a whole number"),
    ],
)
def test_sets_that_cannot_be(core, sets, message):
    config = machine(two_levels())
    config.tlb[1].arrays[0].sets = sets
    with pytest.raises(ConfigError, match=message):
        Model(core, config)
