"""Samples of a program while it runs: its memory, its pages, and now and then what it touches.

Reading the memory of a process walks its page tables, up to 40 milliseconds for each gigabyte, and locks them
meanwhile. So every sample is timed, and the next one waits for 99 times as long; nor is one taken before the
program has run for 99 times as long as it is bound to take.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..machine import paging
from ..machine.files import Root
from .launching import now_ns
from .processes import Memory, Tree, Usage, forget_accesses, read_memory, read_peak, read_resident, tick

COST_SHARE = 0.01  # of the time that all of it may take; samples leave half of it to looks, if there are any
FIRST_COST = 0.5e-3  # seconds: what a sample of a small program costs ...
FIRST_RATE = 150e-9  # ... and more for each page of a large one, as long as nothing else is known
MANY_PAGES = 1 << 14  # so many tell what a page costs
MOST_SAMPLES = 4096  # then every other one goes, and those to come are half as many

# A look at what is touched: forget what was, wait, read. Each page whose accessed bit was cleared costs its
# next user a write to the page table, half a microsecond under a hypervisor; that counts as cost of the look.
LOOK_SECONDS = 0.02
MARKING = 0.5e-6  # seconds a page
FIRST_LOOK = 0.7e-6  # seconds a page, all of it, as long as nothing else is known

# Between samples it is seen what the processes are and have used, which is read from a few short files.
SEE_SECONDS = 0.02  # from one time to the next, at least
SEE_SHARE = 0.002  # of the time

ROUNDED = 1.5  # ticks by which the sum of two times may be off


def spent() -> float:
    """Seconds of a processor that this thread took: what is waited for beside is no cost of the program."""
    return time.thread_time()


def pause(cost: float, interval: float, share: float = COST_SHARE) -> float:
    """Seconds to wait after a sample that cost so many, at least `interval` of them."""
    return max(interval, cost * (1 / share - 1))


@dataclass(frozen=True)
class MemorySample:
    """What a program had in memory at a moment."""

    seconds: float  # since it began
    memory: Memory
    processes: int
    touched: float = math.nan  # bytes, in the LOOK_SECONDS before; NaN without a look


class Sampler:
    """Takes samples of a process and its descendants.

    Parameters
    ----------
    pid : int
        The process.
    interval : float
        Seconds from one sample to the next, at least.
    touched : bool
        Whether to look at what it touches, too: the accessed bits of its pages are cleared for that.
    began_ns : int, optional
        When it began, by CLOCK_MONOTONIC_RAW; now, by default.
    """

    def __init__(
        self, pid: int, *, interval: float, touched: bool, began_ns: int | None = None, root: Root = "/"
    ) -> None:
        self.pid = pid
        self.root = root
        self.interval = interval
        self.touched = touched
        self.share = COST_SHARE / 2 if touched else COST_SHARE
        self.tree = Tree(pid, root)
        self.samples: list[MemorySample] = []
        self.costs = 0.0  # seconds that all of it took
        self.looks = 0
        self.unlooked = ""
        self.peak = 0  # most bytes at once: of all processes as they were seen, or of the first one by itself
        self.usage: Mapping[int, Usage] = {}  # as it was last seen, and when
        self.used_ns: int | None = None
        self.cpu_seen = 0.0  # most seconds that all of them had used together, as they were seen
        self.most = 0  # processes that were seen at once
        self.sights = self.stopped = 0  # how often it was seen, and standing still
        self.refused = ""  # why memory of some process is missing
        self._began_ns = now_ns() if began_ns is None else began_ns
        self._rate, self._look_rate = FIRST_RATE, FIRST_LOOK  # seconds a page
        self._see_after = SEE_SECONDS
        self._lock = threading.Lock()

    def until(self, over: Callable[[float], bool], seconds: float | None = None) -> None:
        """Take samples until it is over, or so many seconds are; `over` waits, and says whether it is."""
        deadline = math.inf if seconds is None else self._elapsed() + seconds

        def done(wait: float) -> bool:
            """Wait, and see meanwhile what it uses."""
            end = min(self._elapsed() + wait, deadline)
            while not over(min(max(0.0, end - self._elapsed()), self._see_after)):
                if self._elapsed() >= end:
                    return end == deadline
                self.see()
            return True

        self.see()
        wait = pause(FIRST_COST, self.interval, self.share)
        while not done(wait):
            early = self.too_early()
            if early > 0:
                wait = max(early, self.interval)
                continue
            wait = self.take()
            if self._may_look():
                cost = self.forget()
                if done(LOOK_SECONDS):
                    break
                if self.touched:
                    self.look(cost)

    def see(self) -> None:
        """See which processes there are, and what they used: cheap, and the last that is known of one."""
        with self._lock:
            start = spent()
            self._note(self.tree.usage())
            cost = spent() - start
            self.costs += cost
            self._see_after = pause(cost, SEE_SECONDS, SEE_SHARE)

    def _note(self, usage: Mapping[int, Usage]) -> None:
        running = [one for one in usage.values() if not one.over]
        if not running:
            return  # it has ended, and what it used was known better before
        self.usage, self.used_ns = usage, now_ns()
        self.cpu_seen = max(self.cpu_seen, sum(one.cpu for one in usage.values()))
        self.most = max(self.most, len(running))
        self.sights += 1
        self.stopped += all(one.stopped for one in running)

    def too_early(self) -> float:
        """Seconds until a sample keeps to its share; 0 or less if it does so now."""
        self.peak = max(self.peak, read_peak(self.pid, self.root))
        pids = self.usage or (self.pid,)
        resident = sum(read_resident(pid, self.root) for pid in pids)
        expected = FIRST_COST * len(pids) + self._rate * resident / paging.base_page_size()
        return (self.costs + expected) / COST_SHARE - self._elapsed()

    def _elapsed(self) -> float:
        """Seconds since it began."""
        return (now_ns() - self._began_ns) / 1e9

    def take(self) -> float:
        """Take a sample; how many seconds to wait before the next."""
        with self._lock:
            at, start = now_ns(), spent()
            memory, count = self._read()
            if count:
                self._keep(MemorySample((at - self._began_ns) / 1e9, memory, count))
            cost = spent() - start
            self.costs += cost
            pages = memory.resident / paging.base_page_size()
            if pages >= MANY_PAGES:
                self._rate = cost / pages
            return pause(cost, self.interval, self.share)

    def forget(self) -> float:
        """Forget what was touched; the seconds that it took."""
        start = spent()
        try:
            for pid in self.usage:
                forget_accesses(pid, self.root)
        except OSError as error:  # what is left of it would show as touched
            self.touched, self.unlooked = False, f"/proc/PID/clear_refs is refused: {error.strerror}"
        return spent() - start

    def look(self, cost: float) -> None:
        """See what was touched since it was forgotten, which cost so many seconds."""
        with self._lock:
            at, start = now_ns(), spent()
            memory, count = self._read()
            if count:
                self.looks += 1
                self._keep(MemorySample((at - self._began_ns) / 1e9, memory, count, float(memory.referenced)))
            marked = min(memory.referenced, _small(memory)) / paging.base_page_size()
            cost += spent() - start + marked * MARKING
            self._look_rate = cost / max(1, _small(memory) / paging.base_page_size())
            self.costs += cost

    def _may_look(self) -> bool:
        """Whether a look would cost no more than what it may."""
        if not self.touched or not self.samples:
            return False
        pages = _small(self.samples[-1].memory) / paging.base_page_size()
        return self.costs + self._look_rate * pages <= COST_SHARE * self._elapsed()

    def _read(self) -> tuple[Memory, int]:
        """Memory of all processes, and how many they are."""
        usage = self.tree.usage()
        self._note(usage)
        found = [memory for pid in usage if (memory := self._memory(pid))]
        return sum(found, Memory()), len(found)

    def _memory(self, pid: int) -> Memory | None:
        try:
            return read_memory(pid, self.root)
        except PermissionError:
            self.refused = "a process of it changed its user: only that one, or root, may read its memory"
            return None

    def _keep(self, sample: MemorySample) -> None:
        self.peak = max(self.peak, sample.memory.proportional, read_peak(self.pid, self.root))
        self.samples.append(sample)
        if len(self.samples) >= MOST_SAMPLES:
            self.samples = thinned(self.samples)
            self.interval *= 2

    def arrays(self) -> dict[str, Any]:
        """All samples, field by field, as `SAMPLED` names them."""
        rows = [
            (
                one.seconds,
                one.processes,
                one.memory.resident,
                one.memory.proportional,
                one.memory.huge,
                one.touched,
            )
            for one in self.samples
        ]
        columns = zip(*rows, strict=True) if rows else [()] * len(SAMPLED)
        return {
            name: np.array(column, dtype)
            for (name, dtype), column in zip(SAMPLED.items(), columns, strict=True)
        }

    def about(self) -> dict[str, float]:
        """What `ProgramRun.sampling` says."""
        stopped = self.stopped / self.sights if self.sights else 0.0
        return {"seconds": self.costs, "interval": self.interval, "processes": self.most, "stopped": stopped}

    def lost(self, counted: float) -> bool:
        """Whether more seconds of processors were seen than are counted at the end.

        What a child used goes to its parent as that waits for it; otherwise it is gone with the child.
        """
        return self.cpu_seen - counted > ROUNDED * tick() * max(1, self.most)

    def left(self) -> int:
        """How many of its processes run now."""
        return sum(not one.over for one in self.tree.usage().values())

    def why_not_looked(self) -> str:
        """Say why nobody looked at what it touches."""
        if not self.samples:
            return "it was over before it could be looked at"
        return self.unlooked or "looking at what it touches would have cost more than its share of the time"

    def complaints(self) -> Iterator[str]:
        """What a reader must know of the samples."""
        if self.refused:
            yield self.refused
        if not self.samples:
            yield "it was over before a sample was due: each may cost it 1 % of its time"
        if self.stopped:
            yield (
                f"it was stopped, by a signal or a debugger, at {self.stopped} of {self.sights} looks: that "
                "time is no waiting of its own"
            )


def thinned(samples: Sequence[MemorySample]) -> list[MemorySample]:
    """Every other sample, and every other look: they may take turns, and then one of both would be gone."""
    plain = [one for one in samples if math.isnan(one.touched)]
    looks = [one for one in samples if not math.isnan(one.touched)]
    return sorted((*plain[::2], *looks[::2]), key=lambda one: one.seconds)


SAMPLED: dict[str, Any] = {
    "seconds": np.float64,
    "processes": np.int64,
    "resident": np.int64,
    "proportional": np.int64,
    "huge": np.int64,
    "touched": np.float64,
}


def _small(memory: Memory) -> int:
    """Bytes that are not on huge pages, of which each has but one accessed bit."""
    return max(0, memory.resident - memory.huge)
