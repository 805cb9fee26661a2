"""Other processes, as /proc tells of them: their memory and its pages, what they used, their descendants.

Everything is read below a root, so that a made-up tree is a machine too. A process that has ended is ``None``
and no error: it may do so between any two reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..machine import files, paging, smaps
from ..machine.files import Root

ALIVE_SECONDS = 0.05  # between two looks whether one still runs, where the kernel does not say when it ends
GONE = (FileNotFoundError, ProcessLookupError)


def check_pid(pid: int) -> None:
    """Raise an error for what can be the number of no program."""
    if isinstance(pid, bool) or not isinstance(pid, int):
        raise TypeError(f"pid={pid!r} must be the number of a running program")
    if pid < 1:
        raise ValueError(f"pid={pid!r} must be the number of a running program, at least 1")


def whose_program(pid: int, what: str) -> str:
    """Say who may do what was refused to us."""
    return (
        f"pid={pid} is another user's program, or one that the kernel protects: its user may {what} it, or "
        "root with CAP_SYS_PTRACE"
    )


@dataclass(frozen=True)
class Memory:
    """Bytes of one process, or of several: what is mapped by two of them then counts twice.

    Attributes
    ----------
    resident : int
        In memory, hugetlb pages included, which the kernel leaves out of its own sum.
    proportional : int
        The same, each page divided by the number of those that share it.
    huge : int
        Of `resident`, mapped by huge pages of any kind.
    referenced : int
        Of `resident`, accessed since that was last forgotten.
    """

    resident: int = 0
    proportional: int = 0
    huge: int = 0
    referenced: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def read_memory(pid: int, root: Root = "/") -> Memory | None:
    """Read what a process has in memory; a PermissionError if that is nobody's business."""
    try:
        text = files.load_text(root, f"{_with_memory(pid, root)}/smaps_rollup")
    except GONE:
        return None
    fields = files.parse_fields(text)
    if "Rss" not in fields:
        return None  # it was ending
    return Memory(
        resident=smaps.resident_bytes(fields),
        proportional=fields.get("Pss", fields["Rss"]) + smaps.pooled_bytes(fields),
        huge=smaps.huge_bytes(fields),
        referenced=fields.get("Referenced", 0),
    )


def read_peak(pid: int, root: Root = "/") -> int:
    """Most bytes that were ever resident in a process, without hugetlb pages; 0 where nothing tells."""
    text = files.read_text(root, f"{_with_memory(pid, root)}/status")
    return files.parse_fields(text).get("VmHWM", 0)


def read_resident(pid: int, root: Root = "/") -> int:
    """Bytes in memory, roughly and at no cost to speak of; 0 for one that has ended."""
    return next(filter(None, (_resident(folder, root) for folder in _folders(pid, root))), 0)


def _with_memory(pid: int, root: Root) -> str:
    """Folder that tells of a process's memory."""
    return next((folder for folder in _folders(pid, root) if _resident(folder, root)), f"proc/{pid}")


def _folders(pid: int, root: Root) -> Iterator[str]:
    """A process, then its threads: the first one may have ended before the others, and tells nothing then."""
    yield f"proc/{pid}"
    for thread in files.list_names(root, f"proc/{pid}/task"):
        yield f"proc/{pid}/task/{thread}"


def _resident(folder: str, root: Root) -> int:
    fields = (files.read_text(root, f"{folder}/statm") or "").split()
    return int(fields[1]) * paging.base_page_size() if len(fields) > 1 else 0


@dataclass(frozen=True)
class Usage:
    """What a process used since it began, with those of its children that it has waited for."""

    started: int  # ticks after boot: tells it from a later process of the same number
    over: bool  # whether it has ended, with all its threads, and only waits for its parent
    minor: int  # page faults
    major: int
    user: float  # seconds, in steps of a tick
    system: float
    stopped: bool = False  # by a signal or a debugger

    @property
    def cpu(self) -> float:
        """Seconds of processors."""
        return self.user + self.system


def read_usage(pid: int, root: Root = "/") -> Usage | None:
    """Read what a process used."""
    text = files.read_text(root, f"proc/{pid}/stat") or ""
    fields = text.rpartition(")")[2].split()  # a name may hold anything, brackets included
    if len(fields) < 20:
        return None
    minor, of_children, major, of_children_too, *times = map(int, fields[7:15])
    user, system = ((own + reaped) * tick() for own, reaped in zip(times[:2], times[2:], strict=True))
    over = fields[0] in ("Z", "X", "x") and int(fields[17]) <= 1
    stopped = fields[0] in ("T", "t")
    return Usage(int(fields[19]), over, minor + of_children, major + of_children_too, user, system, stopped)


def tick() -> float:
    """Seconds that the kernel counts times of processes in."""
    return 1 / os.sysconf("SC_CLK_TCK")


Switches = tuple[int, int]  # voluntary and involuntary context switches


def read_switches(pid: int, root: Root = "/") -> dict[int, Switches]:
    """Context switches of each thread that a process has now."""
    found = {}
    for thread in files.list_names(root, f"proc/{pid}/task"):
        fields = files.parse_fields(files.read_text(root, f"proc/{pid}/task/{thread}/status"))
        if "voluntary_ctxt_switches" in fields:
            found[int(thread)] = (fields["voluntary_ctxt_switches"], fields["nonvoluntary_ctxt_switches"])
    return found


def read_name(pid: int, root: Root = "/") -> str:
    """Name of a program by its number, without folder and arguments."""
    return files.read_text(root, f"proc/{pid}/comm") or str(pid)


def forget_accesses(pid: int, root: Root = "/") -> None:
    """Let `Memory.referenced` start from nothing; gone is gone."""
    with suppress(*GONE):
        Path(root, f"{_with_memory(pid, root)}/clear_refs").write_bytes(b"1")


class Tree:
    """A process and its descendants.

    One that was seen is remembered for as long as it lives, so that a daemon is followed although its parent
    has ended. One whose parent ended before anybody looked cannot be found. We are none of them, although we
    may have been started by the process.
    """

    def __init__(self, pid: int, root: Root = "/") -> None:
        self.pid = pid
        self.root = root
        self._known: dict[int, int] = {}  # when each began

    def usage(self) -> dict[int, Usage]:
        """Return those that are there now, by number, with what each used."""
        found: dict[int, Usage] = {}
        listed = self._children_listed()
        parents = None if listed else _children_by_parent(self.root)
        waiting = [self.pid, *self._known]
        while waiting:
            pid = waiting.pop()
            ours = pid == os.getpid() != self.pid
            usage = None if ours or pid in found else read_usage(pid, self.root)
            if usage is None or self._known.setdefault(pid, usage.started) != usage.started:
                continue  # seen, or ended: another one has its number
            found[pid] = usage
            waiting.extend(_children(pid, self.root) if parents is None else parents.get(pid, ()))
        self._known = {pid: usage.started for pid, usage in found.items()}
        return found

    def _children_listed(self) -> bool:
        """Whether this kernel lists children, which not all are built to do."""
        return files.exists(self.root, f"proc/{self.pid}/task/{self.pid}/children")


def _children(pid: int, root: Root) -> Iterator[int]:
    for thread in files.list_names(root, f"proc/{pid}/task"):
        text = files.read_text(root, f"proc/{pid}/task/{thread}/children") or ""
        yield from map(int, re.findall(r"\d{1,9}", text))


def _children_by_parent(root: Root) -> dict[int, list[int]]:
    """Children of every process of the machine, from what each says of its parent."""
    children: dict[int, list[int]] = {}
    for name in files.list_names(root, "proc"):
        if name.isdecimal():
            fields = (files.read_text(root, f"proc/{name}/stat") or "").rpartition(")")[2].split()
            if len(fields) > 1:
                children.setdefault(int(fields[1]), []).append(int(name))
    return children
