"""lookup: the hash table, its queries, and what the probe makes of its parameters."""

import ctypes
import errno
import operator
import re
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pure_c import ASK, Kernel, Poll, Run

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.display.commands.main import main
from tlbprobe.measuring import slices

CSRC = Path(__file__).parents[1] / "csrc"
QUICK = {"max_seconds": 0.02}
ALWAYS = 1 << 32
WORD = (1 << 64) - 1
GUARD = 64  # words before and behind a table


# --- the kernel


class Table:
    """A prepared table between guards."""

    def __init__(self, library, records, slots, record_size=16, hit=ALWAYS, batch=1, seed=0):
        self.kernel = Kernel.in_dll(library, "tlb_kernel_lookup")
        self.memory = np.full(2 * GUARD + slots * record_size // 8, 0x5A5A, np.uint64)
        self.words = self.memory[GUARD:-GUARD].reshape(slots, record_size // 8)
        self.keys, self.values = self.words[:, 0], self.words[:, 1]
        parameters = (records, slots, record_size, hit, batch, seed)
        self.run = Run(base=self.words.ctypes.data, size=self.words.nbytes, parameter=parameters)
        assert self.prepare(Poll()) == 0

    def access(self, accesses):
        self.kernel.access(self.run, accesses)
        return self.counts

    @property
    def counts(self):
        return self.run.expected, self.run.found

    def prepare(self, poll):
        return self.kernel.prepare(self.run, poll)

    def verify_until(self, poll):
        return self.kernel.verify(self.run, ctypes.c_uint64(), poll)

    def verify(self):
        found = ctypes.c_uint64(12345)
        assert self.kernel.verify(self.run, found, Poll()) == 0
        return found.value

    def guarded(self):
        return (self.memory[:GUARD] == 0x5A5A).all() and (self.memory[-GUARD:] == 0x5A5A).all()


# A second account of it, in Python's integers.


def mix(word):
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def splitmix(seed):
    while True:
        seed = seed + 0x9E3779B97F4A7C15 & WORD
        yield mix(seed)


def home(key, slots, seed):
    return mix(key ^ next(splitmix(seed))) * slots >> 64


def reference_order(homes, slots, range_slots):
    """Keys as they are inserted: range by range, the last eight as one, ascending."""
    width = next(width for width in (range_slots << shift for shift in range(64)) if slots <= width << 10)
    last = max(0, -(-slots // width) - 8)
    return sorted(homes, key=lambda key: (min(homes[key] // width, last), key))


def reference_keys(records, slots, seed, range_slots):
    """The key in each slot, 0 where there is none."""
    homes = {key: home(key, slots, seed) for key in range(1, records + 1)}
    keys = [0] * slots
    for key in reference_order(homes, slots, range_slots):
        slot = homes[key]
        while keys[slot]:
            slot = (slot + 1) % slots
        keys[slot] = key
    return keys


def reference_queries(records, hit, seed, count):
    """Keys that are asked for."""
    for word in islice(splitmix(seed), 1, count + 1):
        yield 1 + (word * records >> 64) + (0 if word % ALWAYS < hit else records)


@pytest.fixture(scope="module")
def library(compile_c):
    return compile_c(CSRC / "kernels" / "lookup.c")


@pytest.fixture(scope="module")
def libraries(compile_c, library):
    """By the slots of the least range: many ranges of few slots take little memory."""
    source = CSRC / "kernels" / "lookup.c"
    return {1 << 16: library, **{slots: compile_c(source, TLB_RANGE_SLOTS=slots) for slots in (16, 256)}}


SHAPES = [
    (1, 2, 16),
    (1, 1000, 64),
    (3, 4, 24),
    (999, 1000, 16),
    (1000, 1053, 16),
    (1000, 1250, 40),
    (1000, 1024, 4096),
]


@pytest.mark.parametrize(("records", "slots", "record_size"), SHAPES)
@pytest.mark.parametrize("seed", [0, 7, WORD])
def test_the_table_is_the_reference(library, records, slots, record_size, seed):
    table = Table(library, records, slots, record_size, seed=seed)
    assert table.keys.tolist() == reference_keys(records, slots, seed, 1 << 16)
    assert (table.values[table.keys > 0] == ~table.keys[table.keys > 0]).all()
    assert not table.words[table.keys == 0].any()
    assert not table.words[:, 2:].any()
    assert table.guarded()
    assert (table.run.lap, table.verify()) == (records, records)


@pytest.mark.parametrize(
    ("range_slots", "records", "slots", "record_size"),
    [
        (16, 100, 125, 16),  # all ranges among the last ones
        (16, 110, 144, 16),  # one that is not
        (16, 4000, 5000, 16),
        (16, 4000, 5001, 72),
        (16, 20000, 25000, 16),  # too many ranges: they are widened
        (256, 19000, 20000, 16),
        (256, 19000, 20000, 24),
    ],
)
def test_tables_of_many_ranges_are_the_reference(libraries, range_slots, records, slots, record_size):
    table = Table(libraries[range_slots], records, slots, record_size, seed=3)
    assert table.keys.tolist() == reference_keys(records, slots, 3, range_slots)
    assert (table.values[table.keys > 0] == ~table.keys[table.keys > 0]).all()
    assert not table.words[table.keys == 0].any()
    assert not table.words[:, 2:].any()
    assert table.guarded()
    assert table.verify() == records
    assert table.access(1000) == (1000, 1000)


def test_a_large_table_is_whole(library):
    """Of more slots than are filled without lists."""
    records, slots = 570_000, 600_000
    table = Table(library, records, slots, seed=5)
    assert (np.sort(table.keys[table.keys > 0]) == np.arange(1, records + 1)).all()
    assert table.verify() == records
    assert table.access(100_000) == (100_000, 100_000)
    assert table.guarded()


# Knuth's theorem K, exact for tables of M slots; with M it tends to the formulas that are quoted.


def knuth_sum(order, slots, records):
    """Q_r(M, N) of theorem K."""
    factors = ((k + order) / k * (records - k + 1) / slots for k in range(1, records + 1))
    return sum(accumulate(factors, operator.mul, initial=1.0))


def probes_of(keys, seed):
    """Mean slots that a look-up reads: of keys that are there, and of others, over all homes."""
    slots = len(keys)
    there = [(slot - home(key, slots, seed)) % slots + 1 for slot, key in enumerate(keys) if key]
    first = next(slot for slot, key in enumerate(keys) if not key)
    distance, others = 0, 0
    for i in range(slots):
        distance = distance + 1 if keys[first - i] else 1  # to the next empty slot, that one included
        others += distance
    return sum(there) / len(there), others / slots


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
def test_probes_are_as_many_as_knuth_says(library, load):
    slots, seeds = 1 << 13, range(24)
    records = int(load * slots)
    measured = np.array(
        [probes_of(Table(library, records, slots, seed=seed).keys.tolist(), seed) for seed in seeds]
    )
    expected = (1 + knuth_sum(0, slots, records - 1)) / 2, (1 + knuth_sum(1, slots, records)) / 2
    limits = (1 + 1 / (1 - load)) / 2, (1 + 1 / (1 - load) ** 2) / 2
    assert np.allclose(expected, limits, rtol=0.15)  # these tables are small
    error = measured.std(axis=0, ddof=1) / len(seeds) ** 0.5
    assert (error < 0.1 * np.array(expected)).all()
    assert (abs(measured.mean(axis=0) - expected) < 4 * error).all()


def test_slots_taken_do_not_depend_on_the_order_of_insertion(libraries):
    """Nor does the sum of the probes: a property of linear probing, which many ranges keep."""
    records, slots = 8000, 10000
    tables = [Table(libraries[width], records, slots, seed=1).keys.tolist() for width in (1 << 16, 16)]
    assert tables[0] != tables[1]
    assert [key > 0 for key in tables[0]] == [key > 0 for key in tables[1]]
    assert probes_of(tables[0], 1) == probes_of(tables[1], 1)


# --- queries


@pytest.mark.parametrize("hit", [0, 1, 1 << 31, ALWAYS - 1, ALWAYS])
@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_found_is_what_was_asked_for(library, hit, batch):
    table = Table(library, 700, 1000, hit=hit, batch=batch, seed=9)
    asked = list(reference_queries(700, hit, 9, 3000))
    done = 0
    for accesses in (0, 1, 2, 63, 64, 65, 2805):
        done += accesses
        present = sum(key <= 700 for key in asked[:done])
        assert table.access(accesses) == (present, present), done
    assert (hit, 0 < present < done) in (
        (0, False),
        (1, False),
        (1 << 31, True),
        (ALWAYS - 1, False),
        (ALWAYS, False),
    )


@pytest.mark.parametrize("batch", [1, 16])
def test_queries_are_those_of_the_stream(library, batch):
    """The one record that is damaged is missed as often as the stream asks for it."""
    records, slots, seed = 50, 80, 2
    asked = list(reference_queries(records, 3 << 30, seed, 1000))
    for key in (1, 25, 50):
        table = Table(library, records, slots, hit=3 << 30, batch=batch, seed=seed)
        table.values[table.keys == key] ^= np.uint64(1)
        expected, found = table.access(1000)
        assert expected - found == asked.count(key) > 0
    assert max(asked) <= 2 * records
    assert len(set(asked)) > 1.5 * records


@settings(max_examples=50, deadline=None)
@given(
    slices=st.lists(st.integers(0, 200), max_size=8),
    batch=st.integers(1, 64),
    hit=st.integers(0, ALWAYS),
    seed=st.integers(0, WORD),
)
def test_neither_slices_nor_batch_change_the_queries(library, slices, batch, hit, seed):
    table = Table(library, 90, 100, hit=hit, batch=batch, seed=seed)
    for accesses in slices:
        table.access(accesses)
    whole = Table(library, 90, 100, hit=hit, seed=seed)
    whole.access(sum(slices))
    assert list(table.run.state) == list(whole.run.state)
    assert table.counts == whole.counts
    assert table.run.expected == table.run.found


@pytest.mark.parametrize("batch", [1, 32])
def test_accesses_write_nothing(library, batch):
    table = Table(library, 900, 1000, 40, hit=1 << 31, batch=batch)
    before = table.memory.copy()
    table.access(5000)
    table.verify()
    assert (table.memory == before).all()


def test_the_timed_loops_load_and_never_divide(library, machine_code):
    plain, batched = (machine_code.loops(library, name) for name in ("one_by_one", "in_batches"))
    assert all(machine_code.memory(loop) for loop in plain + batched)
    texts = [text for loop in plain + batched for text in loop]
    assert not any(re.match(r"i?div|[us]div", text) for text in texts)
    assert any(text.startswith(("prefetch", "prfm")) for loop in batched for text in loop)


# --- damage, limits


def damaged_value(table):
    table.values[table.keys == 5] += np.uint64(1)


def damaged_key(table):
    table.keys[table.keys == 5] = 2000


def key_of_none(table):
    table.keys[table.keys == 5] = WORD


def farthest(table):
    """Slot of the record that is farthest from its home, and that home."""
    slots = len(table.keys)
    homes = {slot: home(int(key), slots, 0) for slot, key in enumerate(table.keys) if key}
    slot = max(homes, key=lambda slot: (slot - homes[slot]) % slots)
    return slot, homes[slot]


def emptied_home(table):
    table.words[farthest(table)[1]] = 0


def emptied_neighbour(table):
    table.words[farthest(table)[0] - 1] = 0


def reachable(table):
    """Records that a look-up finds."""
    slots, words = len(table.keys), table.words[:, :2].tolist()
    found = 0
    for key in range(1, table.run.lap + 1):
        slot = home(key, slots, 0)
        while words[slot][0] not in (0, key):
            slot = (slot + 1) % slots
        found += words[slot] == [key, ~key & WORD]
    return found


@pytest.mark.parametrize("damage", [damaged_value, damaged_key, key_of_none, emptied_home, emptied_neighbour])
@pytest.mark.parametrize("batch", [1, 8])
def test_damage_is_told(library, damage, batch):
    table = Table(library, 900, 1000, batch=batch)
    damage(table)
    assert table.verify() == reachable(table) < 900
    expected, found = table.access(20_000)
    assert found < expected == 20_000


def test_a_record_that_should_not_be_there_is_told(library):
    table = Table(library, 900, 1000, hit=0)
    table.words[table.keys > 0] = 0
    for key in range(901, 1801):
        table.words[home(key, 1000, 0)] = key, ~key & WORD
    assert table.verify() == 0
    expected, found = table.access(1000)
    assert expected == 0 < found


def test_without_an_empty_slot_nothing_counts(library):
    table = Table(library, 900, 1000)
    table.words[table.keys == 0] = 5, ~5 & WORD
    assert table.verify() == 0


def test_probes_go_around_the_end(library):
    """Of some seeds, a record whose home is near the end lies at the start."""
    around = 0
    for seed in range(20):
        table = Table(library, 95, 100, seed=seed)
        around += sum(home(int(key), 100, seed) > 50 for key in table.keys[:10] if key)
        assert table.verify() == 95
        assert table.access(500) == (500, 500)
    assert around > 0


GOOD = {"records": 100, "slots": 200, "record_size": 16, "hit": 0, "batch": 1, "seed": 0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"records": 0},
        {"slots": 0},
        {"slots": 100},
        {"slots": 201},
        {"record_size": 0},
        {"record_size": 8},
        {"record_size": 20},
        {"record_size": 24},
        {"record_size": WORD - 7},
        {"slots": (1 << 60) + 1},
        {"slots": WORD, "records": WORD - 1},
        {"records": 1 << 63, "slots": WORD},
        {"hit": ALWAYS + 1},
        {"batch": 0},
        {"batch": 65},
    ],
)
def test_wrong_parameters_are_refused_before_anything_is_written(library, wrong):
    kernel = Kernel.in_dll(library, "tlb_kernel_lookup")
    memory = np.full(400, 7, np.uint64)
    run = Run(base=memory.ctypes.data, size=memory.nbytes, parameter=tuple({**GOOD, **wrong}.values()))
    assert kernel.prepare(run, Poll()) == -errno.EINVAL
    assert (memory == 7).all()
    run.parameter[:6] = tuple(GOOD.values())
    assert kernel.prepare(run, Poll()) == 0


@pytest.mark.parametrize(
    ("range_slots", "records", "slots", "record_size"),
    [(1 << 16, 60_000, 80_000, 16), (256, 60_000, 80_000, 16), (1 << 16, 1000, 4000, 8192)],
)
def test_stops_when_it_is_told_to(libraries, range_slots, records, slots, record_size):
    """At every poll of building and of verifying, each a few milliseconds at most from the last one."""
    table = Table(libraries[range_slots], records, slots, record_size)
    for work in (table.prepare, table.verify_until):
        polls = count_polls(work)
        touched = table.words.nbytes if work == table.prepare else 0
        assert polls >= records >> 14
        assert polls >= touched >> 22
        for stop in {1, 2, polls // 2, polls} - {0}:
            if stop <= polls:
                assert work(polled_until(stop)) == -errno.EINTR
        assert work(Poll()) == 0
    assert table.verify() == records


def polled_until(stop):
    asked = iter(range(1, stop))
    return Poll(ASK(lambda _: 0 if next(asked, None) else -errno.EINTR))


def count_polls(work):
    asked = []
    assert work(Poll(ASK(lambda _: asked.append(0) or 0))) == 0
    return len(asked)


# --- the probe


def test_result_is_complete():
    measured = tp.lookup("10K", hit_ratio=0.5, seed=3, counters=["cycles"], verify=True, **QUICK)
    assert measured.probe == "lookup"
    assert measured.ns.dtype == np.float64
    assert (measured.ns > 0).all()
    assert {"map", "populate", "passes", "proof", "build", "verify", "measure"} <= measured.setup.keys()
    assert measured.refused.keys() == {"cycles"}
    assert measured.backing.proof == "proved"
    assert measured.counts.keys() == {"hits", "hits_expected", "build_ns_per_record"}
    assert measured.counts["hits"] == measured.counts["hits_expected"] > 0
    assert measured.counts["build_ns_per_record"] == pytest.approx(measured.setup["build"] * 1e5)
    params = dict(measured.params)
    assert params.pop("cpu") >= 0
    assert params == {
        "bytes": 200_000,
        "records": 10_000,
        "slots": 12_500,
        "record_size": 16,
        "load_factor": 0.8,
        "hit_ratio": 0.5,
        "batch": 1,
        "pages": "base",
        "strict": True,
        "touch": "random",
        "mapped_bytes": -(-200_000 // tp.host()["pages.base"]) * tp.host()["pages.base"],
        "seed": 3,
        "precision": 0.01,
        "max_seconds": 0.02,
    }


def test_it_is_saved_and_read_back(tmp_path):
    measured = tp.lookup(1000, **QUICK)
    measured.save(tmp_path / "lookup.npz")
    again = tp.load(tmp_path / "lookup.npz")
    assert (again.counts, again.params) == (measured.counts, measured.params)
    assert "hits expected" in str(again)


@pytest.mark.parametrize(
    ("records", "load_factor", "record_size", "slots"),
    [
        (1, 0.95, 16, 2),
        (1, 1e-3, 16, 1000),
        (2, 0.8, "4KiB", 3),
        ("1.5K", 0.75, 24, 2000),
        (np.int64(95), np.float32(0.5), np.int64(64), 190),
        (100, 0.95, "64KiB", 106),
    ],
)
def test_slots(records, load_factor, record_size, slots):
    measured = tp.lookup(records, load_factor=load_factor, record_size=record_size, verify=True, **QUICK)
    assert measured.params["slots"] == slots
    assert measured.params["bytes"] == slots * measured.params["record_size"]
    assert measured.params["records"] < slots


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_shares_of_hits(batch):
    assert tp.lookup(500, hit_ratio=0, batch=batch, **QUICK).counts["hits"] == 0
    some = tp.lookup(500, hit_ratio=1 / 3, batch=batch, **QUICK).counts
    assert some["hits"] == some["hits_expected"] > 0


def test_a_session_counts_exactly_the_hits_of_the_stream():
    hit = round(0.25 * ALWAYS)
    parameters = {"records": 500, "slots": 625, "record_size": 16, "hit": hit, "batch": 4, "seed": 6}
    with tp.Region(10_000) as region, _core.Session([(region, "lookup", 0, 10_000, parameters)]) as session:
        session.measure((100,), 3)  # and as many before, to warm
        hits = sum(key <= 500 for key in reference_queries(500, hit, 6, 400))
        assert session.counts == ((hits, hits),)
        assert 50 < hits < 150


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"records": 0}, ValueError, "records=0"),
        ({"records": -5}, ValueError, "records=-5"),
        ({"records": "1.5"}, ValueError, "records='1.5'"),
        ({"records": "10MiB"}, ValueError, "records='10MiB'"),
        ({"records": 1.0}, TypeError, "records=1.0"),
        ({"records": None}, TypeError, "records=None"),
        ({"records": 1 << 62, "record_size": 16}, ValueError, "records=4611686018427387904 of 16 bytes"),
        ({"records": "1T", "record_size": "64KiB", "load_factor": 1e-3}, ValueError, "the largest size"),
        ({"load_factor": 5e-324}, ValueError, "load_factor=5"),
        ({"load_factor": 0}, ValueError, "load_factor=0 is out of range, above 0 and at most 0.95"),
        ({"load_factor": 0.96}, ValueError, "load_factor=0.96"),
        ({"load_factor": float("nan")}, ValueError, "load_factor=nan"),
        ({"load_factor": "0.5"}, TypeError, "load_factor='0.5'"),
        ({"load_factor": True}, TypeError, "load_factor=True"),
        ({"hit_ratio": -0.1}, ValueError, "hit_ratio=-0.1 is out of range, from 0 to 1"),
        ({"hit_ratio": 1.1}, ValueError, "hit_ratio=1.1"),
        ({"hit_ratio": float("nan")}, ValueError, "hit_ratio=nan"),
        ({"hit_ratio": False}, TypeError, "hit_ratio=False"),
        ({"record_size": 8}, ValueError, "record_size=8"),
        ({"record_size": 20}, ValueError, "record_size=20"),
        ({"record_size": "128KiB"}, ValueError, "record_size='128KiB'"),
        ({"record_size": 16.0}, TypeError, "record_size=16.0"),
        ({"batch": 0}, ValueError, "batch=0 is out of range, 1 to 64"),
        ({"batch": 65}, ValueError, "batch=65"),
        ({"batch": 2.0}, TypeError, "batch=2.0"),
        ({"region": "1MiB"}, TypeError, "region='1MiB' must be a Region"),
    ],
)
def test_wrong_parameters_are_named_before_anything_is_mapped(monkeypatch, arguments, error, said):
    monkeypatch.setattr(_core.Mapping, "advise", lambda *_: pytest.fail("it was mapped"))
    with pytest.raises(error, match=re.escape(said)):
        tp.lookup(**{"records": 1000, **arguments})


def test_what_no_machine_has_is_refused_with_figures(monkeypatch):
    monkeypatch.setattr(_core.Mapping, "advise", lambda *_: pytest.fail("it was mapped"))
    with pytest.raises(MemoryError, match=r"needs .* TiB .* left; "):
        tp.lookup("100T")


def test_one_region_serves_several_tables():
    with tp.Region("64KiB") as region:
        for records in (1000, 3000, 10):
            measured = tp.lookup(records, region=region, seed=4, verify=True, **QUICK)
            assert measured.params["mapped_bytes"] == region.mapped_bytes
            keys = np.frombuffer(region, np.uint64)[: 2 * measured.params["slots"] : 2].tolist()
            assert keys == reference_keys(records, measured.params["slots"], 4, 1 << 16)
        assert tp.lookup(10, "base", region=region, **QUICK).params["pages"] == "base"
        with pytest.raises(ValueError, match=r"pages='default' contradicts .*'base'"):
            tp.lookup(10, "default", region=region, **QUICK)
        with pytest.raises(ValueError, match=r"takes 80000 bytes .* has 65536: map more"):
            tp.lookup(4000, region=region, **QUICK)
        view = memoryview(region)
        with pytest.raises(BufferError, match="view"):
            tp.lookup(10, region=region, **QUICK)
        view.release()
    with pytest.raises(ValueError, match="closed"):
        tp.lookup(10, region=region, **QUICK)


def test_damage_in_the_middle_of_a_measurement_is_an_error(monkeypatch):
    measure = slices.measure
    with tp.Region("64KiB") as region:

        def damaging(*arguments, **limits):
            ctypes.memset(region.address, 0, region.mapped_bytes)
            return measure(*arguments, **limits)

        monkeypatch.setattr(slices, "measure", damaging)
        with pytest.raises(RuntimeError, match=r"lookup: the accesses found 0 where they must find \d+"):
            tp.lookup(1000, region=region, **QUICK)


def test_a_sweep_over_counts():
    sweep = tp.sweep(tp.lookup, records=["1K", 2000], batch=[1, 8], progress=False, **QUICK)
    assert sweep.axes == {"records": [1000, 2000], "batch": [1, 8]}
    assert all(values["records"] == point.params["records"] for values, point in sweep)


def test_the_command_takes_a_count(capsys):
    assert main(["lookup", "2K", "--batch", "4", "--load-factor", "0.5", "--max-seconds", "0.02"]) == 0
    assert "lookup of 2 K records in 62.5 KiB" in capsys.readouterr().out
    assert main(["lookup", "2K", "--region", "1MiB"]) == 2
