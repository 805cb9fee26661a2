"""Events by meaning, and how each processor counts them.

Tables by processor, each row with its source, and perf's own ways of writing an event. Nothing is opened
here: a name becomes an `Event`, or an `Absent` with the reason why this processor has none.

Sources: Linux 7.2, tools/perf/pmu-events/arch: x86/mapfile.csv and the files that each row names; what the
kernel's own names mean is in arch/x86/events/intel/core.c, arch/x86/events/amd/core.c and
drivers/perf/arm_pmuv3.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ..machine import cpuid
from ..machine.files import CPUS, Root, cpuinfo, read_text, register_number
from . import libpfm, pmus
from .pmus import Pmu, near

HARDWARE, SOFTWARE, CACHE, RAW = 0, 1, 3, 4  # types of perf_event_open
NO_PMU = 0xFFFFFFFF  # ... and one that no kernel knows: what nobody can encode must not count something else
LINUX = "Linux 7.2"
LISTS = f"{LINUX} tools/perf/pmu-events/arch"

EventKey = tuple[int, int, int, int]  # type, config, config1, config2


@dataclass(frozen=True)
class Event:
    """One event as perf_event_open takes it."""

    name: str  # as it was asked for
    meaning: str  # what it counts on this processor
    type: int
    config: int
    config1: int = 0
    config2: int = 0
    encoding: str = ""  # as perf writes it
    source: str = ""  # where the encoding comes from
    kind: str = ""  # what is known of it on a known chase, see groups.py; empty: nothing
    kernel_only: bool = False  # happens in the kernel: user space alone counts none

    @property
    def key(self) -> EventKey:
        """What the kernel is given."""
        return self.type, self.config, self.config1, self.config2

    @property
    def software(self) -> bool:
        """Whether the kernel counts it, without a counter of the hardware."""
        return self.type == SOFTWARE


@dataclass(frozen=True)
class Absent:
    """An event that is known, and cannot be counted here."""

    name: str
    reason: str
    command: str = ""  # that would allow it; empty where none can
    meaning: str = ""

    def __str__(self) -> str:
        return self.reason + (f"; to allow it: {self.command}" if self.command else "")


# --- what the names mean ---------------------------------------------------------------------------------


class Meaning(NamedTuple):
    """What an event is, and what is known of it on a chase whose misses are known."""

    text: str
    kind: str = ""


def _walker(suffix: str, whose: str, kind: str | None) -> dict[str, Meaning]:
    """Names of what the page walker does for loads, stores or code; the kinds of the last are not known."""
    walks, base_pages, cycles = (
        "" if kind is None else kind + known for known in ("walks", "walks_of_base_pages", "walk_cycles")
    )
    texts = {
        "walk_active": (f"cycles with a page walk for {whose} in progress", cycles),
        "walk_pending": (f"page walks for {whose} in progress, summed over cycles", cycles),
        "walks": (f"page walks for {whose} that were completed", walks),
        "walks_4k": (f"those of them that ended at a 4 KiB page ({whose})", base_pages),
        "walks_2m": (f"those of them that ended at a 2 or 4 MiB page ({whose})", ""),
        "walks_1g": (f"those of them that ended at a 1 GiB page ({whose})", ""),
        "stlb_hit": (
            f"misses of the first-level TLB that hit the second ({whose})",
            "first_level_misses" if kind == "" else "",
        ),
    }
    return {name + suffix: Meaning(*said) for name, said in texts.items()}


MEANINGS: dict[str, Meaning] = {
    "cycles": Meaning("core cycles while not halted", "cycles"),
    "instructions": Meaning("instructions retired", "instructions"),
    "loads": Meaning("loads retired", "loads"),
    "stores": Meaning("stores retired", "stores"),
    "accesses": Meaning("loads and stores", "loads"),
    **_walker("", "loads", ""),
    **_walker("_store", "stores", "store_"),
    **_walker("_code", "code", None),
    "walks_coalesced": Meaning("walks that ended at adjacent 4 KiB pages which share one entry"),
    "walks_large": Meaning("walks that ended at a page larger than the base page"),
    "walks_small": Meaning("walks that ended at a base page"),
    "walk_steps": Meaning("steps of page walks for loads and stores", "walks"),
    "walk_steps_code": Meaning("steps of page walks for code"),
    "walk_l1": Meaning("reads of the page walker that hit the first-level data cache"),
    "walk_l2": Meaning("reads of the page walker that hit the second-level cache"),
    "walk_l3": Meaning("reads of the page walker that hit the third-level cache"),
    "walk_memory": Meaning("reads of the page walker that went to memory"),
    "table_walks": Meaning("page-table walks on the data side, whatever began them", "walks"),
    "table_walks_code": Meaning("page-table walks on the instruction side, whatever began them"),
    "l1_dtlb_accesses": Meaning("accesses to the first-level data TLB", "loads"),
    "l1_dtlb_misses": Meaning("misses of the first-level data TLB", "first_level_misses"),
    "l1_itlb_misses": Meaning("misses of the first-level instruction TLB"),
    "stlb_accesses": Meaning("accesses to the second-level TLB", "first_level_misses"),
    "stlb_misses": Meaning("misses of the second-level TLB", "walks"),
    "tlb_flushes": Meaning("flushes of the TLB"),
    "backend_stall": Meaning("cycles in which the back end could take nothing", "stall"),
    "backend_stall_tlb": Meaning("cycles in which the back end waited for a translation", "stall"),
    "llc_misses": Meaning("misses of the last-level cache"),
}

TLB_SET = "tlb"  # in place of a name: the events that say what translation costs
TLB_EVENTS = ("cycles", "instructions", "loads", "stlb_hit", "walks", "walk_active")


# --- what the kernel has numbers for ---------------------------------------------------------------------


class Numbered(NamedTuple):
    """An event that the kernel has a number for."""

    type: int
    config: int
    text: str
    kind: str = ""
    kernel_only: bool = False


MAPPED = "as the kernel maps it to this processor"
SOFTWARE_EVENTS: dict[str, Numbered] = {
    "cpu-clock": Numbered(SOFTWARE, 0, "nanoseconds that the thread ran, by the clock of its CPU"),
    "task-clock": Numbered(SOFTWARE, 1, "nanoseconds that the thread ran"),
    "page-faults": Numbered(SOFTWARE, 2, "page faults"),
    "context-switches": Numbered(SOFTWARE, 3, "context switches", kernel_only=True),
    "cpu-migrations": Numbered(SOFTWARE, 4, "moves to another CPU", kernel_only=True),
    "minor-faults": Numbered(SOFTWARE, 5, "page faults that needed no input"),
    "major-faults": Numbered(SOFTWARE, 6, "page faults that waited for input"),
    "alignment-faults": Numbered(SOFTWARE, 7, "unaligned accesses that the kernel mended"),
    "emulation-faults": Numbered(SOFTWARE, 8, "instructions that the kernel emulated"),
}
HARDWARE_EVENTS: dict[str, Numbered] = {
    "cycles": Numbered(HARDWARE, 0, *MEANINGS["cycles"]),
    "cpu-cycles": Numbered(HARDWARE, 0, *MEANINGS["cycles"]),
    "instructions": Numbered(HARDWARE, 1, *MEANINGS["instructions"]),
    "cache-references": Numbered(HARDWARE, 2, f"accesses to a cache, {MAPPED}"),
    "cache-misses": Numbered(HARDWARE, 3, f"misses of a cache, {MAPPED}"),
    "branches": Numbered(HARDWARE, 4, "branches"),
    "branch-instructions": Numbered(HARDWARE, 4, "branches"),
    "branch-misses": Numbered(HARDWARE, 5, "mispredicted branches"),
    "bus-cycles": Numbered(HARDWARE, 6, f"cycles of a bus, {MAPPED}"),
    "stalled-cycles-frontend": Numbered(HARDWARE, 7, f"cycles stalled in the front end, {MAPPED}"),
    "stalled-cycles-backend": Numbered(HARDWARE, 8, f"cycles stalled in the back end, {MAPPED}"),
    "ref-cycles": Numbered(HARDWARE, 9, "cycles of a clock that does not change, while not halted"),
}
KERNEL_CACHES = {"L1-dcache": 0, "L1-icache": 1, "LLC": 2, "dTLB": 3, "iTLB": 4, "branch": 5, "node": 6}
OPERATIONS = {"load": 0, "store": 1, "prefetch": 2}
READ_ONLY = ("L1-icache", "iTLB", "branch")
MISS = 1 << 16


def _cache_events() -> Iterator[tuple[str, Numbered]]:
    for cache, number in KERNEL_CACHES.items():
        for operation, code in OPERATIONS.items():
            if code == 0 or cache not in READ_ONLY:
                config, plural = number | code << 8, f"{operation}{'es' if operation[-1] == 'h' else 's'}"
                yield f"{cache}-{plural}", Numbered(CACHE, config, f"{plural} that access {cache}, {MAPPED}")
                missing = f"{plural} that miss {cache}, {MAPPED}"
                yield f"{cache}-{operation}-misses", Numbered(CACHE, config | MISS, missing)


CACHE_EVENTS = dict(_cache_events())
NUMBERED = {**SOFTWARE_EVENTS, **HARDWARE_EVENTS, **CACHE_EVENTS}
ALIASES = {
    "faults": "page-faults",
    "cs": "context-switches",
    "migrations": "cpu-migrations",
    "idle-cycles-frontend": "stalled-cycles-frontend",
    "idle-cycles-backend": "stalled-cycles-backend",
}

DTLB, DTLB_MISS, ITLB, ITLB_MISS = "dTLB-loads", "dTLB-load-misses", "iTLB-loads", "iTLB-load-misses"
DTLB_STORE, DTLB_STORE_MISS = "dTLB-stores", "dTLB-store-misses"
LISTED_EVENTS = (
    DTLB,
    DTLB_MISS,
    DTLB_STORE,
    DTLB_STORE_MISS,
    ITLB,
    ITLB_MISS,
    "LLC-loads",
    "LLC-load-misses",
)


# --- tables ----------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """How one kind of core counts something."""

    perf: str  # its name in the source; the names of several of one event, with " + " between them
    event: int
    umask: int = 0
    cmask: int = 0
    text: str = ""  # where the meaning differs
    kind: str | None = None  # where what is known of it differs


EventRows = dict[str, Row]
Said = dict[str, tuple[str, str]]  # what a name of the kernel's means: text and kind


class CoreEvents(NamedTuple):
    """A kind of core: its rows, what the kernel's names mean on it, and where the kernel says so."""

    rows: EventRows
    says: Said
    said_in: str


# Intel: one umask means the same for loads, stores and code, which have an event each.

EVENT_SIDES = {"": "DTLB_LOAD_MISSES", "_store": "DTLB_STORE_MISSES", "_code": "ITLB_MISSES"}
Codes = tuple[int, int, int]
OLD: Codes = (0x08, 0x49, 0x85)  # big cores to Tiger Lake, small cores
NEW: Codes = (0x12, 0x13, 0x11)  # big cores from Alder Lake and Sapphire Rapids
Umasks = Mapping[str, tuple[str, int]]
WALKS = {"walks": ("WALK_COMPLETED", 0x0E), "walks_4k": ("WALK_COMPLETED_4K", 0x02)}
WALK_SIZES = {**WALKS, "walks_2m": ("WALK_COMPLETED_2M_4M", 0x04)}
SIZES_1G = {**WALK_SIZES, "walks_1g": ("WALK_COMPLETED_1G", 0x08)}
PENDING = {"walk_pending": ("WALK_PENDING", 0x10)}
DURATION = {"walk_pending": ("WALK_DURATION", 0x10)}
ACTIVE = {"walk_active": ("WALK_ACTIVE", 0x10)}
HIT = {"stlb_hit": ("STLB_HIT", 0x20)}


def _sides(codes: Codes, umasks: Umasks, cmask: int = 0, without: Sequence[str] = ()) -> EventRows:
    rows = {
        name + suffix: Row(f"{group}.{perf}", code, umask, cmask)
        for (suffix, group), code in zip(EVENT_SIDES.items(), codes, strict=True)
        for name, (perf, umask) in umasks.items()
    }
    return {name: row for name, row in rows.items() if name not in without}


def _memory_events(group: str) -> EventRows:
    missed = "misses of the last-level cache, prefetches included"
    return {
        "loads": Row(f"{group}.ALL_LOADS", 0xD0, 0x81),
        "stores": Row(f"{group}.ALL_STORES", 0xD0, 0x82),
        "llc_misses": Row("LONGEST_LAT_CACHE.MISS", 0x2E, 0x41, text=missed),
    }


def _unused_slots(perf: str, event: int, umask: int) -> EventRows:
    text = "issue slots, several a cycle, that the back end left unused"
    return {"backend_stall": Row(perf, event, umask, text=text)}


STALLED = {"backend_stall": Row("RESOURCE_STALLS.ANY", 0xA2, 0x01)}
UNUSED = _unused_slots("TOPDOWN.BACKEND_BOUND_SLOTS", 0xA4, 0x02)
SMALL_UNUSED = _unused_slots("TOPDOWN_BE_BOUND.ALL", 0x74, 0x00)
SMALL_UNUSED_NEW = _unused_slots("TOPDOWN_BE_BOUND.ALL", 0xA4, 0x02)
FLUSHES = {"tlb_flushes": Row("TLB_FLUSH.STLB_ANY", 0xBD, 0x20)}
BIG, SMALL = _memory_events("MEM_INST_RETIRED"), _memory_events("MEM_UOPS_RETIRED")
NO_1G_CODE = ("walks_1g_code",)

HASWELL: EventRows = {
    **_sides(OLD, {**DURATION, "stlb_hit": ("STLB_HIT", 0x60), **SIZES_1G}),
    "walk_l1": Row("PAGE_WALKER_LOADS.DTLB_L1", 0xBC, 0x11),
    "walk_l2": Row("PAGE_WALKER_LOADS.DTLB_L2", 0xBC, 0x12),
    "walk_l3": Row("PAGE_WALKER_LOADS.DTLB_L3", 0xBC, 0x14),
    "walk_memory": Row("PAGE_WALKER_LOADS.DTLB_MEMORY", 0xBC, 0x18),
    **SMALL, **STALLED, **FLUSHES,
}  # fmt: skip
BIG_WALKS = {**PENDING, **HIT, **SIZES_1G}
SKYLAKE: EventRows = {**_sides(OLD, BIG_WALKS), **_sides(OLD, ACTIVE, 1), **BIG, **STALLED, **FLUSHES}
SUNNY_COVE: EventRows = {
    **_sides(OLD, BIG_WALKS, without=NO_1G_CODE), **_sides(OLD, ACTIVE, 1), **BIG, **UNUSED, **FLUSHES,
}  # fmt: skip
GOLDEN_COVE: EventRows = {
    **_sides(NEW, BIG_WALKS, without=NO_1G_CODE), **_sides(NEW, ACTIVE, 1), **BIG, **UNUSED,
}  # fmt: skip
LION_COVE: EventRows = {
    **GOLDEN_COVE,
    "stlb_hit": Row("DTLB_LOAD_MISSES.STLB_HIT", 0x12, 0x320),
    "stlb_hit_store": Row("DTLB_STORE_MISSES.STLB_HIT", 0x13, 0x320),
    "stlb_hit_code": Row("ITLB_MISSES.STLB_HIT", 0x11, 0x120),
}
TREMONT: EventRows = {**_sides(OLD, BIG_WALKS), **SMALL, **SMALL_UNUSED}
GRACEMONT: EventRows = {**_sides(OLD, {"walks": WALKS["walks"]}), **SMALL, **SMALL_UNUSED}
CRESTMONT: EventRows = {**_sides(OLD, {**PENDING, **HIT, **WALK_SIZES}), **SMALL, **SMALL_UNUSED}
LOW_POWER: EventRows = {**CRESTMONT, **_unused_slots("TOPDOWN_BE_BOUND.ALL_P", 0x74, 0x00)}
SKYMONT: EventRows = {
    **CRESTMONT, **SMALL_UNUSED_NEW,
    "walk_l1": Row("PAGE_WALKER_LOADS.DTLB_L1_HIT", 0xBC, 0x01),
    "walk_l2": Row("PAGE_WALKER_LOADS.DTLB_L2_HIT", 0xBC, 0x02),
    "tlb_flushes": Row("TLB_FLUSHES.STLB_ANY", 0xBD, 0x20),
}  # fmt: skip
DARKMONT: EventRows = {
    **_sides(OLD, {**HIT, **WALKS}), **SMALL, **SMALL_UNUSED_NEW,
    "walk_pending_code": Row("ITLB_MISSES.WALK_PENDING", 0x85, 0x10),
}  # fmt: skip


def _intel_says(how: str, load: int, store: int, code: int) -> Said:
    return {
        DTLB: ("loads retired (0x81d0)", "loads"),
        DTLB_MISS: (f"loads {how} ({load:#x})", "walks"),
        DTLB_STORE: ("stores retired (0x82d0)", "stores"),
        DTLB_STORE_MISS: (f"stores {how} ({store:#x})", "store_walks"),
        ITLB_MISS: (f"instruction fetches {how} ({code:#x})", ""),
    }


def _intel_cores(says: Said, table: str, *kinds: EventRows) -> list[CoreEvents]:
    source = f"{LINUX} arch/x86/events/intel/core.c {table}_hw_cache_event_ids"
    return [CoreEvents(rows, says, source) for rows in kinds]


COMPLETED = "whose page walk was completed"
OLD_SAYS = _intel_says(COMPLETED, 0xE08, 0xE49, 0xE85)
NEW_SAYS = _intel_says(COMPLETED, 0xE12, 0xE13, 0xE11)
SMALL_SAYS = {**OLD_SAYS, ITLB_MISS: ("misses of the first-level instruction TLB (0x481)", "")}
(HSW,) = _intel_cores(_intel_says("whose miss began a page walk", 0x108, 0x149, 0x185), "hsw", HASWELL)
SKL, SNC = _intel_cores(OLD_SAYS, "skl", SKYLAKE, SUNNY_COVE)
GLC, LNC = _intel_cores(NEW_SAYS, "glc", GOLDEN_COVE, LION_COVE)
TNT, GRT, CMT, LPE, SKT, DKT = _intel_cores(
    SMALL_SAYS, "glp", TREMONT, GRACEMONT, CRESTMONT, LOW_POWER, SKYMONT, DARKMONT
)

# Folder of the lists: the models of family 6 that it is for, and the kinds of core by their PMU.
INTEL_EVENTS: dict[str, tuple[tuple[int, ...], dict[str, CoreEvents]]] = {
    "haswell": ((0x3C, 0x45, 0x46), {"cpu": HSW}),
    "haswellx": ((0x3F,), {"cpu": HSW}),
    "broadwell": ((0x3D, 0x47), {"cpu": HSW}),
    "broadwellde": ((0x56,), {"cpu": HSW}),
    "broadwellx": ((0x4F,), {"cpu": HSW}),
    "skylake": ((0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6), {"cpu": SKL}),
    "skylakex": ((0x55,), {"cpu": SKL}),
    "cascadelakex": ((), {"cpu": SKL}),  # the model of skylakex, from stepping 5 on
    "icelake": ((0x7D, 0x7E), {"cpu": SNC}),
    "icelakex": ((0x6A, 0x6C), {"cpu": SNC}),
    "rocketlake": ((0xA7,), {"cpu": SNC}),
    "tigerlake": ((0x8C, 0x8D), {"cpu": SNC}),
    "sapphirerapids": ((0x8F,), {"cpu": GLC}),
    "emeraldrapids": ((0xCF,), {"cpu": GLC}),
    "graniterapids": ((0xAD, 0xAE), {"cpu": GLC}),
    "alderlake": ((0x97, 0x9A, 0xB7, 0xBA, 0xBF), {"cpu_core": GLC, "cpu_atom": GRT}),
    "alderlaken": ((0xBE,), {"cpu": GRT}),
    "meteorlake": ((0xAA, 0xAC, 0xB5), {"cpu_core": GLC, "cpu_atom": CMT}),
    "arrowlake": ((0xC5, 0xC6), {"cpu_core": LNC, "cpu_atom": SKT, "cpu_lowpower": LPE}),
    "lunarlake": ((0xBD,), {"cpu_core": LNC, "cpu_atom": SKT}),
    "pantherlake": ((0xCC, 0xD5), {"cpu_core": LNC, "cpu_atom": DKT}),
    "elkhartlake": ((0x96, 0x9C), {"cpu": TNT}),
    "snowridgex": ((0x86,), {"cpu": TNT}),
    "sierraforest": ((0xAF,), {"cpu": CMT}),
    "grandridge": ((0xB6,), {"cpu": CMT}),
    "clearwaterforest": ((0xDD,), {"cpu": DKT}),
}
CASCADE_LAKE_STEPPING = 5

# AMD: the umasks of the data TLB mean the same from Zen 1 to Zen 6, under names that differ.

BOTH = "loads and stores that miss both data TLBs, so that a page walk begins"
FIRST = "loads and stores that miss the first-level data TLB"
DISPATCHED = {
    "loads": Row("ls_dispatch.ld_dispatch", 0x29, 0x01, text="loads dispatched"),
    "stores": Row("ls_dispatch.store_dispatch", 0x29, 0x02, text="stores dispatched"),
}
TABLE_WALKS = {
    "table_walks": Row("ls_tablewalker.dside", 0x46, 0x03),
    "table_walks_code": Row("ls_tablewalker.iside", 0x46, 0x0C),
}
CODE_HIT, CODE_MISS = "bp_l1_tlb_miss_l2_tlb_hit", "bp_l1_tlb_miss_l2_tlb_miss"
CODE_SIZES = {
    f"walks_{size}_code": Row(f"{CODE_MISS}.if{size}", 0x85, umask)
    for size, umask in (("4k", 0x01), ("2m", 0x02), ("1g", 0x04))
}


def _zen(walks: str, adjacent: str = "coalesced_page") -> EventRows:
    stem = "ls_l1_d_tlb_miss.tlb_reload"
    hits = (f"{stem}_{size}" for size in ("4k_l2_hit", f"{adjacent}_hit", "2m_l2_hit", "1g_l2_hit"))
    return {
        "l1_dtlb_misses": Row("ls_l1_d_tlb_miss.all", 0x45, 0xFF, text=FIRST),
        "stlb_hit": Row(" + ".join(hits), 0x45, 0x0F, text=f"{FIRST} and hit the second"),
        "walks": Row(walks, 0x45, 0xF0, text=BOTH),
        "walks_4k": Row(f"{stem}_4k_l2_miss", 0x45, 0x10, text=f"{BOTH}: 4 KiB pages, each alone", kind=""),
        "walks_coalesced": Row(f"{stem}_{adjacent}_miss", 0x45, 0x20),
        "walks_2m": Row(f"{stem}_2m_l2_miss", 0x45, 0x40, text=f"{BOTH}: 2 MiB pages"),
        "walks_1g": Row(f"{stem}_1g_l2_miss", 0x45, 0x80, text=f"{BOTH}: 1 GiB pages"),
    }


def _code_side(hit: str, walks: str, umask: int) -> EventRows:
    return {"stlb_hit_code": Row(hit, 0x84), "walks_code": Row(walks, 0x85, umask)}


def _fills(*perf: str) -> EventRows:
    text = "demand fills of the data cache from memory"
    return {"llc_misses": Row(" + ".join(perf), 0x43, 0x48, text=text)}


def _flushes(perf: str, umask: int = 0xFF) -> EventRows:
    return {"tlb_flushes": Row(perf, 0x78, umask)}


FETCH_WAITS = "cycles in which fetching waits, since what comes after it takes no more"
ZEN_4: EventRows = {
    **_zen("ls_l1_d_tlb_miss.all_l2_miss"), **_code_side(CODE_HIT, f"{CODE_MISS}.all", 0x0F),
    **CODE_SIZES, **DISPATCHED, **_flushes("ls_tlb_flush.all"),
    **_unused_slots("de_no_dispatch_per_slot.backend_stalls", 0x1A0, 0x1E),
}  # fmt: skip
AMD_EVENTS: dict[str, EventRows] = {  # by folder of the lists
    "amdzen1": {
        **_zen("l2_dtlb_misses", "32k_l2"), **_code_side("bp_l1_tlb_miss_l2_hit", "l2_itlb_misses", 0x07),
        **TABLE_WALKS, **DISPATCHED, **_flushes("all_tlbs_flushed", 0xDF),
        "backend_stall": Row("ic_fetch_stall.ic_stall_back_pressure", 0x87, 0x01, text=FETCH_WAITS, kind=""),
    },
    "amdzen2": {
        **_zen("l2_dtlb_misses"), **_code_side("bp_l1_tlb_miss_l2_hit", CODE_MISS, 0xFF), **CODE_SIZES,
        **TABLE_WALKS, **DISPATCHED, **_flushes("all_tlbs_flushed", 0xDF),
        **_fills("ls_refills_from_sys.ls_mabresp_lcl_dram", "ls_refills_from_sys.ls_mabresp_rmt_dram"),
    },
    "amdzen3": {
        **_zen("l2_dtlb_misses"), **_code_side(CODE_HIT, CODE_MISS, 0xFF), **CODE_SIZES,
        **TABLE_WALKS, **DISPATCHED, **_flushes("ls_tlb_flush.all_tlb_flushes"),
        **_fills("ls_dmnd_fills_from_sys.mem_io_local", "ls_dmnd_fills_from_sys.mem_io_remote"),
    },
    "amdzen4": {
        **ZEN_4, **_fills("ls_dmnd_fills_from_sys.dram_io_near", "ls_dmnd_fills_from_sys.dram_io_far"),
    },
    "amdzen5": {**ZEN_4, **_fills("ls_dmnd_fills_from_sys.dram_io_all")},
    "amdzen6": {
        **ZEN_4, **_zen("ls_l1_d_tlb_miss.l2_miss_all"), **_fills("ls_dmnd_fills_from_sys.dram_io_all"),
        "loads": Row("ls_dispatch.pure_ld", 0x29, 0x01, text="loads dispatched"),
        "stores": Row("ls_dispatch.pure_st", 0x29, 0x02, text="stores dispatched"),
    },
}  # fmt: skip
AMD_SAYS: Said = {
    DTLB: (f"{FIRST} (0xff45): not all loads", "first_level_misses"),
    DTLB_MISS: ("loads and stores that miss both data TLBs: page walks (0xf045)", "walks"),
    ITLB: ("instruction fetches that miss the first-level TLB and hit the second (0x84)", ""),
    ITLB_MISS: ("instruction fetches that miss both TLBs: page walks (0xff85)", ""),
    "cache-references": ("accesses to the second-level cache (0xff60)", ""),
    "cache-misses": ("misses of the second-level cache (0x0964), not of the last", ""),
}
AMD_SAID_IN = f"{LINUX} arch/x86/events/amd/core.c amd_hw_cache_event_ids_f17h"

# Arm: one list of numbers. The kernel announces those that the PMU says it has; all others open too, and
# count nothing.

ARM_EVENTS: EventRows = {
    "loads": Row("LD_RETIRED", 0x06),
    "stores": Row("ST_RETIRED", 0x07),
    "accesses": Row("MEM_ACCESS", 0x13),
    "l1_dtlb_accesses": Row("L1D_TLB", 0x25),
    "l1_dtlb_misses": Row("L1D_TLB_REFILL", 0x05),
    "l1_itlb_misses": Row("L1I_TLB_REFILL", 0x02),
    "stlb_accesses": Row("L2D_TLB", 0x2F),
    "stlb_misses": Row("L2D_TLB_REFILL", 0x2D),
    "walks": Row("DTLB_WALK", 0x34, text="page walks for loads and stores"),
    "walks_code": Row("ITLB_WALK", 0x35, text="page walks for instruction fetches"),
    "backend_stall": Row("STALL_BACKEND", 0x24),
    "llc_misses": Row("LL_CACHE_MISS_RD", 0x37, text="loads that miss the last-level cache"),
}
NEWER_ARM: EventRows = {  # which no PMU says it has: known by the core
    "walk_pending": Row("DTLB_WALK_PERCYC", 0x8128),
    "walk_pending_code": Row("ITLB_WALK_PERCYC", 0x8129),
    "walk_steps": Row("DTLB_STEP", 0x8136),
    "walk_steps_code": Row("ITLB_STEP", 0x8137),
    "walks_large": Row("DTLB_WALK_LARGE", 0x8138),
    "walks_small": Row("DTLB_WALK_SMALL", 0x813A),
    "backend_stall_tlb": Row("STALL_BACKEND_TLB", 0x8167),
}
# By implementer and part: folder of the lists, and rows.
ARM_CORES: dict[tuple[int, int], tuple[str, EventRows]] = {
    (0x41, 0xD8E): ("arm/neoverse-n3", NEWER_ARM),
    (0x41, 0xD83): ("arm/neoverse-v3", NEWER_ARM),
    (0x41, 0xD84): ("arm/neoverse-v3", NEWER_ARM),
    (0x46, 0x003): ("fujitsu/monaka", NEWER_ARM),
    (0x4E, 0x010): ("nvidia/t410", NEWER_ARM),
    (0xC0, 0xAC3): ("ampere/ampereone", {"backend_stall_tlb": Row("STALL_BACKEND_TLB", 0xD20E)}),
    (0xC0, 0xAC4): ("ampere/ampereonex", {"backend_stall_tlb": Row("STALL_BACKEND_TLB", 0x8167)}),
}
ARM_LIST = f"{LISTS}/arm64/common-and-microarch.json"
ARM_SAYS: Said = {
    DTLB: ("accesses to the first-level data TLB (0x25)", "loads"),
    DTLB_MISS: ("misses of the first-level data TLB (0x05), not page walks", "first_level_misses"),
    ITLB: ("accesses to the first-level instruction TLB (0x26)", ""),
    ITLB_MISS: ("misses of the first-level instruction TLB (0x02), not page walks", ""),
    "cache-references": ("accesses to the first-level data cache (0x04)", ""),
    "cache-misses": ("misses of the first-level data cache (0x03), not of the last", ""),
}
ARM_SAID_IN = f"{LINUX} drivers/perf/arm_pmuv3.c armv8_pmuv3_perf_cache_map"


# --- the processor ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Processor:
    """A kind of core, as the tables know it.

    Attributes
    ----------
    vendor : str
        ``"Intel"``, ``"AMD"``, ``"Arm"``, or what the machine says.
    label : str
        For people: name of the design, or numbers.
    folder : str
        Folder of the lists; empty where they have none for it.
    core : CoreEvents
        Rows of its events.
    pmu : Pmu or None
        The unit that counts, where the kernel shows one.
    gated : frozenset of str
        Names of rows that count only where the kernel announces the event.
    """

    vendor: str
    label: str
    folder: str
    core: CoreEvents
    root: Root
    pmu: Pmu | None = None
    gated: frozenset[str] = frozenset()

    @cached_property
    def announced(self) -> frozenset[str]:
        """Events that the kernel announces for the PMU."""
        return frozenset(self.pmu.events) if self.pmu else frozenset()

    @property
    def raw_type(self) -> int:
        """Type of an event given by its number."""
        return self.pmu.type if self.pmu else RAW

    @cached_property
    def several(self) -> bool:
        """Whether there are several kinds of core, each with a PMU of its own."""
        return len(pmus.core_pmus(self.root)) > 1

    def generic(self, config: int) -> int:
        """Config of an event that the kernel has a number for: of several PMUs it must be told which."""
        return config | (self.pmu.type << 32 if self.pmu and self.several else 0)


NO_CORE = CoreEvents({}, {}, "")


def processor(root: Root = "/", cpu: int = 0) -> Processor:
    """What a CPU is, as far as the tables know it.

    Parameters
    ----------
    root : path
        Where proc and sys are.
    cpu : int
        Number of the CPU: there may be several kinds of core.

    Returns
    -------
    Processor
    """
    info, pmu = cpuinfo(root), pmus.core_pmu(cpu, root)
    if "CPU implementer" in info:
        return _arm(info, root, cpu, pmu)
    names = ("cpu family", "model", "stepping")
    family, model, stepping = (register_number(info.get(name)) or 0 for name in names)
    vendor = info.get("vendor_id", "")
    label = cpuid.microarchitecture(vendor, family, model, stepping)
    numbered = f"{vendor or 'unknown'} family {family} model {model:#x}"
    if vendor == "GenuineIntel":
        folder, core = _intel_core(family, model, stepping, pmu)
        return Processor("Intel", label or numbered, folder, core, root, pmu)
    if vendor == "AuthenticAMD" and (zen := re.match(r"Zen ?(\d|\+)", label or "")):
        folder = f"amdzen{zen[1].replace('+', '1')}"
        core = CoreEvents(AMD_EVENTS.get(folder, {}), AMD_SAYS, AMD_SAID_IN)
        return Processor("AMD", label or numbered, folder, core, root, pmu)
    return Processor(vendor or "unknown", label or numbered, "", NO_CORE, root, pmu)


def _intel_core(family: int, model: int, stepping: int, pmu: Pmu | None) -> tuple[str, CoreEvents]:
    folder = next((name for name, (models, _) in INTEL_EVENTS.items() if family == 6 and model in models), "")
    if not folder:
        return "", NO_CORE
    if folder == "skylakex" and stepping >= CASCADE_LAKE_STEPPING:
        folder = "cascadelakex"
    kinds = INTEL_EVENTS[folder][1]
    return folder, kinds.get(pmu.name if pmu else "", next(iter(kinds.values())))


def _arm(info: dict[str, str], root: Root, cpu: int, pmu: Pmu | None) -> Processor:
    midr = register_number(read_text(root, f"{CPUS}/cpu{cpu}/regs/identification/midr_el1")) or 0
    implementer = midr >> 24 & 0xFF or register_number(info.get("CPU implementer")) or 0
    part = midr >> 4 & 0xFFF or register_number(info.get("CPU part")) or 0
    folder, more = ARM_CORES.get((implementer, part), ("", {}))
    label = cpuid.arm_microarchitecture(implementer, part) or f"Arm {implementer:#x} part {part:#x}"
    core = CoreEvents({**ARM_EVENTS, **more}, ARM_SAYS, ARM_SAID_IN)
    return Processor("Arm", label, folder, core, root, pmu, frozenset(ARM_EVENTS))


# --- names to events -------------------------------------------------------------------------------------

WRITTEN = re.compile(r"([^/]*)/([^/]*)/(\w*)")  # cpu/event=0x08,umask=0x10/
WITHOUT_WALK_CYCLES = (
    "{label} counts page walks, not the cycles that they take: what they cost is seen in time alone, as by "
    "'tlbprobe translation'"
)


def known_names() -> list[str]:
    """Every name that means the same on all processors."""
    return [*MEANINGS, *NUMBERED, *ALIASES, TLB_SET]


def expand(names: Sequence[str], on: Processor) -> list[str]:
    """Names with the set ``"tlb"`` written out, each once."""
    full = (each for name in names for each in (_tlb_events(on) if name == TLB_SET else (name,)))
    return list(dict.fromkeys(full))


def _tlb_events(on: Processor) -> list[str]:
    """The named set: where a core does not count cycles with a walk, their sum over walks if it has that."""
    rows = on.core.rows
    instead = "walk_active" not in rows and "walk_pending" in rows
    return [name.replace("walk_active", "walk_pending") if instead else name for name in TLB_EVENTS]


def find(name: str, on: Processor) -> Event | Absent:
    """One event by its name.

    Parameters
    ----------
    name : str
        By meaning (``"walks"``), as the kernel or perf names it (``"dTLB-load-misses"``, ``"page-faults"``,
        ``"msr/tsc/"``), by number (``"r1008"``, ``"cpu/event=0x08,umask=0x10,cmask=1/"``), or as libpfm4
        names it where that is installed.
    on : Processor
        Whose.

    Returns
    -------
    Event or Absent

    Raises
    ------
    ValueError
        If nobody knows the name; with names that are like it.
    """
    if name in MEANINGS:
        return _by_meaning(name, on)
    if (plain := ALIASES.get(name, name)) in NUMBERED:
        return _numbered(name, NUMBERED[plain], on)
    if written := WRITTEN.fullmatch(name):
        return _written(name, written.groups(), on)
    if raw := pmus.RAW_NUMBER.fullmatch(name):
        return _known(Event(name, "as its number says", on.raw_type, int(raw[1], 16), encoding=name), on)
    if on.pmu and on.pmu.event(name) is not None:
        return _announced(name, on.pmu, on)
    if (found := libpfm.encode(name)) is not None:
        named = Event(name, "as libpfm4 names it", *found, encoding=name, source="libpfm4")
        return _known(named, on)
    raise ValueError(_unknown_event(name, on))


def _unknown_event(name: str, on: Processor) -> str:
    asked = repr(name) if len(name) <= 80 else f"{name[:60]!r}..."
    others = "" if libpfm.library() else "; libpfm4, which knows more names, is not installed"
    found = near(name, [*known_names(), *sorted(on.announced)])
    return f"counters: {asked} is no event that is known{found} ('tlbprobe events' lists them{others})"


def _by_meaning(name: str, on: Processor) -> Event | Absent:
    if name in HARDWARE_EVENTS:
        return _numbered(name, HARDWARE_EVENTS[name], on)
    row, meaning = on.core.rows.get(name), MEANINGS[name]
    if row is None:
        return Absent(name, _why_without(name, on), meaning=meaning.text)
    if name in on.gated and on.pmu and row.perf.lower() not in on.announced:
        reason = f"the PMU of this core ({on.label}) does not announce {row.perf}"
        return Absent(name, reason, meaning=row.text or meaning.text)
    config, written = _encoded(row, on)
    kind = meaning.kind if row.kind is None else row.kind
    return Event(
        name, row.text or meaning.text, on.raw_type, config, config1=_user_access(on), encoding=written,
        source=f"{_list_of(name, on)}: {row.perf}", kind=kind,
    )  # fmt: skip


def _why_without(name: str, on: Processor) -> str:
    if not on.core.rows:
        return (
            f"the tables of this version do not know {on.label}: give the event by its number, such as r1008 "
            "or cpu/event=0x08,umask=0x10/"
        )
    if name.startswith(("walk_active", "walk_pending")):
        if name.startswith("walk_active") and name.replace("active", "pending") in on.core.rows:
            return f"{on.label} sums walks over cycles, and has no event of cycles with one: see walk_pending"
        return WITHOUT_WALK_CYCLES.format(label=on.label)
    if on.vendor == "AMD" and name.removesuffix("_store") in on.core.rows:
        return f"{on.label} counts loads and stores together, under the name without '_store'"
    if on.vendor == "Arm" and name == "stlb_hit":
        return f"{on.label} has no event of hits: they are stlb_accesses less stlb_misses"
    return f"{on.label} has no such event in its list ({LISTS})"


def _encoded(row: Row, on: Processor) -> tuple[int, str]:
    """Config of a row, and how perf writes it."""
    pmu = on.pmu.name if on.pmu else "cpu"
    if on.vendor == "Arm":
        return row.event, f"{pmu}/event={row.event:#06x}/"
    if on.vendor == "AMD":
        config = row.event & 0xFF | row.umask << 8 | row.event >> 8 << 32
    else:
        config = row.event | (row.umask & 0xFF) << 8 | row.cmask << 24 | row.umask >> 8 << 40
    counted = f",cmask={row.cmask}" if row.cmask else ""
    return config, f"{pmu}/event={row.event:#04x},umask={row.umask:#04x}{counted}/"


def _list_of(name: str, on: Processor) -> str:
    if on.vendor != "Arm":
        return f"{LISTS}/x86/{on.folder}"
    return ARM_LIST if name in ARM_EVENTS else f"{LISTS}/arm64/{on.folder}"


def _user_access(on: Processor) -> int:
    """Arm lets user space read a counter where the event asks for it: bit 1 of config1."""
    allowed = read_text(on.root, "proc/sys/kernel/perf_user_access") == "1"
    return 2 if allowed and on.pmu and "rdpmc" in on.pmu.terms else 0


def _numbered(name: str, known: Numbered, on: Processor) -> Event:
    if known.type == SOFTWARE:
        source = f"{LINUX} include/uapi/linux/perf_event.h"
        return Event(
            name, known.text, SOFTWARE, known.config, encoding=name, source=source,
            kernel_only=known.kernel_only,
        )  # fmt: skip
    text, kind = on.core.says.get(name, (known.text, known.kind))
    source = on.core.said_in if name in on.core.says else f"{LINUX} include/uapi/linux/perf_event.h"
    return Event(
        name, text, known.type, on.generic(known.config), config1=_user_access(on), encoding=name,
        source=source, kind=kind,
    )  # fmt: skip


def _written(name: str, parts: Sequence[str], on: Processor) -> Event | Absent:
    """Encode ``unit/terms/``; ``cpu`` is whatever the core of this CPU has."""
    unit, terms, modifiers = parts
    if modifiers or not terms or not pmus.NAME.fullmatch(unit):
        raise ValueError(f"counters: {name!r} must be PMU/TERM=NUMBER,.../ without modifiers behind it")
    pmu = on.pmu if unit == "cpu" and on.pmu else pmus.find_pmu(unit, on.root)
    if pmu is None and unit == "cpu":  # the kernel refuses it as it does a number, and for the same reason
        Pmu.check_numbers(terms)
        return Event(name, "as it is written", NO_PMU, 0, encoding=name)
    if pmu is None:
        here = ", ".join(pmus.pmu_names(on.root)) or "none"
        return Absent(name, f"there is no PMU {unit!r} here; there are: {here}")
    code = pmu.encode(terms)
    source = f"sysfs: {pmus.DEVICES.removeprefix('sys/')}/{pmu.name}"
    return _known(Event(name, "as it is written", pmu.type, *code, encoding=name, source=source), on)


def _announced(name: str, pmu: Pmu, on: Processor) -> Event:
    """Encode an event that the kernel announces, by its bare name."""
    code = pmu.encode(name)
    source = f"sysfs: {pmus.DEVICES.removeprefix('sys/')}/{pmu.name}/events/{name}"
    text = "as the kernel announces it"
    return _known(Event(name, text, pmu.type, *code, encoding=f"{pmu.name}/{name}/", source=source), on)


def _known(event: Event, on: Processor) -> Event:
    """Take meaning and kind from the event of the same encoding that is known, if there is one."""
    for known in SOFTWARE_EVENTS.values():
        if (event.type, event.config) == known[:2]:
            return replace(event, meaning=known.text, kernel_only=known.kernel_only)
    for name, row in on.core.rows.items():
        if event.type == on.raw_type and event.config == _encoded(row, on)[0]:
            kind = MEANINGS[name].kind if row.kind is None else row.kind
            source = event.source or f"{_list_of(name, on)}: {row.perf}"
            return replace(event, meaning=row.text or MEANINGS[name].text, kind=kind, source=source)
    return event


def announced_events(on: Processor) -> Iterator[Event]:
    """Every event that the kernel announces for the core's PMU."""
    if on.pmu:
        yield from (_announced(name, on.pmu, on) for name in on.pmu.events)


def check_names(names: Iterable[str], root: Root = "/", cpu: int = 0) -> None:
    """Raise a ValueError for a name that nobody knows."""
    on = processor(root, cpu)
    for name in expand(list(names), on):
        find(name, on)
