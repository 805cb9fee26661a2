"""What a size needs of each kind of page, and what there is of it. Read, never changed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..machine import files, limits, paging
from ..units import Size, page_suffix, parse_size
from .policies import PagePolicy, page_policies

NODE_FOLDER = "sys/devices/system/node"


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


def page_needs(size: Size, root: files.Root = "/") -> list[PageNeed]:
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


def _need(wanted: int, policy: PagePolicy, page: int, root: files.Root) -> PageNeed:
    pages = -(-wanted // page)
    pool = paging.hugetlb_pools(root).get(page) if policy.kind == "hugetlb" else None
    reserved = pool.available if pool else None
    available = limits.memory_available(root)
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


def _in_pools(page: int, root: files.Root) -> dict[int, int]:
    """Free pages of the pool on each node; the kernel does not say which of them are spoken for."""
    found = {}
    for name in files.list_names(root, NODE_FOLDER):
        where = f"{NODE_FOLDER}/{name}/hugepages/hugepages-{page >> 10}kB/free_hugepages"
        text = files.read_text(root, where)
        if re.fullmatch(r"node\d{1,6}", name) and text and text.isdecimal():
            found[int(name[4:])] = int(text)
    return found


def _in_free_blocks(page: int, root: files.Root) -> dict[int, int]:
    """Pages within free blocks of at least that order, by node; none where blocks are never so large."""
    order = (page // paging.base_page_size()).bit_length() - 1
    found: dict[int, int] = {}
    for (node, _), blocks in paging.free_blocks(root).items():
        if order < len(blocks):
            whole = sum(count << (k - order) for k, count in enumerate(blocks) if k >= order)
            found[node] = found.get(node, 0) + whole
    return found


def _reserve_now(policy: PagePolicy, pool: paging.HugetlbPool | None, pages: int, root: files.Root) -> str:
    if pool is None:
        return policy.command
    available = limits.memory_available(root)
    short = (pages - pool.available) * pool.page_size
    if short <= 0 or (available is not None and short > available):
        return ""  # enough, or it would take more memory than there is
    total = pool.total + pages - pool.available
    return f"echo {total} | sudo tee /{paging.HUGETLB}/hugepages-{pool.page_size >> 10}kB/nr_hugepages"


def _reserve_at_boot(policy: PagePolicy, pool: paging.HugetlbPool | None, pages: int) -> str:
    size = page_suffix(policy.page_size or 0)
    if pool is not None:
        more = max(0, pages - pool.available)
        return f"hugepagesz={size} hugepages={pool.total + more}" if more else ""
    if policy.offered:
        return ""
    return f"thp_anon={size}:madvise" if policy.kind == "mthp" else "transparent_hugepage=madvise"
