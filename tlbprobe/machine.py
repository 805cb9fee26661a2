"""What this machine is, and what could spoil a measurement on it.

Everything is read from files below a root, so that a recorded tree of /proc and /sys is a machine too.
Nothing here raises for what a machine lacks: an absent or garbled file is ``None``, never zero.
Nothing here changes the machine.
"""

from __future__ import annotations

import html
import math
import os
import re
import resource
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from . import cpuid

Root = str | os.PathLike[str]

THP = "sys/kernel/mm/transparent_hugepage"
HUGETLB = "sys/kernel/mm/hugepages"
CPUS = "sys/devices/system/cpu"
PR_GET_THP_DISABLE = 42
PR_GET_MEMORY_MERGE = 68
NO_LIMIT = 1 << 62  # cgroup v1 writes "none" as LONG_MAX rounded down to a page of whatever size
MOST_BYTES = 1 << 20  # no file read here is longer on a sane machine


# --- files -----------------------------------------------------------------------------------------------


def _load(root: Root, path: str, most: int = MOST_BYTES) -> str:
    """Text of one file, or an OSError."""
    with open(Path(root, path), "rb", opener=_unblocked) as file:
        return (file.read(most) or b"").decode("utf-8", "replace")


def _unblocked(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # no odd file can hang us


def _read(root: Root, path: str) -> str | None:
    try:
        return _load(root, path).strip() or None
    except (OSError, ValueError):
        return None


def _names(root: Root, path: str) -> list[str]:
    try:
        return sorted(os.listdir(Path(root, path)))  # noqa: PTH208 - names, not paths
    except (OSError, ValueError):
        return []


def _count(text: str) -> int:
    """Parse a number that fits what the kernel counts with; anything else is a ValueError."""
    number = int(text)
    if not 0 <= number < 1 << 63:
        raise ValueError(text)
    return number


def _exists(root: Root, path: str) -> bool:
    try:
        return Path(root, path).exists()
    except (OSError, ValueError):
        return False


def _read_int(root: Root, path: str) -> int | None:
    try:
        return _count(_read(root, path) or "")
    except ValueError:
        return None


def _bracketed(text: str | None) -> str | None:
    """Return the chosen word of 'always [madvise] never'."""
    chosen = re.search(r"\[(\w[\w+-]*)\]", text or "")
    return chosen[1] if chosen else None


def _fields(text: str | None) -> dict[str, int]:
    """'MemFree:  12 kB' and 'anon 12' lines as name to bytes or count."""
    rows = re.findall(r"^([\w()]+):?\s+([0-9]{1,18})(?: (kB))?\s*$", text or "", re.MULTILINE)
    return {name: int(value) * (1024 if unit else 1) for name, value, unit in rows}


def is_live(root: Root) -> bool:
    """Whether `root` is the running machine, of which the kernel itself may be asked too."""
    return os.fspath(root) == "/"


# --- pages -----------------------------------------------------------------------------------------------


def base_page_size() -> int:
    """Bytes of the smallest translation unit."""
    return os.sysconf("SC_PAGESIZE")


def cache_line_size(root: Root = "/") -> int:
    """Bytes of one cache line; 64 where neither sysfs nor the C library knows."""
    line = _read_int(root, f"{CPUS}/cpu0/cache/index0/coherency_line_size")
    if not _is_line(line) and is_live(root) and "SC_LEVEL1_DCACHE_LINESIZE" in os.sysconf_names:
        line = os.sysconf("SC_LEVEL1_DCACHE_LINESIZE")
    return line if line is not None and _is_line(line) else 64


def _is_line(line: int | None) -> bool:
    return line in (16, 32, 64, 128, 256, 512)


def pmd_size(root: Root = "/") -> int | None:
    """Bytes of a PMD-sized transparent huge page."""
    size = _read_int(root, f"{THP}/hpage_pmd_size")
    return size if size is not None and _is_page_size(size) else None


def _is_page_size(size: int) -> bool:
    return 0 < size <= 1 << 40 and size & size - 1 == 0


def thp_mode(root: Root = "/") -> str | None:
    """Return the transparent huge page mode: ``always``, ``madvise`` or ``never``."""
    return _bracketed(_read(root, f"{THP}/enabled"))


def mthp_modes(root: Root = "/") -> dict[int, str]:
    """Mode of each transparent huge page size in bytes, ``inherit`` included; shmem-only sizes left out."""
    modes = {size: _bracketed(_read(root, f"{THP}/{name}/enabled")) for size, name in _sized(root, THP)}
    return {size: mode for size, mode in sorted(modes.items()) if mode}


def _sized(root: Root, path: str) -> Iterator[tuple[int, str]]:
    """Directories hugepages-<n>kB below `path`, with their size in bytes."""
    for name in _names(root, path):
        named = re.fullmatch(r"hugepages-([0-9]{1,12})kB", name)
        if named and _is_page_size(size := int(named[1]) * 1024):
            yield size, name


def thp_disabled() -> int | None:
    """Whether this process may have huge pages: 0 yes, 1 never, 3 only where it asks by madvise.

    Set by ``prctl(PR_SET_THP_DISABLE)`` and inherited through exec; advice is then silently ineffective.
    """
    flags = _prctl(PR_GET_THP_DISABLE)
    if flags >= 0:
        return flags
    enabled = _fields(_read("/", "proc/self/status")).get("THP_enabled")
    return None if enabled is None else int(not enabled)


def _prctl(option: int) -> int:
    """Value of a get option of prctl, or -1 where there is none."""
    import ctypes  # numpy has loaded it already; alone it costs more than all our readers

    try:
        return int(ctypes.CDLL(None).prctl(option, *[ctypes.c_ulong(0)] * 4))
    except (OSError, AttributeError):
        return -1


@dataclass(frozen=True)
class HugetlbPool:
    """The reserved pool of one huge page size, counted in pages."""

    page_size: int
    total: int
    free: int
    reserved: int
    surplus: int
    overcommit: int

    @property
    def available(self) -> int:
        """Pages that a new mapping can have from the pool."""
        return max(0, self.free - self.reserved)


POOL_FILES = tuple(f"{count}_hugepages" for count in ("nr", "free", "resv", "surplus", "nr_overcommit"))


def hugetlb_pools(root: Root = "/") -> dict[int, HugetlbPool]:
    """Reserved pool by page size in bytes; a pool that cannot be read whole is left out."""
    return {size: pool for size, name in sorted(_sized(root, HUGETLB)) if (pool := _pool(root, size, name))}


def _pool(root: Root, size: int, name: str) -> HugetlbPool | None:
    counts = [_read_int(root, f"{HUGETLB}/{name}/{file}") for file in POOL_FILES]
    known = [count for count in counts if count is not None]
    return HugetlbPool(size, *known) if len(known) == len(counts) else None


def default_hugetlb_size(root: Root = "/") -> int | None:
    """Page size of a plain MAP_HUGETLB."""
    size = _fields(_read(root, "proc/meminfo")).get("Hugepagesize")
    return size if size and _is_page_size(size) else None


# --- memory limits ---------------------------------------------------------------------------------------


def memory_available(root: Root = "/") -> int | None:
    """Bytes that can be had without swapping, as the kernel estimates it."""
    return _fields(_read(root, "proc/meminfo")).get("MemAvailable")


def max_map_count(root: Root = "/") -> int | None:
    """Most mappings that one process may have."""
    return _read_int(root, "proc/sys/vm/max_map_count")


def address_space_limit() -> int | None:
    """Bytes of address space left below RLIMIT_AS, or ``None`` without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    pages = re.match(r"[0-9]+", _read("/", "proc/self/statm") or "")
    return max(0, limit - (int(pages[0]) if pages else 0) * base_page_size())


@dataclass(frozen=True)
class MemoryLimit:
    """One limit that a control group, ours or an ancestor, puts on this process."""

    source: str  # relative to the mount of its hierarchy: for messages, not for files that are published
    kind: str  # "memory" or "hugetlb"
    page_size: int | None  # of a hugetlb limit
    limit: int
    usage: int | None  # without page cache, which gives way

    @property
    def headroom(self) -> int:
        """Bytes left below the limit; all of it where the usage cannot be read."""
        return max(0, self.limit - (self.usage or 0))


def memory_limits(root: Root = "/") -> list[MemoryLimit]:
    """Every finite limit on memory and hugetlb pages, over all visible ancestors, of cgroup v1 and v2."""
    groups = _groups(root, {"memory", "hugetlb"})
    return [limit for point, group in groups for limit in _group_limits(root, point, group)]


@dataclass(frozen=True)
class _Mount:
    root: str  # the group that the mount point shows
    point: str
    controllers: frozenset[str]  # empty: the unified hierarchy of cgroup v2


def _mounts(root: Root) -> Iterator[_Mount]:
    for line in (_read(root, "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = kind[2].split(",") if kind[0] == "cgroup" else ()
        yield _Mount(_unescape(place[3]), _unescape(place[4]), frozenset(controllers))


def _unescape(path: str) -> str:
    """Mountinfo writes blanks as octal."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda octal: chr(int(octal[1], 8)), path)


def _groups(root: Root, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Each group with a wanted controller, from our own to the topmost visible one: mount point, path."""
    mounts = list(_mounts(root))
    for line in (_read(root, "proc/self/cgroup") or "").splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        serving = wanted & set(controllers.split(","))
        shown = [m for m in mounts if (serving & m.controllers if controllers else not m.controllers)]
        if shown and path:
            mount = min(shown, key=lambda m: (_below(m.root, path) is None, len(m.root)))
            for group in _ancestors(_below(mount.root, path) or ()):
                yield mount.point.lstrip("/"), group


def _below(mount_root: str, path: str) -> tuple[str, ...] | None:
    """Path of a group below a mount that shows `mount_root`, or ``None`` if it cannot be told.

    In a cgroup namespace both may climb out of it by '..'; what the climb passed has no name for us. Then
    the mount point itself is the nearest thing to our group that can be seen.
    """
    top, parts = PurePosixPath(mount_root).parts, PurePosixPath(path).parts
    below = parts[len(top) :]
    return below if parts[: len(top)] == top and ".." not in below else None


def _ancestors(below: tuple[str, ...]) -> Iterator[str]:
    for depth in range(len(below), -1, -1):
        yield "/".join(below[:depth])


def _group_limits(root: Root, point: str, group: str) -> Iterator[MemoryLimit]:
    where = str(PurePosixPath(point, group))
    for name in filter(LIMIT_FILE.fullmatch, _names(root, where)):
        limit = _read_int(root, f"{where}/{name}")  # 'max' is no number: no limit
        if limit is not None and limit < NO_LIMIT:
            kind, size = name.partition(".")[0], _hugetlb_size(name)
            source = str(PurePosixPath(group, name))
            yield MemoryLimit(source, kind, size, limit, _group_usage(root, where, name))


LIMIT_FILE = re.compile(
    r"memory\.(max|high|limit_in_bytes)|hugetlb\.[0-9]{1,9}[KMG]B\.(rsvd\.)?(max|limit_in_bytes)"
)
USAGE_FILE = {"max": "current", "high": "current", "limit_in_bytes": "usage_in_bytes"}


def _hugetlb_size(name: str) -> int | None:
    """2 MiB of 'hugetlb.2MB.max'."""
    size = re.match(r"hugetlb\.([0-9]+)([KMG])B\.", name)
    return int(size[1]) << {"K": 10, "M": 20, "G": 30}[size[2]] if size else None


def _group_usage(root: Root, where: str, limit_name: str) -> int | None:
    stem, _, suffix = limit_name.rpartition(".")
    usage = _read_int(root, f"{where}/{stem}.{USAGE_FILE[suffix]}")
    if usage is None or stem != "memory":
        return usage
    stat = _fields(_read(root, f"{where}/memory.stat"))
    # v1 counts the groups below only under total_*
    cache = (stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, usage - sum(cache))


# --- other readers ---------------------------------------------------------------------------------------


def free_blocks(root: Root = "/") -> dict[tuple[int, str], tuple[int, ...]]:
    """Free blocks of each node and zone by order: entry k counts blocks of 2**k base pages."""
    text = _read(root, "proc/buddyinfo") or ""
    rows = re.findall(r"^Node +([0-9]{1,6}), zone +(\w+)([ 0-9]+)$", text, re.MULTILINE)
    return {(int(node), zone): tuple(int(n[:18]) for n in counts.split()) for node, zone, counts in rows}


def vmstat(root: Root = "/") -> dict[str, int]:
    """Event counters of the memory manager since boot, to be read before and after a run."""
    return _fields(_read(root, "proc/vmstat"))


def cpu_quota(root: Root = "/") -> float | None:
    """CPUs' worth of time that control groups grant, or ``None`` without a limit."""
    quotas = [_group_quota(root, str(PurePosixPath(*group))) for group in _groups(root, {"cpu"})]
    return min((quota for quota in quotas if quota), default=None)


def _group_quota(root: Root, where: str) -> float | None:
    both = _read(root, f"{where}/cpu.max")  # v2: quota and period in one file
    if both is None:
        both = f"{_read(root, f'{where}/cpu.cfs_quota_us')} {_read(root, f'{where}/cpu.cfs_period_us')}"
    found = re.fullmatch(r"([0-9]{1,18}) ([0-9]{1,18})", both)
    return int(found[1]) / int(found[2]) if found and int(found[2]) else None


# --- facts -----------------------------------------------------------------------------------------------

Value = bool | int | float | str
NOT_OFFERED = "not offered here"
NO_GROUP_LIMIT = "no control group limits it"
LIVE_ONLY = "known to a running process only"


@dataclass(frozen=True)
class Fact:
    """One thing known, or known to be unknown, about the machine."""

    name: str
    value: Value | None
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
    merged = _prctl(PR_GET_MEMORY_MERGE)
    return Process(
        page_size=base_page_size(),
        thp_disabled=thp_disabled(),
        memory_merge=merged if merged >= 0 else None,
        address_space=address_space_limit(),
        malloc_hugetlb=tunable[1] if tunable else "not set",
        preload="LD_PRELOAD" in os.environ,
        cpuid=cpuid.dump_cpuid(),
    )


SHORT = 1 << 14  # enough for every file of facts, and for the first processor of /proc/cpuinfo


@dataclass(frozen=True)
class _Tree:
    """Where facts are read: a root directory, and the answers of a process that runs there."""

    root: Root
    process: Process

    def read(self, path: str) -> str:
        return _read(self.root, path) or ""

    @cached_property
    def cpuinfo(self) -> dict[str, str]:
        """Fields of the first processor: the whole file is slow to read on a large machine."""
        try:
            return _lines(_load(self.root, "proc/cpuinfo", SHORT).partition("\n\n")[0])
        except (OSError, ValueError):
            return {}

    @cached_property
    def status(self) -> dict[str, str]:
        return _lines(self.read("proc/self/status"))

    @cached_property
    def flags(self) -> set[str] | None:
        return set(self.cpuinfo["flags"].split()) if "flags" in self.cpuinfo else None

    def names(self, path: str, pattern: str) -> list[str]:
        return [name for name in _names(self.root, path) if re.fullmatch(pattern, name)]

    def fact(self, name: str, path: str, parse: Callable[[str], Value], unit: str | None = None) -> Fact:
        """Read one file; whatever goes wrong becomes the reason."""
        try:
            text = _load(self.root, path, SHORT).strip()
            return Fact(name, parse(text), unit, _source(path))
        except FileNotFoundError:
            reason = self.why_missing(path)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        except (ValueError, LookupError):
            reason = f"not understood: {_printable(text[:40])!r}" if text else "empty"
        return Fact(name, None, unit, _source(path), reason)

    def why_missing(self, path: str) -> str:
        top = path.partition("/")[0]
        mounted = {"sys": "sys/kernel", "proc": "proc/self"}.get(top, "")
        return NOT_OFFERED if _exists(self.root, mounted) else f"/{top} is not mounted"


def _lines(text: str) -> dict[str, str]:
    """'name : value' lines."""
    rows = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def _source(path: str) -> str:
    top, _, rest = path.partition("/")
    return {"sys": f"sysfs: {rest}", "proc": f"procfs: {rest}"}.get(top, f"file: /{path}")


def _stated(name: str, value: Value | None, unit: str | None, source: str, reason: str = NOT_OFFERED) -> Fact:
    """Return a fact found otherwise than in a file of its own; `reason` is for the case of no value."""
    return Fact(name, value, unit, source, reason if value is None else None)


# Parsers of the text of one file: a value, or ValueError or LookupError.


def _printable(text: str) -> str:
    """Text of bounded length without control characters: it goes into files, terminals and pages."""
    return "".join(letter for letter in text[:200] if letter.isprintable()).strip()


def _text(text: str) -> str:
    if not (clean := _printable(text)):
        raise ValueError(text)
    return clean


def _signed(text: str) -> int:
    return -_count(text[1:]) if text.startswith("-") else _count(text)


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
    if not _is_page_size(size := _count(text)):
        raise ValueError(text)
    return size


def _cache_size(text: str) -> int:
    unit = {"K": 10, "M": 20, "G": 30}[text[-1:]]
    return _count(text[:-1]) << unit


def _cpus(text: str) -> int:
    """How many '0-3,8' names; an empty list names none."""
    spans = [span.partition("-") for span in text.split(",") if span]
    return sum(_span(_count(first), _count(last or first)) for first, _, last in spans)


def _span(first: int, last: int) -> int:
    if not first <= last < MOST_BYTES:
        raise ValueError(f"{first}-{last}")
    return last - first + 1


def _pressure(text: str) -> float:
    return float(_first(r"some avg10=([0-9]{1,3}\.[0-9]+)", text))


def _load_average(text: str) -> float:
    return float(_first(r"^([0-9]{1,9}\.[0-9]+)", text))


def _stolen_share(text: str) -> float:
    """Share of the time since boot in which the hypervisor ran somebody else."""
    ticks = [_count(tick) for tick in _first(r"^cpu +([0-9 ]+)\n", text).split()[:8]]
    return round(100 * ticks[7] / max(sum(ticks), 1), 2)


def _kpti(text: str) -> bool:
    return "PTI" in _text(text)


FILES: tuple[tuple[str, str, Callable[[str], Value], str | None], ...] = (
    ("cpu.online", f"{CPUS}/online", _cpus, "CPUs"),
    ("cpu.isolated", f"{CPUS}/isolated", _cpus, "CPUs"),
    ("cpu.smt", f"{CPUS}/smt/control", _text, None),
    ("cpu.smt_active", f"{CPUS}/smt/active", _flag, None),
    ("cpu.smt_siblings", f"{CPUS}/cpu0/topology/thread_siblings_list", _cpus, "CPUs"),
    ("cpu.driver", f"{CPUS}/cpufreq/policy0/scaling_driver", _text, None),
    ("pages.pmd", f"{THP}/hpage_pmd_size", _page_size, "B"),
    ("thp.enabled", f"{THP}/enabled", _choice, None),
    ("thp.defrag", f"{THP}/defrag", _choice, None),
    ("thp.shmem", f"{THP}/shmem_enabled", _choice, None),
    ("thp.zero_page", f"{THP}/use_zero_page", _flag, None),
    ("thp.shrink_underused", f"{THP}/shrink_underused", _flag, None),
    ("khugepaged.defrag", f"{THP}/khugepaged/defrag", _flag, None),
    ("khugepaged.scan_sleep", f"{THP}/khugepaged/scan_sleep_millisecs", _count, "ms"),
    ("khugepaged.pages_to_scan", f"{THP}/khugepaged/pages_to_scan", _count, "pages"),
    ("khugepaged.max_ptes_none", f"{THP}/khugepaged/max_ptes_none", _count, "pages"),
    ("khugepaged.pages_collapsed", f"{THP}/khugepaged/pages_collapsed", _count, "pages"),
    ("memory.overcommit", "proc/sys/vm/overcommit_memory", _count, None),
    ("memory.max_map_count", "proc/sys/vm/max_map_count", _count, "mappings"),
    ("numa.nodes", "sys/devices/system/node/online", _cpus, "nodes"),
    ("numa.balancing", "proc/sys/kernel/numa_balancing", _count, None),
    ("numa.demotion", "sys/kernel/mm/numa/demotion_enabled", _flag, None),
    ("swap.swappiness", "proc/sys/vm/swappiness", _count, None),
    ("swap.zswap", "sys/module/zswap/parameters/enabled", _flag, None),
    ("ksm.run", "sys/kernel/mm/ksm/run", _count, None),
    ("mglru.enabled", "sys/kernel/mm/lru_gen/enabled", _text, None),
    ("kernel.release", "proc/sys/kernel/osrelease", _text, None),
    ("kernel.arch", "proc/sys/kernel/arch", _text, None),
    ("kernel.aslr", "proc/sys/kernel/randomize_va_space", _count, None),
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
    ("perf.rdpmc", "sys/bus/event_source/devices/cpu/rdpmc", _count, None),
    ("perf.nmi_watchdog", "proc/sys/kernel/nmi_watchdog", _flag, None),
)


def _files(tree: _Tree) -> Iterator[Fact]:
    return (tree.fact(*row) for row in FILES)


# Facts that need more than one file, or one file for many. One function a subject.

CPUINFO = "procfs: cpuinfo"
UNREAD_CPUINFO = "/proc/cpuinfo cannot be read"


def _cpu(tree: _Tree) -> Iterator[Fact]:
    info = tree.cpuinfo
    values = _arm_cpu(info) if "CPU implementer" in info else _x86_cpu(info)
    for name in ("vendor", "implementer", "family", "model", "stepping", "name"):
        yield _stated(f"cpu.{name}", values.get(name), None, CPUINFO, NOT_OFFERED if info else UNREAD_CPUINFO)
    design = values.get("microarchitecture")
    yield _stated("cpu.microarchitecture", design, None, "table by CPU model", "not in the table")


def _x86_cpu(info: dict[str, str]) -> dict[str, Value | None]:
    vendor, name = (_printable(info.get(key, "")) or None for key in ("vendor_id", "model name"))
    family, model, stepping = (_number(info.get(key)) for key in ("cpu family", "model", "stepping"))
    design = cpuid.microarchitecture(vendor or "", family or 0, model or 0, stepping)
    return {
        **{"vendor": vendor, "family": family, "model": model, "stepping": stepping, "name": name},
        "microarchitecture": design,
    }


def _arm_cpu(info: dict[str, str]) -> dict[str, Value | None]:
    """Name the fields of MIDR; the model is its part number."""
    keys = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")
    implementer, part, variant, revision = (_number(info.get(key)) for key in keys)
    return {
        "vendor": cpuid.ARM_VENDORS.get(implementer or 0),
        "implementer": implementer,
        "model": part,
        "stepping": f"r{variant}p{revision}",
        "microarchitecture": cpuid.arm_microarchitecture(implementer or 0, part or 0),
    }


def _number(text: str | None) -> int | None:
    """Decimal or 0x number of cpuinfo."""
    found = re.fullmatch(r"0x[0-9a-f]{1,8}|[0-9]{1,8}", text or "")
    return int(found[0], 0 if found[0].startswith("0x") else 10) if found else None


FLAGS = {
    "paging.pcid": {"pcid"},
    "paging.invpcid": {"invpcid"},
    "paging.1gib": {"pdpe1gb"},
    "clock.tsc_invariant": {"constant_tsc", "nonstop_tsc"},
}


def _cpu_flags(tree: _Tree) -> Iterator[Fact]:
    flags, reason = tree.flags, NOT_OFFERED if tree.cpuinfo else UNREAD_CPUINFO
    for name, needed in FLAGS.items():
        yield _stated(name, None if flags is None else needed <= flags, None, f"{CPUINFO} flags", reason)
    levels = None if flags is None else 5 if "la57" in flags else 4
    yield _stated("paging.levels", levels, "levels", f"{CPUINFO} flags", "no file states it")
    sizes = tree.cpuinfo.get("address sizes", "")
    for kind in ("physical", "virtual"):
        found = re.search(rf"([0-9]{{1,3}}) bits {kind}", sizes)
        yield _stated(f"paging.{kind}_bits", int(found[1]) if found else None, "bits", CPUINFO, reason)


def _cores(tree: _Tree) -> Iterator[Fact]:
    """Whether there is more than one kind of core: Intel names them, Arm states their capacity."""
    cpus = tree.names(CPUS, r"cpu[0-9]{1,4}")
    capacities = {tree.read(f"{CPUS}/{name}/cpu_capacity") for name in cpus[:256]} - {""}
    hybrid = _exists(tree.root, "sys/devices/cpu_atom") or len(capacities) > 1
    source, reason = "sysfs: devices/cpu_atom, cpu*/cpu_capacity", "no CPU is listed in sysfs"
    yield _stated("cpu.hybrid", hybrid if cpus else None, None, source, reason)
    yield _stated("cpu.core_type", cpuid.core_type(tree.process.cpuid), None, "CPUID 0x1a, of one CPU")


def _frequency(tree: _Tree) -> Iterator[Fact]:
    policies = tree.names(f"{CPUS}/cpufreq", r"policy[0-9]{1,4}")
    governors = {_printable(tree.read(f"{CPUS}/cpufreq/{name}/scaling_governor")) for name in policies} - {""}
    source = "sysfs: devices/system/cpu/cpufreq/policy*/scaling_governor"
    yield _stated("cpu.governor", ", ".join(sorted(governors)) or None, None, source)
    no_turbo = tree.fact("cpu.boost", f"{CPUS}/intel_pstate/no_turbo", lambda text: not _flag(text))
    yield no_turbo if no_turbo.value is not None else tree.fact("cpu.boost", f"{CPUS}/cpufreq/boost", _flag)


CACHE_KINDS = {"Data": "d", "Instruction": "i"}


def _caches(tree: _Tree) -> Iterator[Fact]:
    where = f"{CPUS}/cpu0/cache"
    indexes = tree.names(where, r"index[0-9]{1,2}")
    for index in indexes:
        level, kind = tree.read(f"{where}/{index}/level"), tree.read(f"{where}/{index}/type")
        name = f"cache.L{_number(level) or index}{CACHE_KINDS.get(kind, '')}"
        yield tree.fact(name, f"{where}/{index}/size", _cache_size, "B")
        yield tree.fact(f"{name}.ways", f"{where}/{index}/ways_of_associativity", _count, "ways")
        yield tree.fact(f"{name}.shared_by", f"{where}/{index}/shared_cpu_list", _cpus, "CPUs")
    yield _stated("cache.line", cache_line_size(tree.root), "B", "sysfs, else the C library, else 64")
    if not indexes:
        yield _stated("cache.L1d", None, "B", _source(where), tree.why_missing(where))


def _page_sizes(tree: _Tree) -> Iterator[Fact]:
    yield _stated("pages.base", tree.process.page_size, "B", "sysconf", LIVE_ONLY)
    for size, mode in mthp_modes(tree.root).items():
        source = f"{_source(THP)}/hugepages-{size >> 10}kB/enabled"
        yield Fact(f"thp.enabled.{_binary(size)}", mode, None, source)


def _hugetlb(tree: _Tree) -> Iterator[Fact]:
    yield _stated("hugetlb.default", default_hugetlb_size(tree.root), "B", "procfs: meminfo Hugepagesize")
    for size, pool in hugetlb_pools(tree.root).items():
        source = f"{_source(HUGETLB)}/hugepages-{size >> 10}kB"
        for count in ("total", "free", "reserved", "surplus", "overcommit"):
            yield Fact(f"hugetlb.{_binary(size)}.{count}", getattr(pool, count), "pages", source)


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


def _memory(tree: _Tree) -> Iterator[Fact]:
    found = _fields(tree.read("proc/meminfo"))
    for name, key in MEMINFO.items():
        reason = NOT_OFFERED if found else "/proc/meminfo cannot be read"
        yield _stated(name, found.get(key), "B", f"procfs: meminfo {key}", reason)
    counts = vmstat(tree.root)
    for key in VMSTAT:
        yield _stated(f"thp.count.{key}", counts.get(key), "events", f"procfs: vmstat {key}")


def _fragmentation(tree: _Tree) -> Iterator[Fact]:
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


def _limits(tree: _Tree) -> Iterator[Fact]:
    """State the tightest limits; which group of ours sets them is not for publication."""
    limits = sorted(memory_limits(tree.root), key=lambda limit: limit.headroom)
    memory = next((limit for limit in limits if limit.kind == "memory"), None)
    source = f"cgroup: {PurePosixPath(memory.source).name}" if memory else "cgroup: memory"
    reason = NO_GROUP_LIMIT if tree.read("proc/self/cgroup") else "/proc/self/cgroup cannot be read"
    yield _stated("limit.memory", memory.limit if memory else None, "B", source, reason)
    yield _stated("limit.memory_left", memory.headroom if memory else None, "B", source, reason)
    for limit in reversed(limits):  # the tightest of a page size comes last and stays
        if limit.page_size:
            name = f"limit.hugetlb_left.{_binary(limit.page_size)}"
            yield Fact(name, limit.headroom, "B", "cgroup: hugetlb")
    yield _stated("limit.cpu", cpu_quota(tree.root), "CPUs", "cgroup: cpu", reason)
    yield _stated("limit.address_space_left", tree.process.address_space, "B", "RLIMIT_AS")


def _damon(tree: _Tree) -> Iterator[Fact]:
    where = "sys/kernel/mm/damon/admin/kdamonds"
    count = tree.fact("damon.threads", f"{where}/nr_kdamonds", _count, "threads")
    states = [tree.read(f"{where}/{name}/state") for name in tree.names(where, r"[0-9]{1,4}")]
    yield count
    running = None if count.value is None else "on" in states
    yield _stated("damon.running", running, None, f"{_source(where)}/*/state", count.reason or "")


def _virtualisation(tree: _Tree) -> Iterator[Fact]:
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


def _seen_hypervisor(tree: _Tree) -> bool | None:
    """Only ever True or unknown: silence proves nothing."""
    named = " ".join(tree.read(f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")).lower()
    signs = ("sys/hypervisor/type", "proc/device-tree/hypervisor/compatible")
    return any(tree.read(sign) for sign in signs) or any(name in named for name in HYPERVISORS) or None


CONTAINERS = {".dockerenv": "docker", "run/.containerenv": "podman"}


def _container(tree: _Tree) -> Iterator[Fact]:
    marks = [kind for path, kind in CONTAINERS.items() if _exists(tree.root, path)]
    told = re.findall(r"docker|kubepods|libpod|lxc|containerd", tree.read("proc/self/cgroup"))
    kind = (marks + told + ["none seen"])[0]
    yield Fact("container.kind", kind, None, "file: /.dockerenv, /run/.containerenv; procfs: self/cgroup")


CAPABILITIES = {"ipc_lock": 14, "sys_admin": 21, "sys_nice": 23, "perfmon": 38}


def _permissions(tree: _Tree) -> Iterator[Fact]:
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
        allowed = _listed(line.get(f"{key}_allowed_list", ""))
        yield _stated(name, allowed, unit, f"{source} {key}_allowed_list", missing)


def _listed(text: str) -> int | None:
    try:
        return _cpus(text) or None
    except ValueError:
        return None


def _process(tree: _Tree) -> Iterator[Fact]:
    process, disabled = tree.process, tree.process.thp_disabled
    if disabled is None:
        disabled = {"0": 1, "1": 0}.get(tree.status.get("THP_enabled", ""))
    yield _stated("process.thp_disabled", disabled, None, "prctl PR_GET_THP_DISABLE")
    merge = None if process.memory_merge is None else bool(process.memory_merge)
    yield _stated("process.memory_merge", merge, None, "prctl PR_GET_MEMORY_MERGE")
    yield _stated("process.malloc_hugetlb", process.malloc_hugetlb, None, "GLIBC_TUNABLES", LIVE_ONLY)
    yield _stated("process.preload", process.preload, None, "LD_PRELOAD", LIVE_ONLY)


def _pmus(tree: _Tree) -> Iterator[Fact]:
    where = "sys/bus/event_source/devices"
    pmus = ", ".join(tree.names(where, r"cpu|cpu_core|cpu_atom|armv[0-9].*|apple_.*"))
    known = pmus or ("none" if _exists(tree.root, where) else None)
    yield _stated("perf.pmu", known, None, _source(where), tree.why_missing(where))


def _iommu(tree: _Tree) -> Iterator[Fact]:
    where = "sys/kernel/iommu_groups"
    groups = tree.names(where, r"[0-9]{1,6}")
    count = len(groups) if _exists(tree.root, where) else None
    yield _stated("iommu.groups", count, "groups", _source(where), tree.why_missing(where))
    modes = {_printable(tree.read(f"{where}/{group}/type")) for group in groups[:64]} - {""}
    yield _stated("iommu.mode", ", ".join(sorted(modes)) or None, None, f"{_source(where)}/*/type")


BOOT_OPTIONS = re.compile(
    r"(transparent_hugepage|thp_\w+|hugepages|hugepagesz|default_hugepagesz|hugetlb_\w+|pti|nopti|nopcid|no5lvl"
    r"|mitigations|isolcpus|nohz_full|rcu_nocbs|nosmt|iommu|iommu\.passthrough|iommu\.strict|intel_iommu"
    r"|amd_iommu|numa_balancing|idle|processor\.max_cstate|intel_idle\.max_cstate|intel_pstate|amd_pstate"
    r"|nokaslr|clocksource|tsc|\w*no_zero_page|nested_pvm)(=[\w.,:+-]{1,80})?"
)


def _boot(tree: _Tree) -> Iterator[Fact]:
    """Return the options that matter here, no others: a command line may name disks and hosts."""
    words = tree.read("proc/cmdline").split()
    kept = " ".join(word for word in words if BOOT_OPTIONS.fullmatch(word))
    value = (kept or "none that matter") if words else None
    yield _stated("kernel.options", value, None, "procfs: cmdline, in part", tree.why_missing("proc/cmdline"))


def _claims(tree: _Tree) -> Iterator[Fact]:
    dump = tree.process.cpuid
    reason = "no register states it on this processor" if dump else "CPUID was not read"
    rows = cpuid.tlb(dump)
    yield _stated("tlb.claims", len(rows) or None, "rows", "CPUID", reason)


SUBJECTS: tuple[Callable[[_Tree], Iterable[Fact]], ...] = (
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
    _claims,
)
GROUPS = (
    *("cpu", "cache", "tlb", "paging", "pages", "thp", "khugepaged", "hugetlb", "memory", "limit", "numa"),
    *("swap", "ksm", "damon", "mglru", "virtualisation", "container", "process", "kernel", "clock", "load"),
    *("perf", "iommu"),
)


# --- the host --------------------------------------------------------------------------------------------


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
    if process is None:
        process = this_process() if is_live(root) else Process()
    tree = _Tree(root, process)
    facts = {fact.name: fact for subject in SUBJECTS for fact in subject(tree)}
    order = sorted(facts.values(), key=lambda fact: GROUPS.index(_group(fact)))
    return Host(tuple(order), cpuid.tlb(process.cpuid))


def _group(fact: Fact) -> str:
    return fact.name.partition(".")[0]


@dataclass(frozen=True, repr=False)
class Host(Mapping[str, Value | None]):
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
        found = (hazard for rule in RULES if (hazard := rule.hazard(self)))
        return tuple(sorted(found, key=lambda hazard: SEVERITIES.index(hazard.severity)))

    def hazards_for(self, probe: str) -> tuple[Hazard, ...]:
        """Return the hazards that touch the results of one probe."""
        return tuple(hazard for hazard in self.hazards if probe in hazard.probes)

    def tlb_reach(self, page_size: int) -> dict[int, int]:
        """Bytes that each TLB level covers with data pages of `page_size`, by what CPUID claims."""
        return cpuid.reach(self.tlb, page_size)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"facts": [asdict(fact) for fact in self.facts], "tlb": [asdict(row) for row in self.tlb]}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Host:
        """Rebuild what `to_dict` returned; ValueError for anything else."""
        try:
            facts = tuple(Fact(**row) for row in record["facts"])
            rows = ({**row, "page_sizes": tuple(row["page_sizes"])} for row in record["tlb"])
            return cls(facts, tuple(cpuid.TlbClaim(**row) for row in rows))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a record of a host: {error}") from error

    def __repr__(self) -> str:
        """Facts by subject, the claimed TLB, the hazards, and what is not known."""
        return "\n".join([self._headline(), *self._paragraphs()])

    def _headline(self) -> str:
        name = self.get("cpu.name") or self.get("cpu.vendor") or "unknown processor"
        kinds = {"True": "guest", "False": "bare metal"}
        guest = kinds.get(str(self.get("virtualisation.guest")), "guest or bare metal")
        design = self.get("cpu.microarchitecture") or "unknown design"
        return f"{name} ({design}), {guest}, Linux {self.get('kernel.release') or 'unknown'}"

    def _paragraphs(self) -> Iterator[str]:
        for group in GROUPS:
            mine = [fact for fact in self.facts if _group(fact) == group and fact.value is not None]
            yield from _wrapped(group, (f"{_rest(fact)} {_shown(fact)}" for fact in mine))
        yield from _wrapped("claimed", (_claimed(row) for row in self.tlb))
        yield from _wrapped("unknown", (fact.name for fact in self.facts if fact.unreadable))
        yield from (f"! {hazard}" for hazard in self.hazards)

    def _repr_html_(self) -> str:
        """Return the hazards as a table, and the facts folded away below it."""
        return f"<p>{html.escape(self._headline())}</p>{_hazard_table(self.hazards)}{_fact_table(self.facts)}"


def _rest(fact: Fact) -> str:
    return fact.name.partition(".")[2]


def _shown(fact: Fact) -> str:
    """Value with its unit, as people write it."""
    value, unit = fact.value, fact.unit
    if value is None:
        return f"unknown: {fact.reason}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "B" and isinstance(value, int):
        return _binary(value, " ")
    return f"{value} {unit}" if unit and unit not in fact.name else str(value)


def _binary(size: int, gap: str = "") -> str:
    """64KiB of 65536; the largest unit that leaves it at least one."""
    power = min((max(size, 1).bit_length() - 1) // 10, 4)
    return f"{round(size / (1 << 10 * power), 1):g}{gap}{('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _claimed(row: cpuid.TlbClaim) -> str:
    sizes = "/".join(_binary(size) for size in row.page_sizes)
    doubt = "" if row.reliable else f" (perhaps {row.candidate})"
    return f"L{row.level} {row.side} {sizes}: {row.entries}{doubt}"


def _wrapped(title: str, items: Iterable[str]) -> list[str]:
    text = ", ".join(items)
    indent = " " * 16
    return textwrap.wrap(text, 110, initial_indent=f"{title:<16}", subsequent_indent=indent) if text else []


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Everything in a cell is escaped: much of it was written by firmware."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Iterable[object]) -> str:
    inside = "".join(f'<{tag} style="text-align:left">{html.escape(str(cell))}</{tag}>' for cell in cells)
    return f"<tr>{inside}</tr>"


def _hazard_table(hazards: tuple[Hazard, ...]) -> str:
    rows = ((h.severity, h.what, h.effect, h.command or "") for h in hazards)
    return _table(("severity", "hazard", "effect", "command that removes it"), rows)


def _fact_table(facts: tuple[Fact, ...]) -> str:
    rows = _table(("fact", "value", "source"), ((fact.name, _shown(fact), fact.source) for fact in facts))
    return f"<details><summary>{len(facts)} facts</summary>{rows}</details>"


# --- hazards ---------------------------------------------------------------------------------------------

SEVERITIES = ("high", "medium", "low", "unknown")
LOADS = ("chase", "stride", "lookup", "objects", "jump", "translation")
ALL = (*LOADS, "fault", "shootdown")
Verdict = tuple[str, str, str | None]  # severity, effect, command


@dataclass(frozen=True)
class Hazard:
    """Something that could spoil a measurement on this machine."""

    what: str
    severity: str  # "high", "medium", "low", or "unknown" if it may be there and cannot be read
    probes: tuple[str, ...]
    effect: str
    command: str | None  # removes it; None where no command can

    def __str__(self) -> str:
        """One line, or two with the command."""
        remedy = f"\n    {self.command}" if self.command else ""
        return f"{self.severity}: {self.what}: {self.effect}{remedy}"


@dataclass(frozen=True)
class Rule:
    """How one hazard follows from facts."""

    what: str
    probes: tuple[str, ...]
    needs: tuple[str, ...]  # facts without which it cannot be judged, unless the kernel has no such thing
    judge: Callable[[Host], Verdict | None]

    def hazard(self, host: Host) -> Hazard | None:
        """Judge; a fact that may exist and cannot be read makes the hazard unknown."""
        for name in self.needs:
            if name in host and (fact := host.fact(name)).unreadable:
                return Hazard(self.what, "unknown", self.probes, f"{name} is unknown: {fact.reason}", None)
        verdict = self.judge(host)
        return Hazard(self.what, verdict[0], self.probes, *verdict[1:]) if verdict else None


def _number_of(host: Host, name: str) -> float:
    """Value of a fact that counts, 0 where there is none: for thresholds only."""
    value = host.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else 0


def _maybe_guest(host: Host) -> bool:
    return host.get("virtualisation.guest") is not False


def _write(value: str, *paths: str) -> str:
    return f"echo {value} | sudo tee {' '.join(f'/{path}' for path in paths)}"


def _pmd_mode(host: Host) -> tuple[Value | None, str]:
    """Mode that holds for PMD-sized pages, and the file that sets it: the size's own unless it inherits."""
    own = _pmd_name(host)
    if host.get(own) in (None, "inherit"):
        return host.get("thp.enabled"), f"{THP}/enabled"
    return host[own], _path(host.fact(own))


def _pmd_name(host: Host) -> str:
    return f"thp.enabled.{_binary(int(_number_of(host, 'pages.pmd')))}"


def _path(fact: Fact) -> str:
    return fact.source.replace("sysfs: ", "sys/")


def _advised_only(host: Host) -> bool:
    return host.get("process.thp_disabled") in (1, 3)


def _default_is_huge(host: Host) -> Verdict | None:
    mode, file = _pmd_mode(host)
    if mode != "always" or _advised_only(host):
        return None
    effect = 'memory without advice is huge already: pages="default" is like "thp"; compare with "base"'
    return "high", effect, _write("madvise", file)


def _default_is_mthp(host: Host) -> Verdict | None:
    always = ("always", "inherit") if host.get("thp.enabled") == "always" else ("always",)
    others = (name for name in host if name.startswith("thp.enabled.") and name != _pmd_name(host))
    sizes = [name for name in others if host[name] in always]
    if not sizes or _advised_only(host):
        return None
    shown = ", ".join(name.rpartition(".")[2] for name in sizes)
    effect = f'pages="default" gets folios of {shown}, which the TLB may hold as one entry'
    return "medium", effect, _write("madvise", *(_path(host.fact(name)) for name in sizes))


def _advice_ignored(host: Host) -> Verdict | None:
    if host.get("process.thp_disabled") != 1:
        return None
    return "high", "this process was forbidden huge pages (prctl): advice succeeds and does nothing", None


def _khugepaged_acts(host: Host) -> Verdict | None:
    mode, _ = _pmd_mode(host)
    if mode not in ("always", "madvise") or host.get("khugepaged.defrag") is not True:
        return None
    any_memory = mode == "always"
    which = 'any memory but "base"' if any_memory else "advised memory that is not huge yet (mTHP, say)"
    effect = f"khugepaged may turn {which} into huge pages in the middle of a run"
    return "medium" if any_memory else "low", effect, _write("0", f"{THP}/khugepaged/defrag")


def _fragmented(host: Host) -> Verdict | None:
    share = host.get("memory.free_huge")
    if not isinstance(share, int | float) or share >= 50:
        return None
    severity = "high" if share < 10 else "medium"
    effect = f"only {share} % of free memory can serve a huge page at once: they are refused, or slow to get"
    return severity, effect, _write("1", "proc/sys/vm/compact_memory")


def _short_of_memory(host: Host) -> Verdict | None:
    pressure, total = _number_of(host, "load.memory_pressure"), _number_of(host, "memory.total")
    available, left = _number_of(host, "memory.available"), _number_of(host, "limit.memory_left")
    if pressure > 1:
        return "medium", f"tasks wait for memory {pressure} % of the time: pages are reclaimed", None
    if total and available < total / 10:
        return "medium", f"only {_binary(int(available))} are available: pages may be reclaimed", None
    if left < _number_of(host, "limit.memory") / 10:
        return "medium", f"only {_binary(int(left))} are left below the limit of the control group", None
    return None


def _swaps(host: Host) -> Verdict | None:
    total, free = _number_of(host, "swap.total"), _number_of(host, "swap.free")
    if not total:
        return None
    used = total - free
    severity = "medium" if used > total / 10 else "low"
    return severity, f"pages may be written out in a run ({_binary(int(used))} are)", "sudo swapoff -a"


def _numa_balances(host: Host) -> Verdict | None:
    if not int(_number_of(host, "numa.balancing")) & 1 or _number_of(host, "numa.nodes") < 2:
        return None
    effect = "the kernel unmaps pages to see who uses them: hint faults and migration in the middle of a run"
    return "medium", effect, "sudo sysctl kernel.numa_balancing=0"


def _several_nodes(host: Host) -> Verdict | None:
    if _number_of(host, "numa.allowed") < 2:
        return None
    effect = "memory or page tables may lie on another node than the CPU: run under numactl -N 0 -m 0"
    return "low", effect, None


def _merges(host: Host) -> Verdict | None:
    if host.get("ksm.run") != 1:
        return None
    severity = "medium" if host.get("process.memory_merge") is True else "low"
    effect = "equal pages are merged: huge pages are split, and the next write faults"
    return severity, effect, _write("0", "sys/kernel/mm/ksm/run")


def _samples_access(host: Host) -> Verdict | None:
    if host.get("damon.running") is not True:
        return None
    effect = "DAMON clears accessed bits: the next walk to such a page has to write its entry"
    return "medium", effect, _write("off", "sys/kernel/mm/damon/admin/kdamonds/*/state")


def _clock_varies(host: Host) -> Verdict | None:
    governors = host.get("cpu.governor")
    if governors is None:
        return "unknown", "no governor is to be seen here: the clock may change in a run", None
    if governors == "performance":
        return None
    effect = f"governor {governors}: the core clock follows the load, and nanoseconds follow the clock"
    return "medium", effect, _write("performance", f"{CPUS}/cpufreq/policy*/scaling_governor")


def _boosts(host: Host) -> Verdict | None:
    boost = host.get("cpu.boost")
    if boost is None:
        return "unknown", "turbo cannot be seen here: the clock may depend on heat and on other cores", None
    if boost is False:
        return None
    intel = "intel_pstate" in host.fact("cpu.boost").source
    command = _write("1", f"{CPUS}/intel_pstate/no_turbo") if intel else _write("0", f"{CPUS}/cpufreq/boost")
    return "medium", "turbo: the clock depends on heat and on what other cores do", command


def _shares_core(host: Host) -> Verdict | None:
    if host.get("cpu.smt_active") is True:
        busy = _number_of(host, "load.average") > 1
        severity = "medium" if busy else "low"
        effect = "a sibling thread, if busy, takes its share of the TLBs and caches of our core"
        return severity, effect, _write("off", f"{CPUS}/smt/control")
    if host.get("virtualisation.guest") is True and host.get("kernel.arch") != "aarch64":
        return "unknown", "a guest cannot see who runs on the other thread of its core", None
    return None


def _loaded(host: Host) -> Verdict | None:
    load, cpus = _number_of(host, "load.average"), max(_number_of(host, "cpu.online"), 1)
    pressure = _number_of(host, "load.cpu_pressure")
    if load < max(cpus / 2, 1.5) and pressure < 5:  # our own process counts as one
        return None
    severity = "high" if load > cpus or pressure > 20 else "medium"
    effect = f"load {load} on {cpus:g} CPUs: others take caches, bandwidth and time from us"
    return severity, effect, None


def _stolen(host: Host) -> Verdict | None:
    share = _number_of(host, "load.stolen")
    if share < 1:
        return None
    return "high" if share > 10 else "medium", f"the hypervisor ran others in {share} % of our time", None


def _throttled(host: Host) -> Verdict | None:
    quota, cpus = _number_of(host, "limit.cpu"), _number_of(host, "cpu.allowed")
    if not quota or (cpus and quota >= cpus):
        return None
    return "medium", f"the control group grants {quota:g} CPUs: beyond that we stand still for a while", None


def _two_kinds_of_core(host: Host) -> Verdict | None:
    if host.get("cpu.hybrid") is not True:
        return None
    return "medium", "cores differ in their TLBs and in their clock: pin the measurement with cpu=", None


FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen", "arch_sys_counter")


def _slow_clock(host: Host) -> Verdict | None:
    clock = host.get("clock.source")
    if clock is None or clock in FAST_CLOCKS:
        return None
    offered = "tsc" in str(host.get("clock.available") or "").split()
    command = _write("tsc", "sys/devices/system/clocksource/clocksource0/current_clocksource")
    return "medium", f"clock source {clock}: reading the time is a system call", command if offered else None


def _watchdog_counts(host: Host) -> Verdict | None:
    if host.get("perf.nmi_watchdog") is not True or host.get("perf.pmu") in (None, "none"):
        return None
    effect = "the NMI watchdog holds one hardware counter: a full group of counters is multiplexed"
    return "low", effect, "sudo sysctl kernel.nmi_watchdog=0"


def _isolates_tables(host: Host) -> Verdict | None:
    if host.get("kernel.kpti") is not True:
        return None
    flush = host.get("paging.pcid") is False
    cost = " and empties the TLB, for want of PCID" if flush else ""
    effect = f"every entry to the kernel changes page tables{cost}; a protection: pti=off at boot ends it"
    return "medium" if flush else "low", effect, None


def _hidden_faults(host: Host) -> Verdict | None:
    if not _maybe_guest(host):
        return None
    effect = "a hypervisor may fault on memory that the guest has populated: no counter here shows it"
    return "unknown", effect, None


def _zero_page(host: Host) -> Verdict | None:
    if not _maybe_guest(host):
        return None
    effect = "a read of untouched memory may map the shared zero page or a page of its own: a probe tells"
    return "unknown", effect, None


RULES = (
    Rule("default pages are huge", ALL, ("thp.enabled",), _default_is_huge),
    Rule("default pages are mTHP", ALL, ("thp.enabled",), _default_is_mthp),
    Rule("advice is ignored", ALL, (), _advice_ignored),
    Rule("khugepaged", LOADS, ("thp.enabled", "khugepaged.defrag"), _khugepaged_acts),
    Rule("fragmented memory", ALL, ("memory.free_huge",), _fragmented),
    Rule("memory pressure", ALL, ("memory.available",), _short_of_memory),
    Rule("swap", ALL, ("swap.total",), _swaps),
    Rule("NUMA balancing", ALL, ("numa.balancing",), _numa_balances),
    Rule("several NUMA nodes", ALL, ("numa.allowed",), _several_nodes),
    Rule("page merging (KSM)", ALL, ("ksm.run",), _merges),
    Rule("access sampling (DAMON)", ALL, ("damon.running",), _samples_access),
    Rule("varying clock", ALL, (), _clock_varies),
    Rule("turbo", ALL, (), _boosts),
    Rule("SMT sibling", ALL, ("cpu.smt_active",), _shares_core),
    Rule("load", ALL, ("load.average",), _loaded),
    Rule("stolen time", ALL, ("load.stolen",), _stolen),
    Rule("CPU quota", ALL, (), _throttled),
    Rule("two kinds of core", ALL, ("cpu.hybrid",), _two_kinds_of_core),
    Rule("slow clock source", ALL, ("clock.source",), _slow_clock),
    Rule("NMI watchdog", ALL, (), _watchdog_counts),
    Rule("page-table isolation", ("fault", "shootdown"), ("kernel.kpti",), _isolates_tables),
    Rule("hidden faults", ALL, (), _hidden_faults),
    Rule("zero page", ("fault",), (), _zero_page),
)
