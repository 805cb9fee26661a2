"""Probes: one function a kernel, from a size or a region to a Measurement."""

from __future__ import annotations

import contextlib
import functools
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, SupportsIndex

import numpy as np

from . import _core, facts, machine, timing
from .measurement import Measurement, Translation
from .pages import Backing, Region, find_policy, round_up
from .units import Size, format_size, parse_size

POINTER = 8  # bytes of a node
UNTIMED_PASSES = 2  # over every page of the working set, since populating is no warm-up under a hypervisor


# --- what every probe does -------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _host_of(minute: int) -> dict[str, Any]:
    return facts.host().to_dict()


def _host() -> dict[str, Any]:
    """Facts of the machine, a minute old at most: settings may change while a process lives."""
    return _host_of(int(time.monotonic() // 60))


@dataclass(frozen=True)
class Common:
    """What every probe takes, checked before anything is mapped."""

    strict: bool
    seed: int
    cpu: int | None
    precision: float
    max_seconds: float
    counters: Sequence[str]

    def __post_init__(self) -> None:
        timing.check_cpu(self.cpu)
        check_flag("strict", self.strict)
        _check_number("precision", self.precision, 1.0, "0.01 means 1 % of the low estimate")
        _check_number("max_seconds", self.max_seconds, float("inf"), "seconds for the timed part")
        if isinstance(self.seed, bool) or not isinstance(self.seed, SupportsIndex):
            raise TypeError(f"seed={self.seed!r} must be an integer from 0 to 2**64 - 1")
        object.__setattr__(self, "seed", operator.index(self.seed))
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed={self.seed!r} is out of range: from 0 to 2**64 - 1")
        names = self.counters
        listed = isinstance(names, Sequence) and not isinstance(names, str)
        if not listed or not all(isinstance(name, str) for name in names):
            raise TypeError(f"counters={names!r} must be a sequence of names, such as ('cycles',)")


def check_flag(name: str, value: bool) -> None:
    """Raise a TypeError for what is neither true nor false: "no" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} must be True or False")


def _check_number(name: str, value: float, limit: float, meaning: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name}={value!r} must be a number: {meaning}")
    if not 0 < value < limit:
        bounds = f"lie between 0 and {limit:g}" if limit < float("inf") else "be positive and finite"
        raise ValueError(f"{name}={value!r} must {bounds}: {meaning}")


def _working_set(size: Size | Region, working_set: Size | None) -> int:
    """Bytes to measure: of a size, that; of a region, `working_set` of it or all that was asked for."""
    if not isinstance(size, Region):
        if working_set is not None:
            raise ValueError(f"working_set={working_set!r} is for a Region: the size itself says it here")
        return parse_size(size)
    wanted = size.size if working_set is None else parse_size(working_set, "working_set")
    if wanted > size.mapped_bytes and not size.closed:
        raise ValueError(
            f"working_set={working_set!r} is more than the {format_size(size.mapped_bytes)} of this Region"
        )
    return wanted


@contextlib.contextmanager
def _on_region(size: Size | Region, needed: int, pages: str | None, strict: bool) -> Iterator[Region]:
    """The given region, or one of our own for the time being."""
    if not isinstance(size, Region):
        with Region(needed, "base" if pages is None else pages, strict=strict) as region:
            yield region
        return
    if pages is not None and find_policy(pages).name != size.pages:
        raise ValueError(f"pages={pages!r} contradicts the Region, which is on {size.pages!r}")
    yield size


@dataclass
class _Point:
    """One measurement in the making: its set-up times, its proofs, its warnings."""

    region: Region
    bytes_used: int
    common: Common
    cpu: int = -1
    setup: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.setup[name] = time.perf_counter() - start

    @contextlib.contextmanager
    def prepared(self, *parts: tuple[str, int, int, dict[str, int]]) -> Iterator[_core.Session]:
        """Prepare (kernel, offset, size, parameters) each; the region is nobody else's until it is over."""
        start = time.perf_counter()
        with _core.Session([(self.region, *part) for part in parts]) as session:
            self.setup["cycle"] = time.perf_counter() - start
            yield session

    def prove(self) -> Backing:
        found = self.region.check_backing(self.bytes_used)
        complaint = self.region.complaint(found)
        if complaint and complaint not in self.warnings:
            self.warnings.append(complaint)
        return found

    def time(self, session: _core.Session) -> tuple[list[timing.Timed], Backing]:
        """Passes, proof, slices, proof."""
        with timing.pinned(self.common.cpu) as self.cpu:
            with self.step("passes"):
                for _ in range(UNTIMED_PASSES):
                    session.pass_over()
            with self.step("proof"):
                before = self.prove()
            with self.step("measure"):
                timed, warnings = timing.measure(
                    session, precision=self.common.precision, max_seconds=self.common.max_seconds
                )
            after = self.prove()
        self.warnings.extend(warnings)
        if before != after:
            self.warnings.append(f"the pages changed during the measurement: {before}, then {after}")
        return timed, after

    def params(self) -> dict[str, Any]:
        """What was asked of every probe, completed."""
        return {
            "pages": self.region.pages,
            "strict": self.region.strict,
            "touch": self.region.touch_order,
            "mapped_bytes": self.region.mapped_bytes,
            "seed": self.common.seed,
            "cpu": self.cpu,
            "precision": float(self.common.precision),
            "max_seconds": float(self.common.max_seconds),
        }

    def result(
        self, probe: str, timed: timing.Timed, backing: Backing, params: dict[str, Any]
    ) -> Measurement:
        warnings = list(self.warnings)
        if timed.minor + timed.major:
            warnings.append(
                f"{timed.minor} minor and {timed.major} major page faults in the timed part, none expected"
            )
        return Measurement(
            probe=probe,
            ns=timed.ns,
            accesses_per_slice=timed.accesses,
            disturbed=timed.disturbed,
            core_ghz=timed.core_ghz,
            setup={**self.region.setup, **self.setup},
            faults=timing.faults(timed),
            params={**params, **self.params()},
            backing=backing,
            host=_host(),
            started=self.started,
            refused=timing.counters_refused(self.common.counters),
            warnings=tuple(warnings),
        )


# --- chase -----------------------------------------------------------------------------------------------


def _check_stride(stride: int, working_set: int) -> None:
    if stride < POINTER or stride % POINTER:
        raise ValueError(
            f"stride={stride} must be a multiple of {POINTER} bytes, the size of a pointer, and at least that"
        )
    if stride > working_set:
        raise ValueError(
            f"stride={stride} is larger than the working set of {working_set} bytes: not one node fits"
        )


def node_parameters(nodes: int, stride: int, placement: str, seed: int) -> dict[str, int]:
    """Where the nodes are: one a cell of `stride` bytes, or the same number of lines side by side."""
    line = machine.cache_line_size()
    spread = {"spacing": stride, "lines": max(1, stride // line)}
    packed = {"spacing": min(stride, line), "lines": 1}
    return {"nodes": nodes, "line": line, "seed": seed, **(packed if placement == "packed" else spread)}


def _verify(session: _core.Session) -> None:
    for found, linked in zip(session.verify(), session.laps, strict=True):
        if found != linked:
            raise RuntimeError(f"the cycle has {found} nodes where {linked} were linked: memory is damaged")


def chase(
    size: Size | Region,
    pages: str | None = None,
    *,
    working_set: Size | None = None,
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
        Bytes of a cell, with one node each: a multiple of 8. One cache line by default; the base page makes
        it one node a page. ``working_set // stride`` nodes.
    placement : {"spread", "packed"}
        Each node in its cell, on a line that varies from cell to cell; or all side by side, one a line, in
        the same order: the same cache lines on the fewest pages.
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
        Performance counters to read per access; each lands in ``.counters`` or, with its reason, in
        ``.refused``.
    verify : bool
        Whether to walk the cycle first and count its nodes.

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
    Isolates: load-to-use latency without parallelism or prefetching. Confounded by: data caches and
    translation together (see `translation`); other users of shared caches and memory. Limits: the result is
    of the guest's pages; a hypervisor may back them by smaller ones.

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
    wanted = _working_set(size, working_set)
    step = machine.cache_line_size() if stride is None else parse_size(stride, "stride")
    if placement not in ("spread", "packed"):
        raise ValueError(f"placement={placement!r} must be 'spread' or 'packed'")
    _check_stride(step, wanted)
    check_flag("verify", verify)
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    nodes = wanted // step
    parameters = node_parameters(nodes, step, placement, common.seed)
    with _on_region(size, wanted, pages, strict) as region:
        point = _Point(region, wanted, common)
        with point.prepared(("chase", 0, wanted, parameters)) as session:
            if verify:
                with point.step("verify"):
                    _verify(session)
            (timed,), backing = point.time(session)
        params = {"bytes": wanted, "stride": step, "placement": placement, "nodes": nodes}
        return point.result("chase", timed, backing, params)


# --- translation -----------------------------------------------------------------------------------------


def _packed_bytes(nodes: int) -> int:
    return nodes * machine.cache_line_size()


def bytes_needed(probe: str, size: int) -> int:
    """Bytes of a region that a probe of a size needs."""
    base = machine.base_page_size()
    return size if probe != "translation" else round_up(size, base) + _packed_bytes(size // base)


def translation(
    size: Size | Region,
    pages: str | None = None,
    *,
    working_set: Size | None = None,
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 5.0,
    counters: Sequence[str] = (),
) -> Translation:
    """Nanoseconds that address translation adds to one dependent load, from timing alone.

    Two chases over the same number of cache lines in the same order: *spread*, one node a base page, and
    *packed*, side by side. Only the number of pages differs, so data-cache misses cancel in the difference.
    Their slices are timed in turn.

    Parameters
    ----------
    size : int, str or Region
        Bytes that the spread nodes span: ``size // base page`` nodes, at least two. The packed lines lie
        beside them on the same policy, so a given `Region` has to hold both.
    pages, strict, seed, cpu, precision, max_seconds, counters
        As for `chase`; the time is for both.
    working_set : int or str, optional
        Bytes that the spread nodes span in a given Region.

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
    span = _working_set(size, working_set)
    base = machine.base_page_size()
    nodes = span // base
    if nodes < 2:
        raise ValueError(
            f"size={format_size(span)} holds {nodes} base pages of {format_size(base)}: translation compares "
            f"one node a page, so it needs at least two, {format_size(2 * base)}"
        )
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    needed = bytes_needed("translation", span)
    _check_holds_both(size, span, needed)
    # The bytes, and where they begin: the packed lines lie beside the spread nodes.
    places = {"spread": (span, 0), "packed": (_packed_bytes(nodes), round_up(span, base))}
    parts = [
        ("chase", begin, used, node_parameters(nodes, base, placement, common.seed))
        for placement, (used, begin) in places.items()
    ]
    with _on_region(size, needed, pages, strict) as region:
        point = _Point(region, needed, common)
        with point.prepared(*parts) as session:
            timed, backing = point.time(session)
        runs = {}
        for (placement, (used, _)), run in zip(places.items(), timed, strict=True):
            params = {"bytes": used, "stride": base, "placement": placement, "nodes": nodes}
            runs[placement] = point.result("chase", run, backing, params)
        return Translation(**runs)


def _check_holds_both(size: Size | Region, span: int, needed: int) -> None:
    if isinstance(size, Region) and not size.closed and needed > size.mapped_bytes:
        raise ValueError(
            f"working_set={format_size(span)} and its packed lines need {format_size(needed)}, but this "
            f"Region has {format_size(size.mapped_bytes)}: map more, or give a smaller working_set"
        )


Probe = Callable[..., Measurement]
PROBES: dict[str, Probe] = {"chase": chase}
