"""The README: its Python runs, its commands parse, its names and links are there."""

import doctest
import re
import shlex
from pathlib import Path

import matplotlib as mpl
import pytest

import tlbprobe as tp
from tlbprobe.display.commands.main import build_parser
from tlbprobe.sweeps import curve

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
PROSE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
INDENTED = re.findall(r"^ {4}(.*)$", PROSE, re.MULTILINE)
PYTHON = [block for language, block in FENCED if language in ("python", "py", "pycon")]
SHOWN = [line for language, block in FENCED if block not in PYTHON for line in block.splitlines()] + INDENTED
POLICY = re.compile(r"base|default|collapse|(thp|hugetlb)(-\d+[KMG])?")


def commands(program):
    """Arguments of every shown command line of a program."""
    starts = re.compile(rf"\s*(?:\$ |# )?(?:sudo )?(?:\S*/)?{program}(?= |$)(.*)")
    for line in SHOWN:
        found = starts.fullmatch(line)
        if found:
            yield shlex.split(re.split(r" [|>&] | >\S", found[1])[0], comments=True)


def tables():
    """Every table: its heading, and the first cell of each row."""
    for block in re.findall(r"(?:^\|.*\n)+", PROSE + "\n", re.MULTILINE):
        heading, _, *rows = [
            [cell.strip() for cell in row.strip("|").split("|")] for row in block.split("\n")[:-1]
        ]
        yield heading, [row[0] for row in rows]


def names_in(cells):
    return {name for cell in cells for name in re.findall(r"`\"?([\w-]+)\"?`", cell)}


@pytest.mark.filterwarnings("ignore")
def test_python_blocks_run_in_order(monkeypatch, tmp_path):
    """With small sizes, so that they run everywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(curve, "default_sizes", lambda: [1 << 16, 1 << 18])
    mpl.use("agg")
    namespace = {}
    for block in PYTHON:
        source = doctest.script_from_examples(block) if ">>> " in block else block
        small = re.sub(r"\b\d+(?:\.\d+)? ?([MG])(iB)?(?=\")", "4MiB", source)
        exec(compile(small, "README.md", "exec"), namespace)


def test_tlbprobe_commands_parse():
    for arguments in commands("tlbprobe"):
        status = 0
        try:
            build_parser().parse_args(arguments or ["--help"])
        except SystemExit as leave:
            status = leave.code
        assert status == 0, f"tlbprobe {shlex.join(arguments)}"


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for arguments in commands("make"):
        assert {word for word in arguments if "=" not in word} <= targets, arguments


def test_inline_commands_exist():
    known = set(next(action for action in build_parser()._actions if action.choices).choices)
    for name in re.findall(r"`tlbprobe ([a-z]\w*)", PROSE):
        assert name in known, name


def test_public_names_exist():
    for name in re.findall(r"\btp\.(\w+)", TEXT):
        assert hasattr(tp, name), f"tp.{name}"


def test_tables_name_what_there_is():
    probes = {*tp.PROBES, "translation"}
    for heading, cells in tables():
        names = names_in(cells)
        if heading[0].lower() in ("probe", "probes"):
            assert names == probes
        if heading[0].lower() in ("pages", "page policy", "policy", "pages="):
            assert all(POLICY.fullmatch(name) for name in names), names


def test_local_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", PROSE):
        assert re.match(r"[a-z]+:", target) or (ROOT / target).exists(), target
