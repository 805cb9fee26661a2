"""Limits of memory and time that the kernel puts on this process: control groups, rlimits, overcommit."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..units import POWERS
from .files import Root, list_names, parse_fields, read_int, read_text
from .paging import base_page_size

NO_LIMIT = 1 << 62  # cgroup v1 writes "none" as LONG_MAX rounded down to a page of whatever size


def memory_available(root: Root = "/") -> int | None:
    """Bytes that can be had without swapping, as the kernel estimates it."""
    return parse_fields(read_text(root, "proc/meminfo")).get("MemAvailable")


def max_map_count(root: Root = "/") -> int | None:
    """Most mappings that one process may have."""
    return read_int(root, "proc/sys/vm/max_map_count")


def overcommit_memory(root: Root = "/") -> int | None:
    """Whether address space needs memory behind it: 0 heuristically, 1 never, 2 always."""
    return read_int(root, "proc/sys/vm/overcommit_memory")


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
    groups = control_groups(root, {"memory", "hugetlb"})
    return [limit for point, group in groups for limit in _group_limits(root, point, group)]


@dataclass(frozen=True)
class _Mount:
    root: str  # the group that the mount point shows
    point: str
    controllers: frozenset[str]  # empty: the unified hierarchy of cgroup v2


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


def control_groups(root: Root, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Each group with a wanted controller, from our own to the topmost visible one: mount point, path."""
    mounts = list(_mounts(root))
    for line in (read_text(root, "proc/self/cgroup") or "").splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        serving = wanted & set(controllers.split(","))
        shown = [m for m in mounts if (serving & m.controllers if controllers else not m.controllers)]
        if shown and path:
            mount = min(shown, key=lambda m: (_path_below(m.root, path) is None, len(m.root)))
            for group in _ancestors(_path_below(mount.root, path) or ()):
                yield mount.point.lstrip("/"), group


def _path_below(mount_root: str, path: str) -> tuple[str, ...] | None:
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
        limit = read_int(root, f"{where}/{name}")  # 'max' is no number: no limit
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
    return int(size[1]) << POWERS[size[2]] if size else None


def _group_usage(root: Root, where: str, limit_name: str) -> int | None:
    stem, _, suffix = limit_name.rpartition(".")
    usage = read_int(root, f"{where}/{stem}.{USAGE_FILE[suffix]}")
    if usage is None or stem != "memory":
        return usage
    stat = parse_fields(read_text(root, f"{where}/memory.stat"))
    # v1 counts the groups below only under total_*
    cache = (stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, usage - sum(cache))


def cpu_quota(root: Root = "/") -> float | None:
    """CPUs' worth of time that control groups grant, or ``None`` without a limit."""
    quotas = [_group_quota(root, str(PurePosixPath(*group))) for group in control_groups(root, {"cpu"})]
    return min((quota for quota in quotas if quota), default=None)


def _group_quota(root: Root, where: str) -> float | None:
    both = read_text(root, f"{where}/cpu.max")  # v2: quota and period in one file
    if both is None:
        both = " ".join(read_text(root, f"{where}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    found = re.fullmatch(r"([0-9]{1,18}) ([0-9]{1,18})", both)
    return int(found[1]) / int(found[2]) if found and int(found[2]) else None
