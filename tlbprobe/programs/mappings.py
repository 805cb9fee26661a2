"""Which mappings of a program are huge, which are not, and why not: read, never changed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..cores.current import only_here
from ..machine import files, paging
from ..machine.smaps import SmapsEntry, huge_bytes, resident_bytes, smaps_entries
from ..memory.policies import thp_modes
from ..units import approximate_size, format_size
from .processes import check_pid, whose_program

SHARED_MEMORY = ("/dev/zero", "/memfd:", "/SYSV", "/dev/shm/")  # names of memory that no file system holds
SHMEM_MODES = {"advise": "madvise", "force": "always", "within_size": "always"}  # in the words of THP


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
    only_here("a running program")
    check_pid(pid)
    text = _read_smaps(pid, root)
    status = files.read_text(root, f"proc/{pid}/status") or ""
    forbidden = re.search(r"^THP_enabled:\s*0", status, re.MULTILINE) is not None
    pmd = paging.pmd_size(root)
    setting = thp_modes(root).get(pmd or 0, ("never", ""))
    rules = _Rules(pmd, *setting, paging.shmem_mode(root), forbidden)
    entries = list(smaps_entries(text))
    if entries and entries[-1].cut_short:  # the program has ended meanwhile
        entries.pop()
    found = (_program_mapping(entry, rules) for entry in entries)
    return sorted((one for one in found if one.resident), key=lambda one: -one.resident)


def _read_smaps(pid: int, root: files.Root) -> str:
    try:
        text = Path(root, f"proc/{pid}/smaps").read_bytes().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(f"pid={pid}: there is no such program, or it has ended") from error
    except PermissionError as error:
        error.add_note(whose_program(pid, "read"))
        raise
    if not text.strip():
        raise ProcessLookupError(
            f"pid={pid}: a kernel thread, or a program that has ended: it has no mappings"
        )
    return text


@dataclass(frozen=True)
class _Rules:
    """What decides whether ordinary memory of a program may be huge."""

    pmd: int | None
    mode: str
    file: str  # that sets the mode
    shmem: str | None  # mode of shared memory
    forbidden: bool  # by prctl


def _program_mapping(entry: SmapsEntry, rules: _Rules) -> ProgramMapping:
    fields = entry.fields
    huge, resident = huge_bytes(fields), resident_bytes(fields)
    page = fields.get("KernelPageSize", 0) if "ht" in entry.flags else rules.pmd or 0
    reason = "" if huge >= resident else _why_not_huge(entry, huge, rules)
    return ProgramMapping(entry.start, entry.end, entry.name, resident, huge, page, reason)


def _why_not_huge(entry: SmapsEntry, huge: int, rules: _Rules) -> str:
    """The first thing in the way."""
    first, last = entry.start, entry.end
    shared = entry.inode != 0 and entry.name.startswith(SHARED_MEMORY)
    if rules.pmd is None:
        return "this kernel has no transparent huge pages"
    if shared and rules.shmem in (None, "never", "deny"):
        return f"shared memory: /{paging.THP}/shmem_enabled is {rules.shmem!r}"
    if entry.inode != 0 and not shared:
        return "file: the file system decides, advice does not help"
    if rules.forbidden:
        return "disabled for this program (prctl PR_SET_THP_DISABLE)"
    if "nh" in entry.flags:
        return "disabled by the program (MADV_NOHUGEPAGE)"
    if last - first < rules.pmd:
        return f"too small: less than {format_size(rules.pmd)}"
    if -(-first // rules.pmd) * rules.pmd + rules.pmd > last:
        return f"unaligned: holds no whole aligned {format_size(rules.pmd)}"
    shared_mode = SHMEM_MODES.get(rules.shmem or "", rules.shmem)
    mode = shared_mode if shared else rules.mode
    if mode == "never":
        return f"disabled: {rules.file} is 'never'"
    if mode == "madvise" and "hg" not in entry.flags:
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
