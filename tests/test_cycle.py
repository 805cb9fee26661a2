"""Cycles: single, uniformly random, the same for a seed, and nothing but the nodes is written."""

import ctypes
import errno
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pure_c import ASK, Nodes, Poll

CSRC = Path(__file__).parents[1] / "csrc"
HARNESS = Path(__file__).parent / "c" / "harness.c"
PAGE = 4096  # of no machine in particular
GUARD = 0xA5A5A5A5A5A5A5A5
GUARD_WORDS = 16
U64 = ctypes.c_uint64
LAST = 2**64 - 1

# What every machine must agree on: the first successors of some (count, seed), in 1, 2, 7 and 383 buckets.
GOLDEN = {
    (1, 0): [0],
    (2, 0): [1, 0],
    (5, 0): [1, 3, 4, 2, 0],
    (5, 1): [4, 3, 0, 2, 1],
    (1_000, 0): [811, 284, 866, 265, 689, 692, 569, 226],
    (16_383, LAST): [7440, 12826, 1487, 15431, 3576, 9329, 7837, 10216],
    (16_384, 0): [4437, 15148, 14944, 14946, 12003, 12212, 5801, 7535],
    (100_000, 42): [16366, 35942, 55650, 74359, 9867, 66046, 15412, 28050],
    (7_000_000, 7): [2682882, 2016262, 6917480, 3206734, 1657900, 2130366, 6406731, 3708530],
}


NEVER = Poll()


def polling(ask):
    """A poll that calls back, and what has to stay alive meanwhile."""
    callback = ASK(lambda _: ask())
    return Poll(callback), callback


class Cycles:
    """One build of cycle.c, and the memory that its cycles lie in."""

    def __init__(self, library):
        self.library = library
        library.tlb_nodes_span.restype = U64
        library.tlb_node.restype = ctypes.c_void_p
        library.harness_lap.restype = ctypes.c_size_t

    def nodes(self, memory, count, spacing=8, lines=1, line=64, offsets=None):
        base = memory.ctypes.data + 8 * GUARD_WORDS if memory is not None else 0
        return Nodes(
            base, count, spacing, 1, lines, line, 0, None if offsets is None else offsets.ctypes.data
        )

    def at(self, count, spacing, pages, lines, line, i, first=0):
        """Offset of a node from the base."""
        nodes = Nodes(0, count, spacing, pages, lines, line, first, None)
        return self.library.tlb_node(ctypes.byref(nodes), U64(i)) or 0

    def span(self, *where, **more):
        return self.library.tlb_nodes_span(ctypes.byref(self.nodes(None, *where, **more)))

    def link_nodes(self, nodes, seed=0, poll=NEVER):
        return self.library.tlb_cycle_link(ctypes.byref(nodes), U64(seed), ctypes.byref(poll))

    def walk(self, nodes, limit=None, poll=NEVER):
        steps = U64(12345)
        limit = U64(nodes.count if limit is None else limit)
        status = self.library.tlb_cycle_walk(
            ctypes.byref(nodes), limit, ctypes.byref(steps), ctypes.byref(poll)
        )
        return steps.value if status == 0 else status

    def link(self, count, spacing=8, lines=1, line=64, *, seed=0, offsets=None):
        """Link, check that only the span was written, and return the successors by index."""
        span = self.span(count, spacing, lines, line, offsets=offsets)
        memory = guarded(span)
        nodes = self.nodes(memory, count, spacing, lines, line, offsets)
        assert self.link_nodes(nodes, seed) == 0
        assert (memory[:GUARD_WORDS] == GUARD).all()
        assert (memory[-GUARD_WORDS:] == GUARD).all()
        at = offsets if offsets is not None else offsets_of(count, spacing, lines, line)
        assert at.max() + 8 <= span
        if offsets is not None:
            others = np.ones(len(memory), bool)
            others[GUARD_WORDS + at // 8] = False
            assert (memory[others] == GUARD).all()
        assert self.walk(nodes) == count
        found = memory[GUARD_WORDS + at // 8] - np.uint64(nodes.base)
        index = found // np.uint64(spacing) if offsets is None else ranks(found, at)
        assert (at[index] == found).all()  # every pointer is to a node
        return index.astype(np.int64)

    def is_single(self, successor):
        """Whether the successors form one cycle, by a walk that is not tlbprobe's."""
        return self.library.harness_lap(successor.ctypes, ctypes.c_size_t(successor.size)) == successor.size


def guarded(size):
    return np.full(-(-size // 8) + 2 * GUARD_WORDS, GUARD, np.uint64)


def digit_sums(count, base):
    """Sum of the digits of 0 .. count - 1."""
    rest, total = np.arange(count, dtype=np.uint64), np.zeros(count, np.uint64)
    while base > 1 and rest.any():
        rest, digit = np.divmod(rest, np.uint64(base))
        total += digit
    return total


def offsets_of(count, spacing, lines, line):
    """Where the header says that the nodes are."""
    cell = np.arange(count, dtype=np.uint64) * np.uint64(spacing)
    return cell + digit_sums(count, lines) % np.uint64(lines) * np.uint64(line)


def ranks(found, at):
    """Index of each offset among those of the nodes."""
    order = np.argsort(at)
    return order[np.searchsorted(at[order], found).clip(max=len(at) - 1)]


@pytest.fixture(scope="module")
def build(compile_c):
    def load(**macros):
        return Cycles(compile_c(CSRC / "cycle.c", HARNESS, **macros))

    return load


@pytest.fixture(scope="module")
def cycles(build):
    return build()


# --- single cycles


@pytest.mark.parametrize(
    ("spacing", "lines", "counts"),
    [(8, 1, range(1, 2049)), (64, 1, range(1, 1025)), (PAGE, 64, range(1, 257)), (200, 3, range(1, 257))],
)
def test_single_for_every_count(cycles, spacing, lines, counts):
    for count in counts:
        assert cycles.is_single(cycles.link(count, spacing, lines, seed=count)), count


@pytest.mark.parametrize("buckets", [1, 2, 3, 383])
@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_single_around_the_bucket_boundaries(cycles, buckets, beside):
    assert cycles.is_single(cycles.link(buckets * 16384 + beside))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_single_for_any_placement(cycles, data):
    line = data.draw(st.sampled_from([8, 24, 64, 128]))
    spacing = 8 * data.draw(st.integers(1, 600))
    lines = data.draw(st.integers(1, max(1, spacing // line)))
    count = data.draw(st.integers(1, min(300_000, (16 << 20) // spacing)))
    seed = data.draw(st.integers(0, LAST))
    assert cycles.is_single(cycles.link(count, spacing, lines, line, seed=seed))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_single_over_any_addresses(cycles, data):
    words = data.draw(st.integers(1, 100_000))
    count = data.draw(st.integers(1, words))
    seed = data.draw(st.integers(0, LAST))
    at = np.random.default_rng(seed).permutation(words)[:count].astype(np.uint64) * np.uint64(8)
    successor = cycles.link(count, offsets=at, seed=seed)
    assert cycles.is_single(successor)
    assert (successor == cycles.link(count, seed=seed)).all()


# --- the narrow index


@pytest.mark.parametrize(("narrow", "bits"), [("uint8_t", 8), ("uint16_t", 16)])
@pytest.mark.parametrize("buckets_of", [16, 1 << 14])
def test_wide_code_makes_the_same_cycles(build, narrow, bits, buckets_of):
    """As 2^32 nodes would: with as many indices as fit, and with one more."""
    ours = build(TLB_NARROW=narrow, TLB_BUCKET_NODES=buckets_of)
    wide = build(TLB_BUCKET_NODES=buckets_of)
    most = 1 << bits
    for count in (1, 2, 3, most - 1, most, most + 1, most + 2, 2 * most, 40_001):
        for seed in (0, 7):
            expected = wide.link(count, seed=seed)
            assert cycles_equal(ours, expected, count, seed)
            in_place = ours.link(count, 8, seed=seed)
            assert ours.is_single(in_place)
            if count <= most:
                assert (in_place == expected).all()


def cycles_equal(build, expected, count, seed):
    """Whether lists in the memory of the nodes, beside them, and lines in cells all make the same cycle."""
    at = np.arange(count, dtype=np.uint64)[::-1] * np.uint64(16)
    found = (
        build.link(count, 24, seed=seed),
        build.link(count, 64, 3, 16, seed=seed),
        build.link(count, offsets=at, seed=seed),
    )
    return build.is_single(expected) and all((each == expected).all() for each in found)


def test_little_room_means_in_place(build):
    """Two words a node do not hold two lists of wide indices: the last of them would lie before the first."""
    narrow = build(TLB_NARROW="uint8_t")
    for count in (256, 257, 258, 1000):
        for spacing in (8, 16, 24):
            assert narrow.is_single(narrow.link(count, spacing))


# --- the same order for a seed


@pytest.mark.parametrize(("count", "seed"), GOLDEN)
def test_every_machine_makes_the_same_cycle(cycles, count, seed):
    found = cycles.link(count, seed=seed)[:8].tolist()
    assert found == GOLDEN[count, seed][: len(found)]


@pytest.mark.parametrize("count", [1, 7, 1000, 50_000])
def test_order_does_not_depend_on_where_nodes_are(cycles, count):
    expected = cycles.link(count, seed=3)
    for where in ((16,), (64,), (72,), (128,), (512, 8), (1000, 15), (320, 5, 64)):
        assert (cycles.link(count, *where, seed=3) == expected).all(), where


def test_other_seeds_make_other_cycles(cycles):
    orders = {tuple(cycles.link(1000, seed=seed)) for seed in (0, 1, 2, 1 << 32, 1 << 63, LAST)}
    assert len(orders) == 6


# --- uniformity, of fixed seeds: each of these statistics is what it is


def chi_square_fits(counts):
    """Whether equal frequencies explain the counts, within 4.5 standard deviations."""
    counts = np.asarray(counts, float)
    statistic = ((counts - counts.mean()) ** 2).sum() / counts.mean()
    freedom = counts.size - 1
    return abs(statistic - freedom) < 4.5 * math.sqrt(2 * freedom)


def successors(build, count, seeds):
    """Successors by index, a row for each seed."""
    memory = guarded(8 * count)
    nodes = build.nodes(memory, count)
    rows = np.empty((len(seeds), count), np.int64)
    for row, seed in zip(rows, seeds, strict=True):
        assert build.link_nodes(nodes, seed) == 0
        row[:] = (memory[GUARD_WORDS:-GUARD_WORDS] - np.uint64(nodes.base)) // np.uint64(8)
    return rows


def lap(successor):
    """Nodes in the order of the cycle, from the one after node 0."""
    order = [successor[0]]
    while successor[order[-1]] != 0:
        order.append(successor[order[-1]])
    return tuple(order)


@pytest.mark.parametrize("buckets_of", [1 << 14, 2, 1])
@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_all_cycles_are_equally_frequent(build, count, buckets_of):
    cycles = list(itertools.permutations(range(1, count)))
    rows = successors(build(TLB_BUCKET_NODES=buckets_of), count, range(100 * len(cycles)))
    seen = dict.fromkeys(cycles, 0)
    for row in rows.tolist():
        seen[lap(row)] += 1
    assert chi_square_fits(list(seen.values()))


@pytest.mark.parametrize("buckets_of", [1 << 14, 16, 4, 1])
def test_successors_and_positions_are_uniform(build, buckets_of):
    count, seeds = 64, 4000
    rows = successors(build(TLB_BUCKET_NODES=buckets_of), count, range(seeds))
    distance = (rows - np.arange(count)) % count
    assert chi_square_fits(np.bincount(distance.ravel(), minlength=count)[1:])
    for node in (0, 1, count // 2, count - 1):
        assert chi_square_fits(np.delete(np.bincount(rows[:, node], minlength=count), node))
    position, node = np.zeros((seeds, count), int), np.zeros(seeds, int)
    for step in range(count):
        position[np.arange(seeds), node] = step
        node = rows[np.arange(seeds), node]
    for end in (1, count - 1):
        assert chi_square_fits(np.bincount(position[:, end], minlength=count)[1:])


def test_neighbours_in_the_cycle_are_no_neighbours_in_memory(cycles):
    """Several full buckets: the distance to the successor is uniform, and so is the distance of two steps."""
    count = 200_000
    successor = cycles.link(count)
    for reached in (successor, successor[successor]):
        distance = (reached - np.arange(count)) % count
        assert chi_square_fits(np.histogram(distance, 100, (0, count))[0])


# --- random numbers


@pytest.mark.parametrize("seed", [0, 1, 0x0123456789ABCDEF, LAST])
def test_stream_is_that_of_numpy(cycles, seed):
    theirs = np.random.SFC64()
    state = theirs.state
    state["state"]["state"] = np.array([seed, seed, seed, 1], np.uint64)
    theirs.state = state
    theirs.random_raw(12)
    ours = np.empty(10_000, np.uint64)
    cycles.library.harness_stream(U64(seed), ours.ctypes, ctypes.c_size_t(ours.size))
    assert (ours == theirs.random_raw(ours.size)).all()


def below(cycles, bound, count=30_000, seed=1):
    out = np.empty(count, np.uint64)
    cycles.library.harness_below(U64(seed), U64(bound), out.ctypes, ctypes.c_size_t(count))
    return out


@given(st.integers(1, LAST), st.integers(0, LAST))
@settings(max_examples=200, deadline=None)
def test_random_numbers_stay_below_their_bound(cycles, bound, seed):
    assert below(cycles, bound, 100, seed).max() < bound


@pytest.mark.parametrize("bound", [2, 3, 7, 1000, 3 << 62, (3 << 62) + 1, (1 << 63) + 1, LAST])
def test_random_numbers_are_uniform_over_the_full_range(cycles, bound):
    """Where a remainder or a product without rejection would favour some: a bound of three quarters."""
    parts = min(bound, 12)
    found = below(cycles, bound).astype(object) * parts // bound
    assert chi_square_fits(np.bincount(found.astype(int), minlength=parts))
    odd = below(cycles, bound) % np.uint64(3)  # a product without rejection favours one of three numbers
    assert bound < 1000 or chi_square_fits(np.bincount(odd.astype(int), minlength=3))


# --- lines


@pytest.mark.parametrize("lines", [1, 2, 3, 5, 8, 63, 64])
def test_nodes_fill_all_lines_evenly(cycles, lines):
    tlb_node = cycles.library.tlb_node
    tlb_node.restype = ctypes.c_void_p
    nodes = cycles.nodes(None, LAST, 64 * lines, lines, 64)
    for first in (0, lines**3, lines * 1_000_003):
        used = [(tlb_node(ctypes.byref(nodes), U64(first + i)) or 0) // 64 % lines for i in range(4 * lines)]
        assert np.bincount(used, minlength=lines).tolist() == [4] * lines


@pytest.mark.parametrize("sets", [64, 128, 1024, 2048, 16384])
def test_nodes_fill_cache_sets_of_contiguous_memory_evenly(sets):
    used = offsets_of(64**3, PAGE, 64, 64) // np.uint64(64) % np.uint64(sets)
    assert len(set(np.bincount(used.astype(int), minlength=sets))) == 1


# --- what does not fit


@pytest.mark.parametrize(
    ("where", "span"),
    [
        ((1, 8, 1, 64), 8),
        ((3, 64, 1, 64), 136),
        ((2, PAGE, 64, 64), PAGE + 63 * 64 + 8),
        ((1 << 61, 8, 1, 64), LAST),  # its end is 2^64
        (((1 << 61) - 1, 8, 1, 64), LAST - 7),
    ],
)
def test_span(cycles, where, span):
    assert cycles.span(*where) == span


NONSENSE = [
    (0, 64, 1, 64),
    (2, 0, 1, 64),
    (2, 4, 1, 64),
    (2, 12, 1, 64),
    (2, 64, 0, 64),
    (2, 64, 2, 64),
    (2, 64, 2, 0),
    (2, 64, 2, 4),
    (2, 64, 2, 12),
    (2, 64, LAST, 8),
    (2, LAST - 7, 1, 64),
    (3, 1 << 63, 1, 64),
    (2, 1 << 63, LAST, 8),
    (2, LAST - 7, (1 << 61) - 1, 8),
    (LAST, 8, 1, 64),
    (LAST, LAST - 7, 1, 64),
    (1 << 62, 8, 1, 8),
    (1, LAST - 7, (1 << 61) - 1, LAST - 7),
]


@pytest.mark.parametrize("where", NONSENSE)
def test_nonsense_is_refused_and_nothing_is_written(cycles, where):
    memory = guarded(64)
    nodes = cycles.nodes(memory, *where)
    assert cycles.span(*where) == LAST
    assert cycles.link_nodes(nodes) == -errno.EINVAL
    assert (memory == GUARD).all()


@given(st.tuples(*[st.one_of(st.integers(0, LAST), st.integers(0, 64), st.integers(LAST - 64, LAST))] * 4))
def test_span_is_exact_or_refused(cycles, where):
    count, spacing, lines, line = where
    span = cycles.span(*where)
    if span != LAST:
        assert span == (count - 1) * spacing + (lines - 1) * line + 8
        assert count
        assert spacing >= max(8, (lines - 1) * line + 8)


@pytest.mark.parametrize("odd", [[0, 4], [8, 17], [0, LAST - 7], [0, LAST]])
def test_offsets_that_hold_no_pointer_are_refused(cycles, odd):
    memory = guarded(64)
    nodes = cycles.nodes(memory, 2, offsets=np.array(odd, np.uint64))
    assert cycles.link_nodes(nodes) == -errno.EINVAL
    assert (memory == GUARD).all()


# --- polling


@pytest.mark.parametrize("offsets", [False, True])
def test_building_and_walking_ask_and_stop(cycles, offsets):
    count = 1 << 17
    at = np.arange(count, dtype=np.uint64) * np.uint64(8) if offsets else None
    memory = guarded(8 * count)
    nodes = cycles.nodes(memory, count, offsets=at)
    asked = itertools.count(1)
    poll, _keep = polling(lambda: next(asked) and 0)
    assert cycles.link_nodes(nodes, 0, poll) == 0
    assert cycles.walk(nodes, poll=poll) == count
    times = next(asked) - 1
    assert times >= 5 * count >> 15
    for stop in range(1, times + 1):
        asked = itertools.count(1)
        poll, _keep = polling(lambda stop=stop, asked=asked: -errno.EINTR if next(asked) == stop else 0)
        status = cycles.link_nodes(nodes, 0, poll)
        if status == 0:
            status = cycles.walk(nodes, poll=poll)
        assert status == -errno.EINTR
        assert next(asked) == stop + 1


def test_in_place_asks_too(build):
    narrow = build(TLB_NARROW="uint8_t")
    nodes = narrow.nodes(memory := guarded(1 << 20), 1 << 17)
    for stop in range(1, 8):
        asked = itertools.count(1)
        poll, _keep = polling(lambda stop=stop, asked=asked: -errno.EINTR if next(asked) == stop else 0)
        assert narrow.link_nodes(nodes, 0, poll) == -errno.EINTR
    assert (memory[-GUARD_WORDS:] == GUARD).all()


# --- damage


@pytest.mark.parametrize("value", ["null", "itself", "first", "odd", "before", "behind", "far"])
def test_damage_is_noticed_and_not_followed(cycles, value):
    count = 1000
    memory = guarded(64 * count)
    nodes = cycles.nodes(memory, count, 64)
    assert cycles.link_nodes(nodes) == 0
    hit = GUARD_WORDS + 8 * 10  # node 10
    values = {
        "null": 0,
        "itself": nodes.base + 64 * 10,
        "first": nodes.base,
        "odd": nodes.base + 4,
        "before": nodes.base - 8,
        "behind": nodes.base + 64 * (count - 1) + 8,
        "far": 1 << 63,
    }
    before = memory[hit]
    memory[hit] = values[value]
    found = cycles.walk(nodes)
    assert 0 <= found < count
    assert found == 0 or value == "first"
    memory[hit] = before
    assert cycles.walk(nodes) == count


# --- pages within cells, parts of a row, and memory between the nodes


@pytest.mark.parametrize(("pages", "lines"), [(2, 64), (512, 64), (3, 5), (16, 1)])
def test_pages_of_a_cell_have_their_own_digit_sum(cycles, pages, lines):
    count, line = 2000, 64
    spacing = pages * lines * line
    at = [cycles.at(count, spacing, pages, lines, line, i) for i in range(count)]
    cell = np.arange(count, dtype=np.uint64) * np.uint64(spacing)
    page = digit_sums(count, pages) % np.uint64(pages)
    expected = cell + (page * np.uint64(lines) + digit_sums(count, lines) % np.uint64(lines)) * np.uint64(
        line
    )
    assert at == expected.tolist()


def test_a_part_lies_where_the_whole_has_it(cycles):
    count, first = 300, 123
    for spacing, pages, lines in ((64, 1, 1), (4096, 1, 64), (1 << 16, 16, 64)):
        whole = [cycles.at(count, spacing, pages, lines, 64, i) for i in range(first, count)]
        part = [
            first * spacing + cycles.at(count, spacing, pages, lines, 64, i, first)
            for i in range(count - first)
        ]
        assert part == whole


def test_nothing_is_written_between_nodes_far_apart(cycles):
    spacing, count = 8192, 500
    memory = guarded(spacing * count)
    nodes = cycles.nodes(memory, count, spacing, 128, 64)
    assert cycles.link_nodes(nodes, 3) == 0
    at = GUARD_WORDS + offsets_of(count, spacing, 128, 64) // 8
    assert cycles.walk(nodes) == count
    others = np.ones(len(memory), bool)
    others[at] = False
    assert (memory[others] == GUARD).all()
