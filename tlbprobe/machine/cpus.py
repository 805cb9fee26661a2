"""The CPU that this thread runs on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np

from .. import _core
from ..cores.current import current


@contextlib.contextmanager
def pinned(cpu: int | None) -> Iterator[int]:
    """Keep this thread on one CPU, the current one by default, and let it go again afterwards."""
    if current().name:
        yield 0
        return
    before = os.sched_getaffinity(0)
    chosen = _core.cpu() if cpu is None else int(cpu)
    try:  # around everything: Ctrl-C may come between any two steps
        _pin(chosen, before)
        yield chosen
    finally:
        os.sched_setaffinity(0, before)


def _pin(cpu: int, allowed: set[int]) -> None:
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        error.add_note(f"cpu={cpu} cannot be pinned to: this process may use {sorted(allowed)}")
        raise


def check_cpu(cpu: int | None) -> None:
    """Raise an error for what is no CPU, or none that this thread may use."""
    if cpu is not None and (isinstance(cpu, bool) or not isinstance(cpu, int | np.integer)):
        raise TypeError(f"cpu={cpu!r} must be the number of a CPU, or None for the current one")
    allowed = {0} if current().name else os.sched_getaffinity(0)
    if cpu is not None and cpu not in allowed:
        raise ValueError(f"cpu={cpu!r} is not one that this process may use: {sorted(allowed)}")
