"""objects: requests through chains of objects, where these lie in memory, and the pages that are counted."""

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest
from pure_c import ASK, Kernel, Poll, Run

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.machine import paging
from tlbprobe.measuring.point import Point
from tlbprobe.probes import objects
from tlbprobe.units import format_size

CSRC = Path(__file__).parents[1] / "csrc"
LAYOUTS = SCATTERED, POOLED, SPLIT = 0, 1, 2
LINES = np.array([23, 15, 9, 7, 9])  # session, PDR, FAR, QER, statistics
LINE, TOGETHER = 64, 256
NEXT, SESSION, COLD, PACKETS, BYTES = range(5)  # words of a hot line
MASK = (1 << 64) - 1
EINVAL, ECANCELED = -22, -125
QUICK = {"max_seconds": 0.02}
BASE = paging.base_page_size()


def bytes_of(sessions):
    return -(-8 * sessions // TOGETHER) * TOGETHER + int(LINES.sum()) * LINE * sessions


class Built:
    """The kernel, prepared in memory of its own between two guards."""

    GUARD, FILL = 4096, 0x5A

    def __init__(self, kernel, sessions, layout, *, write=1, seed=1, less=0):
        self.kernel, self.sessions, self.bytes = kernel, sessions, bytes_of(sessions)
        self.whole = np.full(self.bytes + 2 * self.GUARD + TOGETHER, self.FILL, np.uint8)
        self.start = self.GUARD + -(self.whole.ctypes.data + self.GUARD) % TOGETHER
        self.base = self.whole.ctypes.data + self.start
        self.words = self.whole[self.start : self.start + self.bytes].view(np.uint64)
        parameters = sessions, layout, write, seed
        self.run = Run(base=self.base, size=self.bytes - less, parameter=parameters)
        self.status = kernel.prepare(self.run, Poll())

    def untouched(self):
        """Whether both guards are as they were."""
        inside = slice(self.start, self.start + self.bytes)
        return (np.delete(self.whole, inside) == self.FILL).all()

    def access(self, requests):
        self.kernel.access(self.run, requests)

    def verify(self):
        found = ctypes.c_uint64()
        assert self.kernel.verify(self.run, found, Poll()) == 0
        return found.value

    def hot(self):
        """Words of the hot lines, (sessions, kinds), found by following the pointers."""
        at = [(self.words[: self.sessions] - np.uint64(self.base)) // 8]
        for _ in LINES[1:]:
            at.append((self.words[at[-1] + NEXT] - np.uint64(self.base)) // 8)
        assert (self.words[at[-1] + NEXT] == 0).all()
        return np.stack(at, axis=1).astype(np.int64)

    def hot_bytes(self):
        return self.hot() * 8

    def cold_bytes(self):
        return self.words[self.hot() + COLD].astype(np.int64) - self.base

    def field(self, field):
        return self.words[self.hot() + field]


class Answers:
    """Say so many times that work may go on, then that it must stop."""

    def __init__(self, limit):
        self.asked, self.limit = 0, limit
        self.poll = Poll(ASK(self.answer))

    def answer(self, _):
        self.asked += 1
        return 0 if self.asked <= self.limit else ECANCELED


@pytest.fixture(scope="module")
def kernel(compile_c):
    return Kernel.in_dll(compile_c(CSRC / "kernels" / "objects.c"), "tlb_kernel_objects")


@pytest.fixture(params=LAYOUTS, ids=objects.OBJECT_LAYOUTS)
def layout(request):
    return request.param


def requests_of(seed, count, sessions):
    """Sessions and packet lengths of the first requests, by SplitMix64 as its authors wrote it."""
    for number in range(1, count + 1):
        word = (seed + number * 0x9E3779B97F4A7C15) & MASK
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
        word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
        word ^= word >> 31
        yield word * sessions >> 64, 64 + word % 1024


# --- where objects are


@pytest.mark.parametrize("sessions", [1, 2, 31, 32, 33, 1000])
def test_objects_fill_their_bytes_without_overlap(kernel, layout, sessions):
    """The directory, hot lines and cold fields, line by line."""
    built = Built(kernel, sessions, layout)
    assert (built.status, built.run.lap) == (0, sessions)
    hot, cold = built.hot_bytes(), built.cold_bytes()
    assert (hot % LINE == 0).all()
    assert (cold % LINE == 0).all()
    uses = np.zeros(built.bytes // LINE, int)
    uses[: uses.size - sessions * LINES.sum()] += 1
    np.add.at(uses, hot // LINE, 1)
    for kind, lines in enumerate(LINES):
        np.add.at(uses, cold[:, kind, None] // LINE + np.arange(lines - 1), 1)
    assert (uses == 1).all()
    assert built.untouched()
    assert (built.field(SESSION) == np.arange(sessions)[:, None]).all()
    assert (built.field(PACKETS) == 0).all()
    assert (built.field(BYTES) == 0).all()
    assert built.verify() == sessions


def test_pooled_is_as_documented(kernel):
    sessions = 77
    built = Built(kernel, sessions, POOLED)
    pools = built.bytes + LINE * sessions * (np.cumsum([0, *LINES[:-1]]) - LINES.sum())
    expected = pools + LINE * LINES * np.arange(sessions)[:, None]
    assert (built.hot_bytes() == expected).all()
    assert (built.cold_bytes() == expected + LINE).all()


def test_split_is_as_documented(kernel):
    sessions = 77
    built = Built(kernel, sessions, SPLIT)
    numbers = np.arange(sessions)
    first = built.bytes - LINE * sessions * LINES.sum()
    hot = built.hot_bytes()
    assert (hot[:, :4] == first + TOGETHER * numbers[:, None] + LINE * np.arange(4)).all()
    assert (hot[:, 4] == first + TOGETHER * sessions + LINE * numbers).all()
    assert (built.cold_bytes() >= first + (TOGETHER + LINE) * sessions).all()
    addresses = built.base + hot
    assert (addresses[:, 0] % TOGETHER == 0).all(), "four lines that no page boundary parts"


def test_scattered_is_one_heap_in_an_order_of_its_seed(kernel):
    """One behind the other, each with its cold fields; no seed has the order of another."""
    orders = set()
    sessions = 40
    for seed in (0, 1, 2, 2**64 - 1):
        hot = Built(kernel, sessions, SCATTERED, seed=seed).hot_bytes()
        again = Built(kernel, sessions, SCATTERED, seed=seed).hot_bytes()
        assert (hot == again).all()
        order = np.argsort(hot, axis=None)
        lines = np.tile(LINES, sessions)[order]
        first = bytes_of(sessions) - LINE * sessions * LINES.sum()
        assert (hot.ravel()[order] == first + LINE * np.cumsum([0, *lines[:-1]])).all()
        assert sorted(order) == list(range(5 * sessions))
        orders.add(tuple(order))
    assert len(orders) == 4


def test_every_order_of_scattered_objects_is_as_likely(kernel):
    """The five of one session: 120 orders, 40 times each on average."""
    seen = {}
    for seed in range(4800):
        order = tuple(np.argsort(Built(kernel, 1, SCATTERED, seed=seed).hot_bytes()[0]))
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 120
    chi_squared = sum((count - 40) ** 2 / 40 for count in seen.values())
    assert chi_squared < 119 + 5 * (2 * 119) ** 0.5


def test_hot_lines_fill_cache_sets_evenly(kernel, layout):
    """Of as many sessions as sets, one of each pool falls into each set; of one heap, about as many."""
    sets = 64
    hot = Built(kernel, sets, layout).hot_bytes() // LINE
    if layout == POOLED:
        assert all(len(set(column % sets)) == sets for column in hot.T)
    if layout == SPLIT:
        assert (np.bincount(hot.ravel() % sets, minlength=sets) == 5).all()
    assert len(set((hot % sets).ravel())) >= sets * 0.9


# --- requests


@pytest.mark.parametrize("slices", [[1000], [1] * 1000, [0, 999, 1], [256, 744]])
def test_slices_go_on_where_the_last_one_ended(kernel, layout, slices):
    """Statistics of every session, against a model."""
    sessions, seed = 50, 99
    built = Built(kernel, sessions, layout, seed=seed)
    for requests in slices:
        built.access(requests)
    asked = list(requests_of(seed, 1000, sessions))
    packets = np.bincount([session for session, _ in asked], minlength=sessions)
    lengths = np.bincount([s for s, _ in asked], weights=[n for _, n in asked], minlength=sessions)
    assert (built.field(PACKETS)[:, 4] == packets).all()
    assert (built.field(BYTES)[:, 4] == lengths).all()
    assert (built.field(PACKETS)[:, :4] == 0).all()
    assert (built.run.expected, built.run.found) == (1000, 1000)
    assert built.untouched()
    assert built.verify() == sessions


def test_reading_changes_nothing(kernel, layout):
    built = Built(kernel, 50, layout, write=0)
    built.words[built.hot()[:, 4] + PACKETS] = 3
    built.words[built.hot()[:, 4] + BYTES] = 4
    before = built.whole.copy()
    built.access(1000)
    assert (built.whole == before).all()
    assert (built.run.expected, built.run.found) == (1000, 1000)
    assert built.run.state[1] == 7 * 1000, "the value that was read"


def test_wrong_statistics_are_not_found(kernel, layout):
    built = Built(kernel, 1, layout)
    built.words[built.hot()[0, 4] + SESSION] = 1
    built.access(10)
    assert (built.run.expected, built.run.found) == (10, 0)


def test_the_timed_loops_touch_six_lines(kernel, compile_c, machine_code):
    """The directory entry, four pointers and the statistics; nothing else is loaded or stored."""
    library = compile_c(CSRC / "kernels" / "objects.c")
    loops = machine_code.loops(library, "objects_access")
    loops = [loop for loop in loops if any("mul" in text for text in loop)]  # those that draw a session
    assert len(loops) == 2
    for loop in loops:
        memory = machine_code.memory(loop)
        follows = [
            text for text in memory if re.fullmatch(r"movq?\s+\((%\w+)\),%\w+|ldr\s+x\d+, \[x\d+\]", text)
        ]
        assert len(follows) == 4, loop
        assert 7 <= len(memory) <= 10, loop


# --- damage


def test_damage_is_found_and_never_followed(kernel, layout):
    sessions = 20
    built = Built(kernel, sessions, layout)
    hot, line = built.hot(), np.uint64(LINE)
    outside = [0, 8, built.base - LINE, built.base + built.bytes, MASK, MASK - 63, 1 << 63]
    askew = [int(built.words[3]) + 8, int(built.words[3]) + 1]
    inside = [int(built.words[4]), int(built.words[3] + line), built.base]
    places = [3, *(hot[3] + NEXT)]
    for place in places:
        before = built.words[place]
        for pointer in {*outside, *askew, *inside} - {int(before)}:
            built.words[place] = pointer
            assert built.verify() == sessions - 1, (place, pointer)
        built.words[place] = before
    for place in hot[3] + SESSION:
        built.words[place] += np.uint64(1)
        assert built.verify() == sessions - 1
        built.words[place] -= np.uint64(1)
    assert built.verify() == sessions


def test_a_chain_that_leaves_an_object_out_is_damage(kernel, layout):
    """Every object belongs to the session, but they are four, or go round."""
    built = Built(kernel, 3, layout)
    hot = built.hot()[1]
    built.words[hot[1] + NEXT] = built.base + 8 * int(hot[3])
    assert built.verify() == 2
    built.words[hot[1] + NEXT] = built.base + 8 * int(hot[0])
    assert built.verify() == 2


# --- what is refused


@pytest.mark.parametrize(
    "changes",
    [
        {"size": 0},
        {"size": bytes_of(10) - 1},
        {"parameter": (0, 0, 0, 0)},
        {"parameter": (11, 0, 0, 0)},
        {"parameter": (10, 3, 0, 0)},
        {"parameter": (10, 0, 2, 0)},
        {"parameter": (MASK, 0, 0, 0)},
        {"parameter": ((1 << 64) // 4032, 0, 0, 0)},
        {"parameter": ((1 << 64) // 4032 + 1, 0, 0, 0)},
        {"parameter": ((1 << 64) // 4040 + 1, 1, 0, 0)},
        {"parameter": (1 << 61, 2, 0, 0)},
        {"parameter": (1 << 58, 2, 0, 0)},
        {"base": 64},
    ],
)
def test_nothing_is_written_where_parameters_leave_the_bytes(kernel, changes):
    memory = np.full(bytes_of(10) + TOGETHER, 7, np.uint8)
    base = memory.ctypes.data + -memory.ctypes.data % TOGETHER + changes.get("base", 0)
    size = changes.get("size", bytes_of(10))
    run = Run(base=base, size=size, parameter=changes.get("parameter", (10, 0, 0, 0)))
    assert kernel.prepare(run, Poll()) == EINVAL
    assert (memory == 7).all()


@pytest.mark.parametrize("sessions", [1, 31, 32, 33, 64, 1000])
def test_python_knows_how_many_bytes_it_takes(kernel, layout, sessions):
    assert objects.object_bytes(sessions) == bytes_of(sessions)
    assert Built(kernel, sessions, layout).status == 0
    assert Built(kernel, sessions, layout, less=1).status == EINVAL


def test_preparing_and_verifying_ask_whether_to_go_on(kernel, layout):
    """Stopped at every question, wherever it is asked."""
    built = Built(kernel, 20000, layout)
    found = ctypes.c_uint64()
    for work in (
        lambda poll: kernel.prepare(built.run, poll),
        lambda poll: kernel.verify(built.run, found, poll),
    ):
        questions = Answers(limit=1 << 20)
        assert work(questions.poll) == 0
        assert questions.asked >= 20000 // 4096
        for limit in range(questions.asked):
            assert work(Answers(limit).poll) == ECANCELED
    assert built.untouched()


# --- the probe


def counted(sessions, layout, **changes):
    return tp.objects(sessions, layout=layout, **{**QUICK, **changes}).counts


def test_result_is_complete():
    measured = tp.objects("1K", seed=3, counters=["cycles"], verify=True, **QUICK)
    assert measured.probe == "objects"
    assert (measured.ns > 0).all()
    assert {"map", "populate", "build", "verify", "passes", "measure", "count"} <= measured.setup.keys()
    assert measured.refused.keys() | measured.counters.keys() == {"cycles"}
    assert measured.params.pop("cpu") >= 0
    assert measured.params == {
        "bytes": bytes_of(1000),
        "sessions": 1000,
        "layout": "scattered",
        "write_statistics": True,
        "pages": "base",
        "strict": True,
        "touch": "random",
        "mapped_bytes": -(-bytes_of(1000) // BASE) * BASE,
        "seed": 3,
        "precision": 0.01,
        "max_seconds": 0.02,
    }
    counts = measured.counts
    assert counts["requests"] == counts["found"] == counts["packets"]
    assert counts["requests"] >= measured.ns.size * measured.accesses_per_slice
    sizes = {BASE, paging.pmd_size() or BASE, *paging.hugetlb_pools()}
    assert counts["pages_per_request"].keys() == counts["hot_pages"].keys() == set(map(format_size, sizes))


@pytest.mark.parametrize("layout", objects.OBJECT_LAYOUTS)
def test_every_layout_has_as_many_lines(layout):
    assert counted(300, layout)["lines_per_request"] == 6


def test_without_writing_no_packet_is_counted():
    counts = counted(100, "pooled", write_statistics=False)
    assert counts["packets"] == 0
    assert counts["requests"] == counts["found"] > 0


def pages_by_hand(sessions, offsets):
    """Mean distinct pages of a row, and distinct pages of all, by base page."""
    pages = offsets // BASE
    return sum(len(set(row)) for row in pages.tolist()) / sessions, len(np.unique(pages))


@pytest.mark.parametrize("sessions", [1, 2, 50, 1000])
def test_pages_of_pooled_and_split_by_their_formulas(sessions):
    numbers = np.arange(sessions)[:, None]
    directory = -(-8 * sessions // TOGETHER) * TOGETHER
    pools = directory + LINE * sessions * np.cumsum([0, *LINES[:-1]])
    pooled = np.hstack([8 * numbers, pools + LINE * LINES * numbers])
    side_by_side = directory + TOGETHER * numbers + LINE * np.arange(4)
    statistics = directory + TOGETHER * sessions + LINE * numbers
    split = np.hstack([8 * numbers, side_by_side, statistics])
    for layout, offsets in (("pooled", pooled), ("split", split)):
        counts, base = counted(sessions, layout), format_size(BASE)
        expected = pages_by_hand(sessions, offsets)
        assert (counts["pages_per_request"][base], counts["hot_pages"][base]) == expected


def test_chunks_of_counting_do_not_show(monkeypatch):
    with tp.Region(bytes_of(1000)) as region:
        tp.objects(1000, region=region, **QUICK)
        whole = objects.count_objects(region, 1000)
        monkeypatch.setattr(objects, "SESSIONS_AT_ONCE", 7)
        assert objects.count_objects(region, 1000) == whole


def test_split_fits_more_sessions_on_a_page():
    """Its hot lines are 320 bytes a session beside 8 of directory; of pooled, each is alone in its object."""
    base = format_size(BASE)
    pages = {layout: counted(1000, layout)["hot_pages"][base] for layout in objects.OBJECT_LAYOUTS}
    dense = 1000 * (8 + 5 * LINE) / BASE
    assert dense <= pages["split"] <= dense + 3
    assert pages["split"] < min(pages["pooled"], pages["scattered"])


def test_same_seed_asks_for_the_same_sessions_whatever_the_layout():
    """Packets of each session, read back from memory, after as many requests."""
    seen = []
    for layout in LAYOUTS:
        with tp.Region(bytes_of(64)) as region:
            parameters = {"sessions": 64, "layout": layout, "write": 1, "seed": 5}
            with _core.Session([(region, "objects", 0, bytes_of(64), parameters)]) as session:
                session.measure((100,), 3)
            words = np.frombuffer(region, np.uint64).copy()
            places = objects._request_places(words, region.address, np.arange(64, dtype=np.uint64))
        seen.append(words[places[-1] // 8 + PACKETS].tolist())
    assert seen[0] == seen[1] == seen[2]
    assert sum(seen[0]) == 364, "a lap to warm up, then three slices"


def test_in_a_region():
    with tp.Region(bytes_of(500)) as region:
        for sessions in (500, 20, 499):
            measured = tp.objects(sessions, "base", region=region, verify=True, **QUICK)
            assert measured.params["mapped_bytes"] == region.mapped_bytes
            assert measured.counts["packets"] == measured.counts["requests"]
        with pytest.raises(ValueError, match=r"pages='default' contradicts .*'base'"):
            tp.objects(5, "default", region=region, **QUICK)
        most = region.mapped_bytes // 4040
        with pytest.raises(
            ValueError, match=f"sessions={most + 1} takes {bytes_of(most + 1)} bytes .*, but .* has"
        ):
            tp.objects(most + 1, region=region, **QUICK)
    with pytest.raises(ValueError, match="closed"):
        tp.objects(5, region=region, **QUICK)
    with pytest.raises(TypeError, match="region='64KiB' must be a Region"):
        tp.objects(5, region="64KiB", **QUICK)


def test_damaged_memory_is_an_error(monkeypatch):
    real = Point.time

    def spoil_and_time(self, session):
        ((place, *_),) = [self.places]
        monkeypatch.undo()
        pointer = ctypes.cast(place.region.address, ctypes.POINTER(ctypes.c_uint64))
        pointer[0], pointer[1] = pointer[1], pointer[0]
        real(self, session)

    monkeypatch.setattr(Point, "time", spoil_and_time)
    with pytest.raises(RuntimeError, match=r"objects: the accesses found \d+ where they must find \d+"):
        tp.objects(2, **QUICK)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"sessions": 0}, ValueError, "sessions=0 is out of range: from 1 to"),
        ({"sessions": -1}, ValueError, "sessions=-1"),
        ({"sessions": "0.5"}, ValueError, "sessions='0.5'"),
        ({"sessions": "200KiB"}, ValueError, "sessions='200KiB'"),
        ({"sessions": 2.0}, TypeError, "sessions=2.0"),
        ({"sessions": None}, TypeError, "sessions=None"),
        (
            {"sessions": 1 << 62},
            ValueError,
            "sessions=4611686018427387904 is out of range, 1 to 1141506440204798",
        ),
        ({"sessions": 1 << 63}, ValueError, "sessions=9223372036854775808"),
        ({"sessions": "100G"}, MemoryError, "largest size that would fit"),
        ({"layout": "heap"}, ValueError, "layout='heap' is none of scattered, pooled, split"),
        ({"layout": 0}, ValueError, "layout=0"),
        ({"layout": None}, ValueError, "layout=None"),
        ({"write_statistics": "no"}, TypeError, "write_statistics='no' must be True or False"),
    ],
)
def test_wrong_parameters_are_named_before_anything_is_mapped(monkeypatch, arguments, error, said):
    monkeypatch.setattr(_core.Mapping, "advise", lambda *_: pytest.fail("it was mapped"))
    with pytest.raises(error, match=re.escape(said)):
        tp.objects(**{"sessions": 100, **arguments})


def test_the_largest_number_of_sessions_is_the_one_that_is_named():
    with pytest.raises(ValueError, match="out of range") as refused:
        objects.object_bytes(1 << 61)
    most = int(re.search(r"1 to (\d+)", str(refused.value))[1])
    assert objects.object_bytes(most) <= 1 << 62
    with pytest.raises(ValueError, match=f"1 to {most}"):
        objects.object_bytes(most + 1)


def test_in_a_sweep():
    swept = tp.sweep(tp.objects, sessions=[50, "0.1K"], layout=["pooled", "split"], progress=False, **QUICK)
    assert swept.axes == {"sessions": [50, 100], "layout": ["pooled", "split"]}
    assert not swept.refused
    with tp.Region(bytes_of(100)) as region:
        shared = tp.sweep(tp.objects, sessions=[50, 100, 300], region=region, progress=False, **QUICK)
    assert shared.refused.keys() == {(300,)}
    assert "sessions=300 takes" in shared[300].reason


def test_an_interrupt_while_counting_is_an_interrupt(monkeypatch):
    """A view of the memory lives on in the traceback: it must not hide what happened."""

    def interrupted(words, address, entries):
        raise KeyboardInterrupt

    monkeypatch.setattr(objects, "_request_places", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tp.objects(100, **QUICK)
    with pytest.raises(KeyboardInterrupt):
        tp.sweep(tp.objects, sessions=[100, 200], progress=False, **QUICK)
