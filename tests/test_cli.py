"""The command: exit status, what goes to stdout and stderr, files before and after, Ctrl-C, broken pipes."""

import contextlib
import csv
import io
import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

import tlbprobe as tp
from tlbprobe.display.commands.main import build_parser
from tlbprobe.display.commands.options import names_in
from tlbprobe.display.commands.output import show
from tlbprobe.record import RECORDS
from tlbprobe.results.words import format_number

OTHERS = ["curve", "anatomy", "stat", "whatif", "host", "pages", "events", "show", "plot"]
COMMANDS = [OTHERS[0], *RECORDS, *OTHERS[1:]]
SINGLE = ["page_times", "shootdown_times", "fault_parts"]  # results of times of single accesses
HUGE = "900000T"  # no machine has it
QUICK = ["--max-seconds", "0.02"]
RUN = [sys.executable, "-m", "tlbprobe"]
SMALL_CURVE = ["curve", "--sizes", "64K,128K", "--pages", "base", *QUICK]


@pytest.fixture
def saved(examples, tmp_path):
    for kind, result in examples.items():
        result.save(tmp_path / f"{kind}.npz")
    return tmp_path


def no_constant(name):
    pytest.fail(f"{name} is no JSON")


def parsed(text):
    return json.loads(text, parse_constant=no_constant)


# --- results ---------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_chase(run):
    status, out, err = run("chase", "64K", *QUICK)
    assert (status, err) == (0, "")
    assert re.match(r"chase of 64 KiB on 'base' pages\n  low +[\d.]+ ns per access", out)
    assert "<" not in out


def test_translation(run):
    status, out, _ = run("translation", "1MiB", *QUICK)
    assert status == 0
    assert re.search(r"^  cost +", out, re.MULTILINE)


def test_curve(run, tmp_path):
    data, picture = tmp_path / "c.npz", tmp_path / "c.png"
    status, out, err = run(*SMALL_CURVE, "--out", data, "--plot", picture)
    assert (status, err) == (0, "")
    assert re.search(r"^ +64 KiB +base +\S+ \S+ +[\d.]+", out, re.MULTILINE)
    assert re.search(r"^base: .* mapped once: map .*, populate ", out, re.MULTILINE)
    assert tp.load(data).chase.axes == {"size": [65536, 131072], "pages": ["base"]}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.npz", "c.png"]


@pytest.mark.parametrize("command", [["chase", "64K"], ["translation", "64K"], SMALL_CURVE])
def test_json(run, command):
    status, out, _ = run(*command, *QUICK, "--json")
    assert status == 0
    assert parsed(out)


@pytest.mark.parametrize("command", [["chase", "64K"], ["translation", "64K"], SMALL_CURVE])
def test_csv(run, command):
    status, out, _ = run(*command, *QUICK, "--csv")
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["size"] for row in rows] == (["65536", "131072"] if command is SMALL_CURVE else ["65536"])
    assert math.isfinite(float(rows[0]["median_ns"]))


def test_options_reach_the_probe(run):
    arguments = ("--stride", "4K", "--placement", "packed", "--seed", "7", "--verify", "--no-strict")
    counters = ("--counters", "cycles, instructions")
    _, out, _ = run("chase", "64K", *QUICK, *arguments, *counters, "--json")
    found = parsed(out)
    assert found["params"]["stride"] == 4096
    assert found["params"]["placement"] == "packed"
    assert found["params"]["seed"] == 7
    assert "verify" in found["setup_seconds"]
    assert set(found["refused"]) | set(found["counters"]) == {"cycles", "instructions"}


def test_commas_within_an_event_belong_to_it():
    names = "tlb, cpu/event=0x08,umask=0x10/,msr/tsc/,a"
    assert names_in(names) == ("tlb", "cpu/event=0x08,umask=0x10/", "msr/tsc/", "a")


def test_counters_are_printed_with_what_is_refused(run):
    arguments = ("--counters", "task-clock,no_such_pmu/event=1,umask=2/")
    _, out, _ = run("chase", "64K", *QUICK, *arguments)
    assert re.search(r"^  task-clock +[\d.]+ per access$", out, re.MULTILINE)
    assert "no_such_pmu/event=1,umask=2/: there is no PMU 'no_such_pmu' here" in out
    _, out, _ = run("chase", "64K,128K", *QUICK, *arguments, "--csv")
    assert [float(row["task-clock"]) > 0 for row in csv.DictReader(io.StringIO(out))] == [True, True]


def test_events(run):
    status, out, err = run("events")
    assert (status, err) == (0, "")
    assert re.match(r"CPU \d+: ", out)
    assert re.search(r"^page-faults +(counts|refused)", out, re.MULTILINE)
    status, out, _ = run("events", "--json")
    assert status == 0
    found = {event["name"]: event for event in parsed(out)}
    assert found.keys() == {event.name for event in tp.events()}
    assert found["walks"]["meaning"]
    assert all(event["reason"] for event in found.values() if event["status"] in ("dead", "refused"))


# --- several values


SMALL_SWEEP = ["chase", "16KiB:64KiB:1", "--pages", "base,default", "--chains", "1,2", *QUICK]


def test_lists_and_ranges_measure_every_combination(run, tmp_path):
    data, picture = tmp_path / "s.npz", tmp_path / "s.png"
    status, out, err = run(*SMALL_SWEEP, "--out", data, "--plot", picture)
    assert (status, err) == (0, "")
    sweep = tp.load(data)
    assert sweep.axes == {"size": [16384, 32768, 65536], "pages": ["base", "default"], "chains": [1, 2]}
    assert len(sweep) == 12
    assert (
        len(re.findall(r"^ *(?:\d+ KiB)? +(?:base|default) +[12] +\S+ KiB +[\d.]+", out, re.MULTILINE)) == 12
    )
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_several_values_as_csv_and_json(run):
    _, out, _ = run(*SMALL_SWEEP, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {(row["size"], row["pages"], row["chains"]) for row in rows} == {
        (size, pages, chains)
        for size in ("16384", "32768", "65536")
        for pages in ("base", "default")
        for chains in "12"
    }
    _, out, _ = run(*SMALL_SWEEP, "--json")
    assert len(parsed(out)["points"]) == 12


def test_a_point_that_is_refused_keeps_its_reason(run):
    status, out, _ = run("chase", "64KiB,12", "--stride", "64", *QUICK)
    assert status == 0
    assert re.search(r"12 B +refused", out)
    assert "refused at 1 of 2 points: stride=64 is larger than the working set of 12 bytes" in out


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["64KiB", "--chains", "40,50"], 2, "chains=40 is out of range"),
        (["64KiB", "--chains", "1,x"], 2, "invalid int value: '1,x'"),
        (["64KiB", "--placement", "packed,beside"], 2, "'beside' is none of spread, packed"),
        (["64KiB", "--placement", "beside"], 2, "'beside' is none of spread, packed"),
        (["64KiB:16KiB"], 2, "smaller"),
        (["16KiB:64KiB:x"], 2, "size='16KiB:64KiB:x' must be FIRST:LAST"),
        (["16KiB:64KiB:1:1"], 2, "size='16KiB:64KiB:1:1' must be FIRST:LAST"),
        (["16KiB:"], 2, "last=''"),
        (["16KiB,16K"], 2, "repeats a value"),
        (["16KiB,,64KiB"], 2, "size='16KiB,,64KiB' has an empty value"),
        (["512TiB,1024TiB"], 1, "MemAvailable"),
    ],
)
def test_wrong_lists_and_ranges(run, arguments, status, said):
    found, out, err = run("chase", *arguments, *QUICK)
    assert found == status
    assert said in out + err


# --- saved results ---------------------------------------------------------------------------------------


@pytest.mark.no_asan
@pytest.mark.parametrize(
    "kind", ["measurement", "translation", "sweep", "curve", "program_run", "trial", *SINGLE]
)
def test_show_and_plot_every_kind(run, saved, kind):
    status, out, err = run("show", saved / f"{kind}.npz")
    assert (status, err) == (0, "")
    assert out
    status, out, _ = run("show", saved / f"{kind}.npz", "--json")
    assert status == 0
    assert parsed(out)
    status, out, _ = run("show", saved / f"{kind}.npz", "--csv")
    assert status == 0
    assert list(csv.DictReader(io.StringIO(out)))
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        picture = saved / f"picture.{suffix}"
        assert run("plot", saved / f"{kind}.npz", picture) == (0, "", "")
        assert picture.read_bytes().startswith(start)


def test_missing_figures_are_null_and_empty(run, saved):
    _, out, _ = run("show", saved / "curve.npz", "--json")
    points = parsed(out)["chase"]["points"]
    refused = [point for point in points if "error" in point]
    assert [(point["size"], point["pages"]) for point in refused] == [(1 << 20, "thp")]
    _, out, _ = run("show", saved / "curve.npz", "--csv")
    row = next(row for row in csv.DictReader(io.StringIO(out)) if row["reason"])
    assert row["low_ns"] == row["page_size"] == row["slices"] == ""


def test_unknown_figures_are_null(run, made, tmp_path):
    made.measurement(slices=4, core_ghz=None).save(tmp_path / "m.npz")
    _, out, _ = run("show", tmp_path / "m.npz", "--json")
    found = parsed(out)
    assert found["interval_ns"] is found["cycles"] is found["core_ghz"] is None


def test_show_says_what_was_refused_and_what_is_not_offered(run, saved):
    _, out, _ = run("show", saved / "curve.npz")
    assert "refused at 2 of 8 points: pages='thp': the pool has 0 B left" in out
    assert "not offered here: hugetlb: none free; to offer it: echo 1" in out


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut off"])
def test_show_what_is_not_ours(run, tmp_path, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    for command in (("show", path), ("plot", path, tmp_path / "x.png")):
        status, out, err = run(*command)
        assert (status, out) == (1, "")
        assert str(path) in err
        assert err.count("\n") == 1
    assert not (tmp_path / "x.png").exists()


def test_show_a_missing_file_and_a_folder(run, tmp_path):
    for path in (tmp_path / "none", tmp_path):
        status, out, err = run("show", path)
        assert (status, out) == (1, "")
        assert str(path) in err


# --- tables ----------------------------------------------------------------------------------------------

WIDE = {"base": 4096, "thp": 2 << 20, "hugetlb-1G": 1 << 30, "thp-512K": 512 << 10}


@pytest.mark.parametrize("columns", [80, 100, 120, 200])
def test_table_fits(run, made, tmp_path, monkeypatch, columns):
    sizes = [1000 << 10, *(1 << k for k in range(14, 31, 2))]
    c = made.curve(WIDE, sorted(sizes), [(1 << 30, "thp")])
    for point in c.chase.points.values():
        if isinstance(point, tp.Measurement) and point.backing.asked == "thp-512K":
            object.__setattr__(point.backing, "proof", "consistent")
    c.save(tmp_path / "c.npz")
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run("show", tmp_path / "c.npz")
    lines = out.splitlines()
    table = lines[: next(k for k, line in enumerate(lines) if line.startswith("*"))]
    assert max(map(len, table)) <= columns
    assert "…" not in out
    for heading in ("working set", "pages", "proved", "low", "95 %", "median", "translation"):
        assert heading in table[1]
    assert ("set-up" in table[1]) == (columns >= 120)
    assert table[1].count("95 %") == (1 if columns < 100 else 2)
    assert "512 KiB *" in out
    assert "1000 KiB" not in out, "rows are the powers of two"


def test_sizes_that_are_no_powers_of_two_are_shown_where_there_are_no_others(run, made, tmp_path):
    made.curve({"base": 4096}, [1000 << 10]).save(tmp_path / "c.npz")
    assert "1000 KiB" in run("show", tmp_path / "c.npz")[1]


def test_a_table_of_a_sweep(run, saved):
    _, out, _ = run("show", saved / "sweep.npz")
    assert re.search(r"64 KiB +base +4 KiB +[\d.]+ +[\d.]+ \.\. [\d.]+", out)
    assert "refused at 1 of 4 points" in out


# --- wrong usage and refusals ----------------------------------------------------------------------------

WRONG = [
    ([], "COMMAND"),
    (["nonsense"], "nonsense"),
    (["chase"], "SIZE"),
    (["chase", "64K", "--nonsense"], "--nonsense"),
    (["chase", "64K", "--seed", "x"], "--seed"),
    (["chase", "64K", "--json", "--csv"], "--csv"),
    (["chase", "0"], "size='0'"),
    (["chase", "-5"], "size='-5'"),
    (["chase", "64KB"], "size='64KB'"),
    (["chase", "1e9"], "size='1e9'"),
    (["chase", "99999999T"], "size='99999999T'"),
    (["chase", "64K", "--stride", "3"], "stride=3"),
    (["chase", "64K", "--stride", "128K"], "stride=131072"),
    (["chase", "64K", "--pages", "colossal"], "pages='colossal'"),
    (["chase", "64K", "--cpu", "99999"], "cpu=99999"),
    (["chase", "64K", "--precision", "2"], "precision=2"),
    (["chase", "64K", "--max-seconds", "0"], "max_seconds=0"),
    (["chase", "64K", "--max-seconds", "nan"], "max_seconds=nan"),
    (["chase", "64K", "--seed", "-1"], "seed=-1"),
    (["chase", "64K", "--placement", "x"], "--placement"),
    (["translation", "4K"], "4 KiB"),
    (["chase", "64K", "--counters", "wlaks"], "near are walks"),
    (["chase", "64K", "--counters", "cycles,,walks"], "empty name"),
    (["chase", "64K", "--counters", "cpu/event=0x08"], "'cpu/event=0x08' is no event"),
    (["chase", "64K,128K", "--counters", "tlb,wlaks"], "near are walks"),
    (["events", "--cpu", "x"], "--cpu"),
    (["events", "--cpu", "99999"], "cpu=99999"),
    (["curve", "--sizes", ""], "sizes=''"),
    (["curve", "--sizes", "1K:2K:3:4"], "sizes='1K:2K:3:4'"),
    (["curve", "--sizes", "1K:2K:x"], "sizes='1K:2K:x'"),
    (["curve", "--sizes", "2K:1K"], "'1K'"),
    (["curve", "--sizes", "1K:2K:0"], "per_octave=0"),
    (["curve", "--sizes", "16K,,32K"], "sizes=''"),
    (["curve", "--pages", "base,colossal"], "pages='colossal'"),
    (["curve", "--pages", "base,base"], "base"),
    (["curve", "--precision", "2"], "precision=2"),
    (["chase", "64K", "--plot", "x.bmp"], "x.bmp"),
    (["chase", "64K", "--plot", "x"], "'x'"),
    (["plot", "x.npz"], "PICTURE"),
    (["plot", "x.npz", "x.txt"], "x.txt"),
    (["show"], "FILE"),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=[" ".join(one) for one, _ in WRONG])
def test_wrong_usage(run, monkeypatch, tmp_path, arguments, named):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert named in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_is_a_refusal(run):
    status, out, err = run("chase", HUGE)
    assert (status, out) == (1, "")
    assert "900000 TiB" in err
    assert "would fit" in err


ANATOMY = ["anatomy", "--pages", "base", "--memory", "8MiB", "--max-seconds", "2"]


def test_anatomy(run, tmp_path):
    status, out, err = run(*ANATOMY, "--json", "--out", tmp_path / "a.npz", "--plot", tmp_path / "a.png")
    summary = parsed(out)
    found = any(part["side"]["levels"] for part in summary["parts"])
    assert len(summary["sentences"]) == 3
    assert status == (0 if found else 1)
    assert ("no level is identifiable" in err) != found
    seen = any(part.side.nodes for part in tp.load(tmp_path / "a.npz").parts)
    assert (tmp_path / "a.png").exists() == seen
    assert run("show", tmp_path / "a.npz")[0] == 0


def test_an_anatomy_is_no_table(run, saved):
    status, _, err = run("show", saved / "anatomy.npz", "--csv")
    assert status == 2
    assert "--json" in err


def test_a_curve_without_a_point_is_a_refusal(run):
    status, out, err = run("curve", "--sizes", HUGE, "--pages", "base", *QUICK)
    assert status == 1
    assert "refused at 2 of 2 points" in out
    assert "no point could be measured" in err


def test_a_curve_with_some_points_is_a_result(run):
    status, out, err = run("curve", "--sizes", f"64K,{HUGE}", "--pages", "base", *QUICK)
    assert (status, err) == (0, "")
    assert "refused at 2 of 4 points" in out


def test_an_error_without_words_says_its_name(run, monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr("tlbprobe.sweeps.curve.run_points", fail)
    assert run("curve", "--sizes", "64K") == (1, "", "tlbprobe: MemoryError\n")


@pytest.mark.parametrize("option", ["--out", "--plot"])
def test_outputs_are_checked_before_measuring(run, tmp_path, monkeypatch, option):
    def fail(*_, **__):
        pytest.fail("it was measured")

    monkeypatch.setattr("tlbprobe.sweeps.curve.run_points", fail)
    for path in (tmp_path / "none" / "x.png", "/proc/x.png", "/dev/null/x.png"):
        status, out, err = run("curve", option, path)
        assert (status, out) == (1, "")
        assert str(path) in err
        assert ".tlbprobe" not in err
    (tmp_path / "folder.png").mkdir()
    status, _, err = run("curve", option, tmp_path / "folder.png")
    assert status == 1
    assert "folder" in err


def test_a_full_disk_does_not_lose_the_figures(run, monkeypatch, tmp_path):
    def full(self, path):
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(tp.Measurement, "save", full)
    status, out, err = run("chase", "64K", *QUICK, "--out", tmp_path / "x.npz")
    assert status == 1
    assert "ns per access" in out
    assert "No space left" in err


def test_data_and_picture_in_one_file(run, tmp_path):
    status, _, err = run("chase", "64K", "--out", tmp_path / "x.png", "--plot", tmp_path / "x.png")
    assert status == 2
    assert "x.png" in err


def test_warnings_are_short(run, monkeypatch):
    import warnings

    def warn(*_, **__):
        warnings.warn("the pages are others", RuntimeWarning, stacklevel=2)
        raise RuntimeError("and so it ends")

    monkeypatch.setattr("tlbprobe.sweeps.curve.run_points", warn)
    assert run("curve", "--sizes", "64K") == (
        1,
        "",
        "tlbprobe: warning: the pages are others\ntlbprobe: and so it ends\n",
    )


# --- help ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [80, 120])
def test_help(run, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= columns
    for python_only in ("Region", ".refused", ".counters", "BackingError", "True", "None", "As for", "`"):
        assert python_only not in out


def test_every_option_has_a_help():
    parser = build_parser()
    commands = next(action for action in parser._actions if action.choices)
    assert list(commands.choices) == COMMANDS
    for command in commands.choices.values():
        assert command.description
        for action in command._actions:
            assert action.help, action.dest


def test_help_names_every_command_and_policy(run):
    assert all(command in run("--help")[1] for command in COMMANDS)
    for kind in ("base", "default", "thp", "thp-64K", "collapse", "hugetlb", "hugetlb-1G"):
        assert kind in run("chase", "--help")[1]


def test_version(run):
    assert run("--version") == (0, f"tlbprobe {tp.__version__}\n", "")


# --- processes -------------------------------------------------------------------------------------------


def test_module_and_no_display(saved):
    clean = {"DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND"}
    environment = {name: value for name, value in os.environ.items() if name not in clean}
    for backend in ({}, {"MPLBACKEND": "tkagg"}, {"MPLBACKEND": "nonsense"}):
        command = [*RUN, "plot", saved / "curve.npz", saved / "p.png"]
        done = subprocess.run(command, capture_output=True, text=True, env={**environment, **backend})
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_bar_without_a_terminal():
    done = subprocess.run([*RUN, *SMALL_CURVE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_bar_on_a_terminal():
    terminal, side = pty.openpty()
    termios.tcsetwinsize(side, (24, 80))
    command = [*RUN, *SMALL_CURVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=side) as process:
        os.close(side)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal hangs up when the process ends
            while select.select([terminal], [], [], 60)[0]:
                part = os.read(terminal, 4096)
                shown += part
                if not part:
                    break
        out = process.stdout.read()
    os.close(terminal)
    assert process.returncode == 0
    assert b"/4 " in shown
    assert b"64 KiB" in out
    assert b"\r" not in out


def test_broken_pipe(saved):
    for options in ([], ["--json"], ["--csv"]):
        command = [*RUN, "show", saved / "curve.npz", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0


def test_full_standard_output(saved):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        command = [*RUN, "show", saved / "curve.npz"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_ascii_terminal(saved):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*RUN, "show", saved / "curve.npz"], capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


# A shell that starts its children in the background lets them ignore Ctrl-C.
HEARING = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from tlbprobe.display.commands.main import main; print('here', flush=True); sys.exit(main())"
)


@pytest.mark.parametrize("wait", [0.1, 0.3, 1.0])
def test_ctrl_c(tmp_path, wait):
    old = tmp_path / "c.npz"
    old.write_bytes(b"old")
    command = [sys.executable, "-c", HEARING, "curve", "--sizes", "64K:16M:4", "--pages", "base"]
    command += ["--max-seconds", "5", "--precision", "1e-6"]
    command += ["--out", str(old), "--plot", str(tmp_path / "c.png")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline() == "here\n"
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        out, err = process.communicate(timeout=60)
        taken = time.monotonic() - start
    assert (process.returncode, out, err) == (130, "", "tlbprobe: interrupted\n")
    assert taken < 5, "two seconds on a machine that is not busy"
    assert [path.name for path in tmp_path.iterdir()] == ["c.npz"]
    assert old.read_bytes() == b"old"


@pytest.mark.parametrize("arguments", [["--out", ""], ["--plot", ""]])
def test_an_empty_file_name_is_wrong_use(run, arguments):
    status, out, err = run("chase", "64K", *QUICK, *arguments)
    assert (status, out) == (2, "")
    assert f"{arguments[0]} names no file" in err


@pytest.mark.parametrize("arguments", [["--pages", ""], ["--pages", "base,,thp"]])
def test_an_empty_name_in_a_list_is_wrong_use(run, arguments):
    status, _, err = run("curve", "--sizes", "64K", *arguments)
    assert status == 2
    assert "empty name" in err


@pytest.mark.parametrize("columns", [1, 20, 40, 60, 80])
def test_no_terminal_is_so_narrow_that_a_figure_is_cut(examples, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    show(examples["curve"])
    out = capsys.readouterr().out
    assert "…" not in out
    low = examples["curve"].chase[1 << 16, "base"].low
    assert format_number(low) in out


def test_closed_stdout(tmp_path):
    """Nobody to tell, but the file is written."""
    out = tmp_path / "c.npz"
    command = [sys.executable, "-m", "tlbprobe", "chase", "64K", *QUICK, "--out", str(out)]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert tp.load(out).low > 0


def test_what_a_damaged_file_makes_fail_is_its_fault(run, saved, tmp_path, monkeypatch):
    """Whatever the file's content does not say before it is printed or drawn."""

    def broken(*_, **__):
        raise KeyError("zzz")

    monkeypatch.setattr("tlbprobe.display.commands.output.print_result", broken)
    status, _, err = run("show", saved / "anatomy.npz")
    assert status == 1
    assert "anatomy.npz' is damaged" in err


def test_a_folder_is_no_picture(run, saved, tmp_path):
    status, _, err = run("plot", saved / "anatomy.npz", f"{tmp_path}/absent.png/")
    assert status == 1
    assert "it is a folder" in err
    assert not list(tmp_path.glob("*.png"))


def test_a_range_is_not_endless(run):
    status, _, err = run("chase", "64K", "--seed", "0:99999999999")
    assert status == 2
    assert "is more than 1000 values" in err
