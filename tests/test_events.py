"""Events: tables against the kernel's lists, names to encodings, and why a processor has none."""

import csv
import itertools
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import write

from tlbprobe.counters import events, groups, libpfm, pmus

MACHINES = Path(__file__).parent / "machines"
ROWS = list(csv.DictReader((MACHINES / "perf-lists.csv").read_text().splitlines()))
RECORDED = {
    (row["folder"], row["pmu"], row["name"]): (int(row["event"], 0), int(row["umask"], 0), int(row["cmask"]))
    for row in ROWS
}

# tools/perf/pmu-events/arch/x86/mapfile.csv of Linux 7.2, for the folders that there are tables of: family in
# decimal, model in hexadecimal, and the stepping where it matters.
MAPFILE = {
    "alderlake": "GenuineIntel-6-(97|9A|B7|BA|BF)",
    "alderlaken": "GenuineIntel-6-BE",
    "arrowlake": "GenuineIntel-6-C[56]",
    "broadwell": "GenuineIntel-6-(3D|47)",
    "broadwellde": "GenuineIntel-6-56",
    "broadwellx": "GenuineIntel-6-4F",
    "cascadelakex": "GenuineIntel-6-55-[56789ABCDEF]",
    "clearwaterforest": "GenuineIntel-6-DD",
    "elkhartlake": "GenuineIntel-6-9[6C]",
    "emeraldrapids": "GenuineIntel-6-CF",
    "grandridge": "GenuineIntel-6-B6",
    "graniterapids": "GenuineIntel-6-A[DE]",
    "haswell": "GenuineIntel-6-(3C|45|46)",
    "haswellx": "GenuineIntel-6-3F",
    "icelake": "GenuineIntel-6-7[DE]",
    "icelakex": "GenuineIntel-6-6[AC]",
    "lunarlake": "GenuineIntel-6-BD",
    "meteorlake": "GenuineIntel-6-(AA|AC|B5)",
    "pantherlake": "GenuineIntel-6-(CC|D5)",
    "rocketlake": "GenuineIntel-6-A7",
    "sapphirerapids": "GenuineIntel-6-8F",
    "sierraforest": "GenuineIntel-6-AF",
    "skylake": "GenuineIntel-6-(4E|5E|8E|9E|A5|A6)",
    "skylakex": "GenuineIntel-6-55-[01234]",
    "snowridgex": "GenuineIntel-6-86",
    "tigerlake": "GenuineIntel-6-8[CD]",
    "amdzen1": "AuthenticAMD-23-([12][0-9A-F]|[0-9A-F])",
    "amdzen2": "AuthenticAMD-23-[0-9A-F]+",
    "amdzen3": "AuthenticAMD-25-([245][0-9A-F]|[0-9A-F])",
    "amdzen4": "AuthenticAMD-25-[0-9A-F]+",
    "amdzen5": "AuthenticAMD-26-([12467][0-9A-F]|[0-9A-F])",
    "amdzen6": "AuthenticAMD-26-[0-9A-F]+",
}


# --- machines made by hand -------------------------------------------------------------------------------


def add_pmu(root, name, number, formats=None, named=None, cpus=None):
    where = f"sys/bus/event_source/devices/{name}"
    write(root, {
        f"{where}/type": number,
        **{f"{where}/format/{term}": text for term, text in (formats or {}).items()},
        **{f"{where}/events/{event}": text for event, text in (named or {}).items()},
        **({} if cpus is None else {f"{where}/cpus": cpus}),
    })  # fmt: skip


X86_FORMATS = {
    "event": "config:0-7",
    "umask": "config:8-15",
    "edge": "config:18",
    "inv": "config:23",
    "cmask": "config:24-31",
    "ldlat": "config1:0-15",
}
AMD_FORMATS = {**X86_FORMATS, "event": "config:0-7,32-35"}


def x86(root, vendor, family, model, stepping=1):
    fields = {"vendor_id": vendor, "cpu family": family, "model": model, "stepping": stepping}
    write(root, {"proc/cpuinfo": "\n".join(f"{name}\t: {value}" for name, value in fields.items())})
    return root


def intel(root, model, *, stepping=1):
    add_pmu(
        root, "cpu", 4, X86_FORMATS, {"mem-loads": "event=0xcd,umask=0x1,ldlat=3", "a": "event=0x1,core=?"}
    )
    return x86(root, "GenuineIntel", 6, model, stepping)


def amd(root, family, model):
    add_pmu(root, "cpu", 4, AMD_FORMATS)
    return x86(root, "AuthenticAMD", family, model)


def hybrid(root, model, **units):
    for name, (number, cpus) in units.items():
        add_pmu(root, name, number, X86_FORMATS, cpus=cpus)
    return x86(root, "GenuineIntel", 6, model)


def arm(root, part, announced=(), implementer=0x41, cpus=1):
    write(root, {"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd03"})
    for cpu in range(cpus):
        midr = f"{implementer << 24 | 0xF << 16 | part << 4:#018x}"
        write(root, {f"sys/devices/system/cpu/cpu{cpu}/regs/identification/midr_el1": midr})
    formats = {"event": "config:0-15", "long": "config1:0", "rdpmc": "config1:1"}
    named = {name: f"event={number:#06x}" for name, number in announced}
    add_pmu(root, "armv8_pmuv3_0", 8, formats, named)
    return root


N1 = (("l1d_tlb_refill", 5), ("l1d_tlb", 0x25), ("l2d_tlb_refill", 0x2D), ("dtlb_walk", 0x34))


def config(name, on):
    found = events.find(name, on)
    assert isinstance(found, events.Event), found
    return found.config


def reason(name, on):
    found = events.find(name, on)
    assert isinstance(found, events.Absent), found
    return str(found)


# --- tables ----------------------------------------------------------------------------------------------


def tables():
    for folder, (_, kinds) in events.INTEL_EVENTS.items():
        for pmu, core in kinds.items():
            yield f"x86/{folder}", pmu, core.rows
    for folder, rows in events.AMD_EVENTS.items():
        yield f"x86/{folder}", "cpu", rows
    for folder, rows in events.ARM_CORES.values():
        yield f"arm64/{folder}", "cpu", rows
    yield "arm64", "cpu", events.ARM_EVENTS


TABLES = list(tables())


@pytest.mark.parametrize(("folder", "pmu", "rows"), TABLES, ids=[" ".join(one[:2]) for one in TABLES])
def test_every_row_is_as_the_list_that_it_cites(folder, pmu, rows):
    for name, row in rows.items():
        cited = [RECORDED[folder, pmu, perf] for perf in row.perf.split(" + ")]
        numbers, umasks, cmasks = zip(*cited, strict=True)
        assert set(numbers) == {row.event}, name
        assert sum(umasks) == row.umask, name  # those of several have no bit in common
        assert set(cmasks) == {row.cmask}, name
        assert name in events.MEANINGS


def test_no_recorded_row_is_forgotten():
    cited = {
        (folder, pmu, perf)
        for folder, pmu, rows in TABLES
        for row in rows.values()
        for perf in row.perf.split(" + ")
    }
    assert cited == set(RECORDED)


def test_what_is_known_of_a_kind_is_judged():
    kinds = {row.kind for _, _, rows in TABLES for row in rows.values()} - {None}
    kinds |= {meaning.kind for meaning in events.MEANINGS.values()}
    kinds |= {
        kind for core in (events.HSW, events.SKL, events.GLC, events.GRT) for _, kind in core.says.values()
    }
    kinds |= {kind for says in (events.AMD_SAYS, events.ARM_SAYS) for _, kind in says.values()}
    assert {kind.replace(groups.OF_BASE_PAGES, "") for kind in kinds} == {"", *groups.KNOWN}


@pytest.mark.parametrize(
    ("vendor", "family"),
    [("GenuineIntel", 6), ("AuthenticAMD", 23), ("AuthenticAMD", 25), ("AuthenticAMD", 26)],
)
def test_models_have_the_lists_of_the_map(tmp_path, vendor, family):
    for model in range(256):
        for stepping in (4, 5) if model == 0x55 else (1,):
            said = (f"{vendor}-{family}-{model:X}", f"{vendor}-{family}-{model:X}-{stepping:X}")
            matching = (
                name for name, one in MAPFILE.items() if any(re.fullmatch(one, each) for each in said)
            )
            found = events.processor(x86(tmp_path, vendor, family, model, stepping))
            assert found.folder == next(matching, ""), (model, stepping)


FACTS = [  # model of family 6, PMU, name, config
    (0x3C, "cpu", "walk_pending", 0x1008),
    (0x3C, "cpu", "stlb_hit", 0x6008),
    (0x4F, "cpu", "walks", 0x0E08),
    (0x3F, "cpu", "walk_memory", 0x18BC),
    (0x55, "cpu", "walk_active", 0x1001008),
    (0x55, "cpu", "walk_pending", 0x1008),
    (0x55, "cpu", "stlb_hit", 0x2008),
    (0x55, "cpu", "walks_4k", 0x0208),
    (0x55, "cpu", "walks_2m", 0x0408),
    (0x55, "cpu", "walks_1g", 0x0808),
    (0x55, "cpu", "walks_store", 0x0E49),
    (0x55, "cpu", "walks_code", 0x0E85),
    (0x6A, "cpu", "walk_active_code", 0x1001085),
    (0x8F, "cpu", "walk_active", 0x1001012),
    (0x8F, "cpu", "walks_store", 0x0E13),
    (0xCF, "cpu", "walks_code", 0x0E11),
    (0x97, "cpu_core", "walk_active", 0x1001012),
    (0x97, "cpu_atom", "walks", 0x0E08),
    (0xAA, "cpu_atom", "walk_pending", 0x1008),
    (0xBD, "cpu_core", "stlb_hit", 0x30000002012),
    (0xBD, "cpu_core", "stlb_hit_code", 0x10000002011),
    (0xBD, "cpu_atom", "walk_l1", 0x01BC),
    (0xDD, "cpu", "walks_4k", 0x0208),
]


@pytest.mark.parametrize(("model", "pmu", "name", "expected"), FACTS)
def test_intel_configs(tmp_path, model, pmu, name, expected):
    on = events.processor(hybrid(tmp_path, model, **{pmu: (9, "0-3")}))
    found = events.find(name, on)
    assert (found.type, found.config) == (9, expected)
    assert found.source.startswith("Linux 7.2 tools/perf/pmu-events/arch/x86/")
    assert found.encoding.startswith(f"{pmu}/event=0x")


@pytest.mark.parametrize(
    ("family", "model"), [(0x17, 0x01), (0x17, 0x31), (0x19, 0x01), (0x19, 0x11), (0x1A, 2), (0x1A, 0x50)]
)
def test_amd_configs(tmp_path, family, model):
    on = events.processor(amd(tmp_path, family, model))
    expected = {
        "walks": 0xF045,
        "walks_4k": 0x1045,
        "walks_2m": 0x4045,
        "walks_1g": 0x8045,
        "l1_dtlb_misses": 0xFF45,
    }
    assert {name: config(name, on) for name in expected} == expected
    for name in ("walk_active", "walk_pending", "walk_active_code"):
        assert f"{on.label} counts page walks, not the cycles that they take" in reason(name, on)
    assert "counts loads and stores together" in reason("walks_store", on)
    has_table_walks = family == 0x17 or (family, model) == (0x19, 0x01)
    assert isinstance(events.find("table_walks", on), events.Event) is has_table_walks
    if family == 0x1A:
        assert config("backend_stall", on) == 0x100001EA0


def test_what_a_processor_counts_is_encoded_as_it_is_written(tmp_path):
    """The encoding that is shown, read back by the format files, is the config that the kernel gets."""
    for number, make in enumerate((lambda root: intel(root, 0x55), lambda root: amd(root, 0x19, 0x11))):
        on = events.processor(make(tmp_path / str(number)))
        for name in on.core.rows:
            found = events.find(name, on)
            again = events.find(found.encoding, on)
            assert again.key == found.key, name
            assert (again.meaning, again.kind) == (found.meaning, found.kind), name


def test_haswell_sums_walks_over_cycles(tmp_path):
    on = events.processor(intel(tmp_path, 0x3C))
    assert "sums walks over cycles" in reason("walk_active", on)
    assert "see walk_pending" in reason("walk_active", on)


def test_a_model_that_no_table_knows(tmp_path):
    on = events.processor(intel(tmp_path, 0x2A))
    assert "do not know Sandy Bridge" in reason("walks", on)
    assert "r1008" in reason("walks", on)
    assert config("cycles", on) == 0
    other = events.processor(x86(tmp_path / "other", "GenuineNew", 7, 1))
    assert "GenuineNew family 7 model 0x1" in reason("walks", other)
    nothing = events.processor(tmp_path / "empty")
    assert "unknown" in reason("walks", nothing)


# --- several kinds of core -------------------------------------------------------------------------------


def test_each_kind_of_core_has_its_own_events(tmp_path):
    root = hybrid(tmp_path, 0x97, cpu_core=(4, "0-15"), cpu_atom=(10, "16-23"))
    big, small = (events.processor(root, cpu) for cpu in (3, 20))
    assert (big.pmu.name, small.pmu.name) == ("cpu_core", "cpu_atom")
    assert events.find("walk_active", big).key == (4, 0x1001012, 0, 0)
    assert "counts page walks, not the cycles" in reason("walk_active", small)
    assert events.find("walks", small).key == (10, 0x0E08, 0, 0)
    assert events.find("cycles", big).key == (0, 4 << 32, 0, 0)
    assert events.find("cycles", small).key == (0, 10 << 32, 0, 0)
    assert events.find("dTLB-load-misses", small).key == (3, 10 << 32 | 0x10003, 0, 0)
    assert events.find("page-faults", small).key == (1, 2, 0, 0)
    assert events.find("r1008", small).key == (10, 0x1008, 0, 0)
    assert events.find("cpu/event=0x08,umask=0x0e/", small).key == (10, 0x0E08, 0, 0)
    assert "(0xe12)" in events.find("dTLB-load-misses", big).meaning
    assert "(0xe08)" in events.find("dTLB-load-misses", small).meaning


def test_a_hybrid_processor_of_which_the_kernel_shows_one_pmu(tmp_path):
    on = events.processor(hybrid(tmp_path, 0x97, cpu=(4, None)), 5)
    assert events.find("walk_active", on).key == (4, 0x1001012, 0, 0)
    assert events.find("cycles", on).key == (0, 0, 0, 0)


# --- Arm -------------------------------------------------------------------------------------------------


def test_arm_events_are_those_that_the_pmu_announces(tmp_path):
    on = events.processor(arm(tmp_path, 0xD0C, N1))
    assert on.label == "Neoverse-N1"
    assert events.find("walks", on).key == (8, 0x34, 0, 0)
    assert config("l1_dtlb_misses", on) == 0x05
    assert config("stlb_misses", on) == 0x2D
    assert "does not announce ITLB_WALK" in reason("walks_code", on)
    assert "counts page walks, not the cycles" in reason("walk_pending", on)
    assert "stlb_accesses less stlb_misses" in reason("stlb_hit", on)
    assert "not page walks" in events.find("dTLB-load-misses", on).meaning
    assert events.find("l1d_tlb", on).key == (8, 0x25, 0, 0)
    assert events.find("l1d_tlb", on).meaning == "accesses to the first-level data TLB"


@pytest.mark.parametrize(
    ("implementer", "part"), [(0x41, 0xD8E), (0x41, 0xD84), (0x46, 0x003), (0x4E, 0x010)]
)
def test_newer_arm_cores_count_walks_over_cycles(tmp_path, implementer, part):
    on = events.processor(arm(tmp_path, part, N1, implementer))
    assert events.find("walk_pending", on).key == (8, 0x8128, 0, 0)
    assert events.expand(["tlb"], on)[-1] == "walk_pending"
    assert "see walk_pending" in reason("walk_active", on)


def test_user_access_on_arm_is_asked_for_where_it_is_granted(tmp_path):
    root = arm(tmp_path, 0xD0C, N1)
    write(root, {"proc/sys/kernel/perf_user_access": "1"})
    assert events.find("walks", events.processor(root)).key == (8, 0x34, 2, 0)
    assert events.find("cycles", events.processor(root)).key == (0, 0, 2, 0)


# --- what the kernel's names mean ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "loads", "misses"),
    [
        (lambda root: intel(root, 0x3C), "0x81d0", "began a page walk (0x108)"),
        (lambda root: intel(root, 0x55), "0x81d0", "was completed (0xe08)"),
        (lambda root: intel(root, 0x8F), "0x81d0", "was completed (0xe12)"),
        (lambda root: amd(root, 0x19, 0x11), "miss the first-level", "page walks (0xf045)"),
        (lambda root: arm(root, 0xD0C, N1), "accesses to the first-level", "not page walks"),
    ],
)
def test_the_generic_names_mean_what_the_vendor_makes_of_them(tmp_path, make, loads, misses):
    on = events.processor(make(tmp_path))
    assert loads in events.find("dTLB-loads", on).meaning
    assert misses in events.find("dTLB-load-misses", on).meaning
    assert events.find("dTLB-load-misses", on).key[:2] == (3, 0x10003)


@pytest.mark.parametrize(
    ("name", "type_", "number"),
    [
        ("cycles", 0, 0),
        ("instructions", 0, 1),
        ("cache-misses", 0, 3),
        ("branch-misses", 0, 5),
        ("ref-cycles", 0, 9),
        ("task-clock", 1, 1),
        ("page-faults", 1, 2),
        ("faults", 1, 2),
        ("context-switches", 1, 3),
        ("cs", 1, 3),
        ("minor-faults", 1, 5),
        ("major-faults", 1, 6),
        ("L1-dcache-loads", 3, 0x0),
        ("L1-dcache-prefetches", 3, 0x200),
        ("LLC-load-misses", 3, 0x10002),
        ("dTLB-loads", 3, 0x3),
        ("dTLB-store-misses", 3, 0x10103),
        ("iTLB-load-misses", 3, 0x10004),
    ],
)
def test_numbers_of_the_kernel(tmp_path, name, type_, number):
    assert events.find(name, events.processor(intel(tmp_path, 0x55))).key == (type_, number, 0, 0)


# --- perf's ways of writing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("r1008", (4, 0x1008, 0, 0)),
        ("R0E08", (4, 0x0E08, 0, 0)),
        ("r30000002012", (4, 0x30000002012, 0, 0)),
        ("cpu/event=0x08,umask=0x10,cmask=1/", (4, 0x1001008, 0, 0)),
        ("cpu/event=8,umask=16,cmask=0x1,inv/", (4, 0x1801008, 0, 0)),
        ("cpu/r1008/", (4, 0x1008, 0, 0)),
        ("cpu/config=0x1008,config1=3,config2=0xff/", (4, 0x1008, 3, 0xFF)),
        ("cpu/mem-loads/", (4, 0x1CD, 3, 0)),
        ("cpu/mem-loads,cmask=2/", (4, 0x20001CD, 3, 0)),
        ("mem-loads", (4, 0x1CD, 3, 0)),
        ("software/config=2/", (1, 2, 0, 0)),
    ],
)
def test_written_events(tmp_path, written, key):
    root = intel(tmp_path, 0x55)
    add_pmu(root, "software", 1)
    assert events.find(written, events.processor(root)).key == key


def test_fields_of_several_spans(tmp_path):
    on = events.processor(amd(tmp_path, 0x19, 0x11))
    assert config("cpu/event=0x1a0,umask=0x1e/", on) == 0x100001EA0
    assert events.find("cpu/event=0x1a0,umask=0x1e/", on).meaning.startswith("issue slots")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("cpu/evnt=0x08/", "'evnt' is no term of the PMU 'cpu', which has cmask, edge, event"),
        ("cpu/event=0x108/", "event=0x108 is out of range: it has 8 bits"),
        ("cpu/edge=2/", "edge=0x2 is out of range: it has 1 bits"),
        ("cpu/event=-1/", "event='-1' must be a number"),
        ("cpu/event=0x/", "event='0x' must be a number"),
        ("cpu/event=1e3/", "event='1e3' must be a number"),
        ("cpu/event=99999999999999999999/", "must be a number of 64 bits"),
        ("cpu/event=/", "event='' must be a number"),
        ("cpu/a/", "core='\\?' must be a number"),
        ("cpu//", "must be PMU/TERM=NUMBER"),
        ("/event=1/", "must be PMU/TERM=NUMBER"),
        ("cpu/event=1/u", "without modifiers"),
        ("../event=1/", "no term of the PMU|no event"),
        ("cpu/../", "'..' is no term"),
        ("cpu/event=1", "no event that is known"),
        ("wlak_active", "near are walk_active"),
        ("dTLB-load-miss", "near are dTLB-load-misses"),
        ("cycles:u", "cycles:u"),
        ("", "''"),
        ("x" * 5000, "'\\.\\.\\. is no event"),
        ("a\0b", "no event that is known"),
        ("a\nb", "no event that is known"),
        ("walks ", "near are walks"),
        ("WALKS", "no event that is known"),
        ("r", "no event that is known"),
        ("r12345678901234567", "no event that is known"),
    ],
)
def test_wrong_names_are_wrong_usage(tmp_path, written, said):
    on = events.processor(intel(tmp_path, 0x55))
    if written == "../event=1/":
        assert "there is no PMU '..'" in reason(written, on)
        return
    with pytest.raises(ValueError, match=said) as refused:
        events.find(written, on)
    assert len(str(refused.value)) < 400


def test_a_pmu_that_is_not_there_is_no_wrong_usage(tmp_path):
    on = events.processor(intel(tmp_path, 0x55))
    assert "there is no PMU 'cpu_atom' here; there are: cpu" in reason("cpu_atom/event=1/", on)


@given(
    st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)), min_size=1, max_size=4),
    st.integers(0, (1 << 64) - 1),
)
def test_bits_go_where_the_format_says(spans, number):
    text = ",".join(f"{min(span)}-{max(span)}" if span[0] != span[1] else str(span[0]) for span in spans)
    positions = list(pmus._positions(text))
    assert positions == [bit for span in spans for bit in range(min(span), max(span) + 1)]
    if len(set(positions)) == len(positions):
        fitting = number & (1 << len(positions)) - 1
        spread = pmus._spread_bits("x", fitting, positions)
        assert spread.bit_count() == fitting.bit_count()
        assert all((spread >> position & 1) == (fitting >> k & 1) for k, position in enumerate(positions))


def test_an_event_that_names_itself_ends(tmp_path):
    add_pmu(tmp_path, "cpu", 4, X86_FORMATS, {"loop": "loop"})
    on = events.processor(x86(tmp_path, "GenuineIntel", 6, 0x55))
    with pytest.raises(ValueError, match="'loop' is no term"):
        events.find("loop", on)


@pytest.mark.parametrize("text", ["", "nonsense", "-3", "99999999999999"])
def test_a_pmu_without_a_proper_type_is_none(tmp_path, text):
    write(tmp_path, {"sys/bus/event_source/devices/cpu/type": text})
    assert pmus.core_pmus(tmp_path) == []


# --- the set, and all names ------------------------------------------------------------------------------


def test_the_named_set(tmp_path):
    skylake, haswell = (events.processor(intel(tmp_path / str(model), model)) for model in (0x55, 0x3C))
    assert events.expand(["tlb"], skylake) == list(events.TLB_EVENTS)
    assert events.expand(["walks", "tlb", "page-faults", "walks"], haswell) == [
        "walks", "cycles", "instructions", "loads", "stlb_hit", "walk_pending", "page-faults",
    ]  # fmt: skip
    assert all(isinstance(events.find(name, skylake), events.Event) for name in events.TLB_EVENTS)


def test_every_known_name_is_an_event_or_has_a_reason(tmp_path):
    made = (
        intel(tmp_path / "i", 0x8F),
        amd(tmp_path / "a", 0x1A, 2),
        arm(tmp_path / "n", 0xD8E, N1),
        tmp_path,
    )
    for on in map(events.processor, made):
        for name in {*events.known_names()} - {events.TLB_SET}:
            found = events.find(name, on)
            assert found.name == name
            assert found.meaning
            if isinstance(found, events.Absent):
                assert found.reason
            else:
                assert found.source


# --- libpfm4 ---------------------------------------------------------------------------------------------


needs_libpfm = pytest.mark.skipif(libpfm.library() is None, reason="libpfm4 is not installed")


@needs_libpfm
def test_names_of_libpfm():
    on = events.processor()
    found = events.find("perf::PAGE-FAULTS", on)
    assert (found.key, found.source) == ((1, 2, 0, 0), "libpfm4")
    assert events.find("perf::CONTEXT-SWITCHES", on).kernel_only
    with pytest.raises(ValueError, match="modifier"):
        events.find("perf::PAGE-FAULTS:u", on)
    with pytest.raises(ValueError, match="no event that is known"):
        events.find("perf::NONSENSE", on)


def test_without_libpfm_it_is_not_missed(monkeypatch):
    monkeypatch.setattr(libpfm, "library", lambda: None)
    with pytest.raises(ValueError, match="libpfm4, which knows more names, is not installed"):
        events.find("perf::PAGE-FAULTS", events.processor())


PFM = {  # names in libpfm4 of what our tables hold: model, and our names
    ("hsw", 0x3C): {
        "DTLB_LOAD_MISSES:WALK_DURATION": "walk_pending",
        "DTLB_LOAD_MISSES:STLB_HIT": "stlb_hit",
    },
    ("bdw", 0x3D): {"DTLB_LOAD_MISSES:WALK_DURATION": "walk_pending"},
    ("skl", 0x4E): {
        "DTLB_LOAD_MISSES:WALK_ACTIVE": "walk_active",
        "DTLB_LOAD_MISSES:WALK_COMPLETED": "walks",
        "DTLB_LOAD_MISSES:WALK_COMPLETED_4K": "walks_4k",
        "DTLB_STORE_MISSES:STLB_HIT": "stlb_hit_store",
        "ITLB_MISSES:WALK_COMPLETED": "walks_code",
    },
    ("icl", 0x7E): {
        "DTLB_LOAD_MISSES:WALK_ACTIVE": "walk_active",
        "DTLB_LOAD_MISSES:WALK_COMPLETED": "walks",
    },
    ("spr", 0x8F): {"DTLB_LOAD_MISSES:WALK_ACTIVE": "walk_active", "DTLB_LOAD_MISSES:STLB_HIT": "stlb_hit"},
}


@needs_libpfm
def test_tables_agree_with_libpfm(run_python, tmp_path):
    """Its tables were made by others: for the processors that it knows."""
    names = [f"{design}::{name}" for (design, _), known in PFM.items() for name in known]
    found = run_python(
        f"""
        os.environ["LIBPFM_ENCODE_INACTIVE"] = "1"
        from tlbprobe.counters import libpfm
        answer([libpfm.encode(name) for name in {names}])
        """
    )
    ours = [(model, name) for (_, model), known in PFM.items() for name in known.values()]
    both = [(*one, theirs[1]) for one, theirs in zip(ours, found, strict=True) if theirs]
    assert both
    for model, name, theirs in both:
        assert config(name, events.processor(intel(tmp_path / f"{model}", model))) == theirs, (model, name)


# --- the recorded lists, again ---------------------------------------------------------------------------


COMMON = "common-and-microarch.json"


def recorded_from(tree):
    """Events of the lists of a kernel's source that the tables cite."""
    lists = Path(tree, "tools/perf/pmu-events/arch")
    common = json.loads((lists / "arm64" / COMMON).read_text())
    standard = {event["EventName"]: event for event in common if isinstance(event, dict)}
    for folder in {folder for folder, _, _ in RECORDED}:
        files = (
            [lists / "arm64/common-and-microarch.json"]
            if folder == "arm64"
            else (lists / folder).glob("*.json")
        )
        for event in itertools.chain.from_iterable(json.loads(file.read_text()) for file in files):
            full = (
                {**standard.get(event.get("ArchStdEvent", ""), {}), **event}
                if isinstance(event, dict)
                else {}
            )
            key = (folder, full.get("Unit", "cpu"), full.get("EventName"))
            if key in RECORDED and "EventCode" in full:
                numbers = (int(full.get(field) or "0", 16) for field in ("EventCode", "UMask"))
                yield key, (*numbers, int(full.get("CounterMask") or 0))


@pytest.mark.skipif("LINUX_SOURCE" not in os.environ, reason="LINUX_SOURCE names no kernel source tree")
def test_the_recorded_lists_are_those_of_the_kernel():
    found = dict(recorded_from(os.environ["LINUX_SOURCE"]))
    assert {key: found.get(key) for key in RECORDED} == RECORDED
