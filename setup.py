"""The C extension; all else is in pyproject.toml, which cannot ask NumPy where its headers are."""

import os
from pathlib import Path

import numpy as np
from setuptools import Extension, setup

# TLBPROBE_SANITIZE=1 builds what `make asan` tests. The first error ends the program; no signed number may
# overflow, as C has it and Python's own flags have not.
SANITIZE = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-wrapv",
    "-fno-omit-frame-pointer",
    "-g",
]
sanitize = SANITIZE if os.environ.get("TLBPROBE_SANITIZE") == "1" else []

# A loop of few bytes takes twice the time on some processors where it lies across a boundary of 64 of them.
ALIGNED = "-falign-loops=32"

core = Extension(
    "tlbprobe._core",
    sources=sorted(str(path) for path in Path("csrc").rglob("*.c") if "simulated" not in path.parts),
    depends=sorted(map(str, Path("csrc").rglob("*.h"))),
    include_dirs=["csrc", np.get_include()],
    define_macros=[
        ("_GNU_SOURCE", None),
        ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
        ("NPY_TARGET_VERSION", "NPY_2_0_API_VERSION"),
    ],
    # No -march=native: a wheel runs on every machine of its architecture, and all run the same kernels.
    # No -Werror: a later compiler's new warning must not keep anybody from installing.
    extra_compile_args=["-std=c11", "-O2", ALIGNED, "-fvisibility=hidden", "-Wall", "-Wextra", *sanitize],
    extra_link_args=sanitize,
)

setup(ext_modules=[core])
