"""Would huge pages help? A command, or a function over an array, with and without them in turn."""

from __future__ import annotations

import gc
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checks import check_whole
from ..cores.current import only_here
from ..machine import facts, paging
from ..memory.backing import Backing, BackingError
from ..memory.policies import find_policy, page_policies
from ..memory.region import Region
from ..results.progress import Progress
from ..results.refusal import Refusal
from ..results.result import StrPath
from ..units import Size, parse_size, printable
from .launching import Word
from .trial import RunFigures, Trial, TrialRows, balanced_order, by_field, run_in_turn
from .variants import checked_names, try_command

ROUNDS, MOST_ROUNDS = 9, 1000  # fewer than 6 give no interval
CALL_SECONDS = 0.01  # that the calls of a function are timed for together, at least

Function = Callable[[npt.NDArray[Any]], object]


def whatif(
    what: Sequence[Word] | Function,
    *,
    variants: Sequence[str] | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
    stdin: StrPath | None = None,
    size: Size | None = None,
    dtype: npt.DTypeLike = "float64",
    setup: Function | None = None,
    prepare: Function | None = None,
    progress: Progress = True,
) -> Trial:
    """Try whether huge pages help a program, or a function over an array: with and without them in turn.

    **A command runs many times**: once to warm up, with its output, and then once for each variant in each
    round, without. It must be one that can be run again. Nothing on the machine is changed: what a variant
    sets, it sets for the program alone.

    Parameters
    ----------
    what : sequence of str, bytes or path; or function
        A command; or a function of one parameter, an array that it works on.
    variants : sequence of str, optional
        Of a command: ``"as it is"``, ``"refused"`` (no transparent huge page), ``"advised only"`` (only where
        it asks for them), ``"offered"`` (glibc asks for them: ``glibc.malloc.hugetlb=1``); by default those
        that can differ on this machine. Of a function: page policies; by default ``"base"``, ``"thp"``
        and the hugetlb sizes on offer.
    rounds : int
        How often each variant runs, from 1 to 1000; fewer than 6 give no interval.
    seed : int
        Of the order in which they take turns.
    stdin : path, optional
        Standard input of a command, read anew for every run; by default ours, which may not be a terminal.
    size : int or str
        Bytes of a function's array.
    dtype : dtype
        Of its elements.
    setup : function, optional
        Called with the array once, to fill it; otherwise it holds no numbers in particular.
    prepare : function, optional
        Called with the array before each call, untimed: where the function changes it. Calls are then timed
        one by one, and not several together.
    progress : bool or callable
        A bar, or a function that is called with what is done and the total.

    Returns
    -------
    Trial
        ``.verdict``, ``.ratio(variant)``, ``.plot()``, ``.to_numpy()``.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong: before anything runs.
    OSError
        If the program cannot be run.
    RuntimeError
        If no variant can differ on this machine, standard input is a terminal or an endless pipe, a signal
        ends the program, or it leaves processes behind that go on.

    Notes
    -----
    Isolates: the pages. The order is balanced and the ratio is that of neighbours in time, so that what
    lasts longer than a round cancels. The pages of a command are read while it runs, and once more when the
    kernel stops it before its exit (``PTRACE_O_TRACEEXIT``), which is not timed; a program that gains
    privilege as it starts another one cannot do so while it is traced.
    Confounded by: what else the variants change. Huge pages save faults, too; glibc allocates otherwise.
    Limits: only memory of glibc's ``malloc`` can be offered huge pages. Programs on musl or with an allocator
    of their own ignore the offer, and the result says so. Of a function, only the array is on the pages in
    question, its temporaries are not.

    Examples
    --------
    >>> pages = ["base", "default"]
    >>> trial = whatif(lambda array: array.sum(), size="1MiB", variants=pages, rounds=1, progress=False)
    >>> trial.wall.shape, trial.backing["base"].proof
    ((1, 2), 'proved')
    """
    only_here("whatif")
    rounds = check_rounds(rounds)
    if callable(what):
        if size is None or stdin is not None:
            raise ValueError(f"size={size!r}, stdin={stdin!r}: a function needs a size, and reads no stdin")
        call = _Call(what, setup, prepare, np.dtype(dtype), parse_size(size))
        return _try_function(call, variants, rounds, seed, progress)
    if size is not None or setup is not None or prepare is not None:
        raise ValueError(
            f"size={size!r}, setup={setup!r}, prepare={prepare!r} are for functions, not commands"
        )
    return try_command(what, variants, rounds, seed, stdin, progress)


def check_rounds(rounds: int) -> int:
    """Return a number of rounds, or an error for what is none."""
    check_whole("rounds", rounds, 1, MOST_ROUNDS, "how often each variant runs")
    return int(rounds)


def _try_function(
    call: _Call, variants: Sequence[str] | None, rounds: int, seed: int, progress: Progress
) -> Trial:
    size = call.size
    names = _tried_policies(variants)
    if variants is not None and len(names) < 2:
        raise ValueError(f"variants={names!r} is one page policy: a trial compares two at least")
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    with _regions(size, names, keep=variants is None) as (regions, refused):
        if len(regions) < 2:
            reasons = "; ".join(f"{name}: {why}" for name, why in refused.items()) or "none is on offer"
            raise RuntimeError(f"no other pages than {next(iter(regions))!r} can be had: {reasons}")
        before = {name: region.check_backing() for name, region in regions.items()}
        order = balanced_order(rounds, len(regions), seed)
        calls, rows = _time_calls(call, list(regions.values()), order, progress)
        backing = {name: region.check_backing() for name, region in regions.items()}
    changed = [name for name, found in backing.items() if str(found) != str(before[name])]
    return Trial(
        program=call.name,
        what="function",
        variants=tuple(regions),
        reference=next(iter(regions)),
        order=order,
        **by_field(
            [
                [_with_pages(one, backing[name], size) for one, name in zip(row, regions, strict=True)]
                for row in rows
            ]
        ),
        page=min(paging.pmd_size() or paging.base_page_size(), size),
        status=None,
        params={"rounds": rounds, "seed": seed, "bytes": size, "dtype": str(call.dtype), "calls": calls},
        backing=backing,
        refused=refused,
        warnings=tuple(f"the pages of {name!r} changed while it was tried" for name in changed),
        host=facts.host().to_dict(),
        started=started,
    )


def _tried_policies(variants: Sequence[str] | None) -> list[str]:
    """Page policies to try, the one to compare with first."""
    if variants is not None:
        return [find_policy(name).name for name in checked_names(variants)]
    wanted = ("base", "thp", "hugetlb")
    offered = [policy for policy in page_policies() if policy.offered and policy.kind in wanted]
    return [policy.name for policy in sorted(offered, key=lambda policy: wanted.index(policy.kind))]


@contextmanager
def _regions(
    size: int, names: Sequence[str], keep: bool
) -> Iterator[tuple[dict[str, Region], dict[str, str]]]:
    """Memory on each policy; `keep` the reason of one that cannot be had, if it was not asked for by name."""
    made: dict[str, Region] = {}
    refused: dict[str, str] = {}
    try:
        for name in names:
            try:
                made[name] = Region(size, name)
            except (MemoryError, OSError, BackingError) as error:
                if not keep or not made:
                    raise
                refused[name] = Refusal.of(error).reason
        yield made, refused
    finally:
        for region in made.values():
            with suppress(BufferError):  # the function kept a view: the memory goes with that
                region.close()


@dataclass(frozen=True)
class _Call:
    """A function, and what it is called with."""

    function: Function
    setup: Function | None
    prepare: Function | None
    dtype: np.dtype[Any]
    size: int

    def __post_init__(self) -> None:
        if self.dtype.hasobject or not 1 <= self.dtype.itemsize <= self.size:
            raise ValueError(
                f"dtype={self.dtype} does not fit: plain numbers, of which size={self.size} bytes hold some"
            )

    @property
    def name(self) -> str:
        """Of the function."""
        return printable(str(getattr(self.function, "__name__", type(self.function).__name__)))

    def array(self, region: Region) -> npt.NDArray[Any]:
        """View the memory of a region, filled."""
        count = self.size // self.dtype.itemsize
        array = np.frombuffer(memoryview(region)[: count * self.dtype.itemsize], self.dtype)
        if self.setup:
            self.setup(array)
        return array

    def timed(self, array: npt.NDArray[Any], calls: int) -> RunFigures:
        """Call it so often; seconds and faults are those of one call."""
        if self.prepare:
            self.prepare(array)
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        for _ in range(calls):
            self.function(array)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
        return RunFigures(
            wall=wall / calls,
            cpu=(user + system) / calls,
            system=system / calls,
            minor=(after.ru_minflt - before.ru_minflt) / calls,
            major=(after.ru_majflt - before.ru_majflt) / calls,
        )


def _time_calls(
    call: _Call, regions: Sequence[Region], order: npt.NDArray[np.int64], progress: Progress
) -> tuple[int, TrialRows]:
    """Calls a round and variant, and what they showed."""
    arrays = [call.array(region) for region in regions]
    first = [call.timed(array, 1) for array in arrays]  # what happens once is no fault of the pages
    again = min(call.timed(array, 1).wall for array in arrays) if first else math.inf
    calls = 1 if call.prepare else max(1, math.ceil(CALL_SECONDS / max(again, 1e-9)))
    with _no_collector():
        return calls, run_in_turn(lambda number: call.timed(arrays[number], calls), order, progress, "round")


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep Python's garbage collector out of the timed calls."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _with_pages(figures: RunFigures, backing: Backing, size: int) -> RunFigures:
    base = paging.base_page_size()
    share = sum(share for page, share in backing.shares.items() if page > base)
    huge = share * size if backing.shares else math.nan  # where nothing is proved, that is not none
    return replace(figures, resident=float(size), huge=huge)
