"""Accessed bits: whether clearing them and reading them again tells here what a program touches.

Some hypervisors do not set them again once they are cleared, so they are tried on a program of known
behaviour first.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from ..units import approximate_size
from .processes import Memory, forget_accesses, read_memory

if TYPE_CHECKING:
    import subprocess


TRIAL_BYTES = 16 << 20
REAL_SHARE = 0.9  # of what was written that must show as touched
# A program of known behaviour: writes to every page, says so, and again for each line that it reads.
TRIAL = """
import mmap, sys
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
while True:
    for page in range(0, len(memory), mmap.PAGESIZE):
        memory[page] = (memory[page] + 1) % 256
    print(flush=True)
    if not sys.stdin.readline():
        break
"""


@functools.cache
def why_touched_is_unknown() -> str:
    """Try the accessed bits on a program of known behaviour; why they are of no use, empty if they are."""
    import subprocess  # seldom needed, and slow to load

    command = [sys.executable, "-I", "-S", "-c", TRIAL, str(TRIAL_BYTES)]
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as trial:
            try:
                return _try_bits(trial)
            finally:
                trial.kill()
    except OSError as error:
        return f"a program to try accessed bits on could not be run: {error.strerror}"


def _try_bits(trial: subprocess.Popen[bytes]) -> str:
    assert trial.stdin
    assert trial.stdout
    trial.stdout.readline()
    try:
        forget_accesses(trial.pid)
        after = read_memory(trial.pid)
        trial.stdin.write(b"\n")
        trial.stdin.flush()
        trial.stdout.readline()
        again = read_memory(trial.pid)
    except OSError as error:
        return f"/proc/PID/clear_refs and smaps_rollup are refused: {error.strerror}"
    return judge_bits(after, again)


def judge_bits(after: Memory | None, again: Memory | None) -> str:
    """Say what is wrong with accessed bits, from what was referenced after forgetting and after writing."""
    if after is None or again is None:
        return "the program to try accessed bits on ended too soon"
    if after.referenced > TRIAL_BYTES / 2:
        still = approximate_size(after.referenced)
        return f"accessed bits are not cleared here: {still} still showed as touched"
    if again.referenced < REAL_SHARE * TRIAL_BYTES:
        return (
            f"accessed bits are not real here: of {approximate_size(TRIAL_BYTES)} that a program wrote, "
            f"{approximate_size(again.referenced)} showed as touched; a hypervisor may be why"
        )
    return ""
