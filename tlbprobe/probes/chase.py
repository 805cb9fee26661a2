"""chase: one dependent load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..checks import check_choice, check_flag, check_whole
from ..machine import paging
from ..measuring.nodes import SAMPLE_LINES, check_stride, node_parameters, packed_bytes, spread_region
from ..measuring.point import Common, Place, Point, on_region, working_set_of
from ..memory.region import Region
from ..record import SAMPLE_BYTES, SETTLED, TIMED, Probe, Sample
from ..results.measurement import Measurement
from ..units import Size, parse_size

CHAINS_MOST = 16


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
    step = paging.cache_line_size() if stride is None else parse_size(stride, "stride")
    check_choice("placement", placement, ("spread", "packed"))
    check_choice("access", access, ("load", "store"))
    check_stride(step, wanted)
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
        memory = spread_region(size, wanted, nodes, step, pages, strict)
    with memory as region:
        point = Point(common, Place(region, "chase", used, parameters))
        with point.prepared(PROBE.step) as session:
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


_ONE_CHAIN = {**SAMPLE_LINES, "window": SAMPLE_BYTES // 64, "chains": 1, "store": 0}

PROBE = Probe(
    chase,
    Measurement,
    kernel="chase",
    question="latency of a dependent load, on a random cycle through a working set",
    step="cycle",
    sizes=("size", "working_set", "stride", "locality"),
    hazards={TIMED: "slices of accesses are timed", SETTLED: "its pages were populated before"},
    leaves_pages_out=True,
    sample=Sample(
        "64KiB",
        {"stride": 12, "placement": "beside", "locality": "1GiB", "chains": 0, "access": "read", "seed": -1},
        {**_ONE_CHAIN, "nodes": SAMPLE_BYTES // 64},
        {**_ONE_CHAIN, "nodes": SAMPLE_BYTES // 64 + 1},
        does={"loads": 1},
    ),
)
