"""What this machine is: facts, each with its unit and source, a value or the reason why there is none.

Read from a root path and from what only a running process can ask, so that a recorded tree is a machine too.
Nothing here raises, and nothing changes the machine.
"""

from __future__ import annotations

import html
import os
import re
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Annotated, Any

from ..cores.current import current, once_a_core
from ..cores.description import Description
from ..cores.simulated import SimulatedCore
from ..declared import Declared, FieldError, Spec
from ..markup import html_columns
from ..units import POWERS, approximate_size, short_size
from . import cpuid
from .files import (
    CPUS,
    Root,
    cpuinfo,
    exists,
    is_live,
    list_names,
    load_text,
    named_lines,
    parse_fields,
    parse_number,
    read_text,
    register_number,
    vmstat,
)
from .hazards import HAZARD_RULES, SEVERITIES, Hazard
from .limits import address_space_limit, cpu_quota, memory_limits
from .paging import (
    HUGETLB,
    PR_GET_MEMORY_MERGE,
    THP,
    ask_prctl,
    base_page_size,
    cache_line_size,
    default_hugetlb_size,
    free_blocks,
    hugetlb_pools,
    is_page_size,
    mthp_modes,
    pmd_size,
    thp_disabled,
)

Value = bool | int | float | str
NOT_OFFERED = "not offered here"
NO_GROUP_LIMIT = "no control group limits it"
LIVE_ONLY = "known to a running process only"


@dataclass(frozen=True)
class Fact(Declared):
    """One thing known, or known to be unknown, about the machine."""

    name: str
    value: Annotated[Value, Spec()] | None  # in the unit beside it
    unit: str | None
    source: str
    reason: str | None = None  # why there is no value

    @property
    def unreadable(self) -> bool:
        """Whether there may be a value that we cannot see; what is not offered has none."""
        return self.value is None and self.reason not in (NOT_OFFERED, NO_GROUP_LIMIT)


@dataclass(frozen=True)
class Process:
    """What the kernel and the processor tell a process by call only, not in a file."""

    page_size: int | None = None
    thp_disabled: int | None = None
    memory_merge: int | None = None
    address_space: int | None = None
    malloc_hugetlb: str | None = None  # of GLIBC_TUNABLES
    preload: bool | None = None  # whether LD_PRELOAD is set; what it names is nobody's business
    cpuid: cpuid.Dump = field(default_factory=dict)


def this_process() -> Process:
    """Ask about the running process."""
    tunable = re.search(r"glibc\.malloc\.hugetlb=(\w{1,20})", os.environ.get("GLIBC_TUNABLES", ""))
    merged = ask_prctl(PR_GET_MEMORY_MERGE)
    return Process(
        page_size=base_page_size(),
        thp_disabled=thp_disabled(),
        memory_merge=merged if merged >= 0 else None,
        address_space=address_space_limit(),
        malloc_hugetlb=tunable[1] if tunable else "not set",
        preload="LD_PRELOAD" in os.environ,
        cpuid=cpuid.dump_cpuid(),
    )


MOST_CPUS = 1 << 20  # in a list of them: no machine has as many
FACT_BYTES = 1 << 14  # bytes: enough for every file of facts


@dataclass(frozen=True)
class _Readings:
    """Where facts are read: a root directory, and the answers of a process that runs there."""

    root: Root
    process: Process

    def read(self, path: str) -> str:
        return read_text(self.root, path) or ""

    @cached_property
    def cpuinfo(self) -> dict[str, str]:
        return cpuinfo(self.root)

    @cached_property
    def status(self) -> dict[str, str]:
        return named_lines(self.read("proc/self/status"))

    @cached_property
    def flags(self) -> set[str] | None:
        return set(self.cpuinfo["flags"].split()) if "flags" in self.cpuinfo else None

    def names(self, path: str, pattern: str) -> list[str]:
        return [name for name in list_names(self.root, path) if re.fullmatch(pattern, name)]

    def fact(self, name: str, path: str, parse: Callable[[str], Value], unit: str | None = None) -> Fact:
        """Read one file; whatever goes wrong becomes the reason."""
        text = ""
        try:
            text = load_text(self.root, path, FACT_BYTES).strip()
            return Fact(name, parse(text), unit, _source(path))
        except FileNotFoundError:
            reason = self.why_missing(path)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        except (ValueError, LookupError):
            reason = f"not understood: {_clean(text[:40])!r}" if text else "empty"
        return Fact(name, None, unit, _source(path), reason)

    def why_missing(self, path: str) -> str:
        top = path.partition("/")[0]
        mounted = {"sys": "sys/kernel", "proc": "proc/self"}.get(top, "")
        return NOT_OFFERED if exists(self.root, mounted) else f"/{top} is not mounted"


def _source(path: str) -> str:
    top, _, rest = path.partition("/")
    return {"sys": f"sysfs: {rest}", "proc": f"procfs: {rest}"}.get(top, f"file: /{path}")


def _stated(name: str, value: Value | None, unit: str | None, source: str, reason: str = NOT_OFFERED) -> Fact:
    """Return a fact found otherwise than in a file of its own; `reason` is for the case of no value."""
    return Fact(name, value, unit, source, reason if value is None else None)


# Parsers of the text of one file: a value, or ValueError or LookupError.


def _clean(text: str) -> str:
    """Text of bounded length without control characters: it goes into files, terminals and pages."""
    return "".join(letter for letter in text[:200] if letter.isprintable()).strip()


def _text(text: str) -> str:
    if not (clean := _clean(text)):
        raise ValueError(text)
    return clean


def _signed(text: str) -> int:
    return -parse_number(text[1:]) if text.startswith("-") else parse_number(text)


def _flag(text: str) -> bool:
    return {"1": True, "Y": True, "true": True, "0": False, "N": False, "false": False}[text]


def _choice(text: str) -> str:
    return _first(r"\[([\w+-]+)\]", text)


def _first(pattern: str, text: str) -> str:
    """Return the first group of the first match."""
    if not (found := re.search(pattern, text, re.ASCII)):
        raise ValueError(text)
    return found[1]


def _page_size(text: str) -> int:
    if not is_page_size(size := parse_number(text)):
        raise ValueError(text)
    return size


def _cache_size(text: str) -> int:
    return parse_number(text[:-1]) << POWERS[text[-1:]]


def _cpu_count(text: str) -> int:
    """How many '0-3,8' names; an empty list names none."""
    spans = [span.partition("-") for span in text.split(",") if span]
    return sum(_span(parse_number(first), parse_number(last or first)) for first, _, last in spans)


def _span(first: int, last: int) -> int:
    if not first <= last < MOST_CPUS:
        raise ValueError(f"{first}-{last}")
    return last - first + 1


def _pressure(text: str) -> float:
    return float(_first(r"some avg10=([0-9]{1,3}\.[0-9]+)", text))


def _load_average(text: str) -> float:
    return float(_first(r"^([0-9]{1,9}\.[0-9]+)", text))


def _stolen_share(text: str) -> float:
    """Share of the time since boot in which the hypervisor ran somebody else."""
    ticks = [parse_number(tick) for tick in _first(r"^cpu +([0-9 ]+)\n", text).split()[:8]]
    return round(100 * ticks[7] / max(sum(ticks), 1), 2)


def _kpti(text: str) -> bool:
    return "PTI" in _text(text)


FILES: tuple[tuple[str, str, Callable[[str], Value], str | None], ...] = (
    ("cpu.online", f"{CPUS}/online", _cpu_count, "CPUs"),
    ("cpu.isolated", f"{CPUS}/isolated", _cpu_count, "CPUs"),
    ("cpu.smt", f"{CPUS}/smt/control", _text, None),
    ("cpu.smt_active", f"{CPUS}/smt/active", _flag, None),
    ("cpu.smt_siblings", f"{CPUS}/cpu0/topology/thread_siblings_list", _cpu_count, "CPUs"),
    ("cpu.driver", f"{CPUS}/cpufreq/policy0/scaling_driver", _text, None),
    ("pages.pmd", f"{THP}/hpage_pmd_size", _page_size, "B"),
    ("thp.enabled", f"{THP}/enabled", _choice, None),
    ("thp.defrag", f"{THP}/defrag", _choice, None),
    ("thp.shmem", f"{THP}/shmem_enabled", _choice, None),
    ("thp.zero_page", f"{THP}/use_zero_page", _flag, None),
    ("thp.shrink_underused", f"{THP}/shrink_underused", _flag, None),
    ("khugepaged.defrag", f"{THP}/khugepaged/defrag", _flag, None),
    ("khugepaged.scan_sleep", f"{THP}/khugepaged/scan_sleep_millisecs", parse_number, "ms"),
    ("khugepaged.pages_to_scan", f"{THP}/khugepaged/pages_to_scan", parse_number, "pages"),
    ("khugepaged.max_ptes_none", f"{THP}/khugepaged/max_ptes_none", parse_number, "pages"),
    ("khugepaged.pages_collapsed", f"{THP}/khugepaged/pages_collapsed", parse_number, "pages"),
    ("memory.overcommit", "proc/sys/vm/overcommit_memory", parse_number, None),
    ("memory.max_map_count", "proc/sys/vm/max_map_count", parse_number, "mappings"),
    ("numa.nodes", "sys/devices/system/node/online", _cpu_count, "nodes"),
    ("numa.balancing", "proc/sys/kernel/numa_balancing", parse_number, None),
    ("numa.demotion", "sys/kernel/mm/numa/demotion_enabled", _flag, None),
    ("swap.swappiness", "proc/sys/vm/swappiness", parse_number, None),
    ("swap.zswap", "sys/module/zswap/parameters/enabled", _flag, None),
    ("ksm.run", "sys/kernel/mm/ksm/run", parse_number, None),
    ("mglru.enabled", "sys/kernel/mm/lru_gen/enabled", _text, None),
    ("kernel.release", "proc/sys/kernel/osrelease", _text, None),
    ("kernel.arch", "proc/sys/kernel/arch", _text, None),
    ("kernel.aslr", "proc/sys/kernel/randomize_va_space", parse_number, None),
    ("kernel.kpti", f"{CPUS}/vulnerabilities/meltdown", _kpti, None),
    ("kernel.lockdown", "sys/kernel/security/lockdown", _choice, None),
    ("clock.source", "sys/devices/system/clocksource/clocksource0/current_clocksource", _text, None),
    ("clock.available", "sys/devices/system/clocksource/clocksource0/available_clocksource", _text, None),
    ("load.average", "proc/loadavg", _load_average, "tasks"),
    ("load.stolen", "proc/stat", _stolen_share, "%"),
    ("load.cpu_pressure", "proc/pressure/cpu", _pressure, "%"),
    ("load.memory_pressure", "proc/pressure/memory", _pressure, "%"),
    ("virtualisation.type", "sys/hypervisor/type", _text, None),
    ("virtualisation.vendor", "sys/class/dmi/id/sys_vendor", _text, None),
    ("virtualisation.product", "sys/class/dmi/id/product_name", _text, None),
    ("perf.paranoid", "proc/sys/kernel/perf_event_paranoid", _signed, None),
    ("perf.user_access", "proc/sys/kernel/perf_user_access", _flag, None),
    ("perf.rdpmc", "sys/bus/event_source/devices/cpu/rdpmc", parse_number, None),
    ("perf.nmi_watchdog", "proc/sys/kernel/nmi_watchdog", _flag, None),
)


def _files(tree: _Readings) -> Iterator[Fact]:
    return (tree.fact(*row) for row in FILES)


# Facts that need more than one file, or one file for many. One function a subject.

CPUINFO = "procfs: cpuinfo"
UNREAD_CPUINFO = "/proc/cpuinfo cannot be read"


def _cpu(tree: _Readings) -> Iterator[Fact]:
    info = tree.cpuinfo
    values = _arm_cpu(info) if "CPU implementer" in info else _x86_cpu(info)
    for name in ("vendor", "implementer", "family", "model", "stepping", "name"):
        yield _stated(f"cpu.{name}", values.get(name), None, CPUINFO, NOT_OFFERED if info else UNREAD_CPUINFO)
    design = values.get("microarchitecture")
    yield _stated("cpu.microarchitecture", design, None, "table by CPU model", "not in the table")


def _x86_cpu(info: dict[str, str]) -> dict[str, Value | None]:
    vendor, name = (_clean(info.get(key, "")) or None for key in ("vendor_id", "model name"))
    family, model, stepping = (register_number(info.get(key)) for key in ("cpu family", "model", "stepping"))
    design = cpuid.microarchitecture(vendor or "", family or 0, model or 0, stepping)
    return {
        **{"vendor": vendor, "family": family, "model": model, "stepping": stepping, "name": name},
        "microarchitecture": design,
    }


def _arm_cpu(info: dict[str, str]) -> dict[str, Value | None]:
    """Name the fields of MIDR; the model is its part number."""
    keys = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")
    implementer, part, variant, revision = (register_number(info.get(key)) for key in keys)
    return {
        "vendor": cpuid.ARM_VENDORS.get(implementer or 0),
        "implementer": implementer,
        "model": part,
        "stepping": f"r{variant}p{revision}",
        "microarchitecture": cpuid.arm_microarchitecture(implementer or 0, part or 0),
    }


FLAG_FACTS = {
    "paging.pcid": {"pcid"},
    "paging.invpcid": {"invpcid"},
    "paging.1gib": {"pdpe1gb"},
    "clock.tsc_invariant": {"constant_tsc", "nonstop_tsc"},
}


def _cpu_flags(tree: _Readings) -> Iterator[Fact]:
    flags, reason = tree.flags, NOT_OFFERED if tree.cpuinfo else UNREAD_CPUINFO
    for name, needed in FLAG_FACTS.items():
        yield _stated(name, None if flags is None else needed <= flags, None, f"{CPUINFO} flags", reason)
    levels = None if flags is None else 5 if "la57" in flags else 4
    yield _stated("paging.levels", levels, "levels", f"{CPUINFO} flags", "no file states it")
    sizes = tree.cpuinfo.get("address sizes", "")
    for kind in ("physical", "virtual"):
        found = re.search(rf"([0-9]{{1,3}}) bits {kind}", sizes)
        yield _stated(f"paging.{kind}_bits", int(found[1]) if found else None, "bits", CPUINFO, reason)


def _cores(tree: _Readings) -> Iterator[Fact]:
    """Whether there is more than one kind of core: Intel names them, Arm states their capacity."""
    cpus = tree.names(CPUS, r"cpu[0-9]{1,4}")
    capacities = {tree.read(f"{CPUS}/{name}/cpu_capacity") for name in cpus[:256]} - {""}
    hybrid = exists(tree.root, "sys/devices/cpu_atom") or len(capacities) > 1
    source, reason = "sysfs: devices/cpu_atom, cpu*/cpu_capacity", "no CPU is listed in sysfs"
    yield _stated("cpu.hybrid", hybrid if cpus else None, None, source, reason)
    yield _stated("cpu.core_type", cpuid.core_type(tree.process.cpuid), None, "CPUID 0x1a, of one CPU")


def _frequency(tree: _Readings) -> Iterator[Fact]:
    policies = tree.names(f"{CPUS}/cpufreq", r"policy[0-9]{1,4}")
    governors = {_clean(tree.read(f"{CPUS}/cpufreq/{name}/scaling_governor")) for name in policies} - {""}
    source = "sysfs: devices/system/cpu/cpufreq/policy*/scaling_governor"
    yield _stated("cpu.governor", ", ".join(sorted(governors)) or None, None, source)
    no_turbo = tree.fact("cpu.boost", f"{CPUS}/intel_pstate/no_turbo", lambda text: not _flag(text))
    yield no_turbo if no_turbo.value is not None else tree.fact("cpu.boost", f"{CPUS}/cpufreq/boost", _flag)


CACHE_KINDS = {"Data": "d", "Instruction": "i"}
SIDE_LETTERS = {"data": "d", "code": "i", "both": ""}  # of a described cache


def _caches(tree: _Readings) -> Iterator[Fact]:
    where = f"{CPUS}/cpu0/cache"
    indexes = tree.names(where, r"index[0-9]{1,2}")
    for index in indexes:
        level, kind = tree.read(f"{where}/{index}/level"), tree.read(f"{where}/{index}/type")
        name = f"cache.L{register_number(level) or index}{CACHE_KINDS.get(kind, '')}"
        yield tree.fact(name, f"{where}/{index}/size", _cache_size, "B")
        yield tree.fact(f"{name}.ways", f"{where}/{index}/ways_of_associativity", parse_number, "ways")
        yield tree.fact(f"{name}.shared_by", f"{where}/{index}/shared_cpu_list", _cpu_count, "CPUs")
    yield _stated("cache.line", cache_line_size(tree.root), "B", "sysfs, else the C library, else 64")
    if not indexes:
        yield _stated("cache.L1d", None, "B", _source(where), tree.why_missing(where))


def _page_sizes(tree: _Readings) -> Iterator[Fact]:
    yield _stated("pages.base", tree.process.page_size, "B", "sysconf", LIVE_ONLY)
    for size, mode in mthp_modes(tree.root).items():
        source = f"{_source(THP)}/hugepages-{size >> 10}kB/enabled"
        yield Fact(f"thp.enabled.{short_size(size)}", mode, None, source)


def _hugetlb(tree: _Readings) -> Iterator[Fact]:
    yield _stated("hugetlb.default", default_hugetlb_size(tree.root), "B", "procfs: meminfo Hugepagesize")
    for size, pool in hugetlb_pools(tree.root).items():
        source = f"{_source(HUGETLB)}/hugepages-{size >> 10}kB"
        for count in ("total", "free", "reserved", "surplus", "overcommit"):
            yield Fact(f"hugetlb.{short_size(size)}.{count}", getattr(pool, count), "pages", source)


VMSTAT = ("thp_fault_alloc", "thp_fault_fallback", "thp_collapse_alloc", "thp_split_pmd", "compact_stall")
MEMINFO = {
    "memory.total": "MemTotal",
    "memory.free": "MemFree",
    "memory.available": "MemAvailable",
    "memory.anonymous_huge": "AnonHugePages",
    "memory.page_tables": "PageTables",
    "swap.total": "SwapTotal",
    "swap.free": "SwapFree",
}


def _memory(tree: _Readings) -> Iterator[Fact]:
    found = parse_fields(tree.read("proc/meminfo"))
    for name, key in MEMINFO.items():
        reason = NOT_OFFERED if found else "/proc/meminfo cannot be read"
        yield _stated(name, found.get(key), "B", f"procfs: meminfo {key}", reason)
    counts = vmstat(tree.root)
    for key in VMSTAT:
        yield _stated(f"thp.count.{key}", counts.get(key), "events", f"procfs: vmstat {key}")


def _fragmentation(tree: _Readings) -> Iterator[Fact]:
    base, huge, blocks = tree.process.page_size, pmd_size(tree.root), free_blocks(tree.root)
    share = _free_huge(base, huge, blocks) if base and huge and blocks else None
    no_block = "/proc/buddyinfo cannot be read" if base else LIVE_ONLY
    reason = no_block if huge else tree.why_missing(f"{THP}/hpage_pmd_size")
    yield _stated("memory.free_huge", share, "%", "procfs: buddyinfo", reason)


def _free_huge(base: int, huge: int, blocks: dict[tuple[int, str], tuple[int, ...]]) -> float | None:
    """Share of the free memory that lies in blocks of at least a PMD-sized page."""
    order = (huge // base).bit_length() - 1
    pages = [(k, count << k) for counts in blocks.values() for k, count in enumerate(counts)]
    total = sum(count for _, count in pages)
    return round(100 * sum(count for k, count in pages if k >= order) / total, 1) if total else None


def _limits(tree: _Readings) -> Iterator[Fact]:
    """State the tightest limits; which group of ours sets them is not for publication."""
    limits = sorted(memory_limits(tree.root), key=lambda limit: limit.headroom)
    memory = next((limit for limit in limits if limit.kind == "memory"), None)
    source = f"cgroup: {PurePosixPath(memory.source).name}" if memory else "cgroup: memory"
    reason = NO_GROUP_LIMIT if tree.read("proc/self/cgroup") else "/proc/self/cgroup cannot be read"
    yield _stated("limit.memory", memory.limit if memory else None, "B", source, reason)
    yield _stated("limit.memory_left", memory.headroom if memory else None, "B", source, reason)
    for limit in reversed(limits):  # the tightest of a page size comes last and stays
        if limit.page_size:
            name = f"limit.hugetlb_left.{short_size(limit.page_size)}"
            yield Fact(name, limit.headroom, "B", "cgroup: hugetlb")
    yield _stated("limit.cpu", cpu_quota(tree.root), "CPUs", "cgroup: cpu", reason)
    yield _stated("limit.address_space_left", tree.process.address_space, "B", "RLIMIT_AS")


def _damon(tree: _Readings) -> Iterator[Fact]:
    where = "sys/kernel/mm/damon/admin/kdamonds"
    count = tree.fact("damon.threads", f"{where}/nr_kdamonds", parse_number, "threads")
    states = [tree.read(f"{where}/{name}/state") for name in tree.names(where, r"[0-9]{1,4}")]
    yield count
    running = None if count.value is None else "on" in states
    yield _stated("damon.running", running, None, f"{_source(where)}/*/state", count.reason or "")


def _virtualisation(tree: _Readings) -> Iterator[Fact]:
    guest = "hypervisor" in tree.flags if tree.flags is not None else _seen_hypervisor(tree)
    reason = "no flag of the processor tells, and no file names a hypervisor"
    yield _stated("virtualisation.guest", guest, None, "cpuinfo flags, sysfs, device tree", reason)
    signature = cpuid.hypervisor_signature(tree.process.cpuid)
    reason = NOT_OFFERED if guest is False else "CPUID was not read"
    yield _stated("virtualisation.signature", signature, None, "CPUID 0x40000000, raw", reason)
    paging = "native" if guest is False else None
    reason = "nested or shadow paging cannot be read from inside: a probe of hidden faults may tell"
    yield _stated("virtualisation.paging", paging, None, "virtualisation.guest", reason)


HYPERVISORS = ("qemu", "kvm", "vmware", "virtualbox", "xen", "parallels", "bochs", "bhyve", "virtual machine")


def _seen_hypervisor(tree: _Readings) -> bool | None:
    """Only ever True or unknown: silence proves nothing."""
    named = " ".join(tree.read(f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")).lower()
    signs = ("sys/hypervisor/type", "proc/device-tree/hypervisor/compatible")
    return any(tree.read(sign) for sign in signs) or any(name in named for name in HYPERVISORS) or None


CONTAINERS = {".dockerenv": "docker", "run/.containerenv": "podman"}


def _container(tree: _Readings) -> Iterator[Fact]:
    marks = [kind for path, kind in CONTAINERS.items() if exists(tree.root, path)]
    told = re.findall(r"docker|kubepods|libpod|lxc|containerd", tree.read("proc/self/cgroup"))
    kind = (marks + told + ["none seen"])[0]
    yield Fact("container.kind", kind, None, "file: /.dockerenv, /run/.containerenv; procfs: self/cgroup")


CAPABILITIES = {"ipc_lock": 14, "sys_admin": 21, "sys_nice": 23, "perfmon": 38}


def _permissions(tree: _Readings) -> Iterator[Fact]:
    line = tree.status
    source, missing = "procfs: self/status", "no such line in status"
    seccomp = {"0": "off", "1": "strict", "2": "filter"}.get(line.get("Seccomp", ""))
    yield _stated("process.seccomp", seccomp, None, f"{source} Seccomp", missing)
    privileges = {"0": False, "1": True}.get(line.get("NoNewPrivs", ""))
    yield _stated("process.no_new_privileges", privileges, None, f"{source} NoNewPrivs", missing)
    mask = re.fullmatch(r"[0-9a-f]{1,16}", line.get("CapEff", ""))
    for name, bit in CAPABILITIES.items():
        held = bool(int(mask[0], 16) >> bit & 1) if mask else None
        yield _stated(f"process.cap_{name}", held, None, f"{source} CapEff", missing)
    for name, key, unit in (("cpu.allowed", "Cpus", "CPUs"), ("numa.allowed", "Mems", "nodes")):
        allowed = _list_length(line.get(f"{key}_allowed_list", ""))
        yield _stated(name, allowed, unit, f"{source} {key}_allowed_list", missing)


def _list_length(text: str) -> int | None:
    try:
        return _cpu_count(text) or None
    except ValueError:
        return None


def _process(tree: _Readings) -> Iterator[Fact]:
    process, disabled = tree.process, tree.process.thp_disabled
    if disabled is None:
        disabled = {"0": 1, "1": 0}.get(tree.status.get("THP_enabled", ""))
    yield _stated("process.thp_disabled", disabled, None, "prctl PR_GET_THP_DISABLE")
    merge = None if process.memory_merge is None else bool(process.memory_merge)
    yield _stated("process.memory_merge", merge, None, "prctl PR_GET_MEMORY_MERGE")
    yield _stated("process.malloc_hugetlb", process.malloc_hugetlb, None, "GLIBC_TUNABLES", LIVE_ONLY)
    yield _stated("process.preload", process.preload, None, "LD_PRELOAD", LIVE_ONLY)


def _pmus(tree: _Readings) -> Iterator[Fact]:
    where = "sys/bus/event_source/devices"
    pmus = ", ".join(tree.names(where, r"cpu|cpu_core|cpu_atom|armv[0-9].*|apple_.*"))
    known = pmus or ("none" if exists(tree.root, where) else None)
    yield _stated("perf.pmu", known, None, _source(where), tree.why_missing(where))


def _iommu(tree: _Readings) -> Iterator[Fact]:
    where = "sys/kernel/iommu_groups"
    groups = tree.names(where, r"[0-9]{1,6}")
    count = len(groups) if exists(tree.root, where) else None
    yield _stated("iommu.groups", count, "groups", _source(where), tree.why_missing(where))
    modes = {_clean(tree.read(f"{where}/{group}/type")) for group in groups[:64]} - {""}
    yield _stated("iommu.mode", ", ".join(sorted(modes)) or None, None, f"{_source(where)}/*/type")


BOOT_OPTIONS = re.compile(
    r"(transparent_hugepage|thp_\w+|hugepages|hugepagesz|default_hugepagesz|hugetlb_\w+|pti|nopti|nopcid|no5lvl"
    r"|mitigations|isolcpus|nohz_full|rcu_nocbs|nosmt|iommu|iommu\.passthrough|iommu\.strict|intel_iommu"
    r"|amd_iommu|numa_balancing|idle|processor\.max_cstate|intel_idle\.max_cstate|intel_pstate|amd_pstate"
    r"|nokaslr|clocksource|tsc|\w*no_zero_page|nested_pvm)(=[\w.,:+-]{1,80})?"
)


def _boot(tree: _Readings) -> Iterator[Fact]:
    """Return the options that matter here, no others: a command line may name disks and hosts."""
    words = tree.read("proc/cmdline").split()
    kept = " ".join(word for word in words if BOOT_OPTIONS.fullmatch(word))
    value = (kept or "none that matter") if words else None
    yield _stated("kernel.options", value, None, "procfs: cmdline, in part", tree.why_missing("proc/cmdline"))


def _tlb_claims(tree: _Readings) -> Iterator[Fact]:
    dump = tree.process.cpuid
    reason = "no register states it on this processor" if dump else "CPUID was not read"
    rows = cpuid.tlb(dump)
    yield _stated("tlb.claims", len(rows) or None, "rows", "CPUID", reason)


SUBJECTS: tuple[Callable[[_Readings], Iterable[Fact]], ...] = (
    _cpu,
    _files,
    _cpu_flags,
    _cores,
    _frequency,
    _caches,
    _page_sizes,
    _hugetlb,
    _memory,
    _fragmentation,
    _limits,
    _damon,
    _virtualisation,
    _container,
    _permissions,
    _process,
    _pmus,
    _iommu,
    _boot,
    _tlb_claims,
)
GROUPS = (
    *(
        "simulation",
        "cpu",
        "cache",
        "tlb",
        "paging",
        "pages",
        "thp",
        "khugepaged",
        "hugetlb",
        "memory",
        "limit",
        "numa",
    ),
    *("swap", "ksm", "damon", "mglru", "virtualisation", "container", "process", "kernel", "clock", "load"),
    *("perf", "iommu"),
)


def host(root: Root = "/", process: Process | None = None) -> Host:
    """Read what this machine is.

    A few milliseconds of reading /proc and /sys; nothing is changed, and nothing raises.

    Parameters
    ----------
    root : path, optional
        Root of the file system that holds proc and sys: a recorded tree is a machine too.
    process : Process, optional
        What can be asked only by a process that runs there. Default: this process if `root` is ``"/"``,
        else nothing.

    Returns
    -------
    Host
        Facts by name, the claimed TLB, and the hazards that follow from them.

    Examples
    --------
    >>> machine = host()
    >>> machine.fact("pages.base").unit
    'B'
    """
    core = current()
    if process is None and is_live(root) and isinstance(core, SimulatedCore):
        return _simulated_host(core)
    if process is None:
        process = this_process() if is_live(root) else Process()
    tree = _Readings(root, process)
    facts = {fact.name: fact for subject in SUBJECTS for fact in subject(tree)}
    order = sorted(facts.values(), key=lambda fact: GROUPS.index(_group(fact)))
    return Host(tuple(order), cpuid.tlb(process.cpuid))


def _simulated_host(core: SimulatedCore) -> Host:
    """What a description says: these are facts, and there is nothing else to be known."""
    described, source = core.description, "description of the machine"
    facts = (
        Fact("simulation.machine", core.name, None, source),
        Fact("cpu.name", str(core), None, source),
        Fact("cpu.microarchitecture", described.about, None, source),
        Fact("cpu.frequency", described.ghz, "GHz", source),
        Fact("pages.base", described.base_page, "B", source),
        Fact("pages.pmd", pmd_size(), "B", source, "it has no such pages"),
        Fact("paging.levels", described.tables["walk"]["levels"], "levels", source),
        *_described_caches(described, source),
    )
    return Host(facts, tuple(_rows_of(described)))


def _described_caches(described: Description, source: str) -> Iterator[Fact]:
    """Each cache by its level, from the nearest of its side."""
    levels = {"data": 0, "code": 0}
    for cache in described.tables["cache"]:
        sides = levels if cache["side"] == "both" else (cache["side"],)
        for side in sides:
            levels[side] += 1
        name = f"cache.L{max(levels[side] for side in sides)}{SIDE_LETTERS[cache['side']]}"
        ways = cache["ways"] or cache["size"] // cache["line"]
        yield Fact(name, cache["size"], "B", source)
        yield Fact(f"{name}.ways", ways, "ways", source)


def _rows_of(described: Description) -> Iterator[cpuid.TlbClaim]:
    """Entries of each level, as a processor would claim them."""
    for side, word in (("data", "data"), ("code", "instruction")):
        mine = [level for level in described.tables["tlb"] if level["side"] in (side, "both")]
        for number, level in enumerate(mine, 1):
            for one in level["entries"]:
                ways = one["ways"] or one["entries"]
                pages = tuple(one["pages"])
                yield cpuid.TlbClaim(number, word, pages, one["entries"], ways, source="description")


@once_a_core
def _recent_hosts() -> dict[int, tuple[Host, dict[str, Any]]]:
    return {}


def _recent() -> tuple[Host, dict[str, Any]]:
    """Facts of this machine, and the same as plain JSON: looked at once a minute."""
    known, minute = _recent_hosts(), int(time.monotonic() // 60)
    if minute not in known:
        known.clear()
        found = host()
        known[minute] = found, found.to_dict()
    return known[minute]


def recent_host() -> Host:
    """Facts of this machine, a minute old at most: settings may change while a process lives."""
    return _recent()[0]


def recent_record() -> dict[str, Any]:
    """The same as plain JSON."""
    return _recent()[1]


def _group(fact: Fact) -> str:
    return fact.name.partition(".")[0]


@dataclass(frozen=True, repr=False)
class Host(Declared, Mapping[str, Value | None]):
    """What a machine is, as a mapping from the name of a fact to its value, ``None`` where unknown.

    Holds no host name, user name or path, so that it can be saved with a result and published.
    """

    facts: tuple[Fact, ...]
    tlb: tuple[cpuid.TlbClaim, ...] = ()

    def __getitem__(self, name: str) -> Value | None:
        """Value of a fact, ``None`` where it is unknown; KeyError for a name that is no fact."""
        return self._by_name[name].value

    def __iter__(self) -> Iterator[str]:
        """Names of the facts, by subject."""
        return iter(self._by_name)

    def __len__(self) -> int:
        """Count the facts."""
        return len(self.facts)

    @cached_property
    def _by_name(self) -> dict[str, Fact]:
        return {fact.name: fact for fact in self.facts}

    def fact(self, name: str) -> Fact:
        """Return the whole fact: value, unit, source, and the reason where there is no value."""
        return self._by_name[name]

    @cached_property
    def hazards(self) -> tuple[Hazard, ...]:
        """What could spoil a measurement here, worst first."""
        if self.simulated:
            return ()
        found = (hazard for rule in HAZARD_RULES if (hazard := rule.hazard(self)))
        return tuple(sorted(found, key=lambda hazard: SEVERITIES.index(hazard.severity)))

    @property
    def simulated(self) -> str:
        """Name of the simulated machine that this is; empty of a real one."""
        return str(self.get("simulation.machine") or "")

    def hazards_for(self, probe: str) -> tuple[Hazard, ...]:
        """Return the hazards that touch the results of one probe."""
        return tuple(hazard for hazard in self.hazards if probe in hazard.probes)

    def tlb_reach(self, page_size: int) -> dict[int, int]:
        """Bytes that each TLB level covers with data pages of `page_size`, by what CPUID claims."""
        return cpuid.reach(self.tlb, page_size)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return self.plain()

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Host:
        """Rebuild what `to_dict` returned; ValueError for anything else."""
        try:
            return cls.from_plain(record)
        except FieldError as error:
            raise ValueError(f"not a record of a host: {error}") from error

    def __repr__(self) -> str:
        """Facts by subject, the claimed TLB, the hazards, and what is not known."""
        return "\n".join([self._headline(), *self._paragraphs()])

    def _headline(self) -> str:
        name = self.get("cpu.name") or self.get("cpu.vendor") or "unknown processor"
        kinds = {"True": "guest", "False": "bare metal"}
        guest = kinds.get(str(self.get("virtualisation.guest")), "guest or bare metal")
        if self.simulated:
            return f"{name}: {self['cpu.microarchitecture']}"
        design = self.get("cpu.microarchitecture") or "unknown design"
        return f"{name} ({design}), {guest}, Linux {self.get('kernel.release') or 'unknown'}"

    def _paragraphs(self) -> Iterator[str]:
        for group in GROUPS:
            mine = [fact for fact in self.facts if _group(fact) == group and fact.value is not None]
            yield from _wrapped(group, (f"{_rest(fact)} {_fact_text(fact)}" for fact in mine))
        yield from _wrapped("claimed", (_claim_text(row) for row in self.tlb))
        yield from _wrapped("unknown", (fact.name for fact in self.facts if fact.unreadable))
        yield from (f"! {hazard}" for hazard in self.hazards)

    def _repr_html_(self) -> str:
        """Return the hazards as a table, and the facts folded away below it."""
        return f"<p>{html.escape(self._headline())}</p>{_hazard_table(self.hazards)}{_fact_table(self.facts)}"


def _rest(fact: Fact) -> str:
    return fact.name.partition(".")[2]


def _fact_text(fact: Fact) -> str:
    """Value with its unit, as people write it."""
    value, unit = fact.value, fact.unit
    if value is None:
        return f"unknown: {fact.reason}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "B" and isinstance(value, int):
        return approximate_size(value)
    return f"{value} {unit}" if unit and unit not in fact.name else str(value)


def _claim_text(row: cpuid.TlbClaim) -> str:
    sizes = "/".join(short_size(size) for size in row.page_sizes)
    doubt = "" if row.reliable else f" (perhaps {row.candidate})"
    return f"L{row.level} {row.side} {sizes}: {row.entries}{doubt}"


def _wrapped(title: str, items: Iterable[str]) -> list[str]:
    text = ", ".join(items)
    indent = " " * 16
    return textwrap.wrap(text, 110, initial_indent=f"{title:<16}", subsequent_indent=indent) if text else []


def _hazard_table(hazards: tuple[Hazard, ...]) -> str:
    rows = ((h.severity, h.what, h.effect, h.command or "") for h in hazards)
    return html_columns(("severity", "hazard", "effect", "command that removes it"), rows)


def _fact_table(facts: tuple[Fact, ...]) -> str:
    rows = ((fact.name, _fact_text(fact), fact.source) for fact in facts)
    table = html_columns(("fact", "value", "source"), rows)
    return f"<details><summary>{len(facts)} facts</summary>{table}</details>"
