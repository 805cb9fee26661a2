"""Regions: memory under a page policy, populated, warmed, proved."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal, Self

from .. import _core
from ..checks import check_choice
from ..cores.current import current
from ..machine import paging, smaps
from ..units import Size, approximate_size, format_size, parse_size
from .backing import Backing, BackingError, Scan, complaint, count_granule, judge_backing
from .budget import check_budget, check_sparse_budget
from .folios import folio_shares, judge_folios, read_folios
from .policies import (
    MADV_NOHUGEPAGE,
    PagePolicy,
    advice_for,
    alignment_of,
    find_policy,
    mapped_size,
    mapping_request,
    possible_sizes,
    round_up,
)


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
        self.core = current()
        self.size = parse_size(size)
        self.policy = find_policy(pages)
        self.strict = strict
        self.touch_order = touch
        self.setup: dict[str, float] = {}
        self.faults: int | None = None
        self._granule: int | None = None
        self._possible = possible_sizes(self.policy)
        check_choice("touch", touch, ("random", "sequential"))
        what = f"Region(size={format_size(self.size)!r}, pages={self.pages!r})"
        mapped = mapped_size(self.size, self.policy)
        check_budget(mapped, find_policy("base") if self.core.pages else self.policy, what)
        check_offered(self.policy, what, strict)
        with self._shortage(what):
            with self._step("map"):
                self._map(mapped)
            try:
                if self._give_back is None:
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
    _give_back: Callable[[], object] | None = None  # where a simulated machine makes its pages

    @property
    def pages(self) -> str:
        """Name of the page policy that was asked for."""
        return self.policy.name

    # Building it, step by step.

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        start = current().now()
        yield
        self.setup[name] = current().now() - start

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
        sparse = self.sparse or bool(self.core.pages)
        super().__init__(mapped, **mapping_request(self.policy), sparse=sparse)
        self._give_back = self.core.adopt(self, self._page)

    @property
    def _page(self) -> int:
        """Bytes of the pages of the policy; the kernel's choice is the base page where there is no kernel."""
        return self.policy.page_size or paging.base_page_size()

    def close(self) -> None:
        """Give the memory back."""
        if self._give_back is not None and not self.closed:
            self._give_back()
        super().close()

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

    def _smaps(self) -> Mapping[str, int] | None:
        try:
            text = Path("/proc/self/smaps").read_bytes().decode("utf-8", "replace")
        except OSError:
            return None
        return smaps.sum_smaps(text, self.address, self.address + self.mapped_bytes)

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
        huge, present = smaps.huge_bytes(fields), smaps.resident_bytes(fields)
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
        if self._give_back is not None:
            return Backing(self.pages, self._page, {self._page: 1.0}, "simulated", str(self.core))
        huge = self._hugetlb_size if self.policy.kind == "hugetlb" else paging.pmd_size()
        scan = self._scan(size)
        if not folios:
            return judge_backing(self.policy, scan, self._granule, huge, len(self._possible) > 1)
        whole = min(round_up(size, alignment_of(self.policy)), self.mapped_bytes)  # do not cut the last folio
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
        self.core = current()
        self.size = size
        self.policy = find_policy("base")
        self.strict = strict
        self.touch_order = "sequential"
        self.setup = {}
        self.faults = None
        self._possible = [paging.base_page_size()]
        self._granule = paging.base_page_size()
        self.touched_bytes = touched * paging.base_page_size()
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
            if self._give_back is None:
                self._advise()
        except BaseException:
            self.close()
            raise

    def backing(self, working_set: Size | None = None, *, folios: bool = False) -> Backing:
        """Read which pages back what was touched; `working_set` and `folios` are for other regions."""
        if self._give_back is not None:
            return super().backing(self.size)
        scan = self._scan(self.mapped_bytes)
        touched = None if scan is None else replace(scan, size=self.touched_bytes)
        return judge_backing(self.policy, touched, self._granule, paging.pmd_size())


def check_offered(policy: PagePolicy, what: str, strict: bool) -> None:
    """Raise a BackingError, with the command that would offer it, for a policy that is not on offer."""
    if strict and not policy.offered:
        command = f"; to offer it: {policy.command}" if policy.command else ""
        raise BackingError(f"{what}: {policy.reason}{command}", policy.name, None)
