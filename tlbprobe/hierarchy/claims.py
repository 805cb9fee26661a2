"""What the processor claims of its TLB, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from ..declared import Declared, Whole
from ..machine import cpuid
from .inference import Range, Side

FAR_OFF = 2.0  # times a claim, or the reverse: what differs more may be another level
WIDE_RANGE = 2.0  # times its lower end: a range up to there says whether a claim is right


# --- results ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim(Declared):
    """What the processor claims of one level, beside what was measured."""

    level: Whole
    entries: Whole | None
    measured: Range | None
    verdict: Literal["agree", "disagree", "unknown"]
    note: str = ""

    def __str__(self) -> str:
        claimed = "nothing" if self.entries is None else f"{self.entries} entries"
        note = f" ({self.note})" if self.note else ""
        return f"claimed {claimed}, measured {format_range(self.measured)}: {self.verdict}{note}"


# --- words -----------------------------------------------------------------------------------------------


def format_range(found: tuple[int, int] | None) -> str:
    """One number, or from and to, or that there is none."""
    if found is None:
        return "not identifiable"
    return f"{found[0]}" if found[0] == found[1] else f"{found[0]} to {found[1]}"


# --- claims ----------------------------------------------------------------------------------------------


def claimed_levels(rows: Iterable[cpuid.TlbClaim], side: str, unit: int) -> dict[int, cpuid.TlbClaim]:
    """What is claimed for translations of a size, by level; several rows of a level add up."""
    found: dict[int, cpuid.TlbClaim] = {}
    for row in rows:
        if row.side in (side, "unified") and unit in row.page_sizes and row.access in ("any", "load"):
            entries = row.entries + (found[row.level].entries if row.level in found else 0)
            found[row.level] = cpuid.TlbClaim(**{**asdict(row), "entries": entries})
    return dict(sorted(found.items()))


def judged_claims(side: Side, claimed: dict[int, cpuid.TlbClaim]) -> tuple[Claim, ...]:
    """Each level that is claimed or was found, with the verdict."""
    count = max([len(side.levels), *claimed])
    return tuple(_judged(level, side, claimed.get(level)) for level in range(1, count + 1)) if claimed else ()


def _judged(level: int, side: Side, row: cpuid.TlbClaim | None) -> Claim:
    found = side.levels[level - 1].entries if level <= len(side.levels) else None
    measured = found.range if found else None
    doubtful = level - 1 > side.certain
    if row is None or measured is None or doubtful:
        note = "which level it is, is not sure" if doubtful and measured else ""
        return Claim(level, row.entries if row else None, measured, "unknown", note)
    if not row.reliable:
        note = f"{row.note}; {row.candidate} would {'' if _agrees(row.candidate, measured) else 'not '}agree"
        return Claim(level, row.entries, measured, "unknown", note)
    if not _agrees(row.entries, measured):
        near = measured[0] <= FAR_OFF * row.entries and row.entries <= FAR_OFF * measured[1]
        note = "" if near else "so far off that it may be another level"
        return Claim(level, row.entries, measured, "disagree" if near else "unknown", note)
    if measured[1] > WIDE_RANGE * measured[0]:
        return Claim(level, row.entries, measured, "unknown", "it lies within a range too wide to tell")
    return Claim(level, row.entries, measured, "agree")


def _agrees(entries: int | None, measured: tuple[int, int]) -> bool:
    return entries is not None and measured[0] <= entries <= measured[1]
