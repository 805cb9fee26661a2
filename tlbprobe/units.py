"""Sizes, counts and times: read from people, written for people; and the types of arrays.

K, M, G and T mean powers of 1024 in sizes, with or without ``iB``; kB, MB and GB are refused, since half of
the world means powers of 1000 by them.
"""

from __future__ import annotations

import operator
import re
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Interval = tuple[float, float] | None

POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
LARGEST = 1 << 62  # bytes; no machine has more, and sums of two still fit a signed 64-bit integer
POWERS_OF_1000 = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}  # what they mean in a count
# ASCII, since IGNORECASE would take the Kelvin sign for a K; a bounded length, since int() has a limit too.
DIGITS = r"\s*([+-]?\d{1,100}(?:\.\d{0,100})?)\s*"
SIZE = re.compile(DIGITS + r"(?:([KMGT])(iB|B)?|B)?\s*", re.ASCII | re.IGNORECASE)
COUNT = re.compile(DIGITS + r"([KMGT]?)\s*", re.ASCII | re.IGNORECASE)

Size = int | str
Count = int | str


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
    asked = f"{name}={shown(size)}"
    if isinstance(size, str):
        digits, prefix = _size_parts(size, asked)
        number = _exact_product(digits, 1 << POWERS[prefix], f"{asked} is not a whole number of bytes")
    else:
        number = _integer(size, f"{asked} must be a whole number of bytes or a string such as '64KiB'")
    if not 1 <= number <= LARGEST:
        raise ValueError(f"{asked} is out of range: from 1 byte to {format_size(LARGEST)}")
    return number


def parse_count(count: SupportsIndex | str, name: str, unit: str = "") -> int:
    """Whole number of things such as ``1000``, ``"400M"`` or ``"1.5K"``, with powers of 1000.

    Parameters
    ----------
    count : int or str
        From 1 to 2**62.
    name : str
        The parameter that an error names.
    unit : str
        What is counted, for errors.

    Raises
    ------
    TypeError
        If it is neither an integer nor a string.
    ValueError
        If it cannot be parsed, is no whole number, or out of range.
    """
    asked = f"{name}={shown(count)}"
    if isinstance(count, str):
        match = COUNT.fullmatch(count)
        if not match:
            raise ValueError(f"{asked} is no count: write a whole number, '200K' or '400M'")
        factor = POWERS_OF_1000[match[2].upper()]
        number = _exact_product(match[1], factor, f"{asked} is not a whole number of {unit or 'things'}")
    else:
        number = _integer(count, f"{asked} must be a whole number or a string such as '200K'")
    if not 1 <= number <= LARGEST:
        raise ValueError(f"{asked} is out of range: from 1 to 2**62 {unit}".rstrip())
    return number


def format_count(count: int) -> str:
    """Shortest exact text of a count: ``"400 M"``, ``"1.5 K"``, ``"77"``."""
    for prefix, power in reversed(POWERS_OF_1000.items()):
        if prefix and count >= power and count % (power // 100) == 0:
            return f"{_hundredths(count * 100 // power)} {prefix}"
    return str(count)


def shown(value: object) -> str:
    """Repr of bounded length; that of an integer of thousands of digits would itself be an error."""
    if isinstance(value, int) and value.bit_length() > 256:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-10:]}"


def _integer(given: object, wrong: str) -> int:
    if isinstance(given, bool) or not isinstance(given, SupportsIndex):
        raise TypeError(wrong)
    try:
        return int(operator.index(given))
    except TypeError as error:  # an array of several numbers has an __index__ that refuses
        raise TypeError(wrong) from error


def _exact_product(digits: str, factor: int, not_whole: str) -> int:
    """A decimal number times a factor: exact, however many digits."""
    whole, _, fraction = digits.partition(".")
    number, rest = divmod(int(whole + fraction) * factor, int(10 ** len(fraction)))
    if rest:
        raise ValueError(not_whole)
    return number


def _size_parts(text: str, asked: str) -> tuple[str, str]:
    """Digits and prefix of a size."""
    match = SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{asked} is no size: write a number of bytes, '64KiB', '2MiB' or '1G'")
    digits, prefix, suffix = match.groups(default="")
    if suffix.upper() == "B":
        raise ValueError(f"{asked} is ambiguous, powers of 1000 or of 1024: write {digits}{prefix.upper()}iB")
    return digits, prefix.upper()


def format_size(size: int) -> str:
    """Shortest exact text of a number of bytes: ``"64 KiB"``, ``"1.5 GiB"``, ``"77 B"``."""
    for prefix, power in reversed(POWERS.items()):
        if size >= 1 << power and power:
            hundredths, rest = divmod(size * 100, 1 << power)
            if rest == 0:
                return f"{_hundredths(hundredths)} {prefix}iB"
    return f"{size} B"


def _hundredths(number: int) -> str:
    """A number of hundredths as a decimal without trailing zeros."""
    whole, part = divmod(number, 100)
    return f"{whole}.{part:02}".rstrip("0").rstrip(".")


def short_size(size: int) -> str:
    """A size without a blank, for names: ``"64KiB"``."""
    return format_size(size).replace(" ", "")


def approximate_size(size: float) -> str:
    """Three significant digits of a number of bytes: ``"22.9 GiB"``."""
    for prefix, power in reversed(POWERS.items()):
        if size >= 1 << power and power:
            return f"{_three_digits(size / (1 << power))} {prefix}iB"
    return f"{size:.0f} B"


def format_average(number: float | None) -> str:
    """A mean or median of whole numbers: ``"62,561"``, ``"0.25"``, ``"not known"``."""
    if number is None:
        return "not known"
    return f"{number:,.0f}" if number >= 100 or number == round(number) else f"{number:.3g}"


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
