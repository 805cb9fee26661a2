"""The memory budget: what would not fit is refused with the figures, before anything is mapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..machine import files, limits, paging
from ..units import approximate_size, format_size
from .policies import HUGETLB_FOLDER, PagePolicy, alignment_of, find_policy, piece_of

# Bytes that a region leaves to the rest of the system, whatever the kernel says is available.
MARGIN = 64 << 20
# Bytes of address space that a region leaves to the interpreter.
ADDRESS_MARGIN = 16 << 20


@dataclass(frozen=True)
class Need:
    """What one resource has to give, and what it has left."""

    resource: str
    needed: int  # bytes
    available: int  # bytes
    fixed: int = 0  # bytes of those needed that do not grow with the size
    remedy: str = ""  # the command that would raise it

    def fitting(self, mapped: int) -> int:
        """Bytes that could be mapped instead of `mapped`."""
        return max(0, (self.available - self.fixed) * mapped // (self.needed - self.fixed))


def page_table_bytes(mapped: int) -> int:
    """Bytes of the lowest page tables: eight a base page, kept in reserve below huge pages too."""
    return -(-mapped // paging.base_page_size()) * 8


def budget(mapped: int, policy: PagePolicy, root: files.Root = "/") -> list[Need]:
    """What mapping and populating would take from each limited resource.

    Parameters
    ----------
    mapped : int
        Bytes, whole pages of the policy.
    policy : PagePolicy
        Where they come from.
    root : path
        Where /proc and /sys are read.

    Returns
    -------
    list of Need
        MemAvailable, every control group limit above this process, the hugetlb pool, RLIMIT_AS.
    """
    base = paging.base_page_size()
    huge = policy.kind == "hugetlb"
    tables = page_table_bytes(mapped) if _has_lowest_tables(policy) else 0
    collapsing = policy.page_size or 0 if policy.kind == "collapse" else 0  # the new page beside the old
    fixed = MARGIN + 3 * base + collapsing  # a table of each upper level
    margins = 0 if huge else alignment_of(policy) + 2 * base
    return [
        *ordinary_needs((0 if huge else mapped) + tables, fixed, root),
        *(_hugetlb_needs(mapped, policy, fixed + tables, root) if huge else ()),
        *address_needs(mapped, margins + ADDRESS_MARGIN),
        *_map_needs(mapped, policy, root),
    ]


def _has_lowest_tables(policy: PagePolicy) -> bool:
    """All but hugetlb pages of at least PMD size: one table, a page of 8-byte entries, covers that."""
    base = paging.base_page_size()
    return policy.kind != "hugetlb" or (policy.page_size or base) < base // 8 * base


def ordinary_needs(growing: int, fixed: int, root: files.Root) -> Iterator[Need]:
    """Needs of memory that is in no pool: of what is available, and of every control group above us."""
    needed = growing + fixed
    available = limits.memory_available(root)
    if available is not None:
        yield Need("MemAvailable of /proc/meminfo", needed, available, fixed)
    for limit in limits.memory_limits(root):
        if limit.kind == "memory":
            yield Need(f"control group limit {limit.source}", needed, limit.headroom, fixed)


def _hugetlb_needs(mapped: int, policy: PagePolicy, beside: int, root: files.Root) -> Iterator[Need]:
    size = policy.page_size or 1
    pool = paging.hugetlb_pools(root).get(size)
    if pool:
        available = pool.available + _surplus_pages(pool, beside, root)
        pages = pool.total + mapped // size - pool.available
        remedy = f"echo {pages} | sudo tee {HUGETLB_FOLDER}/hugepages-{size >> 10}kB/nr_hugepages"
        ordinary = limits.memory_available(root)
        if ordinary is not None and mapped - pool.available * size > ordinary - MARGIN:
            remedy = ""  # it would take all the memory of the machine, or more
        name = f"hugetlb pool of {format_size(size)} pages"
        yield Need(name, mapped, available * size, remedy=remedy)
    for limit in limits.memory_limits(root):
        if limit.kind == "hugetlb" and limit.page_size == size:
            yield Need(f"control group limit {limit.source}", mapped, limit.headroom)


def _surplus_pages(pool: paging.HugetlbPool, beside: int, root: files.Root) -> int:
    """Pages that the pool may grow by: they come out of ordinary memory."""
    allowed = max(0, pool.overcommit - pool.surplus)
    free = limits.memory_available(root)
    return allowed if free is None else min(allowed, max(0, free - beside) // pool.page_size)


def address_needs(growing: int, fixed: int) -> Iterator[Need]:
    """Need of address space, where that is limited."""
    left = limits.address_space_limit()
    if left is not None:
        name = "address space limit (RLIMIT_AS, ulimit -v)"
        yield Need(name, growing + fixed, left, fixed, "ulimit -v unlimited")


def _map_needs(mapped: int, policy: PagePolicy, root: files.Root) -> Iterator[Need]:
    piece = piece_of(policy)
    left = _mappings_left(root) if piece else None
    if left is not None:
        more = -(-mapped // piece) - left
        remedy = f"sudo sysctl vm.max_map_count={(limits.max_map_count(root) or 0) + more}"
        name = f"mappings of {format_size(piece)} each (sysctl vm.max_map_count)"
        yield Need(name, mapped, max(0, left) * piece, remedy=remedy)


def _mappings_left(root: files.Root) -> int | None:
    """Mappings that this process may still make, some kept for the interpreter."""
    most = limits.max_map_count(root)
    try:
        used = Path(root, "proc/self/maps").read_bytes().count(b"\n")
    except OSError:  # no /proc
        return None
    return None if most is None else most - used - 64


def fit_together(wanted: Iterable[tuple[int, PagePolicy]], root: files.Root = "/") -> bool:
    """Whether regions of so many mapped bytes on these policies can exist at the same time.

    Hugetlb pages come from pools of their own, one for each policy.
    """
    ordinary = [(mapped, policy) for mapped, policy in wanted if policy.kind != "hugetlb"]
    pieces = sum(-(-mapped // piece_of(policy)) for mapped, policy in ordinary if piece_of(policy))
    left = _mappings_left(root) if pieces else None
    if left is not None and pieces > left:
        return False
    whole = sum(mapped for mapped, _ in ordinary)
    needs = budget(whole, find_policy("base"), root=root) if whole else []
    return all(need.needed <= need.available for need in needs)


def check_budget(mapped: int, policy: PagePolicy, what: str, root: files.Root = "/") -> None:
    """Raise a MemoryError with the figures if it would not fit, before anything is mapped."""
    short = [need for need in budget(mapped, policy, root) if need.needed > need.available]
    if not short:
        return
    page = policy.page_size or paging.base_page_size()
    if short[0].needed == short[0].fixed:  # hugetlb pages, but no memory for anything beside them
        worst, fits = short[0], 0
    else:
        worst = min(short, key=lambda need: need.fitting(mapped))
        fits = worst.fitting(mapped)
        # What is left of memory moves between two calls, so name a size that will still fit: leading bits.
        unit = max(page, 1 << fits.bit_length() >> 7) if worst.fixed else page
        fits = fits // unit * unit
    advice = f"the largest size that would fit is {format_size(fits)}" if fits else "no size would fit"
    if worst.remedy:
        advice += f"; to make room: {worst.remedy}"
    raise MemoryError(
        f"{what} needs {approximate_size(worst.needed)} (everything included) of: {worst.resource}, "
        f"which has {approximate_size(worst.available)} left; {advice}"
    )


def sparse_bytes(mapped: int, touched: int, base: int) -> int:
    """Bytes of touched pages, no two in one cell, and of every page table above them.

    A table is a base page of 8-byte entries: each level covers as many times more than the one below.
    """
    tables, covered = 0, base
    while covered < mapped:
        covered *= base // 8
        tables += min(touched, -(-mapped // covered) + 1)
    return (touched + tables) * base


def check_sparse_budget(mapped: int, touched: int, what: str, root: files.Root = "/") -> None:
    """Raise a MemoryError if touched pages would not fit, or no address space is to be had for the others."""
    if limits.overcommit_memory(root) == 2:
        raise MemoryError(
            f"{what} needs {approximate_size(mapped)} of address space without memory, which the setting "
            "vm.overcommit_memory=2 refuses; to allow it: sudo sysctl vm.overcommit_memory=0"
        )
    needs = [
        *ordinary_needs(sparse_bytes(mapped, touched, paging.base_page_size()), MARGIN, root),
        *address_needs(mapped, alignment_of(find_policy("base")) + ADDRESS_MARGIN),
    ]
    for need in needs:
        if need.needed > need.available:
            raise MemoryError(
                f"{what} needs {approximate_size(need.needed)} (page tables included) of: {need.resource}, "
                f"which has {approximate_size(need.available)} left"
            )
