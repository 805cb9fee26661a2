"""The simulated hierarchy against hand-computed ones, and against a naive simulator that knows no theory."""

import itertools
import math
import re

import numpy as np
import pytest

from tlbprobe import model
from tlbprobe.hierarchy.model import QUIET, Cache, Level, Machine, Noise, Simulation, hit_share

FLAT = (Cache(1 << 20, 1.0),)  # data caches that hold everything


class NaiveSet:
    """A set as one would write it down: a list for LRU and random, a dictionary of bits for tree-PLRU."""

    def __init__(self, ways, replacement, random):
        self.ways, self.replacement, self.random = ways, replacement, random
        self.held, self.points = [None] * ways, {}
        self.used = []

    def visit(self, page):
        hit = page in self.held
        way = self.held.index(page) if hit else self.victim()
        self.held[way] = page
        if way in self.used:
            self.used.remove(way)
        self.used.append(way)
        low, high = 0, 1 << (self.ways - 1).bit_length()
        while high - low > 1:
            middle = (low + high) // 2
            self.points[low, high] = way < middle  # away from it: to the right if it is on the left
            low, high = (low, middle) if way < middle else (middle, high)
        return hit

    def victim(self):
        if None in self.held:
            return self.held.index(None)
        if self.replacement == "lru":
            return self.used[0]
        if self.replacement == "random":
            return int(self.random.integers(self.ways))
        low, high = 0, 1 << (self.ways - 1).bit_length()
        while high - low > 1:
            middle = (low + high) // 2
            right = self.points.get((low, high), False) and middle < self.ways
            low, high = (middle, high) if right else (low, middle)
        return low


def naive_share(pages, ways, replacement, laps, seed=0):
    one = NaiveSet(ways, replacement, np.random.default_rng(seed))
    hits = [sum(one.visit(page) for page in range(pages)) for _ in range(laps)]
    late = hits[laps // 4 :]
    return sum(late) / (pages * len(late))


class NaiveTlb:
    """Levels of naive sets; a level sees what those before it miss, and every miss fills all of them."""

    def __init__(self, levels, seed=0):
        random = np.random.default_rng(seed)
        self.levels = levels
        self.sets = [
            [NaiveSet(level.ways, level.replacement, random) for _ in range(level.sets)] for level in levels
        ]

    def visit(self, page):
        for number, (level, sets) in enumerate(zip(self.levels, self.sets, strict=True)):
            index = page % level.sets
            if level.index == "hashed":
                index = 0
                left = page
                for _ in range(level.folds):
                    index ^= left % level.sets
                    left //= level.sets
            if sets[index].visit(page):
                return number
        return len(self.levels)


def naive_missing(levels, pages, laps):
    """Share of all visits that miss each level."""
    tlb = NaiveTlb(levels)
    order = np.random.default_rng(1).permutation(pages).tolist()
    found = [tlb.visit(page) for _ in range(laps) for page in order][len(order) * (laps // 2) :]
    return [np.mean([where > number for where in found]) for number in range(len(levels))]


# --- one set


@pytest.mark.parametrize("ways", [1, 2, 3, 4, 5, 6, 8, 12, 16])
@pytest.mark.parametrize("replacement", ["lru", "plru"])
def test_a_set_is_what_a_naive_one_is(ways, replacement):
    for pages in (*range(1, 2 * ways + 2), 3 * ways + 1):
        expected = naive_share(pages, ways, replacement, laps=80)
        assert hit_share(pages, ways, replacement) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("pages", "ways"), [(2, 1), (3, 2), (5, 4), (6, 4), (8, 4), (9, 8), (12, 8), (17, 16), (24, 16), (65, 64)]
)
def test_random_replacement_is_its_expectation(pages, ways):
    expected = naive_share(pages, ways, "random", laps=12000 // pages + 400)
    assert hit_share(pages, ways, "random") == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("ways", [1, 2, 4, 16, 64, 100])
def test_one_page_too_many_is_two_misses_a_lap(ways):
    assert (ways + 1) * (1 - hit_share(ways + 1, ways, "random")) == pytest.approx(2, abs=1e-6)


def test_exact_and_approximate_random_agree():
    for ways, pages in itertools.product((2, 3, 4), (4, 5, 6, 7)):
        if pages > ways + 1:
            exact = model._random_exactly(pages, ways)
            assert 0 < exact < ways / pages


@pytest.mark.parametrize("replacement", model.REPLACEMENTS)
def test_more_pages_never_hit_more(replacement):
    shares = [hit_share(pages, 12, replacement) * pages for pages in range(1, 40)]
    assert all(0 <= share <= 12 for share in shares)
    assert shares[11] == 12


# --- levels


def test_sets_by_hand():
    pages = np.array([0, 1, 5, 8, 9, 64, 72])
    assert Level(16, 2).set_of(pages).tolist() == [0, 1, 5, 0, 1, 0, 0]
    assert Level(16, 2, 0, "hashed").set_of(pages).tolist() == [
        0,
        1,
        5,
        1,
        0,
        0,
        1,
    ]  # 64 >> 3 = 8: above both
    assert Level(16, 2, 0, "hashed", "lru", 3).set_of(pages).tolist() == [0, 1, 5, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ((6, 4), "ways"),
        ((6, 0), "ways"),
        ((12, 4), "sets"),
        ((8, 2, 0, "skewed"), "index"),
        ((8, 2, 0, "plain", "fifo"), "replacement"),
    ],
)
def test_a_level_that_cannot_be_is_refused(fields, name):
    with pytest.raises(ValueError, match=name):
        Level(*fields)


L = Level(16, 4)


@pytest.mark.parametrize(
    ("make", "error", "name"),
    [
        (lambda: Level(8, 2, math.nan), ValueError, "hit_ns=nan"),
        (lambda: Level(8, 2, -5), ValueError, "hit_ns=-5"),
        (lambda: Level(8, 2, folds=0), ValueError, "folds=0"),
        (lambda: Level("64", 4), TypeError, "entries='64'"),
        (lambda: Level(8.0, 2), TypeError, "entries=8.0"),
        (lambda: Cache(0, 1), ValueError, "lines=0"),
        (lambda: Machine(()), ValueError, "levels=()"),
        (lambda: Machine((L,), caches=()), ValueError, "caches=()"),
        (lambda: Machine((8,)), ValueError, "levels=(8,)"),
        (lambda: Machine((L,), paging=(0,)), ValueError, "paging=0"),
        (lambda: Machine((L,), walk_ns=-9), ValueError, "walk_ns=-9"),
        (lambda: Machine((L,)).spread_ns([]), ValueError, "one at least"),
        (lambda: Machine((L,)).spread_ns([7] * 5), ValueError, "each of them once"),
        (lambda: Machine((L,)).spread_ns([1.5]), ValueError, "float64"),
        (lambda: Machine((L,)).spread_ns(np.ones((2, 2), int)), ValueError, "shape (2, 2)"),
        (lambda: Machine((L,)).packed_ns(0), ValueError, "nodes=0"),
        (lambda: Noise(-1), ValueError, "quiet=-1"),
        (lambda: Noise(burst_share=1.0), ValueError, "burst_share=1.0"),
        (lambda: Noise(burst_slices=0), ValueError, "burst_slices=0"),
        (lambda: hit_share(9, 4, "fifo"), ValueError, "replacement='fifo'"),
        (lambda: hit_share(5, 0, "plru"), ValueError, "ways=0"),
    ],
)
def test_nonsense_is_named(make, error, name):
    with pytest.raises(error, match=re.escape(name)):
        make()


def test_a_smaller_level_behind_a_larger_one_adds_nothing():
    first = Level(64, 64)
    behind = Machine((first, Level(32, 4, 2.0)), FLAT)
    for pages in (1, 32, 48, 64):
        assert behind.packed_ns(64 * pages) == pytest.approx(Machine((first,), FLAT).packed_ns(64 * pages))


@pytest.mark.parametrize(("pages", "ways"), [(12, 6), (14, 4), (16, 8), (24, 8), (24, 12), (20, 5)])
def test_random_replacement_is_as_near_as_is_said(pages, ways):
    off = hit_share(pages, ways, "random") - naive_share(pages, ways, "random", 6000)
    assert abs(off) < 0.015 if pages <= 2 * ways else -0.005 < off < 0.045


@pytest.mark.parametrize("index", ["plain", "hashed"])
@pytest.mark.parametrize("second", ["lru", "plru"])
@pytest.mark.parametrize(
    "pages", [range(20), range(33), range(48), range(70), range(0, 640, 16), range(0, 4096, 64)]
)
def test_two_levels_are_what_a_naive_simulator_finds(pages, index, second):
    levels = (Level(8, 8), Level(32, 4, 2.0, index, second))
    pages = np.array(pages)
    found = [float(share.mean()) for share in Machine(levels, FLAT).missing(pages)]
    assert found == pytest.approx(naive_missing(levels, pages, laps=60), abs=1e-9)


def test_partial_misses_of_the_first_level_are_near():
    levels = (Level(16, 16, 0, "plain", "random"), Level(64, 4, 2.0, "plain", "random"))
    pages = np.arange(90)
    found = [float(share.mean()) for share in Machine(levels, FLAT).missing(pages)]
    assert found == pytest.approx(naive_missing(levels, pages, laps=300), abs=0.03)


# --- a machine by hand


def tiny(**changes):
    return Machine(
        (Level(4, 4), Level(8, 2, 2.0)),
        FLAT,
        **{"walk_ns": 10.0, "paging": (2, 2, 2), "exposed": 0.0, **changes},
    )


def test_cost_by_hand():
    assert tiny().translation_ns(range(4)) == pytest.approx(0)
    assert tiny().translation_ns(range(5)) == pytest.approx(2)
    assert tiny().translation_ns(range(8)) == pytest.approx(2)
    # Nine pages in four sets of two ways: three of them share a set, and walk.
    assert tiny().translation_ns(range(9)) == pytest.approx((6 * 2 + 3 * 10) / 9)
    assert tiny().translation_ns(range(12)) == pytest.approx(10)


def test_pages_that_collide():
    assert tiny().translation_ns(range(0, 20, 4)) == pytest.approx(10)  # all in set 0 of the second level
    assert tiny().translation_ns(range(0, 16, 4)) == pytest.approx(0)  # but four fit the first one


def test_upper_levels_of_the_table_are_loads():
    near, far = np.arange(12), np.arange(12) << model.TABLE_BITS
    assert tiny().translation_ns(near) == pytest.approx(10)
    assert tiny().translation_ns(far) > 10.9  # 12 tables where 2 are held: nearly one load of 1 ns more
    assert tiny(paging=(16, 2, 2)).translation_ns(far) == pytest.approx(10)


def test_data_caches_cancel_until_tables_leave_them():
    machine = Machine((Level(4, 4),), (Cache(64, 1.0), Cache(1 << 12, 4.0)), memory_ns=100.0, walk_ns=10.0)
    assert machine.packed_ns(64) == pytest.approx(1)
    assert 1 < machine.packed_ns(128) < 4
    assert machine.translation_ns(range(4)) == pytest.approx(0)
    assert machine.translation_ns(range(1 << 13)) > machine.translation_ns(range(1 << 11)) + 50


# --- noise, and the source


def test_no_noise_is_no_noise():
    source = Simulation(tiny(), QUIET)
    spread, packed = source.pair(9, 1, 5)
    assert spread.tolist() == [tiny().spread_ns(range(9))] * 5
    assert packed.tolist() == [tiny().packed_ns(9)] * 5


def test_disturbance_adds_and_comes_in_bursts():
    noise = Noise(placement=0.0, round_share=0.0)
    slices = noise.slices(10.0, 1.0, 20000, np.random.default_rng(0))
    disturbed = slices > 10.2
    assert slices.min() >= 10
    assert disturbed.mean() == pytest.approx(noise.burst_share * np.exp(-0.02 / noise.burst), abs=0.05)
    assert np.corrcoef(disturbed[:-1], disturbed[1:])[0, 1] > 0.4


def test_times_scales_noise():
    assert Noise().times(0) == Noise(0, 0, 0, 0, Noise().burst_slices, 0, 0)
    assert Noise().times(2).quiet == 2 * Noise().quiet


def test_the_same_seed_gives_the_same_slices():
    one, other = (Simulation(tiny(), seed=3).pair(9, 1, 8) for _ in range(2))
    assert np.array_equal(one, other)
    assert not np.array_equal(one, Simulation(tiny(), seed=4).pair(9, 1, 8))


def test_nodes_further_apart_are_on_random_pages_of_their_cells():
    assert model._within(9, 4).tolist() == [0, 1, 2, 3, 1, 2, 3, 0, 2]
    spread, _ = Simulation(tiny(), QUIET).pair(12, 512, 1)
    assert spread[0] - tiny().packed_ns(12) > 10
