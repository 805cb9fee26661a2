"""lookup: one look-up in a hash table."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..checks import check_flag, check_whole
from ..measuring.point import Common, Place, Point, check_holds, on_region
from ..memory.region import Region
from ..record import SAMPLE_BYTES, SETTLED, TIMED, Probe, Sample
from ..results.measurement import Measurement
from ..units import LARGEST, Count, Size, format_size, parse_count, parse_size

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
    MemoryError, BackingError
        As for `chase`.
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
        with point.prepared(PROBE.step) as session:
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


_TABLE = {"records": 3000, "record_size": 16, "hit": 1 << 31, "batch": 1, "seed": 1}

PROBE = Probe(
    lookup,
    Measurement,
    kernel="lookup",
    question="one look-up in a hash table, for keys that do not wait for each other",
    word="look-up",
    step="build",
    sizes=("record_size",),
    counts=("records",),
    helps={"records": "how many: 400000, 400K, 400M; K, M, G are powers of 1000"},
    hazards={TIMED: "slices of accesses are timed", SETTLED: "its pages were populated before"},
    sample=Sample(
        "1K",
        {"record_size": 12, "load_factor": 0, "hit_ratio": 2, "batch": 65, "seed": -1},
        {"slots": SAMPLE_BYTES // 16, **_TABLE},
        {"slots": SAMPLE_BYTES // 16 + 1, **_TABLE},
        does={"loads": None},
    ),
)
