"""The C extensions; all else is in pyproject.toml, which cannot ask NumPy where its headers are."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

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

MACROS = [
    ("_GNU_SOURCE", None),
    ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
    ("NPY_TARGET_VERSION", "NPY_2_0_API_VERSION"),
]
# No -march=native: a wheel runs on every machine of its architecture, and all run the same kernels.
# No -Werror: a later compiler's new warning must not keep anybody from installing.
FLAGS = ["-std=c11", "-O2", ALIGNED, "-fvisibility=hidden", "-Wall", "-Wextra"]

C_FILES = sorted(map(str, Path("csrc").rglob("*.c")))
KERNELS = [path for path in C_FILES if "/kernels/" in path]
SIMULATED = [path for path in C_FILES if "simulated" in path]
# Of the rest, what the core has whose machines are simulated.
SHARED = [
    *(f"csrc/{name}.c" for name in ("code", "counting", "cycle", "measure")),
    *(f"csrc/python/{name}.c" for name in ("common", "core", "counters", "holding", "kernels", "session")),
]

core = Extension(
    "tlbprobe._core",
    sources=[path for path in C_FILES if path not in SIMULATED],
    depends=sorted(map(str, Path("csrc").rglob("*.h"))),
    include_dirs=["csrc", np.get_include()],
    define_macros=MACROS,
    extra_compile_args=[*FLAGS, *sanitize],
    extra_link_args=sanitize,
)

simulated = Extension(
    "tlbprobe._simulated",
    sources=[*KERNELS, *SIMULATED, *SHARED],
    depends=core.depends,
    include_dirs=core.include_dirs,
    define_macros=[*MACROS, ("TLB_SIMULATED", None)],
    extra_compile_args=FLAGS,
    optional=True,  # where the compiler has no such instrumentation, the first core is there all the same
)

# How to have a hook called before each load and store of the kernels, and no others. Vectors would make one
# access of two; and where a load is followed by a store to its place, clang tells of the store alone.
INSTRUMENTED = {
    "gcc": ["-fsanitize=thread", "-fno-tree-vectorize", "--param=tsan-instrument-func-entry-exit=0"],
    "clang": [
        "-fsanitize=thread",
        "-fno-vectorize",
        "-fno-slp-vectorize",
        *("-mllvm", "-tsan-instrument-func-entry-exit=0"),
        *("-mllvm", "-tsan-instrument-read-before-write=1"),
    ],
}


class BuildCores(build_ext):
    """Compiles the kernels of the second core by themselves, and all of it into a folder of its own."""

    def build_extension(self, ext: Extension) -> None:
        """Build one of the two."""
        if ext is simulated:
            others = [path for path in ext.sources if path not in KERNELS]
            ext.extra_objects = [*self._instrumented(ext), *self._compile(ext, others)]
            ext.sources = []
        super().build_extension(ext)

    def _compile(self, ext: Extension, sources: list[str], flags: Sequence[str] = ()) -> list[str]:
        return self.compiler.compile(
            sources,
            output_dir=str(Path(self.build_temp, "simulated")),
            macros=ext.define_macros,
            include_dirs=ext.include_dirs,
            extra_postargs=[*ext.extra_compile_args, *flags],
            depends=ext.depends,
        )

    def _instrumented(self, ext: Extension) -> list[str]:
        objects = self._compile(ext, KERNELS, INSTRUMENTED[self._compiler()])
        for path in objects:
            if b"__tsan_" not in Path(path).read_bytes():  # the flag was ignored with no more than a warning
                raise CompileError(f"{path}: this compiler does not instrument loads and stores")
        return objects

    def _compiler(self) -> str:
        """Of which kind it is, as it says itself."""
        command = [*self.compiler.compiler_so, "-E", "-dM", "-x", "c", os.devnull]
        told = subprocess.run(command, capture_output=True, text=True)
        return "clang" if "__clang__" in told.stdout else "gcc"


# The thread sanitizer's instrumentation and the address sanitizer exclude each other.
setup(ext_modules=[core] if sanitize else [core, simulated], cmdclass={"build_ext": BuildCores})
