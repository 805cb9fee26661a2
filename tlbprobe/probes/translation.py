"""translation: what the page table adds to a dependent load."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ..machine import paging
from ..measuring.nodes import leaves_pages_out, node_parameters, packed_bytes, spread_region
from ..measuring.point import Common, Place, Point, on_region, working_set_of
from ..memory.policies import round_up
from ..memory.region import Region
from ..record import SETTLED, TIMED, Probe, Sample
from ..results.measurement import Translation
from ..units import Size, format_size, parse_size


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
    pages, strict, cpu, precision, max_seconds, counters
        As for `chase`; the time is for both.
    seed : int
        Of the two cycles, 0 to 2**64 - 1: the same order for both.
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
    page-table entries that compete with the data for caches; misses of the packed lines themselves, from 64
    spread nodes on for each page that the first level holds; and frames of base pages, of which by chance too
    many of either list fall into the same sets of a cache: less than nothing comes out so, too. Limits: it
    says what translation adds to a dependent load; independent loads may hide it.

    Examples
    --------
    >>> t = translation("1MiB", max_seconds=0.1)
    >>> t.spread.params["nodes"] == t.packed.params["nodes"]
    True
    """
    span = working_set_of(size, working_set)
    base = paging.base_page_size()
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
        if not isinstance(size, Region) and leaves_pages_out(pages, step):
            spread = stack.enter_context(spread_region(size, span, nodes, step, pages, strict))
            packed, beside, proved = stack.enter_context(Region(used["packed"], strict=strict)), 0, None
        else:
            needed = bytes_needed(span, step)
            _check_holds_both(size, span, needed)
            spread = stack.enter_context(on_region(size, needed, pages, strict))
            packed, beside, proved = spread, round_up(span, base), needed
        point = Point(
            common,
            Place(spread, "chase", span, parameters["spread"], proved=proved),
            Place(packed, "chase", used["packed"], parameters["packed"], offset=beside, proved=proved),
        )
        with point.prepared(PROBE.step) as session:
            point.time(session)
        runs = {}
        how = {"locality": None, "chains": 1, "access": "load"}
        for number, placement in enumerate(("spread", "packed")):
            params = {"bytes": used[placement], "stride": step, "placement": placement, "nodes": nodes, **how}
            runs[placement] = point.result("chase", params, number)
        return Translation(**runs)


def bytes_needed(size: int, stride: int | None) -> int:
    """Bytes of a region that hold both: the spread nodes, and the packed lines beside them."""
    base = paging.base_page_size()
    step = base if stride is None else stride
    return round_up(size, base) + packed_bytes(size // step, step)


def _check_holds_both(size: Size | Region, span: int, needed: int) -> None:
    if isinstance(size, Region) and not size.closed and needed > size.mapped_bytes:
        raise ValueError(
            f"working_set={format_size(span)} and its packed lines need {format_size(needed)}, but this "
            f"Region has {format_size(size.mapped_bytes)}: map more, or give a smaller working_set"
        )


PROBE = Probe(
    translation,
    Translation,
    kernel="chase",
    question="what translation adds to a dependent load: spread nodes against packed ones",
    step="cycle",
    sizes=("size", "working_set", "stride"),
    hazards={TIMED: "slices of accesses are timed", SETTLED: "its pages were populated before"},
    leaves_pages_out=True,
    needed=bytes_needed,
    sample=Sample("64KiB", {"stride": 64, "precision": 0, "seed": -1}),
)
