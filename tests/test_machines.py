"""Descriptions of simulated processors: those that come with the package, and files that are none."""

import itertools
import re
import textwrap
import tomllib
from dataclasses import replace

import pytest
from test_machine import leaves, sections

from tlbprobe.cores.description import DescriptionError, describe, known_machines
from tlbprobe.machine import cpuid

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MACHINES = known_machines()
REAL = (
    *("skylake", "golden-cove", "zen2", "zen3", "zen4", "zen5"),
    *("neoverse-n1", "neoverse-v2", "apple-m1", "cortex-a53"),
)
TEACHING = ("one-level", "two-levels", "hashed", "guest")


# --- those that come with the package --------------------------------------------------------------------


def sources(content):
    """Every source of a file, by table."""
    for table in ("tlb", "cache"):
        for place, one in enumerate(content[table], 1):
            yield f"{table} {place}", one["source"]
    for table in ("memory", "walk", "overlap"):
        yield table, content[table]["source"]


def words(name):
    return MACHINES[name].read_text()


def test_the_machines_that_there_are():
    assert set(MACHINES) == {*REAL, *TEACHING}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_parses_and_fills_the_model(name):
    described = describe(name)
    numbers = described.numbers(seed=7)
    assert len(numbers) == 541
    assert all(isinstance(number, float) for number in numbers)
    assert numbers[0] == described.ghz
    assert numbers[3] == 7
    assert numbers[4] == described.base_page == min(described.pages)
    assert described.line == 64
    assert str(described) == f"{name}: {described.about}"


@pytest.mark.parametrize("name", MACHINES)
def test_a_file_is_told_by_its_name_and_begins_with_words(name):
    assert re.fullmatch("[a-z0-9-]+", name)
    lines = words(name).splitlines()
    assert lines[0].startswith("# ")
    assert max(map(len, lines)) <= 110
    if name in REAL:
        assert "Left out: " in words(name)


@pytest.mark.parametrize("name", MACHINES)
def test_every_figure_has_a_source(name):
    for place, source in sources(tomllib.loads(words(name))):
        few = 2 if name in TEACHING else 4
        assert len(source.split()) > few, place
        assert source.startswith("made up: ") == (name in TEACHING), place


@pytest.mark.parametrize("name", MACHINES)
def test_a_file_given_by_its_path_is_the_same_machine(name):
    assert describe(MACHINES[name]) == describe(str(MACHINES[name])) == describe(name)


@pytest.mark.parametrize("name", MACHINES)
def test_levels_go_outwards(name):
    tables = describe(name).tables
    for side in ("data", "code"):
        tlbs = [level["cycles"] for level in tables["tlb"] if level["side"] in (side, "both")]
        caches = [level for level in tables["cache"] if level["side"] in (side, "both")]
        assert tlbs == sorted(tlbs)
        for near, far in itertools.pairwise(caches):
            assert near["size"] < far["size"]
            assert near["cycles"] < far["cycles"] < tables["memory"]["cycles"]


# --- beside what CPUID claims ----------------------------------------------------------------------------

# Where a dump is of the machine's core, and what is not as it claims: the sources say why.
DUMPS = {
    "skylake": ("Skylake-X", set()),
    "golden-cove": ("intel-bare", {(1, "data", 4 * KIB), (2, "unified", 4 * KIB)}),
    "zen3": ("Zen 3 Milan", set()),
    "zen4": ("zen4-guest", set()),
    "zen5": ("Zen 5 Granite Ridge", set()),
}


def claimed(dump):
    """Entries by level, side and page size, as CPUID claims them for loads and for code."""
    found = sections("cpuid-dumps").get(dump) or sections(dump)["cpuid"]
    return {
        (row.level, row.side, page): (row.entries, row.ways)
        for row in cpuid.tlb(leaves(found))
        for page in row.page_sizes
        if row.access != "store" and page != 4 * MIB
    }


def described(name):
    """The same of a machine's file: levels count from the first on each side."""
    found, counts = {}, {"data": 0, "code": 0}
    for level in describe(name).tables["tlb"]:
        sides = ["data", "code"] if level["side"] == "both" else [level["side"]]
        for side in sides:
            counts[side] += 1
        shown = {"both": "unified", "data": "data", "code": "instruction"}[level["side"]]
        for one in level["entries"]:
            for page in one["pages"]:
                found[counts[sides[0]], shown, page] = (one["entries"], one["ways"] or one["entries"])
    return found


@pytest.mark.parametrize("name", DUMPS)
def test_entries_are_those_that_cpuid_claims(name):
    dump, other = DUMPS[name]
    claims, ours = claimed(dump), described(name)
    assert len(claims) >= 6
    for place in claims.keys() - other:
        assert ours[place][0] == claims[place][0], place
    for place in other:
        assert ours[place][0] != claims[place][0], "no exception any more"


def test_ways_are_those_that_cpuid_claims():
    for name in ("skylake", "zen3", "zen4", "zen5"):
        claims, ours = claimed(DUMPS[name][0]), described(name)
        for place in claims:
            if place[0] == 1:
                assert ours[place] == claims[place], (name, place)
    gigantic = (2, "unified", GIB)
    assert described("skylake")[gigantic] == claimed("Skylake-X")[gigantic] == (16, 4)
    assert described("zen5")[2, "data", GIB] == claimed("Zen 5 Granite Ridge")[2, "data", GIB] == (1024, 4)
    halves = [(2, "unified", page) for page in (2 * MIB, GIB)]
    assert all(described("golden-cove")[half] == claimed("intel-bare")[half] == (1024, 8) for half in halves)


def test_what_is_known_of_each():
    assert described("skylake")[2, "unified", 4 * KIB] == (1536, 12)
    assert described("golden-cove")[1, "data", 4 * KIB] == (96, 6)
    assert described("golden-cove")[2, "unified", 4 * KIB] == (2048, 16)
    assert described("zen2")[2, "data", 2 * MIB] == (2048, 16)
    assert (2, "data", GIB) not in described("zen2")
    assert described("zen4")[2, "data", 4 * KIB] == (3072, 24)
    assert described("neoverse-n1")[2, "unified", GIB] == (1280, 5)
    assert described("neoverse-v2")[2, "unified", GIB] == (2048, 8)
    assert described("apple-m1")[1, "data", 16 * KIB] == (160, 5)
    assert described("apple-m1")[2, "unified", 32 * MIB] == (3072, 12)
    assert described("cortex-a53")[2, "unified", 4 * KIB] == (512, 4)
    assert describe("apple-m1").pages == (16 * KIB, 32 * MIB)
    assert describe("cortex-a53").tables["overlap"]["window"] < 8
    walkers = {name: describe(name).tables["walk"]["walkers"] for name in REAL}
    assert walkers["skylake"] == walkers["zen2"] == 2
    assert walkers["golden-cove"] == 4
    assert walkers["zen3"] == walkers["zen4"] == walkers["zen5"] == 6


def test_pages_of_a_guest_are_small_ones_inside():
    guest, bare = describe("guest"), describe("two-levels")
    assert guest.pages == bare.pages == (4 * KIB, 2 * MIB)
    assert [guest.true_page(page) for page in guest.pages] == [4 * KIB, 4 * KIB]
    assert [bare.true_page(page) for page in bare.pages] == [4 * KIB, 2 * MIB]
    assert guest.tables["tlb"] == bare.tables["tlb"]


def test_numbers_are_in_the_order_of_the_model():
    numbers = describe("skylake").numbers(seed=0)
    tlb, cache = 29, 29 + 8 * 50
    assert numbers[7:13] == [72, 10, 56, 0.5, 1, 2]
    assert numbers[13:17] == [4, 2, 16, 0], "the first data cache is 0 in the model"
    assert numbers[17:21] == [32, 4, 0, 0]
    assert numbers[25:29] == [2, 0, 0, 0]
    assert numbers[33:37] == [1, 0, 64, 4], "no further upper level: the first TLB begins"
    assert numbers[tlb + 4 :][:2] == [1, 0]
    assert numbers[cache + 4 :][:7] == [1, 32 * KIB, 64, 8, 0, 1, 4]


# --- files that are none ---------------------------------------------------------------------------------

SMALL = """
    about = "small"
    ghz = 1
    pages = ["4KiB", "2MiB", "1GiB"]

    [[tlb]]
    side = "both"
    entries = [{ pages = ["4KiB", "2MiB"], entries = 24, ways = 3 }]
    source = "made up"

    [[cache]]
    side = "both"
    size = "16KiB"
    ways = 4
    cycles = 4
    source = "made up"

    [memory]
    cycles = 100
    source = "made up"

    [walk]
    upper = [{ entries = 4 }]
    source = "made up"

    [overlap]
    window = 16
    misses = 4
    stores = 4
    cycles = 1
    source = "made up"
"""


@pytest.fixture
def write(tmp_path):
    """Write a description, in which a part is replaced, and more is added."""

    def write(old="", new="", more=""):
        text = textwrap.dedent(SMALL)
        assert old in text
        path = tmp_path / "mine.toml"
        path.write_text(text.replace(old, new, 1) + textwrap.dedent(more))
        return path

    return write


def refusal(path):
    """What describing it says: one line, that names the file."""
    with pytest.raises(DescriptionError) as caught:
        describe(path)
    text = str(caught.value)
    assert text.startswith("mine")
    assert "\n" not in text
    return text


def test_a_small_machine_is_completed(write):
    small = describe(write())
    assert (small.name, small.about, small.ghz) == ("mine", "small", 1.0)
    assert small.tables["tlb"][0]["cycles"] == 0.0
    assert small.tables["walk"]["walkers"] == 1
    assert small.tables["clock"] == {"read_ns": 4.0, "step_ns": 1.0}
    assert small.tables["burst"] == small.tables["drift"] == []
    assert replace(small, name="other").numbers(1) == small.numbers(1)


TABLE = "entries = [{ pages"
WRONG = {
    # a key
    "unknown key": (
        'about = "small"',
        'about = "small"\nname = "x"',
        "mine: name is no key of it: these are",
    ),
    "unknown table": ("", "[tlbs]\n", "mine: there is no table tlbs: these are: "),
    "unknown key of a level": ("ways = 3", "way = 3", "mine: tlb 1: entries 1: way is no key"),
    "unknown key of a table": ("window", "widow", "mine: overlap: widow is no key"),
    "missing key": ("ghz = 1", "", "mine: ghz is missing"),
    "missing source": ('cycles = 100\nsource = "made up"', "cycles = 100", "mine: memory: source is missing"),
    "missing table": ('[memory]\ncycles = 100\nsource = "made up"', "", "there is no [memory]"),
    # a kind
    "text for number": ("ghz = 1", 'ghz = "1"', "mine: ghz='1' must be a number"),
    "truth for number": ("ghz = 1", "ghz = true", "mine: ghz=True must be a number"),
    "number for text": ('about = "small"', "about = 1", "mine: about=1 must be a text"),
    "fraction": ("window = 16", "window = 1.5", "mine: overlap: window=1.5 must be a whole number"),
    "date": ("ghz = 1", "ghz = 2024-01-01", "ghz=datetime.date(2024, 1, 1) must be a number"),
    "empty source": (
        '[walk]\nupper = [{ entries = 4 }]\nsource = "made up"',
        '[walk]\nsource = " "',
        "is empty",
    ),
    "table for list": (
        "upper = [{ entries = 4 }]",
        "upper = { entries = 4 }",
        "walk: upper={'entries': 4} must",
    ),
    "list of numbers": ("upper = [{ entries = 4 }]", "upper = [4]", "walk: upper 1: must be a table, not 4"),
    "text for list": (TABLE, 'entries = "24" #', "tlb 1: entries='24' must be a list of tables"),
    "list for table": ("[memory]", "[[memory]]", "mine: memory: must be a table"),
    "table for levels": ("[[tlb]]", "[tlb]", "mine: tlb={'side': 'both'"),
    "size": ('"16KiB"', '"16KB"', "cache 1: size='16KB'"),
    "size of a page": ('["4KiB", "2MiB", "1GiB"]', '"4KiB"', "mine: pages='4KiB' must be a list of sizes"),
    "no pages": ('["4KiB", "2MiB", "1GiB"]', "[]", "mine: pages=[] must be a list of sizes"),
    # a word
    "side": ('side = "both"', 'side = "left"', "tlb 1: side='left' must be one of data, code, both"),
    "side of lists": ('side = "both"', 'side = ["both"]', "tlb 1: side=['both'] must be one of"),
    "index": ("ways = 3", 'ways = 3, index = "xor"', "index='xor' must be one of plain, folded, hashed"),
    "replacement": ("ways = 4", 'replacement = "fifo"', "cache 1: replacement='fifo' must be one of lru"),
    # a number
    "negative": ("entries = 24", "entries = -24", "tlb 1: entries 1: entries=-24 must be 1 to"),
    "no entries": ("entries = 24", "entries = 0", "tlb 1: entries 1: entries=0 must be 1 to"),
    "negative ways": ("ways = 3", "ways = -3", "tlb 1: entries 1: ways=-3 must be 0 to"),
    "negative cycles": ("cycles = 4", "cycles = -4", "cache 1: cycles=-4 must be 0 to 1000000"),
    "negative size": ('"16KiB"', "-1", "cache 1: size=-1"),
    "not a number": ("ghz = 1", "ghz = nan", "mine: ghz=nan must be 0.01 to 100"),
    "infinite": ("cycles = 100", "cycles = inf", "memory: cycles=inf must be"),
    "astronomic": ("ghz = 1", "ghz = 1" + 400 * "0", "must be 0.01 to 100"),
    "digits": ("ghz = 1", "ghz = 1" + 5000 * "0", "is no TOML file"),
    "no window": ("window = 16", "window = 0", "overlap: window=0 must be 1 to 4096"),
    "six levels": ("[walk]", "[walk]\nlevels = 6", "walk: levels=6 must be 3 to 5"),
    "line": ("ways = 4", "line = 48", "cache 1: line=48 must be a power of two"),
    # what does not fit together
    "ways": ("ways = 3", "ways = 7", "tlb 1: entries 1: ways=7 must divide the 24 entries"),
    "hashed": (
        "ways = 3",
        'ways = 4, index = "hashed"',
        "index='hashed' needs a power of two of sets, not 24 / 4",
    ),
    "tree": ("ways = 3", 'ways = 3, replacement = "plru"', "replacement='plru' needs a power of two of ways"),
    "ways of a cache": ("ways = 4", "ways = 5", "cache 1: ways=5 must divide the 256 entries"),
    "ways of a walk": ("{ entries = 4 }", "{ entries = 4, ways = 3 }", "walk: upper 1: ways=3 must divide"),
    "half a line": ('"16KiB"', '"1000B"', "cache 1: size=1000B must be a multiple of line=64"),
    "odd page": ('"4KiB", "2MiB", "1GiB"', '"4KiB", "3MiB"', "pages=['4KiB', '3MiB'] must be powers of two"),
    "order": (
        '"4KiB", "2MiB", "1GiB"',
        '"2MiB", "4KiB"',
        "pages=['2MiB', '4KiB'] must begin with the base page",
    ),
    "twice": ('"4KiB", "2MiB", "1GiB"', '"4KiB", "4KiB"', "must begin with the base page and go up"),
    "base page": ('"4KiB", "2MiB", "1GiB"', '"1KiB", "2MiB"', "must begin with a base page of 4KiB to 64KiB"),
    "no such page": (
        'pages = ["4KiB", "2MiB"]',
        'pages = ["2GiB"]',
        "tlb 1: entries 1: pages: 2GiB is none of",
    ),
    "too small": (
        'pages = ["4KiB", "2MiB"]',
        'pages = ["2KiB"]',
        "pages: 2KiB is none of the machine's pages",
    ),
    "odd entries": ('pages = ["4KiB", "2MiB"]', 'pages = ["3MiB"]', "pages: 3MiB is none of the machine's"),
    "page twice": (
        TABLE,
        'entries = [{ pages = ["2MiB"], entries = 1 }, { pages',
        "2MiB is twice in this level",
    ),
    "no arrays": ('[{ pages = ["4KiB", "2MiB"], entries = 24, ways = 3 }]', "[]", "tlb 1: entries is empty"),
    "no data TLB": (
        'side = "both"',
        'side = "code"',
        "mine: tlb: one or more must have side='data' or 'both'",
    ),
    "no data cache": (
        '[[cache]]\nside = "both"',
        '[[cache]]\nside = "code"',
        "mine: cache: one or more must",
    ),
    "cache of a walk": ("[walk]", "[walk]\ncache = 2", "walk: cache=2 must be one of the 1 caches for data"),
    "upper levels": (
        "[{ entries = 4 }]",
        "[" + 3 * "{ entries = 4 }," + "]\nlevels = 3",
        "3 tables for 3 levels",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_told_by_its_place_and_key(write, case):
    old, new, told = WRONG[case]
    if told is None:
        path = write(more=new)
        told = "mine: tlbs is no key of it"
    else:
        path = write(old, new)
    assert told in refusal(path)


MORE = {
    "a fifth burst": (
        "[[burst]]\nrate = 1\nleast_ms = 1\nmost_ms = 2\n" * 5,
        "burst has 5 tables, at most 4 fit",
    ),
    "short burst": (
        "[[burst]]\nrate = 1\nleast_ms = 3\nmost_ms = 2\n",
        "burst 1: most_ms=2.0 is below least_ms",
    ),
    "all stolen": (
        "[[burst]]\nrate = 1\nleast_ms = 1\nmost_ms = 2\nstolen = 1\n",
        "stolen=1 must be 0 to 0.999",
    ),
    "neighbour": (
        '[[neighbour]]\ncycles = 9\nof = "tlb"\nlevel = 2\n',
        "neighbour 1: level=2 must be 1 to 1",
    ),
    "steps": ("[steps]\nevery_ms = 1\nfactor = 2\n", "steps 1: factor=2 must be 0.001 to 1"),
    "drift": ("[drift]\namplitude = 1\n", "drift 1: memory_ms is missing"),
    "frames": (
        '[frames]\nsmallest = "64KiB"\n',
        "frames: smallest=64KiB is none of the machine's pages: 4KiB,",
    ),
    "contiguous": ("[frames]\ncontiguous = 1\n", "frames: contiguous=1 must be true or false"),
    "clock": ("[clock]\nstep_ns = 0\n", "clock: step_ns=0 must be 1 to"),
    "nine levels": (
        '[[tlb]]\nside = "data"\nentries = []\nsource = "x"\n' * 8,
        "tlb has 9 tables, at most 8 fit",
    ),
}


@pytest.mark.parametrize("case", MORE)
def test_wrong_noise_and_too_much(write, case):
    more, told = MORE[case]
    assert told in refusal(write(more=more))


def test_too_many_arrays(write):
    many = ", ".join('{ pages = ["4KiB"], entries = 1 }' for _ in range(5))
    text = refusal(write('[{ pages = ["4KiB", "2MiB"], entries = 24, ways = 3 }]', f"[{many}]"))
    assert text == "mine: tlb 1: entries has 5 tables, at most 4 fit"


def test_entries_may_be_of_parts_of_a_page(write):
    small = describe(write('pages = ["4KiB", "2MiB"]', 'pages = ["4KiB", "512MiB"]'))
    assert small.tables["tlb"][0]["entries"][0]["pages"] == [4 * KIB, 512 * MIB]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00\x01",
        b"about = \0",
        b"about",
        b"a = 1\na = 2\n",
        5000 * b"a=[" + b"\n",
        b"[" * 5000,
    ],
    ids=["empty", "binary", "null", "cut", "twice", "deep", "open"],
)
def test_what_is_no_toml(tmp_path, content):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    text = refusal(path)
    assert ("no TOML file" in text) == bool(content)


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "mine.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert refusal(path) == "mine.toml: is larger than 1 MiB, so it is no description"


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "mine.toml").mkdir()
    for name in ("mine.toml", "absent.toml", "skylake.toml"):
        with pytest.raises(DescriptionError, match=rf"{name}' is no file; by name.*skylake, two-levels"):
            describe(tmp_path / name)


def test_no_file_passes_for_a_machine_of_the_package(tmp_path):
    copy = tmp_path / "zen4.toml"
    copy.write_bytes(known_machines()["skylake"].read_bytes())
    with pytest.raises(DescriptionError, match="name the file otherwise"):
        describe(copy)


def test_a_byte_order_mark_is_no_fault(tmp_path):
    copy = tmp_path / "mine.toml"
    copy.write_bytes(b"\xef\xbb\xbf" + known_machines()["skylake"].read_bytes())
    assert describe(copy).tables == describe("skylake").tables


@pytest.mark.parametrize("name", ["", "skylakes", "Skylake", "skylake.tml", "..", "a" * 5000])
def test_an_unknown_machine_is_told_the_known_ones(name):
    with pytest.raises(DescriptionError, match="neither a file") as caught:
        describe(name)
    assert "skylake, two-levels" in str(caught.value)
