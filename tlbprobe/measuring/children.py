"""What a process of its own found, and how it ended."""

from __future__ import annotations

import errno
import os
import signal
from typing import Any

from ..machine import paging
from ..memory.backing import Backing, Scan, count_granule, judge_backing
from ..memory.policies import PagePolicy, possible_sizes


def failure(step: str, error: int, killed_by: int, *, file: bool = False) -> Exception:
    """What to raise for a process that did not end well: its step, errno and signal, on a file or not."""
    if killed_by:
        return _killed(killed_by, file)
    if error in (errno.ENOMEM, errno.EFAULT):
        return MemoryError(
            f"{os.strerror(error)} while {step}: a limit (ulimit -v, ulimit -d), a control group or another "
            "process"
        )
    if error == errno.ENODATA:
        return OSError(errno.EIO, f"the file became shorter while {step}")
    if error == errno.EINVAL and step == "populating":
        return OSError(errno.ENOSYS, "MADV_POPULATE_WRITE needs Linux 5.14")
    if error == errno.ECHILD:
        return RuntimeError("the measuring process did not come to its end, and how it ended was not told")
    return OSError(error, f"{os.strerror(error)} while {step}")


def _killed(by: int, file: bool) -> Exception:
    if by == signal.SIGBUS and file:
        return OSError(
            errno.EIO, "the file became shorter while it was mapped, or its disk is full or fails (SIGBUS)"
        )
    if by == signal.SIGBUS:
        return MemoryError(
            "no huge page was left when one was touched (SIGBUS): another process took it, or a control "
            "group limits hugetlb pages"
        )
    if by == signal.SIGKILL:
        return MemoryError(
            "the measuring process was killed: the kernel, or a control group, ran out of memory"
        )
    return RuntimeError(f"the measuring process was ended by signal {by} ({signal.strsignal(by)})")


def scanned_backing(
    policy: PagePolicy, scan: dict[str, Any] | None, size: int | None, faults: int
) -> Backing:
    """Pages of what was touched in another process, by its scan and by the faults of its first touches.

    `size` is the number of bytes that must have a page; ``None``: those that have one.
    """
    if scan is None:
        return judge_backing(policy, None, None, None)
    possible = possible_sizes(policy)
    wanted = scan["present"] if size is None else size
    granule = count_granule(possible, wanted, scan["huge"], faults)
    huge = policy.page_size if policy.kind == "hugetlb" else paging.pmd_size()
    return judge_backing(policy, Scan(wanted, **scan), granule, huge, len(possible) > 1)
