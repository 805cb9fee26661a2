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
# ASCII, since IGNORECASE would take the Kelvin sign for a K; a bounded length, since int() has a limit too.
SIZE = re.compile(
    r"\s*([+-]?\d{1,100}(?:\.\d{0,100})?)\s*(?:([KMGT])(iB|B)?|B)?\s*", re.ASCII | re.IGNORECASE
)

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
        raise ValueError(f"{name}={_shown(size)} is out of range: from 1 byte to {format_size(LARGEST)}")
    return number


def _integer(size: object, name: str) -> int:
    wrong = f"{name}={_shown(size)} must be a whole number of bytes or a string such as '64KiB'"
    if isinstance(size, bool) or not isinstance(size, SupportsIndex):
        raise TypeError(wrong)
    try:
        return int(operator.index(size))
    except TypeError as error:  # an array of several numbers has an __index__ that refuses
        raise TypeError(wrong) from error


def _shown(size: object) -> str:
    """Repr of bounded length; that of an integer of thousands of digits would itself be an error."""
    if isinstance(size, int) and size.bit_length() > 256:
        return f"<integer of {size.bit_length()} bits>"
    text = repr(size)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-10:]}"


def _parse(text: str, name: str) -> int:
    match = SIZE.fullmatch(text)
    if not match:
        raise ValueError(
            f"{name}={_shown(text)} is no size: write a number of bytes, '64KiB', '2MiB' or '1G'"
        )
    digits, prefix, suffix = match.groups(default="")
    if suffix.upper() == "B":
        raise ValueError(
            f"{name}={_shown(text)} is ambiguous, powers of 1000 or of 1024: write {digits}{prefix.upper()}iB"
        )
    power = POWERS[prefix.upper()]
    whole, _, fraction = digits.partition(".")
    scaled = int(whole + fraction) << power  # exact, however many digits
    unit = int(10 ** len(fraction))
    if scaled % unit:
        raise ValueError(f"{name}={_shown(text)} is not a whole number of bytes")
    return scaled // unit


def format_size(size: int) -> str:
    """Shortest exact text of a number of bytes: ``"64 KiB"``, ``"1.5 GiB"``, ``"77 B"``."""
    for prefix, power in reversed(POWERS.items()):
        if size >= 1 << power and power:
            hundredths, rest = divmod(size * 100, 1 << power)
            if rest == 0:
                whole, part = divmod(hundredths, 100)
                return f"{whole}.{part:02}".rstrip("0").rstrip(".") + f" {prefix}iB"
    return f"{size} B"


def short_size(size: int) -> str:
    """A size without a blank, for names: ``"64KiB"``."""
    return format_size(size).replace(" ", "")


def approximate_size(size: float) -> str:
    """Three significant digits of a number of bytes: ``"22.9 GiB"``."""
    for prefix, power in reversed(POWERS.items()):
        if size >= 1 << power and power:
            return f"{_three_digits(size / (1 << power))} {prefix}iB"
    return f"{size:.0f} B"


def _three_digits(number: float) -> str:
    """Three significant digits, or all of those before the point: never an exponent."""
    return f"{number:.0f}" if number >= 999.5 else f"{number:.3g}"


def page_suffix(size: int) -> str:
    """A page size as policies write it: ``"64K"``, ``"2M"``, ``"1G"``."""
    return short_size(size).removesuffix("iB")


def printable(text: str) -> str:
    """Text for a terminal: control characters, which a file name may hold, become their escapes."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def format_seconds(seconds: float) -> str:
    """A duration with three significant digits and its unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{seconds * 1e9:.3g} ns"
