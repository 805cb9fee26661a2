"""Where the nodes of a chase are, and in which order they are linked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..machine import paging
from ..memory.policies import find_policy
from ..memory.region import Region, SparseRegion
from ..units import Size, format_size
from .point import on_region

POINTER = 8  # bytes of a node
SAMPLE_LINES = {"spacing": 64, "pages": 1, "lines": 1, "line": 64, "seed": 1}  # of nodes side by side, to try


def node_places(nodes: int, stride: int, placement: str) -> dict[str, int]:
    """Where nodes are: one a cell of `stride` bytes, or as many lines side by side."""
    line, page = paging.cache_line_size(), paging.base_page_size()
    if placement == "packed":
        where = {"spacing": min(stride, line), "pages": 1, "lines": 1}
    elif stride > page and stride % page == 0:
        where = {"spacing": stride, "pages": stride // page, "lines": page // line}
    else:
        where = {"spacing": stride, "pages": 1, "lines": max(1, stride // line)}
    return {"nodes": nodes, "line": line, **where}


def node_parameters(
    nodes: int,
    stride: int,
    placement: str,
    seed: int,
    *,
    window: int | None = None,
    chains: int = 1,
    store: bool = False,
) -> dict[str, int]:
    """Where the nodes of a chase are, and in which order and chains they are linked."""
    how = {"seed": seed, "window": nodes if window is None else window, "chains": chains, "store": int(store)}
    return {**node_places(nodes, stride, placement), **how}


def packed_bytes(nodes: int, stride: int) -> int:
    """Bytes of so many nodes side by side, one a line."""
    return nodes * min(stride, paging.cache_line_size())


def check_stride(stride: int, working_set: int) -> None:
    """Raise a ValueError for a stride that has no room for a node, or is none of pointers."""
    if stride < POINTER or stride % POINTER:
        raise ValueError(
            f"stride={stride} must be a multiple of {POINTER} bytes, the size of a pointer, and at least that"
        )
    if stride > working_set:
        raise ValueError(
            f"stride={stride} is larger than the working set of {working_set} bytes: not one node fits"
        )


def leaves_pages_out(pages: str | None, stride: int | None) -> bool:
    """Whether only the pages that hold a node need exist: no other policy than base pages can do that."""
    page = paging.base_page_size()
    if stride is None or stride <= page or stride % page:
        return False
    return pages is None or find_policy(pages).kind == "base"


@contextlib.contextmanager
def spread_region(
    size: Size | Region, span: int, nodes: int, stride: int, pages: str | None, strict: bool
) -> Iterator[Region]:
    """Where spread nodes go: the given region, or one that has only the pages that hold a node."""
    if isinstance(size, Region) or not leaves_pages_out(pages, stride):
        with on_region(size, span, pages, strict) as region:
            yield region
        return
    what = f"a chase of {nodes} nodes at a stride of {format_size(stride)}"
    with SparseRegion(span, nodes, what, strict=strict) as region:
        yield region
