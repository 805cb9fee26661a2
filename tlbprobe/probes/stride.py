"""stride: independent accesses that far apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..checks import check_choice
from ..machine import paging
from ..measuring.point import Common, Place, Point, on_region, working_set_of
from ..memory.region import Region
from ..record import SAMPLE_BYTES, SETTLED, TIMED, Probe, Sample
from ..results.measurement import Measurement
from ..units import LARGEST, Count, Size, parse_count, parse_size

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
    strict, cpu, precision, max_seconds, counters
        As for `chase`.
    seed : int
        Taken for the sake of sweeps: nothing here is random.

    Returns
    -------
    Measurement
        ``ns`` float64 (slices,), nanoseconds per access. The wall time of all that was timed is
        ``m.ns.sum() * m.accesses_per_slice`` nanoseconds. Of fixed work, ``params["accesses"]`` is the number
        that was really timed: fewer than asked for, by less than one a slice, where slices of equal length do
        not come out even.

    Raises
    ------
    ValueError, TypeError, MemoryError, BackingError
        As for `chase`.

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
    step = paging.cache_line_size() if stride is None else parse_size(stride, "stride")
    if step > wanted:
        raise ValueError(f"stride={step} is out of range: from 1 byte to the working set of {wanted}")
    check_choice("access", access, STRIDE_ACCESSES)
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    asked, wanted_passes = _fixed_work(accesses, passes, -(-wanted // step))
    parameters = {"stride": step, "access": STRIDE_ACCESSES.index(access)}
    with on_region(size, wanted, pages, strict) as region:
        point = Point(common, Place(region, "stride", wanted, parameters))
        with point.prepared(PROBE.step) as session:
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


PROBE = Probe(
    stride,
    Measurement,
    kernel="stride",
    question="throughput of independent accesses that far apart",
    over="over",
    sizes=("size", "working_set", "stride"),
    counts=("accesses", "passes"),
    hazards={TIMED: "slices of accesses are timed", SETTLED: "its pages were populated before"},
    sample=Sample(
        "64KiB",
        {"stride": 0, "accesses": 0, "passes": "many", "access": "store", "seed": -1},
        {"stride": 4160, "access": 2},
        {"stride": SAMPLE_BYTES + 1, "access": 2},
        does={"loads": 1, "stores": 1},
    ),
)
