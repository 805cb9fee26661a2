"""Records: all that is true of one probe alone. What is said of it elsewhere is asked of its record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# What a probe may be exposed to. A hazard of a machine touches one of these; a record says which, and why.
TIMED = "timed"  # slower than it would be, all of it
SETTLED = "settled"  # pages that are other ones than when they were populated
TRAPPING = "trapping"  # dearer entries to the kernel

SAMPLE_BYTES = 1 << 16  # that the parameters of a kernel in a sample are for

# What parameters mean that every probe takes, where its docstring refers to another probe for them.
SHARED_HELPS = {
    "cpu": "CPU to pin this thread to while measuring; the one it runs on by default",
    "precision": "half the interval over the low estimate at which to stop",
    "max_seconds": "time for the timed part, at most",
}
# What every command says in other words than Python does.
COMMAND_HELPS = {
    "size": "bytes: 65536, 64K, 64KiB, 1.5G; K, M, G, T are powers of 1024",
    "pages": "page policy: base, default, thp, thp-64K (any such size), collapse, hugetlb, hugetlb-1G (any "
    "such size); a wrong one lists those of this kernel (default: base)",
    "strict": "refuse pages other than asked, instead of a warning",
    "counters": "performance counters: names as 'tlbprobe events' lists them, numbers such as r1008 or "
    "cpu/event=0x08,umask=0x10/, or tlb for a set; the result says why one is missing",
}


@dataclass(frozen=True)
class Sample:
    """Parameters to try a probe with.

    Attributes
    ----------
    first : str
        What it is given first: a few milliseconds of work.
    wrong : dict
        Parameters of which each alone must be refused.
    fits, leaves : dict of str to int
        Of its kernel: what fits `SAMPLE_BYTES` of memory, and what would leave them; empty without one.
    word : tuple of int
        A word, by its offset, that the kernel reads when it is prepared; empty if there is none.
    does : dict of str to int
        Loads, stores, prefetches and jumps of one access of its kernel with the parameters that fit;
        ``None``: one or more, as the data has it.
    """

    first: str
    wrong: Mapping[str, Any]
    fits: Mapping[str, int] = field(default_factory=dict)
    leaves: Mapping[str, int] = field(default_factory=dict)
    word: tuple[int, ...] = ()
    does: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """What is true of one probe alone.

    Attributes
    ----------
    function : callable
        The probe; its name is that of the record.
    result : type
        What it returns.
    kernel : str or None
        Its loop in C; ``None`` if it has a driver of its own.
    question : str
        What it tells, for tables.
    hazards : dict of str to str
        What it is exposed to (`TIMED`, `SETTLED`, `TRAPPING`), and why.
    sample : Sample
        Parameters to try it with.
    word, step : str
        What one access is called, and the step of the set-up that gets the memory ready for it.
    over : str
        How its title joins the bytes to the name.
    sizes, counts, sequences : tuple of str
        Parameters in bytes, in whole numbers with powers of 1000, and those that take several values as one.
    helps : dict of str to str
        Options that the command explains in other words than the docstring.
    leaves_pages_out : bool
        Whether it touches only pages that hold a node, where these are whole base pages apart.
    needed : callable, optional
        Bytes of a region that it takes, from the bytes asked for and the stride; just these by default.
    """

    function: Callable[..., Any]
    result: type
    kernel: str | None
    question: str
    hazards: Mapping[str, str]
    sample: Sample
    word: str = "access"
    step: str = "prepare"
    over: str = "of"
    sizes: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ("counters",)
    helps: Mapping[str, str] = field(default_factory=dict)
    leaves_pages_out: bool = False
    needed: Callable[[int, int | None], int] | None = None

    def __post_init__(self) -> None:
        for kind, others in (("size", count_parameters()), ("count", size_parameters())):
            for name in self.sizes if kind == "size" else self.counts:
                if name in others:
                    raise ValueError(f"{self.name}: {name} is a {kind} here, and none in another probe")
        RECORDS[self.name] = self

    @property
    def name(self) -> str:
        """The same string everywhere."""
        return self.function.__name__

    @property
    def first(self) -> str:
        """The parameter that it is given first: how much of what."""
        return next(iter(self.parameters))

    @property
    def own_parameters(self) -> list[str]:
        """Parameters that tell its measurements from one another, beside how much and on which pages."""
        common = {
            self.first,
            "working_set",
            "region",
            "pages",
            "seed",
            "verify",
            *SHARED_HELPS,
            *COMMAND_HELPS,
        }
        return [name for name in self.parameters if name not in common]

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Of the function."""
        return inspect.signature(self.function).parameters


RECORDS: dict[str, Probe] = {}  # every record enters itself


def record_of(function: Callable[..., Any]) -> Probe | None:
    """The record of a probe; ``None`` of a function that has none."""
    return RECORDS.get(getattr(function, "__name__", ""))


def exposed_to(kind: str) -> tuple[str, ...]:
    """Names of the probes that a kind of hazard touches."""
    return tuple(name for name, probe in RECORDS.items() if kind in probe.hazards)


def access_word(name: str) -> str:
    """What one access of a probe is called."""
    return RECORDS[name].word if name in RECORDS else Probe.word


def size_parameters() -> frozenset[str]:
    """Parameters that are bytes."""
    return frozenset(name for probe in RECORDS.values() for name in probe.sizes)


def count_parameters() -> frozenset[str]:
    """Parameters that are whole numbers of things."""
    return frozenset(name for probe in RECORDS.values() for name in probe.counts)


def sequence_parameters() -> frozenset[str]:
    """Parameters that take several values as one, so that a list of values is no axis."""
    return frozenset(name for probe in RECORDS.values() for name in probe.sequences)
