"""Axes: values to sweep over, spaced, checked and named."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ..machine import paging
from ..measuring.point import Common
from ..memory.region import Region
from ..record import count_parameters, sequence_parameters, size_parameters
from ..units import Count, Size, format_count, format_size, parse_count, parse_size

PointKey = tuple[Any, ...]


def sizes(first: Size, last: Size, per_octave: int = 4) -> list[int]:
    """Working sets from `first` to `last`, evenly spaced on a log axis.

    Parameters
    ----------
    first, last : int or str
        Bytes; both are in the list.
    per_octave : int
        How many a doubling.

    Returns
    -------
    list of int
        Bytes, ascending, each a multiple of a cache line where it has the room.

    Examples
    --------
    >>> sizes("16KiB", "64KiB", per_octave=2)
    [16384, 23168, 32768, 46336, 65536]
    """
    low, high = parse_size(first, "first"), parse_size(last, "last")
    line = paging.cache_line_size()
    between = _evenly(low, high, per_octave, f"last={last!r} is smaller than first={first!r}")
    rounded = {round(size / line) * line if size >= line else round(size) for size in between}
    return sorted({low, high} | {size for size in rounded if low < size < high})


def counts(first: Count, last: Count, per_octave: int = 1) -> list[int]:
    """Counts, of records or sessions, from `first` to `last`, evenly spaced on a log axis.

    Parameters
    ----------
    first, last : int or str
        Both are in the list; K, M and G mean powers of 1000.
    per_octave : int
        How many a doubling.

    Returns
    -------
    list of int
        Ascending.

    Examples
    --------
    >>> counts("1K", "10K")
    [1000, 2000, 4000, 8000, 10000]
    """
    low, high = parse_count(first, "first"), parse_count(last, "last")
    between = _evenly(low, high, per_octave, f"last={last!r} is smaller than first={first!r}")
    rounded = {round(count) for count in between}
    return sorted({low, high} | {count for count in rounded if low < count < high})


def _evenly(low: int, high: int, per_octave: int, backwards: str) -> Iterator[float]:
    """Steps from `low` to `high` at most, by equal factors; `backwards` is what to say if there is no way."""
    if high < low:
        raise ValueError(backwards)
    whole = isinstance(per_octave, int | np.integer) and not isinstance(per_octave, bool)
    if not whole or not 1 <= per_octave <= 1000:
        raise ValueError(f"per_octave={per_octave!r} must be a whole number from 1 to 1000")
    steps = math.floor(math.log2(high / low) * per_octave + 1e-9)
    return (low * 2 ** (step / per_octave) for step in range(steps + 1))


def axis_text(name: str, value: Any) -> str:
    """A value of an axis, for people."""
    if not isinstance(value, int) or isinstance(value, bool):
        return str(value)
    if name in size_parameters():
        return format_size(value)
    return format_count(value) if name in count_parameters() else str(value)


def split_axes(
    probe: Callable[..., Any], axes: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Parameters with several values, and those with one; what is wrong at every point is an error."""
    if not hasattr(probe, "__name__"):
        raise TypeError(f"{probe!r} is no probe, such as tp.chase: give its parameters to the sweep")
    known = inspect.signature(probe).parameters
    grid: dict[str, list[Any]] = {}
    fixed: dict[str, Any] = {}
    for name, value in axes.items():
        if name not in known:
            raise TypeError(f"{probe.__name__} has no parameter {name!r}: it has {', '.join(known)}")
        if is_axis(value) and name not in sequence_parameters():
            grid[name] = _axis(name, value)
        else:
            fixed[name] = fixed_value(name, value)
    for name, parameter in known.items():
        required = parameter.default is inspect.Parameter.empty
        if required and (axes.get(name) is None or None in grid.get(name, ())):
            raise TypeError(f"a sweep of {probe.__name__} needs {name}=, one value or a list of them")
    check_common(fixed)
    for name in grid:
        for value in grid[name]:
            check_common({**fixed, name: value})
    return grid, fixed


def check_common(fixed: Mapping[str, Any]) -> None:
    """What is wrong at every point is wrong usage: an error before anything is mapped."""
    Common(**{one.name: fixed[one.name] for one in fields(Common) if one.name in fixed})


def is_axis(value: Any) -> bool:
    """Whether a value is several values: an iterable that is no text."""
    single = isinstance(value, str | bytes | Mapping) or (isinstance(value, np.ndarray) and not value.ndim)
    return isinstance(value, Iterable) and not single


def fixed_value(name: str, value: Any) -> Any:
    """A plain value: sizes and counts as numbers."""
    plain = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if plain is None or isinstance(plain, Region):
        return plain
    if name in size_parameters():
        return parse_size(plain, name)
    return parse_count(plain, name, name) if name in count_parameters() else plain


def _axis(name: str, values: Iterable[Any]) -> list[Any]:
    plain = [fixed_value(name, value) for value in values]
    if any(isinstance(value, Region) for value in plain):
        raise ValueError(f"{name}= lists Regions, which no axis can hold: give one, and sweep working_set")
    if any(is_axis(value) for value in plain):
        raise TypeError(f"{name}={plain} holds a list: give a list of single values")
    if not plain:
        raise ValueError(f"{name}=[] has no value: an axis needs at least one")
    if len(set(plain)) < len(plain):
        raise ValueError(f"{name}={plain} repeats a value")
    return plain
