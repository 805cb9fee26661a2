"""Proof: which pages back some bytes, judged from what the kernel tells.

Advice is not a huge page: what was asked for and what is there are two things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from ..declared import Bytes, Declared, Share
from ..machine import paging
from ..units import approximate_size, format_size
from .policies import PagePolicy

Proof = Literal["proved", "consistent", "unknown", "simulated"]


@dataclass(frozen=True)
class Backing(Declared):
    """What pages back the bytes of a measurement, read from the kernel: guest level in a virtual machine."""

    asked: str  # page policy
    page_size: Bytes | None  # if one size backs every page
    shares: dict[Bytes, Share]  # of the measured bytes, by page size
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
        return self.plain()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read back what `to_dict` wrote."""
        return cls.from_plain(values)


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


def judge_backing(
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
    note = "" if known else what_is_odd(scan, granule)
    size = next(iter(shares)) if known and len(shares) == 1 else None
    return Backing(policy.name, size, shares, proof if known else "unknown", scan.method, note)


def what_is_odd(scan: Scan, granule: int | None) -> str:
    """Say what keeps a scan from proving anything."""
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
    faults -= huge // (paging.pmd_size() or 1)
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
