"""Encodings from libpfm4, where it is installed: for names of events that nothing else here knows.

Loaded when it is first asked, never required. Source: libpfm4 include/perfmon/pfmlib.h and
pfmlib_perf_event.h; Linux include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import functools
from typing import Any

LIBRARY = "libpfm.so.4"
USER_AND_KERNEL = 0x9  # PFM_PLM3 | PFM_PLM0
PERF_EVENT = 1  # PFM_OS_PERF_EVENT
ATTRIBUTE_WORDS = 32  # of 64 bits: more than any struct perf_event_attr has
TYPE, CONFIG, FLAGS, CONFIG1, CONFIG2 = 0, 1, 5, 7, 8  # words of it
# Flags that modifiers set: pinned, exclusive, exclude_user, exclude_kernel, precise_ip, exclude_host.
MODIFIED = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 3 << 15 | 1 << 19

Encoding = tuple[int, int, int, int]  # type, config, config1, config2


@functools.cache
def library() -> Any:
    """The library, initialised; ``None`` where it is not installed."""
    import ctypes

    try:
        found = ctypes.CDLL(LIBRARY)
        return found if found.pfm_initialize() == 0 else None
    except (OSError, AttributeError):
        return None


def encode(name: str) -> Encoding | None:
    """Type and config of an event by its name in libpfm4; ``None`` where it knows none of this machine.

    Raises
    ------
    ValueError
        If the name has a modifier that cannot be honoured here, such as ``:u`` for user space alone.
    """
    import ctypes

    class Argument(ctypes.Structure):
        _fields_ = [
            ("attribute", ctypes.c_void_p),
            ("text", ctypes.c_void_p),
            ("size", ctypes.c_size_t),
            *((field, ctypes.c_int) for field in ("index", "cpu", "flags", "pad")),
        ]

    if library() is None or "\0" in name:
        return None
    words = (ctypes.c_uint64 * ATTRIBUTE_WORDS)()
    argument = Argument(ctypes.addressof(words), None, ctypes.sizeof(Argument), 0, -1, 0, 0)
    asked = (name.encode(), USER_AND_KERNEL, PERF_EVENT, ctypes.byref(argument))
    if library().pfm_get_os_event_encoding(*asked) != 0:
        return None
    if words[FLAGS] & MODIFIED:
        raise ValueError(f"counters: {name!r} has a modifier: all counters of a measurement count alike")
    return words[TYPE] & 0xFFFFFFFF, words[CONFIG], words[CONFIG1], words[CONFIG2]
