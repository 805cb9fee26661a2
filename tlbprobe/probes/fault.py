"""Demand paging: what the first touch of a page costs, kind by kind, each touch with its own time."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from .. import _core
from ..checks import check_choice, check_whole
from ..cores.current import only_here
from ..declared import Bytes, Keys, Nanoseconds, Number, Spec, Whole
from ..machine import cpus, files, paging
from ..machine.facts import recent_record
from ..measuring.children import failure, scanned_backing
from ..measuring.point import Common
from ..memory.backing import Backing, BackingError, complaint
from ..memory.budget import check_budget
from ..memory.policies import (
    COLLAPSE,
    PagePolicy,
    advice_for,
    default_page,
    find_policy,
    mapped_size,
    mapping_request,
)
from ..memory.region import check_offered
from ..record import TIMED, TRAPPING, Probe, Sample
from ..results.measurement import SingleTimes
from ..results.result import StrPath
from ..results.words import format_ns, format_time, hazard_rows
from ..units import Floats, Ints, Size, approximate_size, format_seconds, format_size, parse_size

BLOCK = 512  # touches that share one time where the clock cannot see a single one
CHUNK = 4 << 20  # bytes that share one time where the kernel or the processor does many pages at once
TOUCHES_MOST = (1 << 32) - 1  # of one measurement: places are numbered with 32 bits
MEMORY_FILES = ("tmpfs", "ramfs")  # file systems whose files are memory
KindName = Literal[
    "read",
    "write",
    "write_after_read",
    "second",
    "fill",
    "populate_write",
    "map_populate",
    "refault_dontneed",
    "refault_free",
    "fork_parent",
    "fork_child",
    "private_file",
    "shared_file",
    "memfd",
    "pread",
]
Order = Literal["sequential", "random"]
Access = Literal["read", "write"]
CacheState = Literal["warm", "cold"]


# --- kinds -----------------------------------------------------------------------------------------------

ANONYMOUS = ("base", "default", "thp", "mthp", "hugetlb")


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault: what is done, on which pages it makes sense, and what it must count."""

    about: str
    core: str  # name of the kind in C
    access: Access = "write"
    policies: tuple[str, ...] = ANONYMOUS
    refused: str = ""  # why not on the others
    per: Literal["touch", "block", "chunk"] = "touch"  # what has a time
    file: bool = False
    threaded: bool = True


FAULT_KINDS: dict[str, FaultKind] = {
    "read": FaultKind("the first read of fresh anonymous memory", "read", "read"),
    "write": FaultKind("the first write to fresh anonymous memory", "write"),
    "write_after_read": FaultKind("the first write to pages that were read before", "write_after_read"),
    "second": FaultKind("one more write to pages that were written before", "second", per="block"),
    "fill": FaultKind("writing every byte of fresh anonymous memory", "fill", per="chunk", threaded=False),
    "populate_write": FaultKind(
        "populating by madvise(MADV_POPULATE_WRITE)", "populate_write", per="chunk", threaded=False
    ),
    "map_populate": FaultKind(
        "populating by mmap(MAP_POPULATE)",
        "map_populate",
        policies=("base", "default", "hugetlb"),
        refused="advice comes too late for MAP_POPULATE",
        per="chunk",
        threaded=False,
    ),
    "refault_dontneed": FaultKind("a write to pages that were dropped (MADV_DONTNEED)", "refault_dontneed"),
    "refault_free": FaultKind(
        "a write to pages that the kernel may drop (MADV_FREE)",
        "refault_free",
        policies=("base", "default", "thp", "mthp"),
        refused="MADV_FREE knows no hugetlb pages",
    ),
    "fork_parent": FaultKind("a write of the parent after fork: copy on write", "fork_parent"),
    "fork_child": FaultKind("a write of the child after fork: copy on write", "fork_child"),
    "private_file": FaultKind(
        "an access to a privately mapped file", "file", policies=("default",), file=True
    ),
    "shared_file": FaultKind(
        "an access to a shared mapping of a file", "file", "read", ("default",), file=True
    ),
    "memfd": FaultKind(
        "an access to memory that is a file (memfd_create)",
        "file",
        policies=("default", "hugetlb"),
        file=True,
    ),
    "pread": FaultKind(
        "read(2) of a page of a file, for comparison",
        "pread",
        "read",
        ("default",),
        file=True,
        threaded=False,
    ),
}
FILE_PAGES = "the page cache chooses the pages of a file"


@dataclass(frozen=True)
class FaultPlan:
    """What will be touched, worked out before anything is mapped."""

    name: str
    kind: FaultKind
    policy: PagePolicy
    size: int  # bytes
    step: int  # bytes from one touch to the next
    access: str
    threads: int
    order: str

    @property
    def mapped(self) -> int:
        """Bytes: whole pages of the policy."""
        return mapped_size(self.size, self.policy)

    @property
    def block(self) -> int:
        """Touches that share one time: as many for each of them."""
        places = -(-self.size // self.step)
        return places // -(-places // BLOCK) if self.kind.per == "block" else 1

    @property
    def touches(self) -> int:
        """Touches: whole blocks."""
        return -(-self.size // self.step) // self.block * self.block

    @property
    def chunk(self) -> int:
        """Bytes of one time where touches have none: nearly the same for each."""
        if self.name == "map_populate":
            return self.mapped
        times = -(-self.mapped // CHUNK)
        return mapped_size(-(-self.mapped // times), self.policy)

    @functools.cached_property
    def granule(self) -> int | None:
        """Bytes of the pages that the kernel will give; ``None`` where it decides."""
        if self.policy.kind == "default":
            return default_page()
        return self.policy.page_size if self.policy.offered else None

    @property
    def bytes_per_touch(self) -> int:
        """Bytes of memory that one touch brings in, or would have if it were the first of its page."""
        return min(self.step, self.granule or paging.base_page_size())

    @property
    def touched_pages(self) -> int | None:
        """Pages that the touches are in; ``None`` where the kernel decides."""
        if self.granule is None:
            return None
        if self.kind.per == "chunk":
            return -(-self.mapped // self.granule)
        dense = self.step <= self.granule
        return (self.touches - 1) * self.step // self.granule + 1 if dense else self.touches

    @property
    def together(self) -> bool:
        """Whether two threads may come to a page at the same time: then it may fault for both."""
        return self.threads > 1 and (self.granule is None or self.step < self.granule)

    def expected(self, zero: int | None) -> int | None:
        """Faults that the timed part must count, minor or major; ``None`` where the kernel decides.

        `zero` is the number of bytes that the zero page backed before a write after a read.
        """
        if self.name in NEVER:
            return 0
        if self.together or self.name in DECIDED_BY_KERNEL:
            return None
        rule = EXPECTED.get(self.name)
        return self.touched_pages if rule is None else rule(self, zero)


NEVER = ("second", "pread")
# Whether the page is still there, and how many around it are mapped with it.
DECIDED_BY_KERNEL = ("refault_free", "shared_file")


def _of_read(plan: FaultPlan, zero: int | None) -> int | None:
    """Below PMD size there is a zero page for base pages alone, where there is one."""
    return None if plan.policy.kind == "mthp" and plan.touched_pages != plan.touches else plan.touched_pages


def _after_read(plan: FaultPlan, zero: int | None) -> int | None:
    """What becomes of a huge zero page differs from kernel to kernel."""
    base = paging.base_page_size()
    return None if plan.granule != base or zero is None else zero // base


def _forked(plan: FaultPlan, zero: int | None) -> int | None:
    """Of a huge page, some kernels copy all, others the base page that is written."""
    whole = plan.policy.kind == "hugetlb" or plan.granule in (paging.base_page_size(), plan.step)
    return plan.touched_pages if whole else None


def _of_private_file(plan: FaultPlan, zero: int | None) -> int | None:
    """Each write copies a page; a read may map those around it too."""
    return plan.touches if plan.access == "write" else None


def _of_memfd(plan: FaultPlan, zero: int | None) -> int | None:
    small = plan.access == "write" and paging.shmem_is_small()
    return plan.touched_pages if plan.policy.kind == "hugetlb" else plan.touches if small else None


EXPECTED: dict[str, Callable[[FaultPlan, int | None], int | None]] = {
    "read": _of_read,
    "write_after_read": _after_read,
    "fork_parent": _forked,
    "fork_child": _forked,
    "private_file": _of_private_file,
    "memfd": _of_memfd,
}


# --- the result ------------------------------------------------------------------------------------------

AtLeastOne = Annotated[int, Spec(least=1)]
TOUCH_PARAMS = Keys(
    bytes=Bytes, kind=KindName, order=str, threads=Whole, block=AtLeastOne, bytes_per_time=AtLeastOne
)
TOUCH_COUNTS = Keys(
    (),
    virtual_bytes=Bytes,
    resident_bytes=Keys(mapped=Number, touched=Number),
    zero_page_bytes=Bytes,
    copied_bytes=Bytes,
    cached_bytes=Bytes,
    faults_after=Whole,
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PageTimes(SingleTimes):
    """Times of single touches, or of small groups of them, in touch order.

    A `Measurement` whose `ns` is a time a page: there are no slices, so `low` and `interval` are ``None``.
    Of ``faults``, minor and major ones together make what was ``expected``: where two threads fault at once,
    the kernel counts one of them as major.

    Attributes
    ----------
    ns : ndarray of float64, shape (times,)
        Nanoseconds a touch, in touch order, what reading the clock costs subtracted: around zero where a
        touch is faster than the clock can see. A time is of `touches_per_time` touches, as their mean; of
        filling and populating, nanoseconds a chunk of `bytes_per_time` bytes.
    index : ndarray of int64, shape (times,)
        The place that was touched, or the first of a group or chunk, counted in steps from the start of the
        memory.
    thread : ndarray of int16, shape (times,)
        The thread that touched it.
    after : ndarray of float64, shape (touches,)
        Nanoseconds of the first access to each page after populating, else empty: where it is dear although
        no fault is counted, a hypervisor had faults of its own.
    overhead_ns : float
        What reading the clock costs: subtracted from every time.
    wall_ns : float
        Nanoseconds from the first touch to the last, all threads together, nothing subtracted.
    counts : dict
        ``touches``; ``faults_at_most`` where the kernel decides how many; of the process (/proc/self/statm),
        ``virtual_bytes`` of the mapping and ``resident_bytes`` since before it, when it was ``mapped`` and
        when it was ``touched``; ``zero_page_bytes`` before a write after a read, ``copied_bytes`` after a
        fork, ``cached_bytes`` of a file before it was touched; ``faults_after`` of the first accesses after
        populating.
    """

    kind: ClassVar[str] = "page_times"

    faults: Annotated[dict[str, int | None], Keys(minor=Whole, major=Whole, expected=Whole | None)]
    params: Annotated[dict[str, Any], TOUCH_PARAMS]
    counts: Annotated[dict[str, Any], TOUCH_COUNTS] = field(default_factory=dict)
    index: Annotated[Ints, Spec(axes=("times",), least=0)]
    thread: Annotated[npt.NDArray[np.int16], Spec(axes=("times",), least=0)]
    after: Annotated[Floats, Spec("ns", ("touches",))] = field(default_factory=lambda: np.zeros(0))
    overhead_ns: Nanoseconds
    wall_ns: Annotated[float, Spec("ns", least=1)]

    @property
    def touches_per_time(self) -> int:
        """Touches that each of `ns` is the mean of."""
        return int(self.params["block"])

    @property
    def bytes_per_time(self) -> int:
        """Bytes of memory that each of `ns` brought in, or would have; of chunks their mean."""
        return int(self.params["bytes_per_time"])

    def quantile(self, level: float) -> float:
        """Nanoseconds that this share of the times stay below."""
        return float(np.quantile(self.ns, level))

    @property
    def gib_per_second(self) -> float:
        """Memory that was brought in a second, GiB/s, by the wall time."""
        return self.ns.size * self.touches_per_time * self.bytes_per_time / self.wall_ns * 1e9 / 2**30

    @property
    def per_base_page(self) -> float:
        """Mean nanoseconds for as much memory as a base page."""
        return self.mean * paging.base_page_size() / self.bytes_per_time

    @property
    def subject(self) -> str:
        """What was touched, in a few words."""
        return (
            f"fault: {self.params['kind']} of {format_size(self.params['bytes'])} on {self.backing.asked!r} "
            f"pages, {self.params['order']}, {self.params['threads']} thread"
            f"{'s' if self.params['threads'] > 1 else ''}"
        )

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""
        yield "what", FAULT_KINDS[self.params["kind"]].about
        levels = ((0.05, "5 %"), (0.5, "median"), (0.95, "95 %"), (1.0, "most"))
        shown = ", ".join(f"{name} {format_time(self.quantile(level))}" for level, name in levels)
        yield "time", f"{shown}; mean {format_time(self.mean)}, a {self.unit}"
        yield "throughput", f"{self.gib_per_second:.3g} GiB/s, {format_time(self.per_base_page)} a base page"
        expected = self.faults["expected"]
        wanted = "the kernel decides how many" if expected is None else f"{expected:,} expected"
        yield "faults", f"{self.faults['minor']:,} minor, {self.faults['major']:,} major; {wanted}"
        if self.after.size:
            median, mean = format_time(float(np.median(self.after))), format_time(float(self.after.mean()))
            first = f"median {median}, mean {mean}"
            yield (
                "first access",
                f"{first} a touch, after populating, with {self.counts.get('faults_after')} faults",
            )
        yield "clock", f"{format_ns(self.overhead_ns)} a reading, subtracted from every time"
        yield "backing", str(self.backing)
        yield "set-up", ", ".join(f"{name} {format_seconds(taken)}" for name, taken in self.setup.items())
        memory = self.counts.get("resident_bytes")
        if memory:
            before, after = (approximate_size(memory[when]) for when in ("mapped", "touched"))
            mapped = approximate_size(self.counts["virtual_bytes"])
            yield (
                "memory",
                f"{mapped} virtual, margins included; {before} resident before touching, {after} after",
            )
        for name, what in BYTES_IN_WORDS.items():
            if name in self.counts:
                yield what, approximate_size(self.counts[name])
        for name, reason in self.refused.items():
            yield f"refused {name}", reason
        for warning in self.warnings:
            yield "warning", warning
        yield from hazard_rows(self.hazards)

    @property
    def unit(self) -> str:
        """What each of `ns` is the time of."""
        if FAULT_KINDS[str(self.params["kind"])].per == "chunk":
            return f"chunk of {approximate_size(self.bytes_per_time)}"
        one = f"page of {format_size(self.bytes_per_time)}"
        return one if self.touches_per_time == 1 else f"{one}, mean of {self.touches_per_time}"

    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the single times."""
        levels = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
        return {
            "probe": self.probe,
            "times": int(self.ns.size),
            "mean_ns": self.mean,
            "quantiles_ns": {str(level): self.quantile(level) for level in levels},
            "gib_per_second": self.gib_per_second,
            "ns_per_base_page": self.per_base_page,
            "overhead_ns": self.overhead_ns,
            "wall_ns": self.wall_ns,
            "after_ns": float(np.median(self.after)) if self.after.size else None,
            **self._facts(),
        }


# What was counted in bytes, in words.
BYTES_IN_WORDS = {
    "zero_page_bytes": "zero pages before",
    "copied_bytes": "copied",
    "cached_bytes": "cached before",
}


# --- the probe -------------------------------------------------------------------------------------------


def fault(
    size: Size,
    pages: str | None = None,
    *,
    kind: KindName = "write",
    order: Order = "sequential",
    threads: int = 1,
    step: Size | None = None,
    access: Access | None = None,
    path: StrPath | None = None,
    cache: CacheState = "warm",
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    counters: Sequence[str] = (),
) -> PageTimes:
    """Time of the first touch of every page, in nanoseconds, one by one, with the page faults counted.

    Everything happens in a process of its own: memory starts fresh, and what a signal ends is not the
    interpreter.

    Parameters
    ----------
    size : int or str
        Bytes of memory, mapped for this measurement.
    pages : str, optional
        Page policy, see `page_policies`; ``"base"`` by default, ``"default"`` for files.
    kind : str
        ``"read"``, ``"write"``: the first access to fresh anonymous memory; ``"write_after_read"``: where the
        kernel has a zero page, it is replaced; ``"second"``: a further write, which faults no more;
        ``"fill"``: every byte; ``"populate_write"``, ``"map_populate"``: the kernel does it ahead;
        ``"refault_dontneed"``, ``"refault_free"``: after the pages were given back; ``"fork_parent"``,
        ``"fork_child"``: copy on write; ``"private_file"``, ``"shared_file"``, ``"memfd"``: mapped files;
        ``"pread"``: read(2) of a page at a time, to compare a mapped file with.
    order : {"sequential", "random"}
        Order of the touches.
    threads : int
        Threads that touch a part of the memory each, at the same time, 1 to 64.
    step : int or str, optional
        Bytes from one touch to the next; a page of the policy by default. With base-page steps on huge pages
        most touches hit a page that is there already: their pattern shows where pages begin.
    access : {"read", "write"}, optional
        Of a file: ``"write"`` for private mappings and memfd, ``"read"`` for shared ones by default.
    path : path, optional
        File to map instead of a temporary one, of at least `size` bytes. It is only read; a private mapping
        may be written, which never reaches the file.
    cache : {"warm", "cold"}
        Whether the file is in the page cache, or was dropped from it first, where its file system can do
        that.
    strict : bool
        Whether pages other than asked are a `BackingError`; otherwise a warning.
    seed : int
        Of the random order, 0 to 2**64 - 1.
    cpu : int, optional
        CPU that a single thread is pinned to; the one it runs on by default.
    counters : sequence of str
        Performance counters; each lands in ``.refused`` with its reason.

    Returns
    -------
    PageTimes
        ``ns`` float64 (times,), nanoseconds a touch, the clock's own cost subtracted; ``faults`` counted and
        expected.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong, or a kind makes no sense on a policy: before anything is mapped.
    MemoryError
        If it would not fit, or the kernel ended the process for want of memory.
    BackingError
        If the pages are not what was asked, unless ``strict=False``.
    OSError
        If a file cannot be read, shrinks while it is mapped (SIGBUS), or a disk is full.
    RuntimeError
        If the measuring process ended for a reason that is not known.

    Notes
    -----
    One access is the first access to one page. Isolates: trap, kernel path, allocation and clearing of a
    page, for one kind of fault at a time, without mapping and unmapping, which are in ``.setup``. Confounded
    by: the state of the kernel's free lists, memory that a hypervisor has not backed yet (its own faults are
    counted nowhere), readahead and fault-around of files. Limits: times below some 20 ns are the clock's.

    Examples
    --------
    >>> m = fault("1MiB", kind="write")
    >>> m.faults["minor"] == m.faults["expected"] == m.ns.size
    True
    """
    only_here("fault")
    plan = _plan(size, pages, kind, order, threads, step, access)
    common = Common(strict, seed, cpu, counters=counters)
    if cpu is not None and threads > 1:
        raise ValueError(f"cpu={cpu!r} makes no sense with threads={threads}: each has a CPU of its own")
    _check_file_parameters(plan, path, cache)
    _check_fault_fits(plan, path, strict)
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    order_of_touches = _random_order(plan, common.seed)
    with _file(plan, path, cache) as fd, _pinned_if_alone(cpu, threads) as where:
        found = _touch(plan, fd, order_of_touches)
    if cache == "cold" and found["cached"]:
        raise OSError(
            errno.EOPNOTSUPP,
            f"cache='cold': {approximate_size(found['cached'])} of the file stayed in the page cache, which "
            "its file system (tmpfs, for one) or another user of the file keeps: name a file elsewhere in "
            "path=, or another folder in TMPDIR",
        )
    return _page_times(plan, found, order_of_touches, common, started, {"cpu": where, "cache": cache})


def _pinned_if_alone(cpu: int | None, threads: int) -> contextlib.AbstractContextManager[int | None]:
    """Several threads have a CPU each."""
    return cpus.pinned(cpu) if threads == 1 else contextlib.nullcontext()


def _plan(
    size: Size, pages: str | None, kind: str, order: str, threads: int, step: Size | None, access: str | None
) -> FaultPlan:
    check_choice("kind", kind, FAULT_KINDS)
    check_choice("order", order, get_args(Order))
    found = FAULT_KINDS[kind]
    policy = _policy(kind, pages)
    if access is not None:
        check_choice("access", access, get_args(Access))
        _check_access(kind, access)
    check_whole("threads", threads, 1, _core.THREADS_MOST, "threads that touch a part each")
    for name, value, default in (
        ("threads", threads, 1),
        ("step", step, None),
        ("order", order, "sequential"),
    ):
        if found.per == "chunk" and value != default:
            raise ValueError(
                f"{name}={value!r} makes no sense with kind={kind!r}: one call touches everything"
            )
    if threads > 1 and not found.threaded:
        raise ValueError(f"threads={threads} makes no sense with kind={kind!r}: one reads for all")
    parsed = parse_size(size)
    done = access or found.access
    return FaultPlan(kind, found, policy, parsed, _step(step, parsed, policy), done, threads, order)


def _policy(kind: str, pages: str | None) -> PagePolicy:
    found = FAULT_KINDS[kind]
    policy = find_policy(("default" if found.file else "base") if pages is None else pages)
    if policy.kind not in found.policies:
        reason = COLLAPSE if policy.kind == "collapse" else found.refused or FILE_PAGES
        names = ", ".join(name.replace("mthp", "thp-64K and the like") for name in found.policies)
        raise ValueError(f"pages={pages!r} makes no sense with kind={kind!r}: {reason}; these do: {names}")
    return policy


def _check_access(kind: str, access: str) -> None:
    if not FAULT_KINDS[kind].file:
        raise ValueError(f"access={access!r} is for files: kind={kind!r} says it by itself")
    if kind == "pread" and access == "write":
        raise ValueError("access='write' makes no sense with kind='pread', which reads")


def _step(step: Size | None, size: int, policy: PagePolicy) -> int:
    base = paging.base_page_size()
    if step is None:
        return policy.page_size or base
    parsed = parse_size(step, "step")
    if parsed % base or parsed > size:
        raise ValueError(
            f"step={step!r} must be a multiple of the base page, {format_size(base)}, and at most the size, "
            f"{format_size(size)}"
        )
    return parsed


def _check_file_parameters(plan: FaultPlan, path: StrPath | None, cache: str) -> None:
    check_choice("cache", cache, get_args(CacheState))
    on_disk = plan.kind.file and plan.name != "memfd"
    if path is not None and not isinstance(path, str | os.PathLike):
        raise TypeError(f"path={path!r} must be the path of a file")
    if path is not None and not on_disk:
        raise ValueError(f"path={os.fspath(path)!r} is for files: kind={plan.name!r} has none")
    if cache == "cold" and not on_disk:
        raise ValueError(f"cache='cold' is for files on a disk: kind={plan.name!r} has none")
    if path is not None and plan.name == "shared_file" and plan.access == "write":
        raise ValueError("access='write' would change the file of path=: leave it out, or map it privately")


def _check_fault_fits(plan: FaultPlan, path: StrPath | None, strict: bool) -> None:
    """Before anything is mapped or written."""
    what = f"fault(size={format_size(plan.size)!r}, kind={plan.name!r})"
    times = _times_in_memory(plan, path)
    if times:
        check_budget(times * plan.mapped, plan.policy, what)
    check_offered(plan.policy, what, strict)
    if plan.touches > TOUCHES_MOST:
        raise ValueError(f"{what} has {plan.touches} touches, more than {TOUCHES_MOST}: use a larger step")


def _times_in_memory(plan: FaultPlan, path: StrPath | None) -> int:
    """How often the size is taken from memory: copies count, the page cache of a disk gives way."""
    if not plan.kind.file:
        return 2 if plan.name.startswith("fork") else 1
    copied = int(plan.name == "private_file" and plan.access == "write")
    if path is not None:
        return copied
    device = Path(tempfile.gettempdir()).stat().st_dev
    return copied + (plan.name == "memfd" or files.file_system(device) in MEMORY_FILES)


@contextlib.contextmanager
def _file(plan: FaultPlan, path: StrPath | None, cache: str) -> Iterator[int]:
    """The file that is mapped, -1 without one; a temporary one has no name, so that nothing can be left."""
    if not plan.kind.file:
        yield -1
        return
    with _opened(plan, path) as fd:
        if cache == "cold":
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        yield fd


def _opened(plan: FaultPlan, path: StrPath | None) -> contextlib.AbstractContextManager[int]:
    if plan.name == "memfd":
        return _memfd(plan)
    return _temporary(plan.mapped) if path is None else _given(plan, path)


@contextlib.contextmanager
def _memfd(plan: FaultPlan) -> Iterator[int]:
    flags = os.MFD_CLOEXEC
    if plan.policy.kind == "hugetlb":
        shift = (plan.policy.page_size or 1).bit_length() - 1
        flags |= os.MFD_HUGETLB | shift << os.MFD_HUGE_SHIFT
    with io.FileIO(os.memfd_create("tlbprobe", flags), "r+") as file:
        file.truncate(plan.mapped)
        yield file.fileno()


@contextlib.contextmanager
def _given(plan: FaultPlan, path: StrPath) -> Iterator[int]:
    if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe, for one, would be waited for
        raise ValueError(f"path={os.fspath(path)!r} is no regular file")
    with Path(path).open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size < plan.size:
            raise ValueError(
                f"path={os.fspath(path)!r} has {format_size(size)}, less than the {format_size(plan.size)} "
                "that are to be touched"
            )
        yield file.fileno()


@contextlib.contextmanager
def _temporary(size: int) -> Iterator[int]:
    """Descriptor of a file without a name, every byte of it written, so that no touch allocates on a disk."""
    block = b"\x01" * min(size, CHUNK)
    folder = tempfile.gettempdir()
    try:
        _check_room(folder, size)
        with _unnamed(folder) as file:
            for begin in range(0, size, len(block)):
                _write_all(file.fileno(), block[: size - begin])
            yield file.fileno()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            error.add_note(f"the temporary file of {approximate_size(size)} goes where TMPDIR says: {folder}")
        raise


def _unnamed(folder: str) -> IO[bytes]:
    """A file that has no name from the beginning, if its file system can do that, or loses it at once."""
    try:
        return io.FileIO(folder, "r+", opener=_core.open_unnamed)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        return tempfile.TemporaryFile(buffering=0, dir=folder)


def _check_room(folder: str, size: int) -> None:
    """Do not fill a disk to find out that it is too small."""
    about = os.statvfs(folder)
    left = about.f_bavail * about.f_frsize
    if size > left:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {approximate_size(left)} are left")


def _write_all(fd: int, block: bytes) -> None:
    while block:
        block = block[os.write(fd, block) :]


def _touch(plan: FaultPlan, fd: int, order: npt.NDArray[np.uint32] | None) -> dict[str, Any]:
    """Do it, or raise what went wrong in the process that did it."""
    advice = advice_for(plan.policy)
    found = _core.fault(
        plan.kind.core,
        size=plan.mapped,
        **mapping_request(plan.policy),
        advice=-1 if plan.kind.file or advice is None else advice,
        without_thp=plan.name == "map_populate" and plan.policy.kind == "base",
        fd=fd,
        shared=plan.name in ("shared_file", "memfd"),
        write=plan.access == "write",
        step=plan.step,
        count=plan.touches,
        block=plan.block,
        chunk=plan.chunk,
        after=plan.name in ("populate_write", "map_populate"),
        order=order,
        threads=plan.threads,
        cpus=_thread_cpus(plan.threads),
    )
    if isinstance(found, tuple):
        raise failure(*found, file=plan.kind.file and plan.policy.kind != "hugetlb")
    if plan.kind.file and not _tells_what_is_cached(fd):
        found["cached"] = None
    return found


def _tells_what_is_cached(fd: int) -> bool:
    """Of files of others that it does not let us write, the kernel says that all is cached."""
    return os.fstat(fd).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{fd}", os.W_OK)


def _thread_cpus(threads: int) -> tuple[int, ...]:
    """CPUs of the threads, in turn; a single one stays where it is pinned to."""
    allowed = sorted(os.sched_getaffinity(0))
    return tuple(allowed[k % len(allowed)] for k in range(threads)) if threads > 1 else (-1,)


def _random_order(plan: FaultPlan, seed: int) -> npt.NDArray[np.uint32] | None:
    if plan.order == "sequential":
        return None
    return np.random.default_rng(seed).permutation(plan.touches).astype(np.uint32)


def _backing(plan: FaultPlan, found: dict[str, Any]) -> Backing:
    """Pages that the touches have left."""
    if plan.kind.file:
        return Backing(plan.policy.name, None, {}, "unknown", "none", "of a file")
    touched = None if plan.touched_pages is None else plan.touched_pages * (plan.granule or 1)
    size = plan.mapped if plan.name.startswith("fork") else touched
    first = found["prepared"] if plan.name in PREPARED else _fault_count(found)
    if plan.together and plan.touched_pages and first < 2 * plan.touched_pages:
        first = min(first, plan.touched_pages)  # the others are of two threads at one page
    return scanned_backing(plan.policy, found["scan"], size, first)


def _fault_count(found: dict[str, Any]) -> int:
    return int(found["touched"]["minor"] + found["touched"]["major"])


# Kinds of which the first touches are not the timed ones.
PREPARED = ("second", "refault_free")
# Kinds after which the pages are what they are: shared zero pages, copies of parts of huge ones.
UNPROVED = ("read", "write_after_read", "fork_parent", "fork_child")


def _page_times(
    plan: FaultPlan, found: dict[str, Any], order: Any, common: Common, started: str, more: dict[str, Any]
) -> PageTimes:
    touched, after = found["touched"], found["touched_after"]
    expected = plan.expected(found["zero"])
    backing = _backing(plan, found)
    times = found["ns"].astype(np.float64)
    times -= touched["overhead_ns"]
    times /= plan.block
    return PageTimes(
        probe="fault",
        ns=times,
        accesses_per_slice=plan.block,
        disturbed=np.zeros(0, np.bool_),
        core_ghz=None,
        setup=_setup(found),
        faults={"minor": touched["minor"], "major": touched["major"], "expected": expected},
        params={**_fault_params(plan, common, times.size), **more},
        backing=backing,
        host=recent_record(),
        started=started,
        counts=_counted(plan, found, expected),
        refused=common.uncounted,
        warnings=tuple(_warnings(plan, found, backing, expected, common.strict, more["cache"])),
        index=_index(plan, order, times.size),
        thread=_threads_of(plan, times.size),
        after=np.zeros(0) if found["after"] is None else found["after"] - float(after["overhead_ns"]),
        overhead_ns=float(touched["overhead_ns"]),
        wall_ns=float(touched["wall_ns"]),
    )


def _fault_params(plan: FaultPlan, common: Common, times: int) -> dict[str, Any]:
    chunked = plan.kind.per == "chunk"
    return {
        "bytes": plan.size,
        "kind": plan.name,
        "order": plan.order,
        "threads": plan.threads,
        "step": plan.step,
        "access": plan.access,
        "block": plan.block,
        "bytes_per_time": plan.mapped // times if chunked else plan.bytes_per_touch,
        "pages": plan.policy.name,
        "strict": common.strict,
        "mapped_bytes": plan.mapped,
        "seed": common.seed,
    }


def _index(plan: FaultPlan, order: Any, times: int) -> npt.NDArray[np.int64]:
    if order is None:
        each = plan.chunk // plan.step if plan.kind.per == "chunk" else plan.block
        return np.arange(times, dtype=np.int64) * each
    return np.asarray(order[:: plan.block], np.int64)


def _threads_of(plan: FaultPlan, times: int) -> npt.NDArray[np.int16]:
    """The thread of each time: consecutive parts."""
    ends = [times * (t + 1) // plan.threads for t in range(plan.threads)]
    return np.searchsorted(ends, np.arange(times), side="right").astype(np.int16)


def _setup(found: dict[str, Any]) -> dict[str, float]:
    steps = ("map", "prepare", "discard", "fork", "unmap")
    return {step: found[f"{step}_ns"] * 1e-9 for step in steps if found[f"{step}_ns"]}


def _counted(plan: FaultPlan, found: dict[str, Any], expected: int | None) -> dict[str, Any]:
    """What was counted beside the faults of the timed part."""
    (size, resident), (mapped_size, mapped), (_, touched) = (
        found[when] for when in ("before", "mapped", "touched_memory")
    )
    counts: dict[str, Any] = {"touches": plan.touches}
    if expected is None:
        counts["faults_at_most"] = plan.touches * plan.threads
    if resident:
        counts["virtual_bytes"] = mapped_size - size
        counts["resident_bytes"] = {"mapped": mapped - resident, "touched": touched - resident}
    for name, what in (("zero", "zero_page_bytes"), ("copied", "copied_bytes"), ("cached", "cached_bytes")):
        if found[name] is not None:
            counts[what] = found[name]
    if found["after"] is not None:
        counts["faults_after"] = found["touched_after"]["minor"] + found["touched_after"]["major"]
    return counts


def _warnings(
    plan: FaultPlan, found: dict[str, Any], backing: Backing, expected: int | None, strict: bool, cache: str
) -> Iterator[str]:
    wrong = "" if plan.kind.file or plan.name in UNPROVED else complaint(plan.policy, backing)
    if wrong and strict:
        raise BackingError(wrong, plan.policy.name, backing)
    if wrong:
        yield wrong
    if expected is not None and _fault_count(found) != expected:
        yield f"{_fault_count(found)} page faults were counted where {expected} were expected"
    if cache == "cold" and found["cached"] is None:
        yield "whether the file was cold is not known: the kernel does not tell it of a file of others"


PROBE = Probe(
    fault,
    PageTimes,
    kernel=None,
    question="the first touch of every page, one by one, with the page faults counted",
    word="touch",
    sizes=("size", "step"),
    hazards={TIMED: "every touch is timed", TRAPPING: "each first touch enters the kernel"},
    helps={
        "counters": "performance counters: none can be read around a single touch, and the result says so"
    },
    sample=Sample("64KiB", {"kind": "third", "order": "backwards", "threads": 0, "step": 100, "seed": -1}),
)
