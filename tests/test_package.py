"""The package as it is installed: it imports, measures, and keeps its layers."""

import ast
import doctest
import graphlib
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tlbprobe as tp
from tlbprobe import _core

PACKAGE = Path(tp.__file__).parent
# Lower folders may not import higher ones, and no file of a folder one that imports it.
FOLDERS = "cores machine memory counters results measuring probes hierarchy sweeps programs display"
ORDER = ["", *FOLDERS.split()]
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))


@pytest.mark.smoke
def test_measures_something():
    measured = tp.chase("64KiB", max_seconds=0.1)
    assert measured.low > 0
    assert measured.ns.ndim == 1


def module_of(path):
    return ".".join(("tlbprobe", *path.relative_to(PACKAGE).with_suffix("").parts))


def imports_of(path):
    """Modules of the package that a file imports, anywhere in it; what only type checking needs, aside."""
    tree = ast.parse(path.read_text())
    checking = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    aside = {inner for node in checking for inner in ast.walk(node)}
    parts = module_of(path).split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and node not in aside:
            base = ".".join((*parts[: -node.level], *([node.module] if node.module else [])))
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in NAMES else base


NAMES = {module_of(path): path for path in MODULES}
IMPORTS = {name: {one for one in imports_of(path) if one in NAMES} for name, path in NAMES.items()}


def folder(name):
    return name.split(".")[1] if name.count(".") > 1 else ""


def test_every_folder_has_its_place():
    assert {folder(name) for name in NAMES} == set(ORDER)


def test_the_architecture_names_the_folders_in_this_order():
    text = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    assert re.findall(r"^\| `tlbprobe/(\w+)/` \|", text, re.MULTILINE) == FOLDERS.split()


@pytest.mark.parametrize("name", NAMES)
def test_no_file_imports_from_a_higher_folder(name):
    for imported in IMPORTS[name]:
        assert ORDER.index(folder(imported)) <= ORDER.index(folder(name)), f"{name} imports {imported}"


def test_no_file_imports_in_a_circle():
    graphlib.TopologicalSorter(IMPORTS).prepare()


# Names that several files define on purpose: what each of them has to offer under the same name.
PROTOCOL = {"PROBE", "add", "run"}  # a probe's record; how a command is added, and run


def top_level_names(path):
    """What a file defines, without the underscore that makes it private."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name.lstrip("_")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            inside = (one for target in targets for one in ast.walk(target))
            yield from (one.id.lstrip("_") for one in inside if isinstance(one, ast.Name))


def test_a_name_has_one_meaning_in_the_whole_package():
    homes = {}
    for path in MODULES:
        for name in set(top_level_names(path)) - PROTOCOL:
            homes.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_public_names_stay_what_they_are_when_every_module_is_imported():
    """No folder hides a function: importing one sets an attribute of that name."""
    before = {name: getattr(tp, name) for name in tp.__all__}
    for name in NAMES:
        importlib.import_module(name)
    assert {name: getattr(tp, name) for name in tp.__all__} == before
    assert not {path.stem for path in PACKAGE.iterdir()} & set(tp.__all__)


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
    command = ["nm", "--dynamic", "--defined-only", _core.__file__]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["PyInit__core"]


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
@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_examples_in_docstrings(path):
    if ">>> with simulated(" in path.read_text():  # which sanitizers exclude
        pytest.importorskip("tlbprobe._simulated", reason="this build cannot simulate")
    module = importlib.import_module(module_of(path))
    public = {name: getattr(tp, name) for name in tp.__all__}
    result = doctest.testmod(module, extraglobs=public)
    assert result.failed == 0
    assert result.attempted == path.read_text().count(">>> ")
