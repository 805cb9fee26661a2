"""The package as it is installed: it imports, measures, and keeps its layers."""

import ast
import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tlbprobe as tp

# Lower layers may not import higher ones; within a layer, order does not matter to a reader.
LAYERS = [
    {
        "_core",
        "units",
        "cpuid",
        "machine",
        "hazards",
        "facts",
        "pages",
        "analysis",
        "events",
        "pmus",
        "libpfm",
        "model",
        "inference",
    },
    {"verdicts", "processes", "launching"},
    {"advice", "accessed", "sampling"},
    {"measurement"},
    {"timing"},
    {"counters"},
    {"counting"},
    {"points"},
    {"faults"},
    {"faultparts", "shootdowns"},
    {"probes"},
    {"effective", "sweeps", "hierarchy"},
    {"program", "trials"},
    {"variants", "trying"},
    {"curves"},
    {"plot"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PACKAGE = Path(tp.__file__).parent
MODULES = sorted(path for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def imports_of(path):
    """Modules of the package that are imported at module level, type checking aside."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module] if node.module else [alias.name for alias in node.names]


@pytest.mark.smoke
def test_measures_something():
    measured = tp.chase("64KiB", max_seconds=0.1)
    assert measured.low > 0
    assert measured.ns.ndim == 1


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_layers(path):
    assert path.stem in LEVEL, f"{path.name} has no place in the layers"
    for imported in imports_of(path):
        assert LEVEL[imported] <= LEVEL[path.stem], f"{path.stem} imports {imported}, which is higher"


CSRC = Path(__file__).parents[1] / "csrc"


def test_only_the_bridge_knows_python_and_numpy():
    foreign = re.compile(r"#include <(Python|numpy)")
    files = [path for path in CSRC.rglob("*.[ch]") if foreign.search(path.read_text())]
    assert files == [CSRC / "python" / "bridge.h"]
    users = {path.parent for path in CSRC.rglob("*.c") if '#include "bridge.h"' in path.read_text()}
    assert users == {CSRC / "python"}


def test_the_manual_of_the_c_part_names_its_files():
    manual = (CSRC / "tlbprobe.h").read_text().partition("*/")[0]
    named = re.findall(r"^ \*   ([\w.]+)/? +", manual, re.MULTILINE)
    assert set(named) == {path.name for path in CSRC.iterdir() if path.suffix != ".h"}


@pytest.mark.no_asan
@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm to list symbols with")
def test_the_compiled_part_exports_nothing_but_itself():
    command = ["nm", "--dynamic", "--defined-only", tp._core.__file__]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["PyInit__core"]


def test_events_is_a_function_and_its_module_can_be_imported():
    """One name for both: what is public wins as an attribute."""
    assert callable(tp.events)
    assert importlib.import_module("tlbprobe.events").Event is sys.modules["tlbprobe.events"].Event


def test_every_public_name_is_documented():
    for name in tp.__all__:
        value = getattr(tp, name)
        assert not callable(value) or value.__doc__, name


def test_import_loads_nothing_heavy():
    heavy = "matplotlib", "pandas", "rich", "tqdm"
    code = f"import sys, tlbprobe; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_source_folder_says_that_it_is_not_the_package(tmp_path):
    """As in a clone, where Python finds the folder without the compiled part first."""
    shutil.copytree(PACKAGE, tmp_path / "tlbprobe", ignore=shutil.ignore_patterns("_core*.so"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-c", "import tlbprobe"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode != 0
    assert "source folder" in done.stderr.splitlines()[-1]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_examples_in_docstrings(path):
    module = importlib.import_module(f"tlbprobe.{path.stem}")
    public = {name: getattr(tp, name) for name in tp.__all__}
    result = doctest.testmod(module, extraglobs=public)
    assert result.failed == 0
    assert result.attempted == path.read_text().count(">>> ")
