"""Sizes, counts and times: read from people, written for people.

K, M, G and T mean powers of 1024 in sizes, with or without ``iB``; kB, MB and GB are refused, since half of
the world means powers of 1000 by them.
"""

from __future__ import annotations

import operator
import re
from typing import SupportsIndex

POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
LARGEST = 1 << 62  # bytes; no machine has more, and sums of two still fit a signed 64-bit integer
SIZE = re.compile(r"\s*([+-]?\d+(?:\.\d*)?)\s*([KMGT]?)(iB|B?)\s*", re.IGNORECASE)

Size = int | str


def parse_size(size: SupportsIndex | str, name: str = "size") -> int:
    """Bytes of a size such as ``65536``, ``"64K"``, ``"64KiB"`` or ``"1.5GiB"``.

    Parameters
    ----------
    size : int or str
        From 1 byte to 2**62.
    name : str
        The parameter that an error names.

    Raises
    ------
    TypeError
        If it is neither an integer nor a string.
    ValueError
        If it cannot be parsed, is no whole number of bytes, or out of range.
    """
    number = _parse(size, name) if isinstance(size, str) else _integer(size, name)
    if not 1 <= number <= LARGEST:
        raise ValueError(f"{name}={size!r} is out of range: from 1 byte to {format_size(LARGEST)}")
    return number


def _integer(size: object, name: str) -> int:
    if isinstance(size, bool) or not isinstance(size, SupportsIndex):
        raise TypeError(f"{name}={size!r} must be a whole number of bytes or a string such as '64KiB'")
    return int(operator.index(size))


def _parse(text: str, name: str) -> int:
    match = SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{name}={text!r} is no size: write a number of bytes, '64KiB', '2MiB' or '1G'")
    digits, prefix, suffix = match.groups()
    if prefix and suffix.upper() == "B":
        raise ValueError(
            f"{name}={text!r} is ambiguous, powers of 1000 or of 1024: write {digits}{prefix.upper()}iB"
        )
    power = POWERS[prefix.upper()]
    whole, _, fraction = digits.partition(".")
    scaled = int(whole + fraction) << power  # exact, however many digits
    unit = int(10 ** len(fraction))
    if scaled % unit:
        raise ValueError(f"{name}={text!r} is not a whole number of bytes")
    return scaled // unit


def format_size(size: int) -> str:
    """Shortest exact text of a number of bytes: ``"64 KiB"``, ``"1.5 GiB"``, ``"77 B"``."""
    for prefix, power in reversed(POWERS.items()):
        if size >= 1 << power and power:
            short = f"{size / (1 << power):.2f}".rstrip("0").rstrip(".")
            if float(short) * (1 << power) == size:
                return f"{short} {prefix}iB"
    return f"{size} B"


def approximate_size(size: float) -> str:
    """Three significant digits of a number of bytes: ``"22.9 GiB"``."""
    for prefix, power in reversed(POWERS.items()):
        if size >= 1 << power and power:
            return f"{size / (1 << power):.3g} {prefix}iB"
    return f"{size:.0f} B"


def page_suffix(size: int) -> str:
    """A page size as policies write it: ``"64K"``, ``"2M"``, ``"1G"``."""
    return format_size(size).replace(" ", "").removesuffix("iB")


def format_seconds(seconds: float) -> str:
    """A duration with three significant digits and its unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
