"""A new kernel takes the four places that the page about it names: everything else follows."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adding-a-kernel.md").read_text(encoding="utf-8")
NAME = "gather"
# Each place of the page, with the block of code below it.
PLACES = dict(re.findall(r"^`([\w/.]+)`[^\n]*\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
LEFT_OUT = shutil.ignore_patterns(
    *(".git", ".venv", ".*_cache", ".hypothesis", ".ipynb_checkpoints"),
    *("build", "dist", "__pycache__", "*.egg-info", "*.so"),
)
TESTED = "kernels", "cli", "machine", "files", "plot", "readme", "package", NAME
# Slow ones among them, of what is the same with another kernel.
SAME = "leaks or blocks_run or never_raises or no_display or terminal or pipe or ctrl_c or show_and_plot"


def run(command, **environment):
    """Run something that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def add(tree, place, text):
    """Write a file, or one more name in the list of kernels."""
    path = tree / place
    if path.exists():
        listed = re.compile(r"^#define TLB_KERNELS\(X\)(?:.*\\\n)*.*", re.MULTILINE)
        text, count = listed.subn(lambda found: f"{found[0]} {text.strip()}", path.read_text())
        assert count == 1
    path.write_text(text)


def test_the_page_names_the_four_places():
    assert list(PLACES) == [
        f"csrc/kernels/{NAME}.c",
        "csrc/tlbprobe.h",
        f"tlbprobe/probes/{NAME}.py",
        f"tests/test_{NAME}.py",
    ]
    assert PLACES["csrc/tlbprobe.h"] == f"X({NAME})\n"


@pytest.mark.no_asan
def test_a_kernel_in_four_places_has_all_that_the_others_have(tmp_path):
    """In a copy of the sources: built, its tables written, and tested as every kernel is."""
    if find_spec("setuptools") is None or find_spec("pip") is None:
        pytest.skip("there is no setuptools, or no pip, to build a package with")
    tree, target = tmp_path / "tree", tmp_path / "installed"
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
    for place, text in PLACES.items():
        add(tree, place, text)
    python = [sys.executable, "-P"]
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-build-isolation", "--no-deps"]
    run([*python, "-m", "pip", "install", *options, "--target", target, tree])
    installed = {"PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}
    run([*python, tree / "tools" / "generate.py"], **installed)
    tests = [tree / "tests" / f"test_{name}.py" for name in TESTED]
    run([*python, "-m", "pytest", "-q", "-x", "--rootdir", tree, "-k", f"not ({SAME})", *tests], **installed)
