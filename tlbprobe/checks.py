"""Checks of parameters: an error names the parameter, the value, and what would work."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from .units import shown


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise a ValueError for what is none of the words there are."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name}={value!r} is none of {', '.join(choices)}")


def check_flag(name: str, value: bool) -> None:
    """Raise a TypeError for what is neither true nor false: "no" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r} must be True or False")


def check_number(name: str, value: float, limit: float, meaning: str) -> float:
    """Return a number between 0 and a limit, or raise the error that it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}={value!r} must be a number: {meaning}")
    number = float(value) if isinstance(value, np.generic) else value  # float16 ends below the limits
    if not 0 < number < limit:
        limits = "finite" if math.isinf(limit) else f"below {limit:g}"
        raise ValueError(f"{name}={shown(number)} must be above 0 and {limits}: {meaning}")
    return float(number)


def check_whole(name: str, value: int, least: int, most: int, meaning: str) -> int:
    """Return a whole number of a range, or raise the error that it is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} must be a whole number: {meaning}")
    if not least <= value <= most:
        raise ValueError(f"{name}={shown(int(value))} is out of range, {least} to {most}: {meaning}")
    return int(value)
