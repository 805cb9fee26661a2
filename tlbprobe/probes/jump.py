"""jump: one jump to another code page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal

from .. import _core
from ..checks import check_choice, check_flag
from ..machine import paging
from ..measuring.nodes import SAMPLE_LINES, node_places, packed_bytes
from ..measuring.point import Common, Place, Point
from ..memory.region import Region
from ..record import SAMPLE_BYTES, SETTLED, TIMED, Probe, Sample
from ..results.measurement import Measurement
from ..units import Size, format_size, parse_size

CELL = 64  # bytes of the least stride of jumps, whose cells of code are half as long


def jump(
    size: Size,
    pages: str | None = None,
    *,
    stride: Size | None = None,
    placement: Literal["spread", "packed"] = "spread",
    strict: bool = True,
    seed: int = 0,
    cpu: int | None = None,
    precision: float = 0.01,
    max_seconds: float = 5.0,
    counters: Sequence[str] = (),
    verify: bool = False,
) -> Measurement:
    """Time of one direct jump to another code page, in nanoseconds, on a random cycle of cells of code.

    What a load is to the data TLB, a jump is to the instruction TLB. Each cell of machine code counts the
    access and jumps to the next cell; with the same seed the order of the cells is that of the nodes of a
    `chase`. The code is written into memory of its own, which is made executable afterwards: at no time can
    it be written and executed.

    Parameters
    ----------
    size : int or str
        Bytes that the cells span. The memory is always mapped for this measurement: a Region is refused.
    pages : str, optional
        Page policy, see `page_policies`; ``"base"`` by default.
    stride : int or str, optional
        Bytes from one cell of code to the next: a multiple of a cache line, and at least 64. The base page by
        default, which makes it one cell a page. ``size // stride`` cells.
    placement : {"spread", "packed"}
        Each cell of code on a line that varies from page to page; or all side by side, one a line, in the
        same order: as many jumps through the same number of lines, on the fewest pages.
    strict, cpu, precision, max_seconds, counters
        As for `chase`.
    seed : int
        Of the order of the cells, 0 to 2**64 - 1: that of the nodes of a `chase` with this seed.
    verify : bool
        Whether to read all the code first and count its cells, and to run it once around.

    Returns
    -------
    Measurement
        ``ns`` float64 (slices,), nanoseconds per jump.

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong, or the cells would be further apart than a direct jump reaches: before
        anything is mapped.
    OSError
        If executable memory is forbidden to this process.
    MemoryError, BackingError
        As for `chase`.

    Notes
    -----
    One access is one taken direct jump to a cell of another code page: three instructions, a count, a branch
    that is not taken, and the jump. Isolates, where spread is compared with packed: translation on the
    instruction side. Confounded by: the branch target buffer, which has as many jumps to hold either way, but
    may index those of spread cells differently; instruction caches and decoders; a second-level TLB that
    some processors share between code and data. Where the next jump is predicted, fetch runs ahead of
    execution, and hides a part of a miss. Limits: the cells span at most 2 GiB on x86-64 and 128 MiB on
    aarch64, as far as a direct jump reaches.

    Examples
    --------
    >>> m = jump("256KiB", verify=True, max_seconds=0.05)
    >>> m.params["nodes"] * m.params["stride"]
    262144
    """
    if isinstance(size, Region):
        raise TypeError(
            f"size={size!r} must be bytes: jump maps memory of its own, since it makes it executable"
        )
    wanted = parse_size(size)
    step = paging.base_page_size() if stride is None else parse_size(stride, "stride")
    check_choice("placement", placement, ("spread", "packed"))
    _check_jump_stride(step, wanted)
    check_flag("verify", verify)
    common = Common(strict, seed, cpu, precision, max_seconds, counters)
    nodes = wanted // step
    used = packed_bytes(nodes, step) if placement == "packed" else wanted
    _check_jump_reach(wanted, used)
    parameters = {**node_places(nodes, step, placement), "seed": common.seed}
    with Region(used, "base" if pages is None else pages, strict=strict) as region:
        point = Point(common, Place(region, "jump", region.mapped_bytes, parameters))
        with _executable(point) as session:
            if verify:
                point.verify(session)
            point.time(session)
        params = {"bytes": wanted, "stride": step, "placement": placement, "nodes": nodes}
        return point.result("jump", params)


def _check_jump_stride(stride: int, size: int) -> None:
    unit = max(CELL, paging.cache_line_size())
    if stride < unit or stride % unit:
        raise ValueError(
            f"stride={stride} must be a multiple of {unit} bytes, a line of code, and at least that"
        )
    if stride > size:
        raise ValueError(f"stride={stride} is larger than size={size}: not one cell of code fits")


def _check_jump_reach(size: int, used: int) -> None:
    reach = _core.JUMP_REACH
    if used > reach:
        raise ValueError(
            f"size={size} puts cells of code over {format_size(used)}, but a direct jump of this processor "
            f"reaches {format_size(reach)}: give at most {format_size(size * reach // used)}"
        )


@contextlib.contextmanager
def _executable(point: Point) -> Iterator[_core.Session]:
    """Prepare code; where the kernel forbids to execute it, say what may be the reason."""
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(point.prepared(PROBE.step))
        except PermissionError as error:
            raise OSError(
                error.errno,
                f"executable memory was refused to this process ({error.strerror}): by SELinux (boolean "
                "execmem), a seccomp filter or prctl(PR_SET_MDWE), perhaps",
            ) from error
        yield session


PROBE = Probe(
    jump,
    Measurement,
    kernel="jump",
    question="one jump to another code page: the instruction side",
    word="jump",
    step="code",
    sizes=("size", "stride"),
    hazards={TIMED: "slices of accesses are timed", SETTLED: "its pages were populated before"},
    sample=Sample(
        "64KiB",
        {"stride": 32, "placement": "beside", "verify": 1, "seed": -1},
        {**SAMPLE_LINES, "nodes": SAMPLE_BYTES // 64},
        {**SAMPLE_LINES, "nodes": SAMPLE_BYTES // 64 + 1},
        does={"jumps": 1},
    ),
)
