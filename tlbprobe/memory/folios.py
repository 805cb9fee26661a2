"""Folios: the proof of pages between base and PMD size, page by page, for root."""

from __future__ import annotations

import errno
import os

import numpy as np
import numpy.typing as npt

from .backing import Backing, Scan, what_is_odd
from .policies import PagePolicy

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
    note = "" if known else what_is_odd(scan, base) if scan else "neither PAGEMAP_SCAN nor smaps can be read"
    return Backing(policy.name, size, shares, "proved" if known else "unknown", method, note)
