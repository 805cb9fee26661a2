"""The C part as ctypes sees it: to drive kernels without Python's extension in between."""

import ctypes

U64 = ctypes.c_uint64


class Run(ctypes.Structure):
    """struct tlb_run."""

    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("base", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("parameter", U64 * 12),
        ("lap", U64),
        ("state", U64 * 16),
        ("expected", U64),
        ("found", U64),
    ]


ASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Poll(ctypes.Structure):
    """struct tlb_poll; Poll() never stops."""

    _fields_ = [("ask", ASK), ("context", ctypes.c_void_p)]


class Nodes(ctypes.Structure):
    """struct tlb_nodes."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        *((name, U64) for name in ("count", "spacing", "pages", "lines", "line", "first")),
        ("offsets", ctypes.c_void_p),
    ]


RUN, POLL = ctypes.POINTER(Run), ctypes.POINTER(Poll)


class Kernel(ctypes.Structure):
    """struct tlb_kernel; a function that it has not is false."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("parameters", ctypes.POINTER(ctypes.c_char_p)),
        ("prepare", ctypes.CFUNCTYPE(ctypes.c_int, RUN, POLL)),
        ("access", ctypes.CFUNCTYPE(None, RUN, U64)),
        ("verify", ctypes.CFUNCTYPE(ctypes.c_int, RUN, ctypes.POINTER(U64), POLL)),
        ("pass_over", ctypes.CFUNCTYPE(ctypes.c_int, RUN, POLL)),
        ("release", ctypes.CFUNCTYPE(None, RUN)),
    ]
