"""Running points: in random order, with memory mapped once for each page policy and shared."""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ..checks import check_choice
from ..grouping import grouped
from ..measuring.nodes import leaves_pages_out
from ..memory.budget import fit_together
from ..memory.policies import find_policy, mapped_size
from ..memory.region import Region
from ..record import record_of
from ..results.measurement import Measurement, Translation
from ..results.progress import Progress, progress_bar
from ..results.refusal import Refusal
from ..results.table import PointResult
from .axes import PointKey

# What a point of a sweep may be refused with; anything else is a fault of ours and goes up.
REFUSALS = (ValueError, OSError, MemoryError, RuntimeError, BufferError)
Kept = tuple[type[Exception], ...]  # exceptions that become refusals


class SharedMemory(NamedTuple):
    """What points that share a region have in common."""

    pages: str
    strict: bool


@dataclass(frozen=True, eq=False)
class Asked:
    """One point to be measured."""

    probe: Callable[..., Any]
    key: PointKey
    arguments: dict[str, Any]

    @property
    def memory(self) -> SharedMemory | None:
        """The region it shares; ``None``: it brings or maps its own memory."""
        own = isinstance(self.arguments.get("size"), Region) or "working_set" in self.arguments
        if own or "working_set" not in inspect.signature(self.probe).parameters:
            return None
        name = self.arguments.get("pages")
        pages = "base" if name is None else name
        stride = self.arguments.get("stride")
        record = record_of(self.probe)
        if record and record.leaves_pages_out and leaves_pages_out(pages, stride):
            return None
        if self.arguments.get("placement") == "packed":  # as many lines, of a span that may not fit
            return None
        return SharedMemory(pages, self.arguments.get("strict", True))

    @property
    def needed(self) -> int:
        """Bytes of a region."""
        record, size = record_of(self.probe), int(self.arguments["size"])
        return record.needed(size, self.arguments.get("stride")) if record and record.needed else size

    def measure(self, region: Region | None) -> PointResult:
        """Measure it, on a shared region if there is one."""
        arguments = dict(self.arguments)
        if region is not None:
            arguments = {name: arguments[name] for name in arguments if name not in ("pages", "strict")}
            arguments |= {"size": region, "working_set": self.arguments["size"]}
        point = self.probe(**arguments)
        if not isinstance(point, Measurement | Translation):
            raise TypeError(
                f"a sweep takes a probe, such as tp.chase or tp.translation: {self.probe.__name__} returned "
                f"a {type(point).__name__}"
            )
        return point


@dataclass(frozen=True)
class Shared:
    """Memory that points share: a region, and why it is not larger."""

    region: Region | None = None
    refusals: Mapping[int, Refusal] = field(default_factory=dict)  # by the bytes that were needed

    def measure(self, ask: Asked, kept: Kept) -> PointResult:
        """Measure a point on it, or say why not."""
        if self.refusals and ask.needed in self.refusals:
            return self.refusals[ask.needed]
        try:
            return ask.measure(self.region)
        except kept as error:
            return Refusal.of(error)


def run_points(
    asked: Sequence[Asked],
    on_error: Literal["keep", "raise"],
    progress: Progress,
    seed: int,
    at_last: Callable[[Region], object] = lambda region: None,
) -> dict[Asked, PointResult]:
    """Measure points in random order, with every policy mapped once, at the same time as others that fit.

    What is called `at_last` gets each region when its points are done.
    """
    check_choice("on_error", on_error, ("keep", "raise"))
    kept = REFUSALS if on_error == "keep" else ()
    groups = grouped(asked, lambda ask: ask.memory)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"order_seed={seed!r} must be a whole number")
    if not callable(progress) and not isinstance(progress, bool):
        raise TypeError(f"progress={progress!r} must be True, False or a function of done and all points")
    shuffled = random.Random(seed)
    points: dict[Asked, PointResult] = {}
    with progress_bar(len(asked), progress) as advance:
        for batch in _batches(groups):
            with ExitStack() as stack:
                shared = {memory: _share(memory, groups[memory], stack, kept) for memory in batch}
                for ask in in_blocks([ask for memory in batch for ask in groups[memory]], shuffled):
                    points[ask] = shared[ask.memory].measure(ask, kept)
                    advance()
                for region in (one.region for one in shared.values() if one.region):
                    at_last(region)
    return points


def in_blocks(asked: Sequence[Asked], shuffled: random.Random) -> list[Asked]:
    """Random order of blocks: points that differ only in their memory are compared, so they follow closely.

    Disturbance that lasts for seconds then meets all of them, instead of making one look the better.
    """

    def compared(ask: Asked) -> str:
        same = {name: value for name, value in ask.arguments.items() if name not in ("pages", "strict")}
        return f"{ask.probe.__name__} {same}"

    blocks = grouped(shuffled.sample(asked, len(asked)), compared)
    return list(itertools.chain.from_iterable(blocks.values()))


def _share(memory: SharedMemory | None, asked: Sequence[Asked], stack: ExitStack, kept: Kept) -> Shared:
    """Map as much as the largest point that fits needs; the larger ones are refused, each with its reason."""
    refusals: dict[int, Refusal] = {}
    if memory is None:
        return Shared()
    for needed in sorted({ask.needed for ask in asked}, reverse=True):
        try:
            region = stack.enter_context(Region(needed, memory.pages, strict=memory.strict))
            return Shared(region, refusals)
        except kept as error:
            refusals[needed] = Refusal.of(error)
    return Shared(None, refusals)


def _batches(groups: Mapping[SharedMemory | None, Sequence[Asked]]) -> list[list[SharedMemory | None]]:
    """Policies that are mapped at the same time: as many as fit, in order; the others afterwards."""
    batches: list[list[SharedMemory | None]] = [[]]
    for memory in groups:
        if not _fits([*batches[-1], memory], groups):
            batches.append([])
        batches[-1].append(memory)
    return [batch for batch in batches if batch]


def _fits(
    batch: Iterable[SharedMemory | None], groups: Mapping[SharedMemory | None, Sequence[Asked]]
) -> bool:
    """Whether the largest region of every policy can be mapped at the same time."""
    try:
        policies = [(memory, find_policy(memory.pages)) for memory in batch if memory]
        wanted = [
            (mapped_size(max(ask.needed for ask in groups[memory]), policy), policy)
            for memory, policy in policies
        ]
        return fit_together(wanted)
    except ValueError:  # no such policy, or no such size: its points will say so
        return False
