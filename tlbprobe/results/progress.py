"""Progress, where somebody can see it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = bool | Callable[[int, int], object]


def _in_notebook() -> bool:
    """Whether this runs in a kernel of Jupyter: that the package is loaded says nothing."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython(), "kernel") if ipython else False


@contextmanager
def progress_bar(total: int, progress: Progress, unit: str = "point") -> Iterator[Callable[[], object]]:
    """What to call when one more is done: a bar where somebody can see it, or the caller's function."""
    done = itertools.count(1)
    if callable(progress):
        yield lambda: progress(next(done), total)
    elif progress and ((sys.stderr and sys.stderr.isatty()) or _in_notebook()):
        from tqdm.auto import tqdm

        with tqdm(total=total, unit=unit, leave=False) as bar:
            yield bar.update
    else:
        yield lambda: None
