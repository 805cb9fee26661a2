"""Advice on pages: what a size needs of each kind of page, and which mappings of a program are huge.

Everything is read, nothing is changed: commands are printed for a person to run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import machine
from .pages import PagePolicy, page_policies
from .units import Size, approximate_size, format_size, page_suffix, parse_size

NODES = "sys/devices/system/node"


# --- what a size needs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageNeed:
    """What one size needs of one kind of page, and what there is of it.

    Attributes
    ----------
    policy : PagePolicy
        The kind of page, and whether the machine offers it.
    page_size, pages, unused_bytes : int
        Bytes of a page, pages needed, and bytes of the last one that stay unused.
    reserved : int or None
        Free pages of the hugetlb pool; ``None`` for pages that have none.
    obtainable : int or None
        Pages that the kernel could make now without moving anything: base pages of available memory, others
        of free blocks that are large enough; ``None`` where it lists no blocks so large.
    by_node : dict of int to tuple of int
        Both for each NUMA node, in pages: reserved, and in free blocks.
    left_bytes : int or None
        Memory that would be left available for everything else; negative if it does not fit.
    now, at_boot : str
        Command and kernel options that would provide it; empty where there is nothing to do.
    """

    policy: PagePolicy
    page_size: int
    pages: int
    unused_bytes: int
    reserved: int | None
    obtainable: int | None
    by_node: dict[int, tuple[int, int]]
    left_bytes: int | None
    now: str
    at_boot: str

    @property
    def enough(self) -> bool | None:
        """Whether it could be had now; ``None`` where nothing tells."""
        if (self.reserved or 0) >= self.pages:
            return True
        if self.left_bytes is not None and self.left_bytes < 0:
            return False
        return None if self.obtainable is None else (self.reserved or 0) + self.obtainable >= self.pages


def page_needs(size: Size, root: machine.Root = "/") -> list[PageNeed]:
    """Say what a size needs of each kind of page.

    Parameters
    ----------
    size : int or str
        Bytes.
    root : path
        Where proc and sys are.

    Returns
    -------
    list of PageNeed
        For base pages, every transparent and every hugetlb size, by page size.

    Examples
    --------
    >>> next(need.pages for need in page_needs("8GiB") if need.policy.kind == "base") * 4 >= 8
    True
    """
    wanted = parse_size(size)
    kinds = [policy for policy in page_policies(root) if policy.kind not in ("default", "collapse")]
    needs = (_need(wanted, policy, policy.page_size, root) for policy in kinds if policy.page_size)
    return sorted(needs, key=lambda need: (need.page_size, need.policy.kind))


def _need(wanted: int, policy: PagePolicy, page: int, root: machine.Root) -> PageNeed:
    pages = -(-wanted // page)
    pool = machine.hugetlb_pools(root).get(page) if policy.kind == "hugetlb" else None
    reserved = pool.available if pool else None
    available = machine.memory_available(root)
    blocks = _in_free_blocks(page, root)
    obtainable: int | None = sum(blocks.values()) if blocks else None
    if policy.kind == "base" and available is not None:
        obtainable = available // page  # caches give way, page by page
    pooled = _in_pools(page, root) if pool else {}
    nodes = sorted({*blocks, *pooled})
    return PageNeed(
        policy,
        page,
        pages,
        pages * page - wanted,
        reserved,
        obtainable,
        {node: (pooled.get(node, 0), blocks.get(node, 0)) for node in nodes},
        None if available is None else available - max(0, pages - (reserved or 0)) * page,
        _reserve_now(policy, pool, pages),
        _reserve_at_boot(policy, page, pages),
    )


def _in_pools(page: int, root: machine.Root) -> dict[int, int]:
    """Free pages of the pool on each node; the kernel does not say which of them are spoken for."""
    found = {}
    for name in machine.list_names(root, NODES):
        where = f"{NODES}/{name}/hugepages/hugepages-{page >> 10}kB/free_hugepages"
        text = machine.read_text(root, where)
        if re.fullmatch(r"node\d{1,6}", name) and text and text.isdecimal():
            found[int(name[4:])] = int(text)
    return found


def _in_free_blocks(page: int, root: machine.Root) -> dict[int, int]:
    """Pages within free blocks of at least that order, by node; none where blocks are never so large."""
    order = (page // machine.base_page_size()).bit_length() - 1
    found: dict[int, int] = {}
    for (node, _), blocks in machine.free_blocks(root).items():
        if order < len(blocks):
            whole = sum(count << (k - order) for k, count in enumerate(blocks) if k >= order)
            found[node] = found.get(node, 0) + whole
    return found


def _reserve_now(policy: PagePolicy, pool: machine.HugetlbPool | None, pages: int) -> str:
    if pool is None:
        return policy.command
    if pool.available >= pages:
        return ""
    total = pool.total + pages - pool.available
    return f"echo {total} | sudo tee /{machine.HUGETLB}/hugepages-{pool.page_size >> 10}kB/nr_hugepages"


def _reserve_at_boot(policy: PagePolicy, page: int, pages: int) -> str:
    if policy.kind == "hugetlb":
        return f"hugepagesz={page_suffix(page)} hugepages={pages}"
    if policy.kind == "mthp":
        return f"thp_anon={page_suffix(page)}:madvise"
    return "transparent_hugepage=madvise" if policy.kind == "thp" else ""


# --- which mappings of a program are huge ----------------------------------------------------------------

HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) [0-9a-f]+ \S+ (\d+) *(.*)$")
HUGE_FIELDS = ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Private_Hugetlb", "Shared_Hugetlb")


@dataclass(frozen=True)
class ProgramMapping:
    """One mapping of a program.

    Attributes
    ----------
    start, end : int
        Addresses.
    name : str
        File or kind, such as ``[heap]``; empty for anonymous memory.
    resident, huge : int
        Bytes in memory, and bytes of those mapped by huge pages.
    page_size : int
        Bytes of the huge pages in question: the hugetlb size, else PMD size.
    reason : str
        Why the rest is not huge; empty if nothing is.
    """

    start: int
    end: int
    name: str
    resident: int
    huge: int
    page_size: int
    reason: str

    @property
    def size(self) -> int:
        """Bytes of the mapping."""
        return self.end - self.start


def program_mappings(pid: int, root: machine.Root = "/") -> list[ProgramMapping]:
    """Tell which mappings of a running program are huge, which are not, and why not.

    Parameters
    ----------
    pid : int
        Of the program.
    root : path
        Where proc and sys are.

    Returns
    -------
    list of ProgramMapping
        Largest resident first; mappings with nothing in memory are left out.

    Raises
    ------
    ProcessLookupError
        If there is no such program, or it ended while it was read.
    PermissionError
        If it is somebody else's.
    """
    if isinstance(pid, bool) or not isinstance(pid, int) or pid < 1:
        raise ValueError(f"pid={pid!r} must be the number of a running program, at least 1")
    text = _read_smaps(pid, root)
    status = machine.read_text(root, f"proc/{pid}/status") or ""
    forbidden = re.search(r"^THP_enabled:\s*0", status, re.MULTILINE) is not None
    pmd = machine.pmd_size(root)
    mode = machine.thp_mode(root)
    own = machine.mthp_modes(root).get(pmd or 0, "inherit")
    rules = _Rules(pmd, mode if own == "inherit" else own, forbidden)
    found = (_mapping(head, fields, rules) for head, fields in _smaps_entries(text))
    return sorted((one for one in found if one.resident), key=lambda one: -one.resident)


def _read_smaps(pid: int, root: machine.Root) -> str:
    try:
        text = Path(root, f"proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(f"pid={pid}: there is no such program, or it has ended") from error
    except PermissionError as error:
        error.add_note(f"pid={pid} is another user's program: run this as that user or as root")
        raise
    if not text.strip():
        raise ProcessLookupError(
            f"pid={pid}: a kernel thread, or a program that has ended: it has no mappings"
        )
    return text


def _smaps_entries(text: str) -> Iterator[tuple[re.Match[str], dict[str, str]]]:
    head: re.Match[str] | None = None
    fields: dict[str, str] = {}
    for line in text.splitlines():
        if match := HEAD.match(line):
            if head:
                yield head, fields
            head, fields = match, {}
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    if head and "VmFlags" in fields:  # the last one may be cut short when the program ends
        yield head, fields


@dataclass(frozen=True)
class _Rules:
    """What decides whether ordinary memory of a program may be huge."""

    pmd: int | None
    mode: str | None
    forbidden: bool  # by prctl


def _bytes(fields: dict[str, str], names: Iterable[str]) -> int:
    values = (fields.get(name, "0 kB").split() for name in names)
    return sum(int(value[0]) * 1024 for value in values if value and value[0].isdecimal())


def _mapping(head: re.Match[str], fields: dict[str, str], rules: _Rules) -> ProgramMapping:
    start, end, _, inode, name = head.groups()
    first, last = int(start, 16), int(end, 16)
    flags = set(fields.get("VmFlags", "").split())
    huge = _bytes(fields, HUGE_FIELDS)
    resident = _bytes(fields, ("Rss", "Private_Hugetlb", "Shared_Hugetlb"))
    page = _bytes(fields, ("KernelPageSize",)) if "ht" in flags else rules.pmd or 0
    reason = "" if huge >= resident else _why_not(first, last, inode != "0", huge, flags, rules)
    return ProgramMapping(first, last, name, resident, huge, page, reason)


def _why_not(first: int, last: int, file: bool, huge: int, flags: set[str], rules: _Rules) -> str:
    """The first thing in the way."""
    if rules.pmd is None:
        return "this kernel has no transparent huge pages"
    if file:
        return "file: the file system decides, advice does not help"
    if rules.forbidden:
        return "disabled for this program (prctl PR_SET_THP_DISABLE)"
    if "nh" in flags:
        return "disabled by the program (MADV_NOHUGEPAGE)"
    if last - first < rules.pmd:
        return f"too small: less than {format_size(rules.pmd)}"
    if -(-first // rules.pmd) * rules.pmd + rules.pmd > last:
        return f"unaligned: holds no whole aligned {format_size(rules.pmd)}"
    if rules.mode == "never":
        return f"disabled: /{machine.THP}/enabled is 'never'"
    if rules.mode == "madvise" and "hg" not in flags:
        return "not advised (MADV_HUGEPAGE)"
    if huge:
        return "partly: the ends are unaligned, or huge pages were short, split or touched before the advice"
    return "may be huge, but was touched before the advice, or huge pages were short"


def whole_program(mappings: Iterable[ProgramMapping]) -> str:
    """One line on all of them."""
    found = list(mappings)
    resident, huge = sum(one.resident for one in found), sum(one.huge for one in found)
    share = f" ({huge / resident:.0%})" if resident else ""
    return f"{approximate_size(huge)} of {approximate_size(resident)} resident are on huge pages{share}"
