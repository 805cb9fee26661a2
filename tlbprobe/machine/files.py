"""What /proc and /sys hold, below a root: so that a recorded tree of them is a machine too.

Nothing here raises for what a machine lacks: an absent or garbled file is ``None``, never zero.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

Root = str | os.PathLike[str]
CPUS = "sys/devices/system/cpu"
MOST_BYTES = 1 << 20  # no file read here is longer on a sane machine
ONE_PROCESSOR = 1 << 14  # bytes of /proc/cpuinfo that hold all of the first one


def load_text(root: Root, path: str, most: int = MOST_BYTES) -> str:
    """Text of one file, or an OSError."""
    place = Path(root, path)
    if place.is_fifo() or place.is_char_device():  # no odd file can hang us
        raise OSError(errno.EINVAL, "not a regular file", str(place))
    with place.open("rb") as file:
        return file.read(most).decode("utf-8", "replace")


def read_text(root: Root, path: str) -> str | None:
    """Text of one file, or ``None`` where it is missing, unreadable or empty."""
    try:
        return load_text(root, path).strip() or None
    except (OSError, ValueError):
        return None


def list_names(root: Root, path: str) -> list[str]:
    """Names in a folder; none where it cannot be read."""
    try:
        return sorted(os.listdir(Path(root, path)))  # noqa: PTH208 - names, not paths
    except (OSError, ValueError):
        return []


def parse_number(text: str) -> int:
    """Parse a number that fits what the kernel counts with; anything else is a ValueError."""
    number = int(text)
    if not 0 <= number < 1 << 63:
        raise ValueError(text)
    return number


def register_number(text: str | None) -> int | None:
    """A decimal or 0x number, as /proc/cpuinfo and the files of registers have it; else ``None``."""
    found = re.fullmatch(r"0x[0-9a-f]{1,16}|[0-9]{1,8}", text or "")
    return int(found[0], 16 if found[0].startswith("0x") else 10) if found else None


def exists(root: Root, path: str) -> bool:
    """Whether something can be seen there."""
    try:
        return Path(root, path).exists()
    except (OSError, ValueError):
        return False


def read_int(root: Root, path: str) -> int | None:
    """Number in one file, or ``None`` where there is none."""
    try:
        return parse_number(read_text(root, path) or "")
    except ValueError:
        return None


def bracketed(text: str | None) -> str | None:
    """Return the chosen word of 'always [madvise] never'."""
    chosen = re.search(r"\[(\w[\w+-]*)\]", text or "")
    return chosen[1] if chosen else None


def parse_fields(text: str | None) -> dict[str, int]:
    """'MemFree:  12 kB' and 'anon 12' lines as name to bytes or count."""
    rows = re.findall(r"^([\w()]+):?\s+([0-9]{1,18})(?: (kB))?\s*$", text or "", re.MULTILINE)
    return {name: int(value) * (1024 if unit else 1) for name, value, unit in rows}


def named_lines(text: str) -> dict[str, str]:
    """'name : value' lines."""
    rows = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def cpuinfo(root: Root = "/") -> dict[str, str]:
    """Fields of the first processor: the whole file is slow to read on a large machine."""
    try:
        return named_lines(load_text(root, "proc/cpuinfo", ONE_PROCESSOR).partition("\n\n")[0])
    except (OSError, ValueError):
        return {}


def is_live(root: Root) -> bool:
    """Whether `root` is the running machine, of which the kernel itself may be asked too."""
    return os.fspath(root) == "/"


def file_system(device: int, root: Root = "/") -> str | None:
    """Type of the file system with a device number, such as ``ext4``; ``None`` where no mount tells."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in (read_text(root, "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        if after and before.split()[2:3] == [wanted]:
            return after.split()[0]
    return None


def vmstat(root: Root = "/") -> dict[str, int]:
    """Event counters of the memory manager since boot, to be read before and after a run."""
    return parse_fields(read_text(root, "proc/vmstat"))
