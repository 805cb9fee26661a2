"""What /proc tells of the mappings of a process and of their pages: smaps, and smaps_rollup, its sum."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .files import parse_fields

# A mapping: a line of addresses, mode, offset, device, inode and name, then fields that begin with a capital.
MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) \S+ [0-9a-f]+ \S+ (\d+) *(.*)\n((?:[A-Z].*\n?)*)", re.MULTILINE
)
FLAGS_FIELD = re.compile(r"^VmFlags:(.*)$", re.MULTILINE)  # the last one of a mapping
BY_PMD = ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped")
POOLED = ("Private_Hugetlb", "Shared_Hugetlb")  # hugetlb pages, which the kernel leaves out of Rss


def pooled_bytes(fields: Mapping[str, int]) -> int:
    """Bytes of hugetlb pages."""
    return sum(fields.get(name, 0) for name in POOLED)


def resident_bytes(fields: Mapping[str, int]) -> int:
    """Bytes in memory, hugetlb pages included."""
    return fields.get("Rss", 0) + pooled_bytes(fields)


def huge_bytes(fields: Mapping[str, int]) -> int:
    """Bytes of those that are mapped by huge pages of any kind."""
    return sum(fields.get(name, 0) for name in BY_PMD) + pooled_bytes(fields)


@dataclass(frozen=True)
class SmapsEntry:
    """One mapping, and the text below it."""

    start: int
    end: int
    inode: int  # 0: of no file
    name: str
    text: str

    @functools.cached_property
    def fields(self) -> dict[str, int]:
        """Bytes by the name of the field."""
        return parse_fields(self.text)

    @property
    def flags(self) -> frozenset[str]:
        """What the kernel calls VmFlags: ``hg`` where huge pages were advised, ``ht`` for hugetlb ..."""
        found = FLAGS_FIELD.search(self.text)
        return frozenset(found[1].split()) if found else frozenset()

    @property
    def cut_short(self) -> bool:
        """Whether its end is missing, as of the last one when the process ends."""
        return FLAGS_FIELD.search(self.text) is None


def smaps_entries(text: str) -> Iterator[SmapsEntry]:
    """Mappings in the order of their addresses."""
    for found in MAPPING.finditer(text):
        start, end, inode, name, below = found.groups()
        yield SmapsEntry(int(start, 16), int(end, 16), int(inode), name, below)


def sum_smaps(text: str, start: int, end: int) -> Counter[str] | None:
    """Bytes by field of all mappings within a range, KernelPageSize of the last one; ``None`` without any."""
    inside = [entry.fields for entry in smaps_entries(text) if start <= entry.start and entry.end <= end]
    if not inside:
        return None
    total: Counter[str] = Counter()
    for fields in inside:
        total.update(fields)
    total["KernelPageSize"] = inside[-1].get("KernelPageSize", 0)
    return total
