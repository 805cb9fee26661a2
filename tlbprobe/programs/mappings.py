"""Which mappings of a program are huge, which are not, and why not: read, never changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..machine import files, paging
from ..units import approximate_size, format_size

HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) [0-9a-f]+ \S+ (\d+) *(.*)$")
SHARED_MEMORY = ("/dev/zero", "/memfd:", "/SYSV", "/dev/shm/")  # names of memory that no file system holds
SHMEM_MODES = {"advise": "madvise", "force": "always", "within_size": "always"}  # in the words of THP
HUGE_FIELDS = ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Private_Hugetlb", "Shared_Hugetlb")


@dataclass(frozen=True)
class ProgramMapping:
    """One mapping of a program.

    Attributes
    ----------
    start, end : int
        Addresses.
    name : str
        File or kind, such as ``[heap]``; empty for anonymous memory.
    resident, huge : int
        Bytes in memory, and bytes of those mapped by huge pages.
    page_size : int
        Bytes of the huge pages in question: the hugetlb size, else PMD size.
    reason : str
        Why the rest is not huge; empty if nothing is.
    """

    start: int
    end: int
    name: str
    resident: int
    huge: int
    page_size: int
    reason: str

    @property
    def size(self) -> int:
        """Bytes of the mapping."""
        return self.end - self.start


def program_mappings(pid: int, root: files.Root = "/") -> list[ProgramMapping]:
    """Tell which mappings of a running program are huge, which are not, and why not.

    Parameters
    ----------
    pid : int
        Of the program.
    root : path
        Where proc and sys are.

    Returns
    -------
    list of ProgramMapping
        Largest resident first; mappings with nothing in memory are left out.

    Raises
    ------
    ProcessLookupError
        If there is no such program, or it ended while it was read.
    PermissionError
        If it is somebody else's.
    """
    if isinstance(pid, bool) or not isinstance(pid, int):
        raise TypeError(f"pid={pid!r} must be the number of a running program")
    if pid < 1:
        raise ValueError(f"pid={pid!r} must be the number of a running program, at least 1")
    text = _read_smaps(pid, root)
    status = files.read_text(root, f"proc/{pid}/status") or ""
    forbidden = re.search(r"^THP_enabled:\s*0", status, re.MULTILINE) is not None
    pmd = paging.pmd_size(root)
    mode = paging.thp_mode(root)
    own = paging.mthp_modes(root).get(pmd or 0, "inherit")
    own_file = f"{paging.THP}/hugepages-{(pmd or 0) >> 10}kB/enabled"
    setting = (mode, f"{paging.THP}/enabled") if own == "inherit" else (own, own_file)
    rules = _Rules(pmd, *setting, paging.shmem_mode(root), forbidden)
    found = (_program_mapping(head, fields, rules) for head, fields in _smaps_entries(text))
    return sorted((one for one in found if one.resident), key=lambda one: -one.resident)


def _read_smaps(pid: int, root: files.Root) -> str:
    try:
        text = Path(root, f"proc/{pid}/smaps").read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(f"pid={pid}: there is no such program, or it has ended") from error
    except PermissionError as error:
        error.add_note(
            f"pid={pid} is another user's program, or one that the kernel protects: its user may read it, "
            "or root with CAP_SYS_PTRACE"
        )
        raise
    if not text.strip():
        raise ProcessLookupError(
            f"pid={pid}: a kernel thread, or a program that has ended: it has no mappings"
        )
    return text


def _smaps_entries(text: str) -> Iterator[tuple[re.Match[str], dict[str, str]]]:
    head: re.Match[str] | None = None
    fields: dict[str, str] = {}
    for line in text.split("\n"):  # no other line break is one here: names of files may hold them
        if match := HEAD.match(line):
            if head:
                yield head, fields
            head, fields = match, {}
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    if head and "VmFlags" in fields:  # the last one may be cut short when the program ends
        yield head, fields


@dataclass(frozen=True)
class _Rules:
    """What decides whether ordinary memory of a program may be huge."""

    pmd: int | None
    mode: str | None
    file: str  # that sets the mode
    shmem: str | None  # mode of shared memory
    forbidden: bool  # by prctl


def _bytes(fields: dict[str, str], names: Iterable[str]) -> int:
    values = (fields.get(name, "0 kB").split() for name in names)
    return sum(int(value[0]) * 1024 for value in values if value and value[0].isdecimal())


def _program_mapping(head: re.Match[str], fields: dict[str, str], rules: _Rules) -> ProgramMapping:
    start, end, _, inode, name = head.groups()
    first, last = int(start, 16), int(end, 16)
    flags = set(fields.get("VmFlags", "").split())
    huge = _bytes(fields, HUGE_FIELDS)
    resident = _bytes(fields, ("Rss", "Private_Hugetlb", "Shared_Hugetlb"))
    page = _bytes(fields, ("KernelPageSize",)) if "ht" in flags else rules.pmd or 0
    shared = inode != "0" and name.startswith(SHARED_MEMORY)
    reason = "" if huge >= resident else _why_not_huge(first, last, inode != "0", shared, huge, flags, rules)
    return ProgramMapping(first, last, name, resident, huge, page, reason)


def _why_not_huge(
    first: int, last: int, file: bool, shared: bool, huge: int, flags: set[str], rules: _Rules
) -> str:
    """The first thing in the way."""
    if rules.pmd is None:
        return "this kernel has no transparent huge pages"
    if shared and rules.shmem in (None, "never", "deny"):
        return f"shared memory: /{paging.THP}/shmem_enabled is {rules.shmem!r}"
    if file and not shared:
        return "file: the file system decides, advice does not help"
    if rules.forbidden:
        return "disabled for this program (prctl PR_SET_THP_DISABLE)"
    if "nh" in flags:
        return "disabled by the program (MADV_NOHUGEPAGE)"
    if last - first < rules.pmd:
        return f"too small: less than {format_size(rules.pmd)}"
    if -(-first // rules.pmd) * rules.pmd + rules.pmd > last:
        return f"unaligned: holds no whole aligned {format_size(rules.pmd)}"
    shared_mode = SHMEM_MODES.get(rules.shmem or "", rules.shmem)
    mode = shared_mode if shared else rules.mode
    if mode == "never":
        return f"disabled: /{rules.file} is 'never'"
    if mode == "madvise" and "hg" not in flags:
        return "not advised (MADV_HUGEPAGE)"
    if huge >= _aligned(first, last, rules.pmd):
        return f"all but the ends, which fill no aligned {format_size(rules.pmd)}"
    touched = "" if mode == "always" else "touched before the advice, or "
    return (
        f"{'partly: the rest' if huge else 'may be huge, but'} was {touched}mapped when huge pages were short"
    )


def _aligned(first: int, last: int, page: int) -> int:
    """Bytes within whole aligned pages."""
    return max(0, last // page * page - -(-first // page) * page)


def whole_program(mappings: Iterable[ProgramMapping]) -> str:
    """One line on all of them."""
    found = list(mappings)
    resident, huge = sum(one.resident for one in found), sum(one.huge for one in found)
    share = f" ({huge / resident:.0%})" if resident else ""
    return f"{approximate_size(huge)} of {approximate_size(resident)} resident are on huge pages{share}"
