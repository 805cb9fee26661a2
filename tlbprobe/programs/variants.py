"""A command in variants that differ in the pages it may have: how each is set, and a run of it.

A variant sets what it needs in the program's own process, or in its environment. The machine stays as it is.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from ..machine import facts, paging
from ..memory.policies import thp_modes
from ..results.progress import Progress
from ..results.result import StrPath
from ..units import format_size
from .launching import (
    THP_ADVISED_ONLY,
    THP_AS_IT_IS,
    THP_REFUSED,
    Launched,
    PagesRefusedError,
    Streams,
    Word,
    checked_argv,
)
from .processes import ALIVE_SECONDS, Memory
from .sampling import MemorySample, Sampler
from .stat import program_name, signal_name
from .trial import RunFigures, Trial, TrialRows, balanced_order, by_field, finite_median, run_in_turn

TRIAL_SAMPLE_SECONDS = 0.02  # seconds between two samples of a program, at least
OUTLIVING_SECONDS = 5.0  # seconds for processes that outlive the program that started them
SPOOL_MOST = 1 << 30  # bytes of standard input from a pipe, which are kept for every run
SAMPLES = 5  # of a run, about: few, so that what they cost differs less than a trial can tell


@dataclass(frozen=True)
class Setting:
    """What a variant sets for a program."""

    thp: tuple[int, int]
    offers: bool  # by a tunable of glibc


SETTINGS = {
    "as it is": Setting(THP_AS_IT_IS, False),
    "refused": Setting(THP_REFUSED, False),
    "advised only": Setting(THP_ADVISED_ONLY, False),
    "offered": Setting(THP_AS_IT_IS, True),
}
PLAIN = "as it is"
TUNABLE = "glibc.malloc.hugetlb"


def with_offer(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which glibc asks for huge pages; other tunables stay."""
    set_already = environment.get("GLIBC_TUNABLES", "").split(":")
    others = [one for one in set_already if one and one.partition("=")[0] != TUNABLE]
    return {**environment, "GLIBC_TUNABLES": ":".join([*others, f"{TUNABLE}=1"])}


def cannot_differ(mode: str | None, disabled: int | None) -> dict[str, str]:
    """Say why variants cannot differ from the program as it is, by the mode of transparent huge pages.

    Parameters
    ----------
    mode : str or None
        ``always``, ``madvise``, ``never``; ``None``: the kernel has none.
    disabled : int or None
        `paging.thp_disabled` of this process, which the program inherits.
    """
    others = [name for name in SETTINGS if name != PLAIN]
    if mode is None:
        return dict.fromkeys(others, "this kernel has no transparent huge pages")
    if disabled == 1:
        reason = "they are disabled for this process and all that it starts (prctl PR_SET_THP_DISABLE)"
        return dict.fromkeys(others, reason)
    if mode == "never":
        command = f"echo madvise | sudo tee /{paging.THP}/enabled"
        return dict.fromkeys(others, f"/{paging.THP}/enabled is 'never'; to allow them: {command}")
    if mode == "madvise" or disabled == 3:
        return {"advised only": "so it is: the setting gives huge pages to those who ask for them"}
    return {"offered": "the setting is 'always': glibc need not ask, and does not"}


def pmd_mode() -> str | None:
    """Mode of transparent huge pages of PMD size, ``None`` where there are none."""
    return thp_modes().get(paging.pmd_size() or 0, (None, ""))[0]


class ProgramKilledError(RuntimeError):
    """A signal ended a run of a program; carries `signal`."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.signal), self.__dict__  # to reach another process


def chosen_variants(variants: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """Variants of a command to run, the reference first, and why each other one is not."""
    reasons = cannot_differ(pmd_mode(), paging.thp_disabled())
    if variants is None:
        reasons |= {name: why for name in SETTINGS if name not in reasons and (why := why_not(name))}
        chosen = [name for name in SETTINGS if name not in reasons]
        if chosen == [PLAIN]:
            raise RuntimeError(f"no variant can differ from the program as it is: {reasons['refused']}")
        return chosen, reasons
    names = checked_names(variants)
    for name in names:
        if name not in SETTINGS:
            raise ValueError(f"variants={name!r} is none of {', '.join(map(repr, SETTINGS))}")
        if why := why_not(name):
            raise RuntimeError(f"variants={name!r}: {why}")
    if names == [PLAIN]:
        others = ", ".join(repr(name) for name in SETTINGS if name != PLAIN)
        raise ValueError(f"variants={names!r} is what the others are compared with: name one of {others}")
    return [PLAIN, *(name for name in names if name != PLAIN)], {}


def why_not(variant: str) -> str:
    """Say why the kernel cannot set what a variant needs; empty if it can."""
    try:  # as far as a folder, which is no program, comes to be started, nothing was refused
        with Launched([os.sep], thp=SETTINGS[variant].thp) as nothing:
            nothing.go()
    except PagesRefusedError as error:
        return f"this kernel cannot (prctl PR_SET_THP_DISABLE: {error.strerror}); Linux 6.18 can"
    except OSError:
        pass
    return ""


def checked_names(variants: Sequence[str]) -> list[str]:
    """Names, each once, or an error."""
    if isinstance(variants, str) or not isinstance(variants, Sequence):
        raise TypeError(f"variants={variants!r} must be a sequence of names")
    if not variants or len(set(variants)) < len(variants):
        raise ValueError(f"variants={list(variants)!r} must name each variant once, and one at least")
    return list(variants)


def try_command(
    argv: Sequence[Word],
    variants: Sequence[str] | None,
    rounds: int,
    seed: int,
    stdin: StrPath | None,
    progress: Progress,
    *,
    forward: Iterable[int] = (),
    tell: Callable[[str], object] = lambda text: None,
) -> Trial:
    """Do what `whatif` does with a command; signals to pass on, and whom to tell how often it will run."""
    words = checked_argv(argv)
    chosen, refused = chosen_variants(variants)
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    tell(_announcement(words, chosen, rounds))
    with _standard_input(stdin, tell) as rewound, open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a device
        first = _run_once(words, PLAIN, (rewound(), None, None), forward, TRIAL_SAMPLE_SECONDS)
        interval = max(TRIAL_SAMPLE_SECONDS, first.wall / SAMPLES)
        order = balanced_order(rounds, len(chosen), seed)
        silent = nowhere.fileno()

        def run(variant: int) -> RunFigures:
            return _run_once(words, chosen[variant], (rewound(), silent, silent), forward, interval)

        rows = run_in_turn(run, order, progress, "run")
    return Trial(
        program=program_name(words[0]),
        what="command",
        variants=tuple(chosen),
        reference=PLAIN,
        order=order,
        **by_field(rows),
        page=paging.pmd_size() or paging.base_page_size(),
        status=first.status,
        params={"rounds": rounds, "seed": seed, "thp": pmd_mode()},
        refused=refused,
        warnings=tuple(_trial_warnings(chosen, rows, first)),
        host=facts.host().to_dict(),
        started=started,
    )


def _announcement(words: Sequence[bytes], chosen: Sequence[str], rounds: int) -> str:
    return (
        f"{program_name(words[0])} runs {1 + rounds * len(chosen)} times: once to warm up, with its output, "
        f"then without, {rounds} times each {', '.join(map(repr, chosen))}"
    )


def _run_once(
    words: Sequence[bytes], variant: str, streams: Streams, forward: Iterable[int], interval: float
) -> RunFigures:
    """Run the program in a variant, watched from afar."""
    setting = SETTINGS[variant]
    last: list[MemorySample] = []

    def look() -> None:
        sampler.take()
        last[:] = sampler.samples[-1:]

    with Launched(
        words,
        environment=with_offer(os.environ) if setting.offers else None,
        streams=streams,
        thp=setting.thp,
        at_exit=look,
        forward=forward,
    ) as running:
        sampler = Sampler(running.pid, interval=interval, touched=False)
        running.go()
        sampler.until(running.wait)
        ended = running.finish()
    signal = ended.signal or running.told_to_end
    if signal is not None:
        name = program_name(words[0])
        raise ProgramKilledError(f"{signal_name(signal)} ended {name} when it ran {variant!r}", signal)
    most = max((sample.memory for sample in sampler.samples), key=lambda one: one.resident, default=None)
    return RunFigures(
        wall=ended.wall,
        cpu=ended.user + ended.system,
        system=ended.system,
        minor=ended.minor,
        major=ended.major,
        peak=float(max(ended.peak or 0, sampler.peak)) or math.nan,
        **_memory_figures("", most),
        **_memory_figures("exit_", last[0].memory if last else None),
        status=ended.status,
        outlived=_wait_for_children(sampler, program_name(words[0])),
    )


def _wait_for_children(sampler: Sampler, name: str) -> bool:
    """Wait for processes that outlive the program that started them; whether there were any.

    The next run would share the machine with them, and a trial would compare who had more of them beside it.
    """
    outlived, deadline = False, time.monotonic() + OUTLIVING_SECONDS
    while left := sampler.left():
        outlived = True
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{left} of the processes that {name} started still run {OUTLIVING_SECONDS:.0f} s after it: "
                "every run would have more of them beside it than the one before; let it stay in the "
                "foreground"
            )
        time.sleep(ALIVE_SECONDS)
    return outlived


def _memory_figures(before: str, memory: Memory | None) -> dict[str, float]:
    if memory is None:
        return {}
    return {f"{before}resident": float(memory.resident), f"{before}huge": float(memory.huge)}


def _trial_warnings(chosen: Sequence[str], rows: TrialRows, first: RunFigures) -> Iterator[str]:
    """What a reader must know of the runs of a command."""
    statuses = {one.status for row in rows for one in row} | {first.status}
    if len(statuses) > 1:
        yield f"the exit statuses differ, {sorted(map(str, statuses))}: did all runs do the same?"
    elif first.status:
        yield f"every run ended with exit status {first.status}: did it do what it should?"
    if any(one.outlived for row in rows for one in row) or first.outlived:
        yield (
            "processes that it started outlived it: each run waited for those of the one before, and their "
            "time is in none"
        )
    if "offered" in chosen and _gained(chosen, rows) < (paging.pmd_size() or 0):
        yield (
            "the offer brought no huge page: the allocator ignores it (musl, a static binary without glibc, "
            "one of its own), or asks for memory in small pieces, or has huge pages without it"
        )


def _gained(chosen: Sequence[str], rows: TrialRows) -> float:
    """Bytes on huge pages by which the offer is ahead, by the medians; NaN where one was not seen."""
    offered, plain = (
        finite_median(np.array([row[chosen.index(name)].huge for row in rows])) for name in ("offered", PLAIN)
    )
    return math.nan if offered is None or plain is None else offered - plain


@contextmanager
def _standard_input(
    stdin: StrPath | None, tell: Callable[[str], object]
) -> Iterator[Callable[[], int | None]]:
    """Standard input for one run after the other: what it yields is called for each, and starts it anew."""
    with ExitStack() as stack:
        descriptor = 0
        if stdin is not None:
            descriptor = os.open(stdin, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
        kind = _kind(descriptor)
        if kind == "folder":
            raise IsADirectoryError(errno.EISDIR, "standard input cannot be a folder", stdin)
        if kind == "terminal":
            raise RuntimeError(
                "standard input is a terminal, which cannot be read again for every run: redirect it, as "
                "with '< /dev/null' (in Python: stdin='/dev/null')"
            )
        if kind == "stream":
            tell("standard input is a pipe: it is read to its end before the first run, and kept for all")
            descriptor = _spool(descriptor, stack)
        if kind in ("closed", "device"):  # /dev/null and the like go on for ever
            yield lambda: None if kind == "closed" else descriptor
            return
        start = os.lseek(descriptor, 0, os.SEEK_CUR)

        def rewound() -> int:
            os.lseek(descriptor, start, os.SEEK_SET)
            return descriptor

        yield rewound


def _kind(descriptor: int) -> Literal["closed", "terminal", "device", "folder", "file", "stream"]:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return "closed"
    if os.isatty(descriptor):
        return "terminal"
    if stat.S_ISCHR(mode):
        return "device"
    if stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_ISREG(mode) or stat.S_ISBLK(mode) else "stream"


def _spool(descriptor: int, stack: ExitStack) -> int:
    """All that comes from a pipe, in a file without a name: it is gone with us, whatever happens."""
    kept = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed by the caller's stack
    with open(os.dup(descriptor), "rb") as source:  # noqa: PTH123 - a descriptor
        while block := source.read(1 << 20):
            if kept.tell() + len(block) > SPOOL_MOST:
                raise RuntimeError(
                    f"standard input is a pipe of more than {format_size(SPOOL_MOST)}: put it into a file, "
                    "and redirect that, as with '< FILE' (in Python: stdin=FILE)"
                )
            kept.write(block)
    kept.flush()
    kept.seek(0)
    return kept.fileno()
