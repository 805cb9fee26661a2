"""README, ARCHITECTURE and docs: their Python runs, their commands parse, what they name is there."""

import doctest
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import pytest

import tlbprobe as tp
from tlbprobe.display.commands.main import build_parser
from tlbprobe.record import RECORDS
from tlbprobe.sweeps import curve

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"(?:^`([\w/.]+)`[^\n]*\n\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
POLICY = re.compile(r"base|default|collapse|(thp|hugetlb)(-\d+[KMG])?")
WINGS = "csrc", "docs", "notebooks", "tests", "tlbprobe", "tools", ".ci"
COMMANDS = next(action.choices for action in build_parser()._actions if action.choices)


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def text(self):
        return self.path.read_text(encoding="utf-8")

    @property
    def blocks(self):
        """Language and text of what stands between fences."""
        return [(language, text) for _, language, text in FENCE.findall(self.text)]

    @property
    def files(self):
        """Files whose content the page shows."""
        return {place for place, _, _ in FENCE.findall(self.text)} - {""}

    @property
    def python(self):
        """Blocks of Python that are not files."""
        return [
            text for place, language, text in FENCE.findall(self.text) if language == "python" and not place
        ]

    @property
    def prose(self):
        return FENCE.sub("", self.text)

    @property
    def code(self):
        """What is set as code in the prose."""
        return re.findall(r"`([^`\n]+)`", self.prose)

    @property
    def tables(self):
        """Every table: its heading, and the first cell of each row."""
        for block in re.findall(r"(?:^\|.*\n)+", self.prose, re.MULTILINE):
            heading, _, *rows = [
                [cell.strip() for cell in row.strip("|").split("|")] for row in block.splitlines()
            ]
            yield heading, [row[0] for row in rows]

    def commands(self, program):
        """Arguments of every command line of a program between fences."""
        starts = re.compile(rf"\s*(?:\$ |# )?(?:sudo )?(?:\S*/)?{program}(?= |$)(.*)")
        for language, text in self.blocks:
            for line in text.splitlines() if language in ("", "text") else ():
                found = starts.fullmatch(line)
                if found:
                    yield shlex.split(re.split(r" [|>&<] | >\S", found[1])[0], comments=True)


README = Page(ROOT / "README.md")
ARCHITECTURE = Page(ROOT / "ARCHITECTURE.md")
DOCS = [Page(path) for path in sorted((ROOT / "docs").glob("*.md"))]
PAGES = [README, ARCHITECTURE, *DOCS]


def of_pages(pages):
    return pytest.mark.parametrize("page", pages, ids=lambda page: page.path.stem)


@pytest.mark.filterwarnings("ignore")
@of_pages([page for page in PAGES if page.python])
def test_python_blocks_run_in_order(monkeypatch, tmp_path, page):
    """With small sizes and little time, so that they run everywhere."""
    monkeypatch.chdir(tmp_path)
    for record in RECORDS.values():
        if "max_seconds" in record.parameters:
            monkeypatch.setitem(record.function.__kwdefaults__, "max_seconds", 0.05)
    monkeypatch.setattr(curve, "default_sizes", lambda: [1 << 16, 1 << 18])
    mpl.use("agg")
    namespace = {}
    for block in page.python:
        source = doctest.script_from_examples(block) if ">>> " in block else block
        small = re.sub(r"\b\d+(?:\.\d+)? ?([MG])(iB)?(?=\")", "4MiB", source)
        exec(compile(small, page.path.name, "exec"), namespace)


@of_pages(PAGES)
def test_tlbprobe_commands_parse(page):
    for arguments in page.commands("tlbprobe"):
        status = 0
        try:
            build_parser().parse_args(arguments or ["--help"])
        except SystemExit as leave:
            status = leave.code
        assert status == 0, f"tlbprobe {shlex.join(arguments)}"


@of_pages(PAGES)
def test_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    inline = [code.split()[1:] for code in page.code if code.split()[0] == "make"]
    for arguments in [*page.commands("make"), *inline]:
        assert {word for word in arguments if "=" not in word} <= targets, arguments


@of_pages(PAGES)
def test_inline_commands_and_their_options_exist(page):
    for code in page.code:
        words = code.split(" -- ")[0].split()
        if words[0] != "tlbprobe" or len(words) == 1 or not words[1].islower() or words[1].startswith("-"):
            continue
        options = {option for action in COMMANDS[words[1]]._actions for option in action.option_strings}
        assert {word for word in words[2:] if word.startswith("--") and word != "--"} <= options, code


@of_pages(PAGES)
def test_options_exist(page):
    parsers = [build_parser(), *COMMANDS.values()]
    options = {option for parser in parsers for action in parser._actions for option in action.option_strings}
    assert {code.split()[0] for code in page.code if code.startswith("--")} <= options


@of_pages(PAGES)
def test_public_names_exist(page):
    for name in re.findall(r"\btp\.(\w+)", page.text):
        assert hasattr(tp, name) or name == "NAME" or f"tlbprobe/probes/{name}.py" in page.files, f"tp.{name}"


@of_pages(PAGES)
def test_tables_name_what_there_is(page):
    for heading, cells in page.tables:
        names = {name for cell in cells for name in re.findall(r"`\"?([\w-]+)\"?`", cell)}
        if heading[0] == "probe":
            assert names == set(RECORDS)
        if heading[0] == "page policy":
            assert names
            assert all(POLICY.fullmatch(name) for name in names), names


@of_pages(PAGES)
def test_local_links_lead_somewhere(page):
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([\w-]+))?[^)]*\)", page.prose):
        if re.match(r"[a-z]+:", target):
            continue
        place = page.path.parent / target if target else page.path
        assert place.exists(), target
        headings = (
            re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.MULTILINE) if heading else ()
        )
        assert not heading or heading in [
            re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings
        ]


def paths_in(texts):
    """What looks like a path from the root of the sources."""
    for text in texts:
        for word in re.findall(r"[\w.*-]+(?:/[\w.*-]*)+", text):
            if word.split("/")[0] in WINGS:
                yield word


@of_pages(PAGES)
def test_paths_exist(page):
    shown = [text for language, text in page.blocks if language == "text"]
    for path in {*paths_in(page.code), *paths_in(shown)} - page.files:
        assert any(ROOT.glob(path.replace("NAME", "*"))), path


def test_names_in_the_architecture_exist():
    """Every word that is set as code, and what stands in the drawing before its explanations."""
    sources = [path for wing in ("csrc", "tlbprobe") for path in (ROOT / wing).rglob("*.[chp]*")]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.suffix != ".pyc")
    drawn = [
        re.split(r" {3,}", line.lstrip("| v"))[0]
        for _, text in ARCHITECTURE.blocks
        for line in text.splitlines()
    ]
    code = [code for code in ARCHITECTURE.code if "/" not in code and not code.startswith("make")]
    words = {word for text in [*drawn, *code] for word in re.findall(r"[A-Za-z_]\w{2,}", text)}
    assert len(words) > 30
    assert {word for word in words if not re.search(rf"\b{word}\b", sources)} == set()


def test_every_page_is_in_the_index():
    index = Page(ROOT / "docs" / "index.md")
    linked = re.findall(r"\]\(([\w-]+\.md)\)", index.text)
    assert sorted([*linked, "index.md"]) == [page.path.name for page in DOCS]


def test_what_is_generated_is_up_to_date():
    command = [sys.executable, "-P", ROOT / "tools" / "generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
