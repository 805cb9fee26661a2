"""Pages under control, and proved: policies by name, the memory budget, regions, their backing.

Advice is not a huge page. A region asks for one page policy, and then reads from the kernel which pages
back it; every measurement repeats that before and after its timed part.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from . import _core, machine
from .units import Size, approximate_size, format_size, page_suffix, parse_size

Kind = Literal["base", "default", "thp", "mthp", "collapse", "hugetlb"]
Proof = Literal["proved", "consistent", "unknown"]

THP = "/sys/kernel/mm/transparent_hugepage"
HUGETLB = "/sys/kernel/mm/hugepages"
# Bytes that a region leaves to the rest of the system, whatever the kernel says is available.
MARGIN = 64 << 20
# Bytes of address space that a region leaves to the interpreter.
ADDRESS_MARGIN = 16 << 20
# By <linux/mman.h>, the same on every architecture that we run on; the mmap module may lack them.
MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", 14)
MADV_NOHUGEPAGE = getattr(mmap, "MADV_NOHUGEPAGE", 15)


# --- policies --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PagePolicy:
    """A page policy: what a region asks of the kernel, and whether this machine offers it."""

    name: str
    kind: Kind
    page_size: int | None  # bytes; None: the kernel decides
    offered: bool = True
    reason: str = ""  # why it is not offered
    command: str = ""  # what would offer it

    def __str__(self) -> str:
        if self.offered:
            return f"{self.name}: offered"
        return f"{self.name}: {self.reason}" + (f"; to offer it: {self.command}" if self.command else "")


def page_policies(root: machine.Root = "/") -> list[PagePolicy]:
    """List every page policy that the kernel knows, offered ones and others.

    Returns
    -------
    list of PagePolicy
        ``name`` is what `pages` takes, ``page_size`` is in bytes. Where ``offered`` is false, ``reason``
        says why and ``command`` what would offer it: nothing here changes the machine.
    """
    return [
        PagePolicy("base", "base", machine.base_page_size()),
        PagePolicy("default", "default", None),
        *_thp_policies(root),
        *_hugetlb_policies(root),
    ]


def _thp_policies(root: machine.Root) -> Iterator[PagePolicy]:
    pmd = machine.pmd_size(root)
    if pmd is None:
        return
    for size, (mode, path) in _thp_modes(root).items():
        name, kind = (f"thp-{page_suffix(size)}", "mthp") if size < pmd else ("thp", "thp")
        yield _thp_policy(name, cast(Kind, kind), size, mode, path)
    yield _thp_policy("collapse", "collapse", pmd, "always", "")  # whatever the mode


def _thp_modes(root: machine.Root = "/") -> dict[int, tuple[str, str]]:
    """Mode in force of each transparent huge page size, and the file that sets it."""
    pmd = machine.pmd_size(root)
    if pmd is None:
        return {}
    modes = {pmd: "inherit", **machine.mthp_modes(root)}
    inherited = machine.thp_mode(root) or "never"
    return {
        size: (inherited, f"{THP}/enabled")
        if mode == "inherit"
        else (mode, f"{THP}/hugepages-{size >> 10}kB/enabled")
        for size, mode in sorted(modes.items())
        if machine.base_page_size() < size <= pmd
    }


def _thp_policy(name: str, kind: Kind, size: int, mode: str, path: str) -> PagePolicy:
    if machine.thp_disabled() == 1:
        reason = "transparent huge pages are disabled for this process (prctl PR_SET_THP_DISABLE, inherited)"
        return PagePolicy(name, kind, size, False, reason, "start it from a process without this setting")
    if mode == "never":
        command = f"echo madvise | sudo tee {path}"
        return PagePolicy(name, kind, size, False, f"{path} is 'never'", command)
    return PagePolicy(name, kind, size)


def possible_sizes(policy: PagePolicy) -> list[int]:
    """Page sizes below the PMD size that the kernel may give to a policy, the base page first."""
    enabled = {
        "base": (),
        "default": ("always",),
        "collapse": ("always",),
        "thp": ("always", "madvise"),
        "mthp": ("always", "madvise"),
        "hugetlb": (),
    }[policy.kind]
    below = policy.page_size or machine.pmd_size() or 0
    sizes = [size for size, (mode, _) in _thp_modes().items() if mode in enabled and size <= below]
    return [machine.base_page_size(), *(size for size in sizes if size != machine.pmd_size())]


def _hugetlb_policies(root: machine.Root) -> Iterator[PagePolicy]:
    default = machine.default_hugetlb_size(root)
    for size, pool in machine.hugetlb_pools(root).items():
        name = "hugetlb" if size == default else f"hugetlb-{page_suffix(size)}"
        if pool.available or pool.overcommit > pool.surplus:
            yield PagePolicy(name, "hugetlb", size)
        else:
            pages = f"{pool.total} pages of {format_size(size)} reserved, none free"
            command = (
                f"echo N | sudo tee {HUGETLB}/hugepages-{size >> 10}kB/nr_hugepages "
                f"(N pages of {format_size(size)})"
            )
            yield PagePolicy(name, "hugetlb", size, False, pages, command)


def find_policy(pages: str) -> PagePolicy:
    """Policy of a name, an alias such as ``hugetlb-2M`` included; a ValueError lists the names there are."""
    if not isinstance(pages, str):
        raise TypeError(f"pages={pages!r} must be the name of a page policy, such as 'base' or 'thp'")
    known = page_policies()
    for policy in known:
        if policy.name == pages:
            return policy
    stem, _, suffix = pages.partition("-")
    kinds: tuple[str, ...] = {"thp": ("thp", "mthp"), "hugetlb": ("hugetlb",)}.get(stem, ())
    for policy in known:
        if policy.page_size and policy.kind in kinds and page_suffix(policy.page_size) == suffix.upper():
            return policy
    names = ", ".join(policy.name for policy in known)
    raise ValueError(f"pages={pages!r} is no page policy of this kernel: it has {names}")


# --- the budget ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """What one resource has to give, and what it has left."""

    resource: str
    needed: int  # bytes
    available: int  # bytes
    fixed: int = 0  # bytes of those needed that do not grow with the size
    remedy: str = ""  # the command that would raise it

    def fitting(self, mapped: int) -> int:
        """Bytes that could be mapped instead of `mapped`."""
        return max(0, (self.available - self.fixed) * mapped // (self.needed - self.fixed))


def page_table_bytes(mapped: int) -> int:
    """Bytes of the lowest page tables: eight a base page, kept in reserve below huge pages too."""
    return -(-mapped // machine.base_page_size()) * 8


def budget(mapped: int, policy: PagePolicy, root: machine.Root = "/") -> list[Need]:
    """What mapping and populating would take from each limited resource.

    Parameters
    ----------
    mapped : int
        Bytes, whole pages of the policy.
    policy : PagePolicy
        Where they come from.
    root : path
        Where /proc and /sys are read.

    Returns
    -------
    list of Need
        MemAvailable, every control group limit above this process, the hugetlb pool, RLIMIT_AS.
    """
    base = machine.base_page_size()
    huge = policy.kind == "hugetlb"
    tables = page_table_bytes(mapped) if _has_lowest_tables(policy) else 0
    collapsing = policy.page_size or 0 if policy.kind == "collapse" else 0  # the new page beside the old
    fixed = MARGIN + 3 * base + collapsing  # a table of each upper level
    margins = 0 if huge else _alignment(policy) + 2 * base
    return [
        *_ordinary_needs((0 if huge else mapped) + tables, fixed, root),
        *(_hugetlb_needs(mapped, policy, fixed + tables, root) if huge else ()),
        *_address_needs(mapped, margins + ADDRESS_MARGIN),
        *_map_needs(mapped, policy, root),
    ]


def _has_lowest_tables(policy: PagePolicy) -> bool:
    """All but hugetlb pages of at least PMD size: one table, a page of 8-byte entries, covers that."""
    base = machine.base_page_size()
    return policy.kind != "hugetlb" or (policy.page_size or base) < base // 8 * base


def _ordinary_needs(growing: int, fixed: int, root: machine.Root) -> Iterator[Need]:
    needed = growing + fixed
    available = machine.memory_available(root)
    if available is not None:
        yield Need("MemAvailable of /proc/meminfo", needed, available, fixed)
    for limit in machine.memory_limits(root):
        if limit.kind == "memory":
            yield Need(f"control group limit {limit.source}", needed, limit.headroom, fixed)


def _hugetlb_needs(mapped: int, policy: PagePolicy, beside: int, root: machine.Root) -> Iterator[Need]:
    size = policy.page_size or 1
    pool = machine.hugetlb_pools(root).get(size)
    if pool:
        available = pool.available + _surplus_pages(pool, beside, root)
        pages = pool.total + mapped // size - pool.available
        remedy = f"echo {pages} | sudo tee {HUGETLB}/hugepages-{size >> 10}kB/nr_hugepages"
        ordinary = machine.memory_available(root)
        if ordinary is not None and mapped - pool.available * size > ordinary - MARGIN:
            remedy = ""  # it would take all the memory of the machine, or more
        name = f"hugetlb pool of {format_size(size)} pages"
        yield Need(name, mapped, available * size, remedy=remedy)
    for limit in machine.memory_limits(root):
        if limit.kind == "hugetlb" and limit.page_size == size:
            yield Need(f"control group limit {limit.source}", mapped, limit.headroom)


def _surplus_pages(pool: machine.HugetlbPool, beside: int, root: machine.Root) -> int:
    """Pages that the pool may grow by: they come out of ordinary memory."""
    allowed = max(0, pool.overcommit - pool.surplus)
    free = machine.memory_available(root)
    return allowed if free is None else min(allowed, max(0, free - beside) // pool.page_size)


def _address_needs(growing: int, fixed: int) -> Iterator[Need]:
    left = machine.address_space_limit()
    if left is not None:
        name = "address space limit (RLIMIT_AS, ulimit -v)"
        yield Need(name, growing + fixed, left, fixed, "ulimit -v unlimited")


def _map_needs(mapped: int, policy: PagePolicy, root: machine.Root) -> Iterator[Need]:
    piece = _piece(policy)
    left = _mappings_left(root) if piece else None
    if left is not None:
        more = -(-mapped // piece) - left
        remedy = f"sudo sysctl vm.max_map_count={(machine.max_map_count(root) or 0) + more}"
        name = f"mappings of {format_size(piece)} each (sysctl vm.max_map_count)"
        yield Need(name, mapped, max(0, left) * piece, remedy=remedy)


def _mappings_left(root: machine.Root) -> int | None:
    """Mappings that this process may still make, some kept for the interpreter."""
    most = machine.max_map_count(root)
    try:
        used = Path(root, "proc/self/maps").read_bytes().count(b"\n")
    except OSError:  # no /proc
        return None
    return None if most is None else most - used - 64


def fit_together(wanted: Iterable[tuple[int, PagePolicy]], root: machine.Root = "/") -> bool:
    """Whether regions of so many mapped bytes on these policies can exist at the same time.

    Hugetlb pages come from pools of their own, one for each policy.
    """
    ordinary = [(mapped, policy) for mapped, policy in wanted if policy.kind != "hugetlb"]
    pieces = sum(-(-mapped // _piece(policy)) for mapped, policy in ordinary if _piece(policy))
    left = _mappings_left(root) if pieces else None
    if left is not None and pieces > left:
        return False
    whole = sum(mapped for mapped, _ in ordinary)
    needs = budget(whole, find_policy("base"), root=root) if whole else []
    return all(need.needed <= need.available for need in needs)


def check_budget(mapped: int, policy: PagePolicy, what: str, root: machine.Root = "/") -> None:
    """Raise a MemoryError with the figures if it would not fit, before anything is mapped."""
    short = [need for need in budget(mapped, policy, root) if need.needed > need.available]
    if not short:
        return
    page = policy.page_size or machine.base_page_size()
    if short[0].needed == short[0].fixed:  # hugetlb pages, but no memory for anything beside them
        worst, fits = short[0], 0
    else:
        worst = min(short, key=lambda need: need.fitting(mapped))
        fits = worst.fitting(mapped)
        # What is left of memory moves between two calls, so name a size that will still fit: leading bits.
        unit = max(page, 1 << fits.bit_length() >> 7) if worst.fixed else page
        fits = fits // unit * unit
    advice = f"the largest size that would fit is {format_size(fits)}" if fits else "no size would fit"
    if worst.remedy:
        advice += f"; to make room: {worst.remedy}"
    raise MemoryError(
        f"{what} needs {approximate_size(worst.needed)} (everything included) of: {worst.resource}, "
        f"which has {approximate_size(worst.available)} left; {advice}"
    )


def _alignment(policy: PagePolicy) -> int:
    """Bytes: whole huge pages fit only where the region begins on one; all policies begin alike."""
    return max(machine.pmd_size() or 0, policy.page_size or 0, machine.base_page_size())


def _piece(policy: PagePolicy) -> int:
    """Bytes that the mapping is split into, so that no larger page that is enabled fits; 0: whole."""
    if policy.kind != "mthp" or policy.page_size is None:
        return 0
    enabled = [size for size, (mode, _) in _thp_modes().items() if mode != "never"]
    return min((size for size in enabled if size > policy.page_size), default=0) // 2


def mapping_request(policy: PagePolicy) -> dict[str, int]:
    """How a mapping on a policy is made, as _core takes it."""
    base = machine.base_page_size()
    page = policy.page_size or base
    return {
        "alignment": _alignment(policy),
        "base_page": base,
        "page": page,
        "huge_shift": page.bit_length() - 1 if policy.kind == "hugetlb" else 0,
        "piece": _piece(policy),
    }


def advice_for(policy: PagePolicy) -> int | None:
    """Advice of madvise(2) that a policy needs before the first touch."""
    if policy.kind == "base":  # a kernel that has only base pages knows no such advice
        return None if machine.pmd_size() is None else MADV_NOHUGEPAGE
    return MADV_HUGEPAGE if policy.kind in ("thp", "mthp") else None


def default_page() -> int | None:
    """Bytes of the pages that memory without advice gets; ``None`` where the kernel chooses among several."""
    default = PagePolicy("default", "default", None)
    pmd_mode = _thp_modes().get(machine.pmd_size() or 0, ("never", ""))[0]
    sizes = possible_sizes(default)
    return sizes[0] if len(sizes) == 1 and pmd_mode != "always" else None


def round_up(size: int, unit: int) -> int:
    """Round up to a multiple of a unit."""
    return -(-size // unit) * unit


# --- backing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Backing:
    """What pages back the bytes of a measurement, read from the kernel: guest level in a virtual machine."""

    asked: str  # page policy
    page_size: int | None  # bytes, if one size backs every page
    shares: dict[int, float]  # page size in bytes: fraction of the measured bytes
    proof: Proof
    method: str
    note: str = ""

    def __str__(self) -> str:
        if self.page_size:
            return f"{format_size(self.page_size)} pages {self.proof}"
        mixed = ", ".join(f"{share:.1%} {format_size(size)}" for size, share in self.shares.items())
        return f"mixed pages ({mixed or 'none known'}), {self.proof}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for files."""
        shares = {str(size): share for size, share in self.shares.items()}
        return {**self.__dict__, "shares": shares}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read back what `to_dict` wrote."""
        shares = {int(size): float(share) for size, share in values["shares"].items()}
        return cls(**{**values, "shares": shares})


class BackingError(RuntimeError):
    """Memory was not backed by the pages that were asked for; carries `asked` and `found`."""

    def __init__(self, message: str, asked: str, found: Backing | None) -> None:
        super().__init__(message)
        self.asked = asked
        self.found = found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.asked, self.found), self.__dict__  # to reach another process


@dataclass(frozen=True)
class Scan:
    """Bytes of a range by what the page table holds for them."""

    size: int
    present: int
    huge: int
    zero: int
    swapped: int
    method: str

    @property
    def whole(self) -> bool:
        """Whether every page is there, and a page of our own."""
        return self.present == self.size and self.zero == 0 and self.swapped == 0


def judge(
    policy: PagePolicy, scan: Scan | None, granule: int | None, huge_size: int | None, counted: bool = False
) -> Backing:
    """Decide what backs a range, from what was scanned and counted: a pure function.

    Parameters
    ----------
    policy : PagePolicy
        What was asked.
    scan : Scan or None
        What the page table holds; ``None`` where nothing tells.
    granule : int or None
        Size of the pages below PMD size, in bytes; ``None`` where it is not known.
    huge_size : int or None
        Bytes of one page that the scan calls huge.
    counted : bool
        Whether several sizes were possible, and `granule` is what the number of faults says.
    """
    if scan is None:
        return Backing(policy.name, None, {}, "unknown", "none", "neither PAGEMAP_SCAN nor smaps can be read")
    shares = {}
    if scan.huge and huge_size:
        shares[huge_size] = scan.huge / scan.size
    small = scan.present - scan.huge - scan.zero
    if small > 0 and granule:
        shares[granule] = small / scan.size
    known = scan.whole and round(sum(shares.values()), 12) == 1.0
    proof: Proof = "consistent" if small > 0 and counted else "proved"
    note = "" if known else _what_is_odd(scan, granule)
    size = next(iter(shares)) if known and len(shares) == 1 else None
    return Backing(policy.name, size, shares, proof if known else "unknown", scan.method, note)


def _what_is_odd(scan: Scan, granule: int | None) -> str:
    absent = scan.size - scan.present - scan.swapped
    parts = (("not in memory", absent), ("swapped out", scan.swapped), ("shared zero page", scan.zero))
    odd = [f"{approximate_size(size)} {what}" for what, size in parts if size]
    if granule is None and scan.present > scan.huge:
        odd.append("pages below PMD size came in uneven sizes")
    return ", ".join(odd)


def count_granule(possible: Sequence[int], size: int, huge: int, faults: int) -> int | None:
    """Bytes that one fault populated: of several possible sizes the one that the number of faults fits.

    Of `size` bytes, `huge` were of PMD size. One stray fault in a thousand is let pass; of fewer, one page
    that came smaller would look alike.
    """
    if len(possible) == 1:
        return possible[0]
    faults -= huge // (machine.pmd_size() or 1)
    expected = {page: (size - huge) / page for page in possible}
    fits = [page for page, count in expected.items() if 0 <= faults - count <= min(3, count // 1000)]
    return fits[0] if len(fits) == 1 else None


def complaint(policy: PagePolicy, found: Backing) -> str:
    """Say what is wrong with a backing by the policy that was asked for; empty if nothing is."""
    wanted = policy.page_size
    if found.proof != "unknown" and (wanted is None or found.page_size == wanted):
        return ""
    note = f" ({found.note})" if found.note else ""
    return f"pages={policy.name!r} was asked, but found were {found}{note}"


# --- regions ---------------------------------------------------------------------------------------------

SMAPS_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ")
SMAPS_FIELDS = ("Rss", "Private_Hugetlb", "AnonHugePages", "Swap", "KernelPageSize")


def read_smaps(text: str, start: int, end: int) -> dict[str, int] | None:
    """Sum the fields of the mappings within a range; sizes in bytes, KernelPageSize of the last one."""
    found: dict[str, int] | None = None
    inside = False
    for line in text.split("\n"):  # names of files may hold other line breaks
        head = SMAPS_HEAD.match(line)
        if head:
            inside = start <= int(head[1], 16) and int(head[2], 16) <= end
            continue
        name, _, rest = line.partition(":")
        if inside and name in SMAPS_FIELDS:
            found = found or dict.fromkeys(SMAPS_FIELDS, 0)
            size = int(rest.split()[0]) * 1024
            found[name] = size if name == "KernelPageSize" else found[name] + size
    return found


class Region(_core.Mapping):
    """Memory under a page policy, populated, warmed by two passes, and proved.

    Parameters
    ----------
    size : int or str
        Bytes wanted; ``mapped_bytes`` is that, rounded up to whole pages of the policy.
    pages : str
        A page policy, see `page_policies`: ``"base"``, ``"default"``, ``"thp"``, ``"thp-64K"``,
        ``"collapse"``, ``"hugetlb"``, ``"hugetlb-1G"``.
    strict : bool
        Whether pages other than asked are a `BackingError`; otherwise a warning, and results are labelled
        by what was found.
    touch : {"random", "sequential"}
        Order of the first touches of base pages. Sequential ones come in physically adjacent runs, which
        some processors coalesce into one TLB entry; other policies are always touched in order.

    Attributes
    ----------
    size, mapped_bytes : int
        Bytes asked and mapped.
    setup : dict of str to float
        Seconds of each step: ``map``, ``populate``, ``collapse``, ``first_pass``, ``second_pass``,
        ``proof``. A first pass that is much dearer than the second shows hidden faults of a hypervisor.
    faults : int or None
        Minor faults of populating, where that was done by touching.

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
    A context manager; supports the buffer protocol (``np.frombuffer(region, dtype=...)``). It cannot be
    closed or measured while viewed, and is not inherited by a forked child. One measurement at a time.

    Examples
    --------
    >>> with Region("1MiB", "base") as region:
    ...     region.mapped_bytes
    1048576
    """

    def __init__(
        self,
        size: Size,
        pages: str = "base",
        *,
        strict: bool = True,
        touch: Literal["random", "sequential"] = "random",
    ) -> None:
        if not self.closed:
            raise RuntimeError("this Region is mapped already: create another one")
        self.size = parse_size(size)
        self.policy = find_policy(pages)
        self.strict = strict
        self.touch_order = touch
        self.setup: dict[str, float] = {}
        self.faults: int | None = None
        self._granule: int | None = None
        self._possible = possible_sizes(self.policy)
        if touch not in ("random", "sequential"):
            raise ValueError(f"touch={touch!r} must be 'random' or 'sequential'")
        what = f"Region(size={format_size(self.size)!r}, pages={self.pages!r})"
        mapped = mapped_size(self.size, self.policy)
        check_budget(mapped, self.policy, what)
        self._check_offered(what)
        with self._shortage(what):
            with self._step("map"):
                self._map(mapped)
            try:
                self._advise()
                self._populate()
                self._warm()
                with self._step("proof"):
                    self._hugetlb_size = self._read_hugetlb_size()
                    self.check_backing()
            except BaseException:
                self.close()
                raise

    sparse: ClassVar[bool] = False  # whether most of it has no page

    @property
    def pages(self) -> str:
        """Name of the page policy that was asked for."""
        return self.policy.name

    # Building it, step by step.

    def _check_offered(self, what: str) -> None:
        if self.policy.offered or not self.strict:
            return
        message = f"{what}: {self.policy.reason}"
        if self.policy.command:
            message += f"; to offer it: {self.policy.command}"
        raise BackingError(message, self.pages, None)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.setup[name] = time.perf_counter() - start

    @contextmanager
    def _shortage(self, what: str) -> Iterator[None]:
        """Make a MemoryError of what the kernel says when it runs out in spite of the budget."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOMEM, errno.EFAULT):
                raise MemoryError(
                    f"{what}: the kernel refused while mapping or populating ({error.strerror}); a limit "
                    "(ulimit -d, sysctl vm.overcommit_memory), a control group or another process may be why"
                ) from error
            error.add_note(f"{what} was refused by the kernel")
            raise

    def _map(self, mapped: int) -> None:
        super().__init__(mapped, **mapping_request(self.policy), sparse=self.sparse)

    def _advise(self) -> None:
        advice = advice_for(self.policy)
        if advice is None:
            return
        name = "MADV_NOHUGEPAGE" if advice == MADV_NOHUGEPAGE else "MADV_HUGEPAGE"
        note = f"madvise({name}) was refused, by a seccomp filter perhaps: pages='default' needs no advice"
        try:
            self.advise(advice)
        except OSError as error:
            self._refused(error, note)
            self._possible = possible_sizes(PagePolicy("default", "default", None))

    def _refused(self, error: OSError, note: str) -> None:
        """Explain a refused request; where it is not strict, go on: the proof says what the pages are."""
        error.add_note(note)
        if self.strict:
            raise error
        warnings.warn(f"{error.strerror}: {note}", RuntimeWarning, stacklevel=2)

    def _populate(self) -> None:
        with self._step("populate"):
            if self.policy.kind == "hugetlb":
                self.populate()
            else:
                shuffled = self.policy.kind == "base" and self.touch_order == "random"
                self.faults = self.touch(shuffled, 0)
                self._granule = self._count_granule(self.faults)
        if self.policy.kind == "collapse":
            with self._step("collapse"):
                self._collapse()

    def _count_granule(self, faults: int) -> int | None:
        """Bytes that one fault populated."""
        scan = self._scan(self.mapped_bytes) if len(self._possible) > 1 else None
        return count_granule(self._possible, self.mapped_bytes, scan.huge if scan else 0, faults)

    def _collapse(self) -> None:
        note = "MADV_COLLAPSE needs Linux 6.1 and free huge pages; EINVAL: unknown or disabled"
        try:
            self.collapse()
        except OSError as error:
            self._refused(error, note)

    def _warm(self) -> None:
        for name in ("first_pass", "second_pass"):
            with self._step(name):
                self.pass_over(0, self.mapped_bytes)

    # Proving it.

    def _read_hugetlb_size(self) -> int | None:
        if self.policy.kind != "hugetlb":
            return None
        fields = self._smaps()
        return fields["KernelPageSize"] if fields else None

    def _smaps(self) -> dict[str, int] | None:
        try:
            text = Path("/proc/self/smaps").read_bytes().decode("utf-8", "replace")
        except OSError:
            return None
        return read_smaps(text, self.address, self.address + self.mapped_bytes)

    def _scan(self, size: int) -> Scan | None:
        try:
            return Scan(size, **self.scan(0, size), method="PAGEMAP_SCAN")
        except OSError:  # before Linux 6.7, filtered, or not our own pagemap
            return self._scan_by_smaps(size)

    def _scan_by_smaps(self, size: int) -> Scan | None:
        """Scale the counts of the whole region down to a part of it where they are all or none."""
        fields, whole = self._smaps(), self.mapped_bytes
        if fields is None:
            return None
        huge = fields["AnonHugePages"] + fields["Private_Hugetlb"]
        present = fields["Rss"] + fields["Private_Hugetlb"]
        if huge not in (0, whole) or present != whole:
            size = whole  # mixed: it cannot be told where
        return Scan(
            size, present * size // whole, huge * size // whole, 0, fields["Swap"] * size // whole, "smaps"
        )

    def backing(self, working_set: Size | None = None, *, folios: bool = False) -> Backing:
        """Read which pages back the region, or the first `working_set` bytes of it, right now.

        Parameters
        ----------
        working_set : int or str, optional
            Bytes from the start.
        folios : bool
            Whether to read every physical page too (``/proc/kpageflags``): slow, root only, and the only
            proof of pages between base and PMD size.
        """
        address = self.address  # of a closed Region: an error that says so
        size = self.size if working_set is None else parse_size(working_set, "working_set")
        if size > self.mapped_bytes:
            raise ValueError(f"working_set={size} is more than the {self.mapped_bytes} bytes of this Region")
        size = round_up(size, self.base_page)
        huge = self._hugetlb_size if self.policy.kind == "hugetlb" else machine.pmd_size()
        scan = self._scan(size)
        if not folios:
            return judge(self.policy, scan, self._granule, huge, len(self._possible) > 1)
        whole = min(round_up(size, _alignment(self.policy)), self.mapped_bytes)  # do not cut the last folio
        found = read_folios(address, whole, self.base_page)[: size // self.base_page]
        return judge_folios(self.policy, scan, folio_shares(found), huge, self.base_page)

    def check_backing(self, working_set: Size | None = None) -> Backing:
        """Return `backing`, or raise the `BackingError` that strict means; warn where it is not strict."""
        found = self.backing(working_set)
        complaint = self.complaint(found)
        if complaint and self.strict:
            raise BackingError(complaint, self.pages, found)
        if complaint:
            warnings.warn(complaint, RuntimeWarning, stacklevel=3)
        return found

    def complaint(self, found: Backing) -> str:
        """Say what is wrong with a backing by the policy that was asked for; empty if nothing is."""
        return complaint(self.policy, found)

    # Living with it.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BufferError:  # a view lives on in the traceback of an error, which must not be hidden
            if error is None:
                raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{format_size(self.mapped_bytes)} mapped"
        return f"<Region of {format_size(self.size)} on {self.pages!r}, {state}>"


class SparseRegion(Region):
    """Address space on base pages, larger than memory may be, in which only some pages ever exist.

    Nothing is populated: the kernel that is prepared in it touches what it uses, at first in `prepare`.

    Parameters
    ----------
    size : int
        Bytes of address space.
    touched : int
        Pages that will exist, no two of them in one cell of ``size // touched`` bytes.
    what : str
        Whose memory it is, for errors.
    strict : bool
        Whether other pages than these are a `BackingError`.

    Raises
    ------
    MemoryError
        If the touched pages and their page tables would not fit, or address space cannot be had without
        memory (``vm.overcommit_memory`` is 2): before anything is mapped.
    """

    sparse: ClassVar[bool] = True

    def __init__(self, size: int, touched: int, what: str, *, strict: bool = True) -> None:
        self.size = size
        self.policy = find_policy("base")
        self.strict = strict
        self.touch_order = "sequential"
        self.setup = {}
        self.faults = None
        self._possible = [machine.base_page_size()]
        self._granule = machine.base_page_size()
        self.touched_bytes = touched * machine.base_page_size()
        mapped = mapped_size(size, self.policy)
        check_sparse_budget(mapped, touched, what)
        try:
            with self._step("map"):
                self._map(mapped)
        except OSError as error:
            raise MemoryError(
                f"{what} needs {approximate_size(mapped)} of address space, which the kernel refused "
                f"({error.strerror}): most machines give a process 128 TiB, with what it uses already"
            ) from error
        try:
            self._advise()
        except BaseException:
            self.close()
            raise

    def backing(self, working_set: Size | None = None, *, folios: bool = False) -> Backing:
        """Read which pages back what was touched; `working_set` and `folios` are for other regions."""
        scan = self._scan(self.mapped_bytes)
        touched = None if scan is None else replace(scan, size=self.touched_bytes)
        return judge(self.policy, touched, self._granule, machine.pmd_size())


def sparse_bytes(mapped: int, touched: int, base: int) -> int:
    """Bytes of touched pages, no two in one cell, and of every page table above them.

    A table is a base page of 8-byte entries: each level covers as many times more than the one below.
    """
    tables, covered = 0, base
    while covered < mapped:
        covered *= base // 8
        tables += min(touched, -(-mapped // covered) + 1)
    return (touched + tables) * base


def check_sparse_budget(mapped: int, touched: int, what: str, root: machine.Root = "/") -> None:
    """Raise a MemoryError if touched pages would not fit, or no address space is to be had for the others."""
    if machine.overcommit_memory(root) == 2:
        raise MemoryError(
            f"{what} needs {approximate_size(mapped)} of address space without memory, which the setting "
            "vm.overcommit_memory=2 refuses; to allow it: sudo sysctl vm.overcommit_memory=0"
        )
    needs = [
        *_ordinary_needs(sparse_bytes(mapped, touched, machine.base_page_size()), MARGIN, root),
        *_address_needs(mapped, _alignment(find_policy("base")) + ADDRESS_MARGIN),
    ]
    for need in needs:
        if need.needed > need.available:
            raise MemoryError(
                f"{what} needs {approximate_size(need.needed)} (page tables included) of: {need.resource}, "
                f"which has {approximate_size(need.available)} left"
            )


def mapped_size(size: int, policy: PagePolicy) -> int:
    """Bytes that a region of a size maps: whole pages of the policy."""
    return round_up(size, max(policy.page_size or 0, machine.base_page_size()))


# --- folios ----------------------------------------------------------------------------------------------

PRESENT_BIT, PFN_MASK = np.uint64(1 << 63), np.uint64((1 << 55) - 1)
HEAD_BIT, TAIL_BIT = np.uint64(1 << 15), np.uint64(1 << 16)


def read_folios(address: int, size: int, base: int) -> npt.NDArray[np.int64]:
    """Bytes of the folio of each base page in a range of our memory, by pagemap and kpageflags; 0: absent.

    Raises
    ------
    OSError
        Without CAP_SYS_ADMIN: physical page numbers read as zero, and kpageflags cannot be opened.
    """
    pages = size // base
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:  # noqa: PTH123 - unbuffered
        entries = np.frombuffer(os.pread(pagemap.fileno(), 8 * pages, address // base * 8), np.uint64)
    there = np.flatnonzero(entries & PRESENT_BIT)
    frames = (entries & PFN_MASK)[there].astype(np.int64)
    if len(entries) < pages or not frames.all():
        raise PermissionError(
            errno.EPERM, "physical page numbers need root (CAP_SYS_ADMIN)", "/proc/self/pagemap"
        )
    sizes = np.zeros(pages, np.int64)
    sizes[there] = folio_sizes(address // base + there, frames, _read_frame_flags(frames), base)
    return sizes


def _read_frame_flags(frames: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Flags of each frame; physically adjacent frames are read together."""
    starts = np.flatnonzero(_jumps(frames))
    ends = np.append(starts[1:], len(frames))
    with open("/proc/kpageflags", "rb", buffering=0) as flags:  # noqa: PTH123 - unbuffered
        parts = [
            os.pread(flags.fileno(), 8 * int(end - start), 8 * int(frames[start]))
            for start, end in zip(starts, ends, strict=True)
        ]
    return np.frombuffer(b"".join(parts), np.uint64)


def _jumps(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether each number is not the successor of the one before it."""
    jumps: npt.NDArray[np.bool_] = np.diff(numbers, prepend=-2) != 1
    return jumps


def folio_sizes(
    pages: npt.NDArray[np.int64], frames: npt.NDArray[np.int64], flags: npt.NDArray[np.uint64], base: int
) -> npt.NDArray[np.int64]:
    """Bytes of the folio of each page: a head and the tails that follow it, in virtual and physical order.

    A folio that is not whole, or not aligned alike in virtual and physical memory, counts as base pages: no
    processor translates it at once.

    Parameters
    ----------
    pages, frames : ndarray of int64
        Virtual and physical page numbers.
    flags : ndarray of uint64
        What /proc/kpageflags holds for each frame.
    base : int
        Bytes of a base page.
    """
    tail = (flags & TAIL_BIT) != 0
    starts = np.flatnonzero(~tail | _jumps(frames) | _jumps(pages))
    lengths = np.diff(np.append(starts, len(frames)))
    headed = (lengths == 1) | ((flags[starts] & HEAD_BIT) != 0)
    whole = headed & (lengths & (lengths - 1) == 0)
    aligned = (pages[starts] % lengths == 0) & (frames[starts] % lengths == 0)
    return np.repeat(np.where(whole & aligned, lengths * base, base), lengths)


def folio_shares(sizes: npt.NDArray[np.int64]) -> dict[int, float]:
    """Share of each folio size among pages; absent pages (0) have none."""
    found, counts = np.unique(sizes[sizes > 0], return_counts=True)
    return {int(size): int(count) / len(sizes) for size, count in zip(found, counts, strict=True)}


def judge_folios(
    policy: PagePolicy, scan: Scan | None, folios: dict[int, float], huge_size: int | None, base: int
) -> Backing:
    """Decide what backs a range, from folios and from what was scanned: a pure function.

    A huge folio may be mapped page by page, after a partial unmapping for example: only the scan tells, and
    what it does not call huge is translated by base pages.
    """
    huge = scan.huge / scan.size if scan else 0.0
    shares = dict(folios)
    split = max(0.0, shares.pop(huge_size or 0, 0.0) - huge)
    shares[base] = shares.get(base, 0.0) + split
    if huge_size:
        shares[huge_size] = huge
    rounded = ((size, round(share, 12)) for size, share in sorted(shares.items()))
    shares = {size: share for size, share in rounded if share}
    known = scan is not None and scan.whole and round(sum(shares.values()), 9) == 1.0
    size = next(iter(shares)) if known and len(shares) == 1 else None
    method = f"{scan.method if scan else 'none'} and kpageflags"
    note = "" if known else _what_is_odd(scan, base) if scan else "neither PAGEMAP_SCAN nor smaps can be read"
    return Backing(policy.name, size, shares, "proved" if known else "unknown", method, note)
