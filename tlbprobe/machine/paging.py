"""Pages as the kernel is set up: sizes, transparent huge pages, pools, free blocks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..cores.current import current
from .files import CPUS, Root, bracketed, is_live, list_names, parse_fields, read_int, read_text

THP = "sys/kernel/mm/transparent_hugepage"
HUGETLB = "sys/kernel/mm/hugepages"
PR_GET_THP_DISABLE = 42
PR_GET_MEMORY_MERGE = 68
PLENTY = 1 << 62  # bytes


# --- pages -----------------------------------------------------------------------------------------------


def base_page_size() -> int:
    """Bytes of the smallest translation unit."""
    return current().pages[0] if current().pages else os.sysconf("SC_PAGESIZE")


def _given_pages(root: Root) -> tuple[int, ...]:
    """Page sizes of a simulated machine, if that is what the running one is; else none."""
    return current().pages if is_live(root) else ()


def _given_pmd(root: Root) -> int | None:
    """Bytes that one of its page tables maps, if it has such pages."""
    pages = _given_pages(root)
    size = pages[0] // 8 * pages[0] if pages else 0
    return size if size in pages else None


def cache_line_size(root: Root = "/") -> int:
    """Bytes of one cache line; 64 where neither sysfs nor the C library knows."""
    if _given_pages(root):
        return current().line
    line = read_int(root, f"{CPUS}/cpu0/cache/index0/coherency_line_size")
    if not _is_line(line) and is_live(root) and "SC_LEVEL1_DCACHE_LINESIZE" in os.sysconf_names:
        line = os.sysconf("SC_LEVEL1_DCACHE_LINESIZE")
    return line if line is not None and _is_line(line) else 64


def _is_line(line: int | None) -> bool:
    return line in (16, 32, 64, 128, 256, 512)


def pmd_size(root: Root = "/") -> int | None:
    """Bytes of a PMD-sized transparent huge page."""
    if _given_pages(root):
        return _given_pmd(root)
    size = read_int(root, f"{THP}/hpage_pmd_size")
    return size if size is not None and is_page_size(size) else None


def is_page_size(size: int) -> bool:
    """Whether a number of bytes may be a page: a power of two within reason."""
    return 0 < size <= 1 << 40 and size & size - 1 == 0


def thp_mode(root: Root = "/") -> str | None:
    """Return the transparent huge page mode: ``always``, ``madvise`` or ``never``."""
    if _given_pages(root):
        return "madvise"
    return bracketed(read_text(root, f"{THP}/enabled"))


def shmem_mode(root: Root = "/") -> str | None:
    """Mode of huge pages for shared memory: ``always``, ``within_size``, ``advise``, ``never`` ..."""
    return bracketed(read_text(root, f"{THP}/shmem_enabled"))


def shmem_is_small(root: Root = "/") -> bool:
    """Whether shared memory without advice is of base pages, by the settings of every size."""
    modes = {bracketed(read_text(root, f"{THP}/{name}/shmem_enabled")) for _, name in _sized(root, THP)}
    return not {shmem_mode(root), *modes} & {"always", "within_size", "force"}


def mthp_modes(root: Root = "/") -> dict[int, str]:
    """Mode of each transparent huge page size in bytes, ``inherit`` included; shmem-only sizes left out."""
    if pages := _given_pages(root):
        return dict.fromkeys((size for size in pages[1:] if size <= (_given_pmd(root) or 0)), "inherit")
    modes = {size: bracketed(read_text(root, f"{THP}/{name}/enabled")) for size, name in _sized(root, THP)}
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
    if _given_pages("/"):
        return 0
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
    if pages := _given_pages(root):  # no pool is too small; pages of PMD size are transparent ones
        large = (size for size in pages[1:] if size > (_given_pmd(root) or 0))
        return {size: HugetlbPool(size, PLENTY // size, PLENTY // size, 0, 0, 0) for size in large}
    return {size: pool for size, name in sorted(_sized(root, HUGETLB)) if (pool := _pool(root, size, name))}


def _pool(root: Root, size: int, name: str) -> HugetlbPool | None:
    counts = [read_int(root, f"{HUGETLB}/{name}/{file}") for file in POOL_FILES]
    known = [count for count in counts if count is not None]
    return HugetlbPool(size, *known) if len(known) == len(counts) else None


def default_hugetlb_size(root: Root = "/") -> int | None:
    """Page size of a plain MAP_HUGETLB."""
    if _given_pages(root):
        return None
    size = parse_fields(read_text(root, "proc/meminfo")).get("Hugepagesize")
    return size if size and is_page_size(size) else None


# --- other readers ---------------------------------------------------------------------------------------


def free_blocks(root: Root = "/") -> dict[tuple[int, str], tuple[int, ...]]:
    """Free blocks of each node and zone by order: entry k counts blocks of 2**k base pages."""
    text = read_text(root, "proc/buddyinfo") or ""
    rows = re.findall(r"^Node +([0-9]{1,6}), zone +(\w+)([ 0-9]+)$", text, re.MULTILINE)
    return {(int(node), zone): tuple(int(n[:18]) for n in counts.split()) for node, zone, counts in rows}
