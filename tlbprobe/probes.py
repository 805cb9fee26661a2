"""Probes: one function a kernel, from a size or a region to a Measurement; and the list of all of them.

What is no loop over memory, faults and shootdowns, has modules of its own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _core, machine
from .faults import fault
from .measurement import Measurement, Translation
from .pages import Region, SparseRegion, find_policy, round_up
from .points import Common, Place, Point, check_flag, check_holds, check_whole, on_region, working_set_of
from .shootdowns import shootdown
from .units import LARGEST, Count, Size, format_size, parse_count, parse_size

POINTER = 8  # bytes of a node
CHAINS_MOST = 16
CELL = 64  # bytes of the least stride of jumps, whose cells of code are half as long


# --- nodes -----------------------------------------------------------------------------------------------


def node_places(nodes: int, stride: int, placement: str) -> dict[str, int]:
    """Where nodes are: one a cell of `stride` bytes, or as many lines side by side."""
    line, page = machine.cache_line_size(), machine.base_page_size()
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
    return nodes * min(stride, machine.cache_line_size())


def _check_stride(stride: int, working_set: int) -> None:
    if stride < POINTER or stride % POINTER:
        raise ValueError(
            f"stride={stride} must be a multiple of {POINTER} bytes, the size of a pointer, and at least that"
        )
    if stride > working_set:
        raise ValueError(
            f"stride={stride} is larger than the working set of {working_set} bytes: not one node fits"
        )


def leaves_pages_out(probe: str, pages: str | None, stride: int | None) -> bool:
    """Whether a probe touches only the pages that hold a node: no other policy than base pages can."""
    page = machine.base_page_size()
    if probe not in ("chase", "translation") or stride is None or stride <= page or stride % page:
        return False
    return pages is None or find_policy(pages).kind == "base"


@contextlib.contextmanager
def _spread_region(
    size: Size | Region, span: int, nodes: int, stride: int, pages: str | None, strict: bool
) -> Iterator[Region]:
    """Where spread nodes go: the given region, or one that has only the pages that hold a node."""
    if isinstance(size, Region) or not leaves_pages_out("chase", pages, stride):
        with on_region(size, span, pages, strict) as region:
            yield region
        return
    what = f"a chase of {nodes} nodes at a stride of {format_size(stride)}"
    with SparseRegion(span, nodes, what, strict=strict) as region:
        yield region


# --- chase -----------------------------------------------------------------------------------------------


def chase(
    size: Size | Region,
    pages: str | None = None,
    *,
    working_set: Size | None = None,
    stride: Size | None = None,
    placement: Literal["spread", "packed"] = "spread",
    locality: Size | None = None,
    chains: int = 1,
    access: Literal["load", "store"] = "load",
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 5.0,
    counters: Sequence[str] = (),
    verify: bool = False,
) -> Measurement:
    """Latency of one dependent load, in nanoseconds, on a random cycle through a working set.

    Each node holds the address of the next, so a load cannot start before the last one ended. Where the
    working set fits a cache level, its load-to-use latency dominates; beyond, that of the next one, with
    the page walks that the TLB does not save.

    Parameters
    ----------
    size : int, str or Region
        Bytes of the working set, mapped for this measurement; or a `Region` to measure in.
    pages : str, optional
        Page policy, see `page_policies`; ``"base"`` unless a Region says it.
    working_set : int or str, optional
        Bytes from the start of a given Region; all that it was asked for by default.
    stride : int or str, optional
        Bytes of a cell, with one node each: a multiple of 8, one cache line by default. The base page makes
        it one node a page. ``working_set // stride`` nodes. On base pages, and whole pages but more than one
        apart, only the pages that hold a node are ever touched, so that the working set may be larger than
        memory: ``chase("16TiB", stride="1GiB")`` takes 200 MB, most of it page tables.
    placement : {"spread", "packed"}
        Each node in its cell, on a line that varies from cell to cell; or all side by side, one a line, in
        the same order: the same cache lines on the fewest pages.
    locality : int or str, optional
        Bytes of a window: all of its nodes are visited, in random order, before those of another window.
        With windows of a page, the TLB misses once a window and translation costs next to nothing; but
        prefetchers, which fetch what lies near a recent access, now guess right, and cost falls by more than
        that of translation. All in one order by default.
    chains : int
        Independent cycles, 1 to 16, each on nodes of its own, whose loads are in flight together: the time
        per access falls until the processor cannot overlap more. Neighbouring nodes belong to one chain.
    access : {"load", "store"}
        Whether the address that was loaded is also stored back, which makes the line dirty: it is fetched
        to be owned, and written back when it leaves a cache.
    strict : bool
        Whether pages other than asked are a `BackingError`; otherwise a warning. A given Region has its own
        word on it.
    seed : int
        Of the cycle, 0 to 2**64 - 1. The same seed makes the same order of nodes on every machine.
    cpu : int, optional
        CPU to pin this thread to while measuring; the one it runs on by default.
    precision : float
        Half the interval over the low estimate at which to stop.
    max_seconds : float
        Time for the timed part, at most.
    counters : sequence of str
        Performance counters to read per access: names that `events` lists, such as ``"walks"``, numbers such
        as ``"cpu/event=0x08,umask=0x10/"``, or ``"tlb"`` for a set of them. Each lands in ``.counters`` or,
        with its reason, in ``.refused``.
    verify : bool
        Whether to walk the cycles first and count their nodes.

    Returns
    -------
    Measurement
        ``ns`` float64 (slices,), nanoseconds per load.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong: before anything is mapped.
    MemoryError
        If it would not fit, with the figures: before a page is touched.
    BackingError
        If the pages are not what was asked, unless ``strict=False``.

    Notes
    -----
    One access is a load whose address the last load of its chain returned. Isolates: load-to-use latency
    without parallelism or prefetching; with `chains`, how many such loads overlap. Confounded by: data caches
    and translation together (see `translation`); other users of shared caches and memory; with a `locality`,
    prefetchers of neighbouring lines and open rows of the memory, so that the difference to none is not
    translation alone; beyond some 12 chains the registers run out, which costs cached loads a little. Limits:
    the result is of the guest's pages; a hypervisor may back them by smaller ones.

    References
    ----------
    .. [1] S. Sattolo, An algorithm to generate a random cyclic permutation, Information Processing Letters
       22 (1986).

    Examples
    --------
    >>> m = chase("64KiB", max_seconds=0.1)
    >>> m.ns.ndim, m.params["nodes"]
    (1, 1024)
    """
    wanted = working_set_of(size, working_set)
    step = machine.cache_line_size() if stride is None else parse_size(stride, "stride")
    if placement not in ("spread", "packed"):
        raise ValueError(f"placement={placement!r} must be 'spread' or 'packed'")
    if access not in ("load", "store"):
        raise ValueError(f"access={access!r} must be 'load' or 'store'")
    _check_stride(step, wanted)
    check_flag("verify", verify)
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    nodes = wanted // step
    chains = check_whole("chains", chains, 1, min(CHAINS_MOST, nodes), f"cycles on {nodes} nodes")
    window = _window_nodes(locality, step, wanted)
    parameters = node_parameters(
        nodes, step, placement, common.seed, window=window, chains=chains, store=access == "store"
    )
    if placement == "packed":
        used = packed_bytes(nodes, step)
        memory = on_region(size, used, pages, strict)
    else:
        used = wanted
        memory = _spread_region(size, wanted, nodes, step, pages, strict)
    with memory as region:
        point = Point(common, Place(region, "chase", used, parameters))
        with point.prepared() as session:
            if verify:
                point.verify(session)
            point.time(session)
        how = {"locality": None if window is None else window * step, "chains": chains, "access": access}
        params = {"bytes": wanted, "stride": step, "placement": placement, "nodes": nodes, **how}
        return point.result("chase", params)


def _window_nodes(locality: Size | None, stride: int, working_set: int) -> int | None:
    """Nodes of a window of so many bytes."""
    if locality is None:
        return None
    window = parse_size(locality, "locality")
    if not 2 * stride <= window <= working_set or window % stride:
        raise ValueError(
            f"locality={locality!r} must be a multiple of the stride of {stride} bytes: from {2 * stride}, "
            f"two nodes, to the working set of {working_set}"
        )
    return window // stride


# --- translation -----------------------------------------------------------------------------------------


def translation(
    size: Size | Region,
    pages: str | None = None,
    *,
    working_set: Size | None = None,
    stride: Size | None = None,
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 5.0,
    counters: Sequence[str] = (),
) -> Translation:
    """Nanoseconds that address translation adds to one dependent load, from timing alone.

    Two chases over the same number of cache lines in the same order: *spread*, one node a base page (or a
    `stride`), and *packed*, side by side. Only the number of pages differs, so data-cache misses cancel in
    the difference. Their slices are timed in turn.

    Parameters
    ----------
    size : int, str or Region
        Bytes that the spread nodes span: ``size // stride`` nodes, at least two. The packed lines lie
        beside them on the same policy, so a given `Region` has to hold both.
    pages, strict, seed, cpu, precision, max_seconds, counters
        As for `chase`; the time is for both.
    working_set : int or str, optional
        Bytes that the spread nodes span in a given Region.
    stride : int or str, optional
        Bytes from one spread node to the next, a multiple of the base page, which is the default. The further
        apart they are, the more upper levels of the page table each walk needs: as many nodes at ``"2MiB"``
        or ``"1GiB"`` show what these cost. On base pages only the pages that hold a node are touched.

    Returns
    -------
    Translation
        ``cost`` in nanoseconds with its ``interval``; ``spread`` and ``packed`` are Measurements.

    Raises
    ------
    ValueError
        If there would be fewer than two nodes, or the Region does not hold both.
    MemoryError, BackingError
        As for `chase`.

    Notes
    -----
    Isolates: misses in the TLB levels and page walks, whose own memory accesses it includes. Confounded by:
    page-table entries that compete with the data for caches. Limits: it says what translation adds to a
    dependent load; independent loads may hide it.

    Examples
    --------
    >>> t = translation("1MiB", max_seconds=0.1)
    >>> t.spread.params["nodes"] == t.packed.params["nodes"]
    True
    """
    span = working_set_of(size, working_set)
    base = machine.base_page_size()
    step = base if stride is None else parse_size(stride, "stride")
    if step % base:
        raise ValueError(f"stride={stride!r} must be a multiple of the base page, {format_size(base)}")
    nodes = span // step
    if nodes < 2:
        what = "base pages" if step == base else "cells"
        raise ValueError(
            f"size={format_size(span)} holds {nodes} {what} of {format_size(step)}: translation compares "
            f"one node in each, so it needs at least two, {format_size(2 * step)}"
        )
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    parameters = {
        placement: node_parameters(nodes, step, placement, common.seed) for placement in ("spread", "packed")
    }
    used = {"spread": span, "packed": packed_bytes(nodes, step)}
    with contextlib.ExitStack() as stack:
        if not isinstance(size, Region) and leaves_pages_out("translation", pages, step):
            spread = stack.enter_context(_spread_region(size, span, nodes, step, pages, strict))
            packed, beside, proved = stack.enter_context(Region(used["packed"], strict=strict)), 0, None
        else:
            needed = bytes_needed("translation", span, step)
            _check_holds_both(size, span, needed)
            spread = stack.enter_context(on_region(size, needed, pages, strict))
            packed, beside, proved = spread, round_up(span, base), needed
        point = Point(
            common,
            Place(spread, "chase", span, parameters["spread"], proved=proved),
            Place(packed, "chase", used["packed"], parameters["packed"], offset=beside, proved=proved),
        )
        with point.prepared() as session:
            point.time(session)
        runs = {}
        how = {"locality": None, "chains": 1, "access": "load"}
        for number, placement in enumerate(("spread", "packed")):
            params = {"bytes": used[placement], "stride": step, "placement": placement, "nodes": nodes, **how}
            runs[placement] = point.result("chase", params, number)
        return Translation(**runs)


def bytes_needed(probe: str, size: int, stride: int | None = None) -> int:
    """Bytes of a region that a probe of a size needs."""
    base = machine.base_page_size()
    if probe != "translation":
        return size
    step = base if stride is None else stride
    return round_up(size, base) + packed_bytes(size // step, step)


def _check_holds_both(size: Size | Region, span: int, needed: int) -> None:
    if isinstance(size, Region) and not size.closed and needed > size.mapped_bytes:
        raise ValueError(
            f"working_set={format_size(span)} and its packed lines need {format_size(needed)}, but this "
            f"Region has {format_size(size.mapped_bytes)}: map more, or give a smaller working_set"
        )


# --- stride ----------------------------------------------------------------------------------------------

STRIDE_ACCESSES = ("read", "write", "rmw")  # by the number that the kernel knows them by


def stride(
    size: Size | Region,
    pages: str | None = None,
    *,
    working_set: Size | None = None,
    stride: Size | None = None,
    accesses: Count | None = None,
    passes: Count | None = None,
    access: Literal["read", "write", "rmw"] = "read",
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 5.0,
    counters: Sequence[str] = (),
) -> Measurement:
    """Nanoseconds per access, of independent accesses to single bytes that are a stride apart.

    Access k is to the byte at ``k * stride`` modulo the working set. None waits for another, so the processor
    has as many in flight as it can, and its prefetchers may run ahead.

    Parameters
    ----------
    size : int, str or Region
        Bytes of the working set, mapped for this measurement; or a `Region` to measure in.
    pages : str, optional
        Page policy, see `page_policies`; ``"base"`` unless a Region says it.
    working_set : int or str, optional
        Bytes from the start of a given Region; all that it was asked for by default.
    stride : int or str, optional
        Bytes from one access to the next, from 1 to the working set, which need not be a multiple of it: at
        the end the accesses go on as many bytes beyond the start. One cache line by default.
    accesses : int or str, optional
        How many accesses to time, such as 4000000 or ``"4M"``, in powers of 1000: fixed work, which neither
        `precision` nor `max_seconds` ends.
    passes : int or str, optional
        The same in passes over the working set, of ``ceil(working_set / stride)`` accesses each.
    access : {"read", "write", "rmw"}
        Whether a byte is read, written, or read, increased by one and written back.
    strict, seed, cpu, precision, max_seconds, counters
        As for `chase`; the order of the accesses does not depend on the seed.

    Returns
    -------
    Measurement
        ``ns`` float64 (slices,), nanoseconds per access. The wall time of all that was timed is
        ``m.ns.sum() * m.accesses_per_slice`` nanoseconds. Of fixed work, ``params["accesses"]`` is the number
        that was really timed: fewer than asked for, by less than one a slice, where slices of equal length do
        not come out even.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong: before anything is mapped.
    MemoryError
        If it would not fit, with the figures: before a page is touched.
    BackingError
        If the pages are not what was asked, unless ``strict=False``.

    Notes
    -----
    One access is to one byte, at an address that depends on no other access. Isolates: the throughput of
    independent accesses at a stride; at that of a page, of the translations of a walk through memory, as far
    as the hardware overlaps them. Confounded by: prefetchers, which hide everything at small strides, and of
    which some go on beyond the end of a page; memory-level parallelism, since what is in flight together is
    counted once: the result is no latency (see `chase`); at strides of a large power of two, cache sets of
    which only a few are used. Limits: on base pages, prefetchers of physical addresses stop at the end of
    each page. Writing changes the bytes of a given Region.

    References
    ----------
    .. [1] R. H. Saavedra and A. J. Smith, Measuring cache and TLB performance and their effect on benchmark
       runtimes, IEEE Transactions on Computers 44 (1995).

    Examples
    --------
    >>> m = stride("1MiB", stride="4KiB", passes=1024)
    >>> m.params["accesses"], m.ns.size * m.accesses_per_slice
    (262144, 262144)
    """
    wanted = working_set_of(size, working_set)
    step = machine.cache_line_size() if stride is None else parse_size(stride, "stride")
    if step > wanted:
        raise ValueError(f"stride={step} is out of range: from 1 byte to the working set of {wanted}")
    if access not in STRIDE_ACCESSES:
        raise ValueError(f"access={access!r} must be one of {', '.join(map(repr, STRIDE_ACCESSES))}")
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    asked, wanted_passes = _fixed_work(accesses, passes, -(-wanted // step))
    parameters = {"stride": step, "access": STRIDE_ACCESSES.index(access)}
    with on_region(size, wanted, pages, strict) as region:
        point = Point(common, Place(region, "stride", wanted, parameters))
        with point.prepared("prepare") as session:
            point.time(session, asked)
        (timed,) = point.timed
        done = None if asked is None else timed.ns.size * timed.accesses
        how = {"access": access, "accesses": done, "passes": wanted_passes}
        return point.result("stride", {"bytes": wanted, "stride": step, **how})


def _fixed_work(
    accesses: Count | None, passes: Count | None, of_a_pass: int
) -> tuple[int | None, int | None]:
    """Accesses to time, and the passes that they were asked for as; ``None``: as many as it takes."""
    if accesses is not None and passes is not None:
        raise ValueError(f"accesses={accesses!r} and passes={passes!r} both say how much work: give one")
    if accesses is not None:
        return parse_count(accesses, "accesses", "accesses"), None
    if passes is None:
        return None, None
    count, most = parse_count(passes, "passes", "passes"), LARGEST // of_a_pass
    if count > most:
        raise ValueError(
            f"passes={passes!r} of {of_a_pass} accesses are out of range: from 1 to {most} passes"
        )
    return count * of_a_pass, count


# --- objects ---------------------------------------------------------------------------------------------

# As csrc/kernels/objects.c lays them out; a test compares the two.
OBJECT_LAYOUTS = ("scattered", "pooled", "split")
OBJECTS = 5  # session, PDR, FAR, QER, statistics: of 23, 15, 9, 7 and 9 lines
OBJECT_LINE = 64
SESSION_BYTES = 63 * OBJECT_LINE
DIRECTORY_UNIT = 4 * OBJECT_LINE
NEXT, PACKETS = 0, 3  # words of a hot line: the address of the next one, and what was counted
SESSIONS_AT_ONCE = 1 << 16  # when pages are counted: a few megabytes


def objects(
    sessions: Count,
    pages: str | None = None,
    *,
    region: Region | None = None,
    layout: Literal["scattered", "pooled", "split"] = "scattered",
    write_statistics: bool = True,
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 5.0,
    counters: Sequence[str] = (),
    verify: bool = False,
) -> Measurement:
    """Time of one request through a chain of objects, in nanoseconds, for a layout of these objects.

    As a packet is served by the user plane of a mobile network: a random session is looked up in a directory,
    an array of pointers; it points to its packet detection rule (PDR), that to a forwarding action rule
    (FAR), a quality-of-service rule (QER) and to statistics. Of each object one line of 64 bytes is hot; the
    other lines, timers, names and logs, are cold and never touched.

    Parameters
    ----------
    sessions : int or str
        How many, such as ``"200K"``: 4032 bytes of objects and 8 of directory for each.
    pages : str, optional
        Page policy, see `page_policies`; ``"base"`` unless a Region says it.
    region : Region, optional
        Memory to build the objects in, from its start, instead of memory mapped for this measurement.
    layout : {"scattered", "pooled", "split"}
        Where the same objects are, in the same number of bytes. Scattered: all in one heap in random order.
        Pooled: one pool for each kind of object. Split: the hot lines of session, PDR, FAR and QER side by
        side, those of statistics in an array of their own, all cold lines elsewhere.
    write_statistics : bool
        Whether a request counts a packet and its bytes in the statistics; otherwise it reads them.
    strict, cpu, precision, max_seconds, counters
        As for `chase`.
    seed : int
        Of the requests, and of the order of scattered objects, 0 to 2**64 - 1. The same seed asks for the
        same sessions, whatever the layout.
    verify : bool
        Whether to walk the chains of all sessions first and check them.

    Returns
    -------
    Measurement
        ``ns`` float64 (slices,), nanoseconds per request. ``counts``, by the addresses in memory:
        ``lines_per_request``, cache lines, and by page size ``pages_per_request``, mean pages that hold
        those of one request, and ``hot_pages``, pages that hold those of all; ``requests``, warming included,
        ``found``, those that ended at statistics of the session asked for, and ``packets`` in all statistics.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong, or the Region too small: before anything is mapped.
    MemoryError
        If it would not fit, with the figures: before a page is touched.
    BackingError
        If the pages are not what was asked, unless ``strict=False``.
    RuntimeError
        If a request ended elsewhere than at its session: memory is damaged.

    Notes
    -----
    One access is a request: six cache lines, on as many pages as the layout spreads them over. Its loads
    depend on each other; requests do not, and overlap as far as the processor can. Isolates: what a layout
    costs that spreads the same objects, and as many cache lines, over more pages. Confounded by: data caches,
    since the hot lines of more sessions are more lines too; the overlap of requests, which hides latency;
    prefetching of adjacent lines, which helps ``"split"``, whose hot lines are neighbours. Limits: only page
    numbers are counted, not whether the TLB held them; pages of a size are counted as if the objects began on
    such a page. Building scattered objects takes 40 bytes a session beside theirs.

    References
    ----------
    .. [1] 3GPP TS 29.244, Interface between the Control Plane and the User Plane nodes, for PDR, FAR and QER.

    Examples
    --------
    >>> m = objects(1000, layout="split", max_seconds=0.1)
    >>> m.counts["lines_per_request"], m.counts["packets"] == m.counts["requests"]
    (6.0, True)
    """
    count = parse_count(sessions, "sessions", "sessions")
    needed = object_bytes(count)
    if layout not in OBJECT_LAYOUTS:
        raise ValueError(f"layout={layout!r} must be 'scattered', 'pooled' or 'split'")
    check_flag("write_statistics", write_statistics)
    check_flag("verify", verify)
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    check_holds(region, needed, f"sessions={count}", "fewer sessions")
    parameters = {
        "sessions": count,
        "layout": OBJECT_LAYOUTS.index(layout),
        "write": int(write_statistics),
        "seed": common.seed,
    }
    with on_region(needed if region is None else region, needed, pages, strict) as memory:
        point = Point(common, Place(memory, "objects", needed, parameters))
        with point.prepared("build") as session:
            if verify:
                point.verify(session)
            point.time(session)
        with point.step("count"):
            counted = count_objects(memory, count)
        ((requests, found),) = point.counts
        how = {"layout": layout, "write_statistics": bool(write_statistics)}
        params = {"bytes": needed, "sessions": count, **how}
        return point.result("objects", params, counts={**counted, "requests": requests, "found": found})


def object_bytes(sessions: int) -> int:
    """Bytes of the directory and of the objects of so many sessions."""
    needed = round_up(POINTER * sessions, DIRECTORY_UNIT) + SESSION_BYTES * sessions
    if needed > LARGEST:
        most = (LARGEST - DIRECTORY_UNIT) // (SESSION_BYTES + POINTER)
        raise ValueError(
            f"sessions={sessions} is out of range, 1 to {most}: each takes {SESSION_BYTES + POINTER} bytes"
        )
    return needed


def count_objects(region: Region, sessions: int) -> dict[str, Any]:
    """Count lines and pages that requests touch, by the addresses that are in memory."""
    known = {machine.base_page_size(), machine.pmd_size(), region.policy.page_size, *machine.hugetlb_pools()}
    sizes = sorted(size for size in known if size)
    used = {size: np.zeros(-(-object_bytes(sessions) // size), bool) for size in sizes}
    touched = dict.fromkeys([OBJECT_LINE, *sizes], 0)
    words = np.frombuffer(memoryview(region), np.uint64)
    packets = 0
    for first in range(0, sessions, SESSIONS_AT_ONCE):
        entries = np.arange(first, min(first + SESSIONS_AT_ONCE, sessions), dtype=np.uint64)
        places = _places(words, region.address, entries)
        packets += int(words[places[-1] // POINTER + PACKETS].sum())
        for size in touched:
            numbers = np.sort(places // size, axis=0)
            touched[size] += int(np.count_nonzero(np.diff(numbers, axis=0))) + len(entries)
            if size in used:
                used[size][numbers] = True
    return {
        "lines_per_request": touched[OBJECT_LINE] / sessions,
        "pages_per_request": {format_size(size): touched[size] / sessions for size in sizes},
        "hot_pages": {format_size(size): int(np.count_nonzero(used[size])) for size in sizes},
        "packets": packets,
    }


def _places(
    words: npt.NDArray[np.uint64], address: int, entries: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Bytes from the start at which the requests of some sessions touch memory, in order: a column each."""
    rows = [entries * POINTER]
    for _ in range(OBJECTS):
        rows.append(words[rows[-1] // POINTER + NEXT] - np.uint64(address))
    return np.stack(rows)


# --- jump ------------------------------------------------------------------------------------------------


def jump(
    size: Size,
    pages: str | None = None,
    *,
    stride: Size | None = None,
    placement: Literal["spread", "packed"] = "spread",
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 5.0,
    counters: Sequence[str] = (),
    verify: bool = False,
) -> Measurement:
    """Time of one direct jump to another code page, in nanoseconds, on a random cycle of cells of code.

    What a load is to the data TLB, a jump is to the instruction TLB. Each cell of machine code counts the
    access and jumps to the next cell; with the same seed the order of the cells is that of the nodes of a
    `chase`. The code is written into memory of its own, which is made executable afterwards: at no time can
    it be written and executed.

    Parameters
    ----------
    size : int or str
        Bytes that the cells span. The memory is always mapped for this measurement: a Region is refused.
    pages : str, optional
        Page policy, see `page_policies`; ``"base"`` by default.
    stride : int or str, optional
        Bytes from one cell of code to the next: a multiple of a cache line, and at least 64. The base page by
        default, which makes it one cell a page. ``size // stride`` cells.
    placement : {"spread", "packed"}
        Each cell of code on a line that varies from page to page; or all side by side, one a line, in the
        same order: as many jumps through the same number of lines, on the fewest pages.
    strict, seed, cpu, precision, max_seconds, counters
        As for `chase`.
    verify : bool
        Whether to read all the code first and count its cells, and to run it once around.

    Returns
    -------
    Measurement
        ``ns`` float64 (slices,), nanoseconds per jump.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong, or the cells would be further apart than a direct jump reaches: before
        anything is mapped.
    OSError
        If executable memory is forbidden to this process.
    MemoryError, BackingError
        As for `chase`.

    Notes
    -----
    One access is one taken direct jump to a cell of another code page: three instructions, a count, a branch
    that is not taken, and the jump. Isolates, where spread is compared with packed: translation on the
    instruction side. Confounded by: the branch target buffer, which has as many jumps to hold either way, but
    may index those of spread cells differently; instruction caches and decoders; a second-level TLB that
    some processors share between code and data. Where the next jump is predicted, fetch runs ahead of
    execution, and hides a part of a miss. Limits: the cells span at most 2 GiB on x86-64 and 128 MiB on
    aarch64, as far as a direct jump reaches.

    Examples
    --------
    >>> m = jump("256KiB", verify=True, max_seconds=0.05)
    >>> m.params["nodes"] * m.params["stride"]
    262144
    """
    if isinstance(size, Region):
        raise TypeError(
            f"size={size!r} must be bytes: jump maps memory of its own, since it makes it executable"
        )
    wanted = parse_size(size)
    step = machine.base_page_size() if stride is None else parse_size(stride, "stride")
    if placement not in ("spread", "packed"):
        raise ValueError(f"placement={placement!r} must be 'spread' or 'packed'")
    _check_jump_stride(step, wanted)
    check_flag("verify", verify)
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    nodes = wanted // step
    used = packed_bytes(nodes, step) if placement == "packed" else wanted
    _check_jump_reach(wanted, used)
    parameters = {**node_places(nodes, step, placement), "seed": common.seed}
    with Region(used, "base" if pages is None else pages, strict=strict) as region:
        point = Point(common, Place(region, "jump", region.mapped_bytes, parameters))
        with _executable(point) as session:
            if verify:
                point.verify(session)
            point.time(session)
        params = {"bytes": wanted, "stride": step, "placement": placement, "nodes": nodes}
        return point.result("jump", params)


def _check_jump_stride(stride: int, size: int) -> None:
    unit = max(CELL, machine.cache_line_size())
    if stride < unit or stride % unit:
        raise ValueError(
            f"stride={stride} must be a multiple of {unit} bytes, a line of code, and at least that"
        )
    if stride > size:
        raise ValueError(f"stride={stride} is larger than size={size}: not one cell of code fits")


def _check_jump_reach(size: int, used: int) -> None:
    reach = _core.JUMP_REACH
    if used > reach:
        raise ValueError(
            f"size={size} puts cells of code over {format_size(used)}, but a direct jump of this processor "
            f"reaches {format_size(reach)}: give at most {format_size(size * reach // used)}"
        )


@contextlib.contextmanager
def _executable(point: Point) -> Iterator[_core.Session]:
    """Prepare code; where the kernel forbids to execute it, say what may be the reason."""
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(point.prepared("code"))
        except PermissionError as error:
            raise OSError(
                error.errno,
                f"executable memory was refused to this process ({error.strerror}): by SELinux (boolean "
                "execmem), a seccomp filter or prctl(PR_SET_MDWE), perhaps",
            ) from error
        yield session


# --- lookup ----------------------------------------------------------------------------------------------

FULLEST = 0.95  # load factor beyond which probes become arbitrarily long
RECORD_SIZES = 16, 1 << 16  # bytes: a key and its value, and more than any page that is looked at alone
BATCH_MOST = 64


def lookup(
    records: Count,
    pages: str | None = None,
    *,
    region: Region | None = None,
    record_size: Size = 16,
    load_factor: float = 0.8,
    hit_ratio: float = 1.0,
    batch: int = 1,
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 5.0,
    counters: Sequence[str] = (),
    verify: bool = False,
) -> Measurement:
    """Time of one look-up in a hash table, in nanoseconds, for random keys that do not wait for each other.

    Records lie in one array of slots, each in the slot that its key hashes to, its home, or in the next free
    one (open addressing, linear probing). Look-ups are independent, so the processor overlaps some of them:
    the time of one is latency divided by how many are in flight.

    Parameters
    ----------
    records : int or str
        Records in the table, such as ``"400M"``; K, M, G and T are powers of 1000.
    pages : str, optional
        Page policy, see `page_policies`; ``"base"`` unless a Region says it.
    region : Region, optional
        Memory to build the table in, so that one mapping serves several measurements. What it held is
        overwritten.
    record_size : int or str
        Bytes of a record, of which key and value are the first 16: a multiple of 8, from 16 to 64 KiB.
    load_factor : float
        Records over slots, above 0 and at most 0.95: the fuller the table, the more slots a look-up reads.
    hit_ratio : float
        Share of look-ups that ask for a key that is there, 0 to 1.
    batch : int
        Look-ups whose home slots are prefetched together before the first of them is probed, 1 to 64: the
        remedy that needs no huge pages. With 1 it is the plain loop.
    strict : bool
        Whether pages other than asked are a `BackingError`; otherwise a warning. A given Region has its own
        word on it.
    seed : int
        Of the hash and of the queries, 0 to 2**64 - 1. The same seed makes the same table and the same
        queries on every machine, whatever the pages and the batch.
    cpu, precision, max_seconds, counters
        As for `chase`.
    verify : bool
        Whether to scan the table first, and count the records that a look-up can reach.

    Returns
    -------
    Measurement
        ``ns`` float64 (slices,), nanoseconds per look-up. ``counts`` has ``hits`` and ``hits_expected``, of
        all look-ups, untimed ones included; and ``build_ns_per_record``, of clearing and filling the table.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong, or a given Region too small: before anything is mapped.
    MemoryError
        If it would not fit, with the figures: before a page is touched.
    BackingError
        If the pages are not what was asked, unless ``strict=False``.
    RuntimeError
        If look-ups did not find exactly the records that they asked for: memory is damaged.

    Notes
    -----
    One access is one look-up: the hash of a key that nobody can foresee, then loads from its home on until
    it meets the key or an empty slot. Isolates: what random access costs a program that does not wait for
    it, and what batching and huge pages save of that. Confounded by: memory-level parallelism, since as many
    look-ups overlap as the processor's window of instructions holds; the length of the probes, at a load
    factor of a (1 + 1/(1-a))/2 slots for a key that is there and (1 + 1/(1-a)**2)/2 for another one [1]_;
    branches that are predicted wrongly where a probe ends, and at hit ratios between 0 and 1; prefetchers
    that follow a probe into the next line. Limits: the hash is cheaper than that of many tables, and nothing
    is done with what was found.

    References
    ----------
    .. [1] D. E. Knuth, The Art of Computer Programming 3, Sorting and Searching, 2nd edition (1998), 6.4.
    .. [2] G. L. Steele, D. Lea, C. H. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014: the
       hash, and the stream of queries.

    Examples
    --------
    >>> m = lookup("1K", max_seconds=0.1)
    >>> m.params["slots"], m.params["bytes"], m.counts["hits"] == m.counts["hits_expected"]
    (1250, 20000, True)
    """
    count, size = parse_count(records, "records"), parse_size(record_size, "record_size")
    if not RECORD_SIZES[0] <= size <= RECORD_SIZES[1] or size % 8:
        raise ValueError(
            f"record_size={record_size!r} must be a multiple of 8 bytes, from {RECORD_SIZES[0]} to 64 KiB"
        )
    load_factor = _check_ratio("load_factor", load_factor, FULLEST, "records over slots", zero=False)
    hit_ratio = _check_ratio(
        "hit_ratio", hit_ratio, 1, "look-ups of keys that are there, over all", zero=True
    )
    batch = check_whole("batch", batch, 1, BATCH_MOST, "look-ups that are prefetched together")
    check_flag("verify", verify)
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    slots = _slots_of(count, load_factor, size)
    table = slots * size
    check_holds(region, table, f"the table of {count} records", "fewer records, or a higher load_factor")
    how = {"records": count, "slots": slots, "record_size": size, "batch": int(batch)}
    parameters = {**how, "hit": round(hit_ratio * (1 << 32)), "seed": common.seed}
    with on_region(table if region is None else region, table, pages, strict) as memory:
        point = Point(common, Place(memory, "lookup", table, parameters))
        with point.prepared("build") as session:
            if verify:
                point.verify(session)
            point.time(session)
        ((expected, found),) = point.counts
        build = point.setup["build"] * 1e9 / count
        counts = {"hits": found, "hits_expected": expected, "build_ns_per_record": build}
        ratios = {"load_factor": float(load_factor), "hit_ratio": float(hit_ratio)}
        return point.result("lookup", {"bytes": table, **how, **ratios}, counts=counts)


def _check_ratio(name: str, value: float, most: float, meaning: str, *, zero: bool) -> float:
    """Return a number from zero, or above it, to `most`, or raise the error that it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}={value!r} must be a number: {meaning}")
    if not (0 < value <= most or (zero and value == 0)):
        bounds = f"from 0 to {most:g}" if zero else f"above 0 and at most {most:g}"
        raise ValueError(f"{name}={value!r} is out of range, {bounds}: {meaning}")
    return float(value)


def _slots_of(records: int, load_factor: float, record_size: int) -> int:
    """Slots for so many records, one of them empty at least: a probe for an absent key ends there."""
    slots = records / load_factor
    if slots > LARGEST // record_size:
        raise ValueError(
            f"records={records} of {record_size} bytes at load_factor={float(load_factor)} take a table of "
            f"more than {format_size(LARGEST)}, the largest size there is"
        )
    return max(records + 1, math.ceil(slots))


# --- places ----------------------------------------------------------------------------------------------


def places(
    size: Size | Region,
    pages: str | None = None,
    *,
    working_set: Size | None = None,
    offsets: Sequence[Size] | None = None,
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 5.0,
    counters: Sequence[str] = (),
    verify: bool = False,
) -> Measurement:
    """Latency of one dependent load, in nanoseconds, on a random cycle through chosen places.

    Parameters
    ----------
    size : int, str or Region
        Bytes of memory, mapped for this measurement; or a `Region` to measure in.
    pages : str, optional
        Page policy, see `page_policies`; ``"base"`` unless a Region says it.
    working_set : int or str, optional
        Bytes from the start of a given Region; all that it was asked for by default.
    offsets : sequence of int or str, optional
        Where the nodes are, in bytes from the start: multiples of 8, no two the same. One on each cache line
        by default.
    strict, seed, cpu, precision, max_seconds, counters, verify
        As for `chase`.

    Returns
    -------
    Measurement
        ``ns`` float64 (slices,), nanoseconds per load; ``params["nodes"]``, how many places there are.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong: before anything is mapped.
    MemoryError
        If it would not fit, with the figures: before a page is touched.
    BackingError
        If the pages are not what was asked, unless ``strict=False``.

    Notes
    -----
    One access is a load of eight bytes that hold the address of the next one. Isolates: whatever chosen
    addresses have in common, such as one set of a TLB: a few pages a large power of two apart collide there
    where as many neighbours do not. Confounded by: the sets of data caches, where places have the same offset
    in their page; lines of page tables. Limits: all memory between the places exists. A given Region is
    overwritten, from its start by the list of the places.

    References
    ----------
    .. [1] B. Gras, K. Razavi, H. Bos and C. Giuffrida, Translation Leak-aside Buffer, USENIX Security 2018:
       set indices of TLBs, found from pages that collide.

    Examples
    --------
    >>> m = places("1MiB", offsets=["0", "64KiB", "128KiB"], max_seconds=0.05)
    >>> m.params["nodes"]
    3
    """
    wanted = working_set_of(size, working_set)
    listed = _checked_offsets(offsets, wanted)
    check_flag("verify", verify)
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    parameters = {"nodes": len(listed), "list": 0, "seed": common.seed}
    with on_region(size, wanted, pages, strict) as region:
        point = Point(common, Place(region, "places", wanted, parameters))
        np.frombuffer(memoryview(region), np.uint64)[: len(listed)] = listed
        with point.prepared() as session:
            if verify:
                point.verify(session)
            point.time(session)
        return point.result("places", {"bytes": wanted, "nodes": len(listed)})


def _checked_offsets(offsets: Sequence[Size] | None, wanted: int) -> npt.NDArray[np.uint64]:
    """Offsets in bytes, each a multiple of a pointer within the memory, and none twice."""
    if offsets is None:
        return np.arange(0, wanted - POINTER + 1, machine.cache_line_size(), dtype=np.uint64)
    if isinstance(offsets, str) or not isinstance(offsets, Sequence | np.ndarray) or not len(offsets):
        raise TypeError(f"offsets={offsets!r} must be a sequence of sizes, such as (0, '64KiB')")
    found = [0 if str(one) == "0" else parse_size(one, "offsets") for one in offsets]
    for offset in found:
        if offset % POINTER or offset > wanted - POINTER:
            raise ValueError(
                f"offsets={offset} is out of range: multiples of {POINTER} from 0 to {wanted - POINTER}"
            )
    if len(set(found)) < len(found):
        raise ValueError("offsets has one of them twice: each place holds one node")
    return np.array(found, np.uint64)


# --- all of them -----------------------------------------------------------------------------------------

Probe = Callable[..., Measurement]
PROBES: dict[str, Probe] = {
    "chase": chase,
    "stride": stride,
    "lookup": lookup,
    "objects": objects,
    "jump": jump,
    "places": places,
    "fault": fault,
    "shootdown": shootdown,
}
