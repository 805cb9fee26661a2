"""What /proc and /sys say about memory: page sizes, pools, limits.

Everything is read from files below a root, so that a recorded tree of /proc and /sys is a machine too.
Nothing here raises for what a machine lacks: an absent or garbled file is ``None``, never zero.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

Root = str | os.PathLike[str]

THP = "sys/kernel/mm/transparent_hugepage"
HUGETLB = "sys/kernel/mm/hugepages"
CPUS = "sys/devices/system/cpu"
PR_GET_THP_DISABLE = 42
PR_GET_MEMORY_MERGE = 68
NO_LIMIT = 1 << 62  # cgroup v1 writes "none" as LONG_MAX rounded down to a page of whatever size
MOST_BYTES = 1 << 20  # no file read here is longer on a sane machine
ONE_PROCESSOR = 1 << 14  # bytes of /proc/cpuinfo that hold all of the first one


# --- files -----------------------------------------------------------------------------------------------


def load_text(root: Root, path: str, most: int = MOST_BYTES) -> str:
    """Text of one file, or an OSError."""
    place = Path(root, path)
    if place.is_fifo() or place.is_char_device():  # no odd file can hang us
        raise OSError(errno.EINVAL, "not a regular file", str(place))
    with place.open("rb") as file:
        return file.read(most).decode("utf-8", "replace")


def read_text(root: Root, path: str) -> str | None:
    """Text of one file, or ``None`` where it is missing, unreadable or empty."""
    try:
        return load_text(root, path).strip() or None
    except (OSError, ValueError):
        return None


def list_names(root: Root, path: str) -> list[str]:
    """Names in a folder; none where it cannot be read."""
    try:
        return sorted(os.listdir(Path(root, path)))  # noqa: PTH208 - names, not paths
    except (OSError, ValueError):
        return []


def parse_count(text: str) -> int:
    """Parse a number that fits what the kernel counts with; anything else is a ValueError."""
    number = int(text)
    if not 0 <= number < 1 << 63:
        raise ValueError(text)
    return number


def exists(root: Root, path: str) -> bool:
    """Whether something can be seen there."""
    try:
        return Path(root, path).exists()
    except (OSError, ValueError):
        return False


def _read_int(root: Root, path: str) -> int | None:
    try:
        return parse_count(read_text(root, path) or "")
    except ValueError:
        return None


def _bracketed(text: str | None) -> str | None:
    """Return the chosen word of 'always [madvise] never'."""
    chosen = re.search(r"\[(\w[\w+-]*)\]", text or "")
    return chosen[1] if chosen else None


def parse_fields(text: str | None) -> dict[str, int]:
    """'MemFree:  12 kB' and 'anon 12' lines as name to bytes or count."""
    rows = re.findall(r"^([\w()]+):?\s+([0-9]{1,18})(?: (kB))?\s*$", text or "", re.MULTILINE)
    return {name: int(value) * (1024 if unit else 1) for name, value, unit in rows}


def named_lines(text: str) -> dict[str, str]:
    """'name : value' lines."""
    rows = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def cpuinfo(root: Root = "/") -> dict[str, str]:
    """Fields of the first processor: the whole file is slow to read on a large machine."""
    try:
        return named_lines(load_text(root, "proc/cpuinfo", ONE_PROCESSOR).partition("\n\n")[0])
    except (OSError, ValueError):
        return {}


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
    return size if size is not None and is_page_size(size) else None


def is_page_size(size: int) -> bool:
    """Whether a number of bytes may be a page: a power of two within reason."""
    return 0 < size <= 1 << 40 and size & size - 1 == 0


def thp_mode(root: Root = "/") -> str | None:
    """Return the transparent huge page mode: ``always``, ``madvise`` or ``never``."""
    return _bracketed(read_text(root, f"{THP}/enabled"))


def shmem_mode(root: Root = "/") -> str | None:
    """Mode of huge pages for shared memory: ``always``, ``within_size``, ``advise``, ``never`` ..."""
    return _bracketed(read_text(root, f"{THP}/shmem_enabled"))


def shmem_is_small(root: Root = "/") -> bool:
    """Whether shared memory without advice is of base pages, by the settings of every size."""
    modes = {_bracketed(read_text(root, f"{THP}/{name}/shmem_enabled")) for _, name in _sized(root, THP)}
    return not {shmem_mode(root), *modes} & {"always", "within_size", "force"}


def mthp_modes(root: Root = "/") -> dict[int, str]:
    """Mode of each transparent huge page size in bytes, ``inherit`` included; shmem-only sizes left out."""
    modes = {size: _bracketed(read_text(root, f"{THP}/{name}/enabled")) for size, name in _sized(root, THP)}
    return {size: mode for size, mode in sorted(modes.items()) if mode}


def _sized(root: Root, path: str) -> Iterator[tuple[int, str]]:
    """Directories hugepages-<n>kB below `path`, with their size in bytes."""
    for name in list_names(root, path):
        named = re.fullmatch(r"hugepages-([0-9]{1,12})kB", name)
        if named and is_page_size(size := int(named[1]) * 1024):
            yield size, name


def thp_disabled() -> int | None:
    """Whether this process may have huge pages: 0 yes, 1 never, 3 only where it asks by madvise.

    Set by ``prctl(PR_SET_THP_DISABLE)`` and inherited through exec; advice is then silently ineffective.
    """
    flags = ask_prctl(PR_GET_THP_DISABLE)
    if flags >= 0:
        return flags
    enabled = parse_fields(read_text("/", "proc/self/status")).get("THP_enabled")
    return None if enabled is None else int(not enabled)


def ask_prctl(option: int) -> int:
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
    size = parse_fields(read_text(root, "proc/meminfo")).get("Hugepagesize")
    return size if size and is_page_size(size) else None


# --- memory limits ---------------------------------------------------------------------------------------


def memory_available(root: Root = "/") -> int | None:
    """Bytes that can be had without swapping, as the kernel estimates it."""
    return parse_fields(read_text(root, "proc/meminfo")).get("MemAvailable")


def max_map_count(root: Root = "/") -> int | None:
    """Most mappings that one process may have."""
    return _read_int(root, "proc/sys/vm/max_map_count")


def overcommit_memory(root: Root = "/") -> int | None:
    """Whether address space needs memory behind it: 0 heuristically, 1 never, 2 always."""
    return _read_int(root, "proc/sys/vm/overcommit_memory")


def address_space_limit() -> int | None:
    """Bytes of address space left below RLIMIT_AS, or ``None`` without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    pages = re.match(r"[0-9]+", read_text("/", "proc/self/statm") or "")
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


def file_system(device: int, root: Root = "/") -> str | None:
    """Type of the file system with a device number, such as ``ext4``; ``None`` where no mount tells."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in (read_text(root, "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        if after and before.split()[2:3] == [wanted]:
            return after.split()[0]
    return None


def _mounts(root: Root) -> Iterator[_Mount]:
    for line in (read_text(root, "proc/self/mountinfo") or "").splitlines():
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
    for line in (read_text(root, "proc/self/cgroup") or "").splitlines():
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
    for name in filter(LIMIT_FILE.fullmatch, list_names(root, where)):
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
    stat = parse_fields(read_text(root, f"{where}/memory.stat"))
    # v1 counts the groups below only under total_*
    cache = (stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, usage - sum(cache))


# --- other readers ---------------------------------------------------------------------------------------


def free_blocks(root: Root = "/") -> dict[tuple[int, str], tuple[int, ...]]:
    """Free blocks of each node and zone by order: entry k counts blocks of 2**k base pages."""
    text = read_text(root, "proc/buddyinfo") or ""
    rows = re.findall(r"^Node +([0-9]{1,6}), zone +(\w+)([ 0-9]+)$", text, re.MULTILINE)
    return {(int(node), zone): tuple(int(n[:18]) for n in counts.split()) for node, zone, counts in rows}


def vmstat(root: Root = "/") -> dict[str, int]:
    """Event counters of the memory manager since boot, to be read before and after a run."""
    return parse_fields(read_text(root, "proc/vmstat"))


def cpu_quota(root: Root = "/") -> float | None:
    """CPUs' worth of time that control groups grant, or ``None`` without a limit."""
    quotas = [_group_quota(root, str(PurePosixPath(*group))) for group in _groups(root, {"cpu"})]
    return min((quota for quota in quotas if quota), default=None)


def _group_quota(root: Root, where: str) -> float | None:
    both = read_text(root, f"{where}/cpu.max")  # v2: quota and period in one file
    if both is None:
        both = " ".join(read_text(root, f"{where}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    found = re.fullmatch(r"([0-9]{1,18}) ([0-9]{1,18})", both)
    return int(found[1]) / int(found[2]) if found and int(found[2]) else None
