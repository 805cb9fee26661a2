"""A point that could not be measured, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from .result import Result

# Absolute paths but those that are the same on every machine: a control group's may name a user.
PRIVATE_PATH = re.compile(r"(?<![\w.])/(?!(?:proc|sys|dev)/)(?:[^\s/'\"]+/)+")


@dataclass(frozen=True, repr=False)
class Refusal(Result):
    """A point that could not be measured, and why.

    Attributes
    ----------
    error : str
        Name of the exception.
    reason : str
        What it said.
    """

    kind: ClassVar[str] = "refusal"

    error: str
    reason: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Keep an exception's words; of paths, which may name a user, only the last part."""
        words = "; ".join((str(error), *getattr(error, "__notes__", [])))
        return cls(type(error).__name__, PRIVATE_PATH.sub("", words))

    @property
    def subject(self) -> str:
        """That it was refused."""
        return "refused"

    def rows(self) -> Iterator[tuple[str, str]]:
        """Why."""
        yield self.error, self.reason

    def summary(self) -> dict[str, Any]:
        """Plain values."""
        return self.plain()
