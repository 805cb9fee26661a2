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
        Pages that memory would give now, were they offered: base pages of available memory, caches
        included; others of free blocks that are large enough, without moving anything. ``None`` where the
        kernel lists no blocks so large.
    by_node : dict of int to tuple of int
        For each NUMA node, in pages: free in the pool, and in free blocks.
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
        """Whether memory has it now, with the command `now` if there is one; ``None`` where nothing tells."""
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
    >>> {need.pages * need.page_size for need in page_needs("8GiB") if need.page_size <= 1 << 30}
    {8589934592}
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
        _reserve_now(policy, pool, pages, root),
        _reserve_at_boot(policy, pool, pages),
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


def _reserve_now(policy: PagePolicy, pool: machine.HugetlbPool | None, pages: int, root: machine.Root) -> str:
    if pool is None:
        return policy.command
    available = machine.memory_available(root)
    short = (pages - pool.available) * pool.page_size
    if short <= 0 or (available is not None and short > available):
        return ""  # enough, or it would take more memory than there is
    total = pool.total + pages - pool.available
    return f"echo {total} | sudo tee /{machine.HUGETLB}/hugepages-{pool.page_size >> 10}kB/nr_hugepages"


def _reserve_at_boot(policy: PagePolicy, pool: machine.HugetlbPool | None, pages: int) -> str:
    size = page_suffix(policy.page_size or 0)
    if pool is not None:
        more = max(0, pages - pool.available)
        return f"hugepagesz={size} hugepages={pool.total + more}" if more else ""
    if policy.offered:
        return ""
    return f"thp_anon={size}:madvise" if policy.kind == "mthp" else "transparent_hugepage=madvise"


# --- which mappings of a program are huge ----------------------------------------------------------------

HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) [0-9a-f]+ \S+ (\d+) *(.*)$")
SHARED_MEMORY = ("/dev/zero", "/memfd:", "/SYSV", "/dev/shm/")  # names of memory that no file system holds
SHMEM_MODES = {"advise": "madvise", "force": "always", "within_size": "always"}  # in the words of THP
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
    if isinstance(pid, bool) or not isinstance(pid, int):
        raise TypeError(f"pid={pid!r} must be the number of a running program")
    if pid < 1:
        raise ValueError(f"pid={pid!r} must be the number of a running program, at least 1")
    text = _read_smaps(pid, root)
    status = machine.read_text(root, f"proc/{pid}/status") or ""
    forbidden = re.search(r"^THP_enabled:\s*0", status, re.MULTILINE) is not None
    pmd = machine.pmd_size(root)
    mode = machine.thp_mode(root)
    own = machine.mthp_modes(root).get(pmd or 0, "inherit")
    own_file = f"{machine.THP}/hugepages-{(pmd or 0) >> 10}kB/enabled"
    setting = (mode, f"{machine.THP}/enabled") if own == "inherit" else (own, own_file)
    rules = _Rules(pmd, *setting, machine.shmem_mode(root), forbidden)
    found = (_mapping(head, fields, rules) for head, fields in _smaps_entries(text))
    return sorted((one for one in found if one.resident), key=lambda one: -one.resident)


def _read_smaps(pid: int, root: machine.Root) -> str:
    try:
        text = Path(root, f"proc/{pid}/smaps").read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(f"pid={pid}: there is no such program, or it has ended") from error
    except PermissionError as error:
        error.add_note(
            f"pid={pid} is another user's program, or one that the kernel protects: its user may read it, "
            "or root with CAP_SYS_PTRACE"
        )
        raise
    if not text.strip():
        raise ProcessLookupError(
            f"pid={pid}: a kernel thread, or a program that has ended: it has no mappings"
        )
    return text


def _smaps_entries(text: str) -> Iterator[tuple[re.Match[str], dict[str, str]]]:
    head: re.Match[str] | None = None
    fields: dict[str, str] = {}
    for line in text.split("\n"):  # no other line break is one here: names of files may hold them
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
    file: str  # that sets the mode
    shmem: str | None  # mode of shared memory
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
    shared = inode != "0" and name.startswith(SHARED_MEMORY)
    reason = "" if huge >= resident else _why_not(first, last, inode != "0", shared, huge, flags, rules)
    return ProgramMapping(first, last, name, resident, huge, page, reason)


def _why_not(
    first: int, last: int, file: bool, shared: bool, huge: int, flags: set[str], rules: _Rules
) -> str:
    """The first thing in the way."""
    if rules.pmd is None:
        return "this kernel has no transparent huge pages"
    if shared and rules.shmem in (None, "never", "deny"):
        return f"shared memory: /{machine.THP}/shmem_enabled is {rules.shmem!r}"
    if file and not shared:
        return "file: the file system decides, advice does not help"
    if rules.forbidden:
        return "disabled for this program (prctl PR_SET_THP_DISABLE)"
    if "nh" in flags:
        return "disabled by the program (MADV_NOHUGEPAGE)"
    if last - first < rules.pmd:
        return f"too small: less than {format_size(rules.pmd)}"
    if -(-first // rules.pmd) * rules.pmd + rules.pmd > last:
        return f"unaligned: holds no whole aligned {format_size(rules.pmd)}"
    shared_mode = SHMEM_MODES.get(rules.shmem or "", rules.shmem)
    mode = shared_mode if shared else rules.mode
    if mode == "never":
        return f"disabled: /{rules.file} is 'never'"
    if mode == "madvise" and "hg" not in flags:
        return "not advised (MADV_HUGEPAGE)"
    if huge >= _aligned(first, last, rules.pmd):
        return f"all but the ends, which fill no aligned {format_size(rules.pmd)}"
    touched = "" if mode == "always" else "touched before the advice, or "
    return (
        f"{'partly: the rest' if huge else 'may be huge, but'} was {touched}mapped when huge pages were short"
    )


def _aligned(first: int, last: int, page: int) -> int:
    """Bytes within whole aligned pages."""
    return max(0, last // page * page - -(-first // page) * page)


def whole_program(mappings: Iterable[ProgramMapping]) -> str:
    """One line on all of them."""
    found = list(mappings)
    resident, huge = sum(one.resident for one in found), sum(one.huge for one in found)
    share = f" ({huge / resident:.0%})" if resident else ""
    return f"{approximate_size(huge)} of {approximate_size(resident)} resident are on huge pages{share}"
