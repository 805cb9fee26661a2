"""What calls leave behind."""

import gc
import os
import re
from pathlib import Path

import pytest


def private_bytes():
    gc.collect()
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"Private_Dirty:\s+(\d+)", text)[1]) * 1024


def grown(call, times):
    """Bytes of memory that so many calls leave behind."""
    for _ in range(times):
        call()
    before = private_bytes()
    for _ in range(times):
        call()
    return private_bytes() - before


def open_files():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not paths


def refused(call, error):
    with pytest.raises(error):
        call()
