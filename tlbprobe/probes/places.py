"""places: a dependent load on chosen places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..checks import check_flag
from ..machine import paging
from ..measuring.nodes import POINTER
from ..measuring.point import Common, Place, Point, on_region, working_set_of
from ..memory.region import Region
from ..record import SAMPLE_BYTES, SETTLED, TIMED, Probe, Sample
from ..results.measurement import Measurement
from ..units import Size, parse_size


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
    strict, cpu, precision, max_seconds, counters
        As for `chase`.
    seed : int
        Of the cycle, 0 to 2**64 - 1.
    verify : bool
        Whether to walk the cycle first and count its places.

    Returns
    -------
    Measurement
        ``ns`` float64 (slices,), nanoseconds per load; ``params["nodes"]``, how many places there are.

    Raises
    ------
    ValueError, TypeError, MemoryError, BackingError
        As for `chase`.

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
        with point.prepared(PROBE.step) as session:
            if verify:
                point.verify(session)
            point.time(session)
        return point.result("places", {"bytes": wanted, "nodes": len(listed)})


def _checked_offsets(offsets: Sequence[Size] | None, wanted: int) -> npt.NDArray[np.uint64]:
    """Offsets in bytes, each a multiple of a pointer within the memory, and none twice."""
    if offsets is None:
        return np.arange(0, wanted - POINTER + 1, paging.cache_line_size(), dtype=np.uint64)
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


PROBE = Probe(
    places,
    Measurement,
    kernel="places",
    question="latency of a dependent load, on a random cycle through chosen places",
    step="cycle",
    sizes=("size", "working_set"),
    sequences=("counters", "offsets"),
    hazards={TIMED: "slices of accesses are timed", SETTLED: "its pages were populated before"},
    sample=Sample(
        "64KiB",
        {"offsets": "64KiB", "verify": 1, "seed": -1},
        {"nodes": 1, "list": 64, "seed": 1},
        {"nodes": 1, "list": SAMPLE_BYTES, "seed": 1},
        word=(64, 0),
        does={"loads": 1},
    ),
)
