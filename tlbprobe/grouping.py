"""Things that have something in common, together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")
GroupKey = TypeVar("GroupKey", bound=Hashable)


def grouped(things: Iterable[Thing], key: Callable[[Thing], GroupKey]) -> dict[GroupKey, list[Thing]]:
    """Things by their key; keys in the order of the first of each, and so are the things of a key."""
    found: dict[GroupKey, list[Thing]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found
