"""objects: a request through a chain of objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..checks import check_choice, check_flag
from ..machine import paging
from ..measuring.nodes import POINTER
from ..measuring.point import Common, Place, Point, check_holds, on_region
from ..memory.policies import round_up
from ..memory.region import Region
from ..record import SAMPLE_BYTES, SETTLED, TIMED, Probe, Sample
from ..results.measurement import Measurement
from ..units import LARGEST, Count, format_size, parse_count

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
    MemoryError, BackingError
        As for `chase`.
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
    check_choice("layout", layout, OBJECT_LAYOUTS)
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
        with point.prepared(PROBE.step) as session:
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
    known = {paging.base_page_size(), paging.pmd_size(), region.policy.page_size, *paging.hugetlb_pools()}
    sizes = sorted(size for size in known if size)
    used = {size: np.zeros(-(-object_bytes(sessions) // size), bool) for size in sizes}
    touched = dict.fromkeys([OBJECT_LINE, *sizes], 0)
    words = np.frombuffer(memoryview(region), np.uint64)
    packets = 0
    for first in range(0, sessions, SESSIONS_AT_ONCE):
        entries = np.arange(first, min(first + SESSIONS_AT_ONCE, sessions), dtype=np.uint64)
        places = _request_places(words, region.address, entries)
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


def _request_places(
    words: npt.NDArray[np.uint64], address: int, entries: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """Bytes from the start at which the requests of some sessions touch memory, in order: a column each."""
    rows = [entries * POINTER]
    for _ in range(OBJECTS):
        rows.append(words[rows[-1] // POINTER + NEXT] - np.uint64(address))
    return np.stack(rows)


PROBE = Probe(
    objects,
    Measurement,
    kernel="objects",
    question="one request through a chain of objects, for a layout of these",
    word="request",
    step="build",
    counts=("sessions",),
    helps={"sessions": "how many: 200000, 200K, 1M; K, M, G are powers of 1000"},
    hazards={TIMED: "slices of accesses are timed", SETTLED: "its pages were populated before"},
    sample=Sample(
        "1K",
        {"layout": "heap", "write_statistics": "no", "verify": 1, "seed": -1},
        {"sessions": SAMPLE_BYTES // 4040, "layout": 0, "write": 1, "seed": 1},
        {"sessions": SAMPLE_BYTES // 4040 + 1, "layout": 0, "write": 1, "seed": 1},
        does={"loads": 8, "stores": 2},
    ),
)
