"""Trials of programs and functions: variants set as they should be, balanced turns, streams and signals."""

import itertools
import json
import math
import mmap
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import tlbprobe as tp
from tlbprobe.display.commands.main import main
from tlbprobe.machine import paging
from tlbprobe.memory.backing import Backing
from tlbprobe.programs import trial, variants, whatif
from tlbprobe.programs.trial import RunFigures
from tlbprobe.programs.variants import SETTINGS

KIB, MIB = 1 << 10, 1 << 20
PMD = paging.pmd_size()
PYTHON = [sys.executable, "-I", "-S", "-c"]
MODE = variants.pmd_mode()
DISABLED = paging.thp_disabled() == 1
NOTHING = {"stdin": os.devnull, "progress": False}
needs_thp = pytest.mark.skipif(
    MODE in (None, "never") or DISABLED, reason="huge pages are not to be had here"
)


def trial_of(words, **keywords):
    return tp.whatif(words, **{**NOTHING, "rounds": 1, **keywords})


@pytest.fixture
def log(tmp_path):
    """A program that writes a line of what it sees of itself, and the lines of all its runs."""

    class Log:
        path = tmp_path / "log"

        def words(self, expression, then="pass"):
            text = (
                "import ctypes, os, sys\n"
                f"with open({str(self.path)!r}, 'a') as log: print({expression}, file=log)\n"
                f"{then}"
            )
            return [*PYTHON, text]

        @property
        def lines(self):
            return self.path.read_text().splitlines()

    return Log()


# --- what the variants set -------------------------------------------------------------------------------


THP_STATE = "(ctypes.CDLL(None).prctl(42, 0, 0, 0, 0), os.environ.get('GLIBC_TUNABLES'))"


@pytest.mark.parametrize(("variant", "flags"), [("refused", 1), ("advised only", 3), ("offered", None)])
def test_a_variant_is_set_for_the_program_alone(log, variant, flags, monkeypatch):
    """Inherited through exec; ours stays as it was; and what the user tunes is kept."""
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0:glibc.malloc.hugetlb=0")
    before = paging.thp_disabled()
    if why := variants.why_not(variant):
        pytest.skip(why)
    trial_of(log.words(THP_STATE), variants=[variant])
    plain = f"({before}, 'glibc.malloc.check=0:glibc.malloc.hugetlb=0')"
    offered = f"({before}, 'glibc.malloc.check=0:glibc.malloc.hugetlb=1')"
    changed = offered if flags is None else plain.replace(str(before), str(flags), 1)
    assert log.lines[0] == plain, "the first run is as it is"
    assert sorted(log.lines[1:]) == sorted([plain, changed])
    assert paging.thp_disabled() == before


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("", "glibc.malloc.hugetlb=1"),
        ("a.b=1", "a.b=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=2:a.b=1", "a.b=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb_x=2", "glibc.malloc.hugetlb_x=2:glibc.malloc.hugetlb=1"),
    ],
)
def test_the_offer_is_added_to_other_tunables(given, expected):
    environment = {"A": "1"} if given is None else {"A": "1", "GLIBC_TUNABLES": given}
    assert variants.with_offer(environment) == {"A": "1", "GLIBC_TUNABLES": expected}


@pytest.mark.parametrize(
    ("mode", "disabled", "tried"),
    [
        ("madvise", 0, {"refused", "offered"}),
        ("always", 0, {"refused", "advised only"}),
        ("always", 3, {"refused", "offered"}),
        ("never", 0, set()),
        (None, 0, set()),
        ("always", 1, set()),
        ("madvise", 1, set()),
        ("madvise", None, {"refused", "offered"}),
    ],
)
def test_variants_that_cannot_differ_are_not_tried(mode, disabled, tried):
    reasons = variants.cannot_differ(mode, disabled)
    assert set(SETTINGS) - set(reasons) == {"as it is", *tried}
    assert all(reasons.values())
    assert ("sudo tee" in str(reasons)) == (mode == "never")


def test_where_nothing_can_differ_nothing_runs(log, monkeypatch):
    monkeypatch.setattr(variants, "pmd_mode", lambda: "never")
    with pytest.raises(RuntimeError, match="echo madvise"):
        trial_of(log.words(1))
    assert not log.path.exists()


def test_a_kernel_that_cannot_is_told_from_one_that_can(run_python):
    """As on a kernel whose prctl does not know the flags."""
    found = run_python("""
        prctl = {"x86_64": 157, "aarch64": 167}[platform.machine()]
        from tlbprobe.programs import variants
        before = variants.why_not("refused")
        refuse(prctl, errno.EINVAL, 2, 2)
        answer([before, variants.why_not("refused"), variants.why_not("advised only"),
                caught(tp.whatif, ["true"], variants=["advised only"], stdin="/dev/null")[:2]])
        """)
    assert found[:2] == ["", ""]
    assert "Invalid argument" in found[2]
    assert found[3][0] == "RuntimeError"
    assert "this kernel cannot" in found[3][1]


@needs_thp
@pytest.mark.no_asan
def test_pages_are_seen_in_each_variant():
    """A program that asks for huge pages has none where they are refused, and where it is offered more."""
    text = (
        "import mmap, os\n"
        "memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "memory.madvise(14)\n"
        "memory[:] = bytes(len(memory))\n"
        "os._exit(0)\n"
    )
    trial = trial_of([*PYTHON, text], variants=["refused"], rounds=2)
    assert trial.median("huge", "refused") == 0
    if not trial.median("huge", "as it is"):
        pytest.skip("no huge page was free")
    assert trial.median("huge", "as it is") >= 32 * MIB - 2 * PMD
    assert (trial.huge <= trial.resident).all()


def test_pages_are_read_once_more_before_the_exit():
    trial = trial_of([*PYTHON, "x = bytearray(16 << 20)"], variants=["refused"], rounds=2)
    seen = np.isfinite(trial.exit_resident)
    if not seen.any():
        pytest.skip("this kernel forbids to trace")
    assert (trial.exit_resident[seen] > MIB).all()
    assert "as it stopped before its exit" in str(trial)


OWN_ALLOCATOR = r"""
#include <string.h>
#include <sys/mman.h>
int main(void)
{
    size_t const size = 32 << 20;
    char *const memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, size);
    return memory[size / 2] != 1;
}
"""


@pytest.mark.skipif(MODE != "madvise" or DISABLED, reason="only where huge pages must be asked for")
def test_an_allocator_that_ignores_the_offer_is_told(tmp_path):
    source = tmp_path / "own.c"
    source.write_text(OWN_ALLOCATOR)
    try:
        subprocess.run([os.environ.get("CC", "gcc"), source, "-o", tmp_path / "own"], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    trial = trial_of([tmp_path / "own"], variants=["offered"], rounds=2)
    assert trial.median("huge", "offered") == 0
    assert any("the offer brought no huge page" in text for text in trial.warnings)
    assert trial.verdict.claim == "not enough evidence"


def test_pages_that_were_not_seen_are_no_reproach():
    """Of a short program that may not be traced nothing is seen, not even that there is no huge page."""

    def warned(*huge):
        offered = [[RunFigures(1, 1, 0, 0, 0, huge=0.0), RunFigures(1, 1, 0, 0, 0, huge=one)] for one in huge]
        first = RunFigures(1, 1, 0, 0, 0, status=0)
        texts = variants._trial_warnings(["as it is", "offered"], offered, first)
        return any("the offer brought no huge page" in text for text in texts)

    assert warned(0.0, 0.0)
    assert not warned(math.nan, math.nan)
    assert not warned(2.0**30, math.nan, 2.0**30), "one that was not seen does not hide the others"


def test_pages_of_a_function_that_are_not_proved_are_not_none():
    called, size = RunFigures(1, 1, 0, 0, 0), 4 * MIB

    def huge(shares):
        return whatif._with_pages(called, Backing("thp", None, shares, "unknown", "none"), size).huge

    assert math.isnan(huge({}))
    assert huge({4096: 1.0}) == 0
    assert huge({4096: 0.5, 2 * MIB: 0.5}) == 2 * MIB


def test_a_trial_says_that_pages_were_not_seen(made):
    unseen = np.full((8, 3), np.nan)
    trial = made.trial(huge=unseen, resident=unseen)
    assert trial.pairs["offered"].huge is None
    assert trial.verdict.claim == "not enough evidence"
    assert "no huge page" not in str(trial)
    assert json.dumps(trial.summary(), allow_nan=False)


# --- turns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "count"), list(itertools.product((1, 2, 3, 7, 12), (1, 2, 3, 4))))
def test_turns_are_balanced(rounds, count):
    order = trial.balanced_order(rounds, count, seed=5)
    assert order.shape == (rounds, count)
    assert (np.sort(order, axis=1) == np.arange(count)).all()
    for place in range(count):
        often = np.bincount(order[:, place], minlength=count)
        assert often.max() - often.min() <= 1
    assert (order == trial.balanced_order(rounds, count, seed=5)).all()


def test_turns_depend_on_the_seed():
    orders = {trial.balanced_order(12, 3, seed).tobytes() for seed in range(20)}
    assert len(orders) > 15


def test_runs_follow_the_order(log):
    trial = trial_of(
        log.words("ctypes.CDLL(None).prctl(42, 0, 0, 0, 0)"), variants=["refused"], rounds=4, seed=3
    )
    expected = [("1" if trial.variants[number] == "refused" else "0") for number in trial.order.ravel()]
    assert log.lines[1:] == expected or paging.thp_disabled()
    assert len(log.lines) == 1 + 4 * 2
    assert trial.wall.shape == (4, 2)


def test_times_are_sorted_by_variant():
    """Whatever the order: a run that is told by its variant to take long does."""
    text = "import ctypes, time; time.sleep(0.6 * (ctypes.CDLL(None).prctl(42, 0, 0, 0, 0) == 1))"
    trial = trial_of([*PYTHON, text], variants=["refused"], rounds=3)
    assert (trial.wall[:, 1] > 0.6).all()
    if paging.thp_disabled() != 1:
        assert trial.wall[:, 0].min() < 0.6
        assert trial.round_ratios("refused").max() > 1
    assert (trial.cpu >= 0).all()


# --- streams ---------------------------------------------------------------------------------------------


def test_output_is_shown_once(capfd):
    text = "import sys; print('out'); print('err', file=sys.stderr)"
    trial_of([*PYTHON, text], variants=["refused"], rounds=3)
    assert capfd.readouterr() == ("out\n", "err\n")


def run_whatif(words, **keywords):
    """The command in a process of its own, with a standard input of the test's choice."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "tlbprobe",
        "whatif",
        "--rounds",
        "2",
        "--variants",
        "refused",
        "--",
    ]
    return subprocess.run([*command, *words], capture_output=True, timeout=60, **keywords)


READ = "sys.stdin.read()"


@pytest.mark.parametrize("kind", ["file", "pipe", "middle", "device", "empty"])
def test_standard_input_is_new_for_every_run(log, tmp_path, kind):
    text = "some\nlines é\n" * 3000
    path = tmp_path / "in"
    path.write_text("skipped" + text)
    words = log.words(f"hash({READ}) if False else len(sys.stdin.read())")
    if kind == "pipe":
        done, expected = run_whatif(words, input=text.encode()), len(text)
    elif kind == "device":
        done, expected = run_whatif(words, stdin=subprocess.DEVNULL), 0
    elif kind == "empty":
        done, expected = run_whatif(words, input=b""), 0
    else:
        with path.open("rb") as file:
            if kind == "middle":
                os.lseek(file.fileno(), len("skipped"), os.SEEK_SET)
            done = run_whatif(words, stdin=file)
        expected = len(text) + len("skipped") * (kind == "file")
    assert done.returncode == 0, done.stderr
    assert log.lines == [str(expected)] * 5


def test_standard_input_by_name(log, tmp_path):
    path = tmp_path / "in"
    path.write_text("four")
    trial_of(log.words(READ), variants=["refused"], rounds=2, stdin=path)
    assert log.lines == ["four"] * 5


def test_a_terminal_is_refused(log):
    terminal, side = pty.openpty()
    try:
        done = run_whatif(log.words(1), stdin=side)
    finally:
        os.close(terminal)
        os.close(side)
    assert done.returncode == 1
    assert b"standard input is a terminal" in done.stderr
    assert b"/dev/null" in done.stderr
    assert not log.path.exists(), "nothing ran"


def test_a_closed_standard_input(log):
    words = [sys.executable, "-P", "-m", "tlbprobe", "whatif", "--rounds", "1", "--variants", "refused", "--"]
    words += log.words("sys.stdin")
    done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *words], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(log.lines) == 3


# --- how it ends -----------------------------------------------------------------------------------------


@pytest.fixture
def command(capfd):
    def call(*arguments):
        capfd.readouterr()
        with open(os.devnull) as nothing:  # noqa: PTH123 - a device
            kept = os.dup(0)
            os.dup2(nothing.fileno(), 0)
        try:
            status = main([str(argument) for argument in arguments])
        finally:
            os.dup2(kept, 0)
            os.close(kept)
        return status, *capfd.readouterr()

    return call


ONCE = ["whatif", "--rounds", "1", "--variants", "refused"]


def test_the_command(command, tmp_path):
    status, out, err = command(*ONCE, "--", *PYTHON, "print('hello')")
    assert (status, out) == (0, "hello\n")
    assert re.match(r"tlbprobe: \S+ runs 3 times: once to warm up, with its output", err)
    assert re.search(r"^as it is +[\d.]+ ", err, re.MULTILINE)
    assert re.search(r"^refused +[\d.]+ ", err, re.MULTILINE)


def test_json_and_files(command, tmp_path):
    data, picture = tmp_path / "t.npz", tmp_path / "t.svg"
    status, _, err = command(*ONCE, "--json", "--", *PYTHON, "pass")
    assert status == 0
    found = json.loads(err.partition("\n")[2])
    assert found["rounds"] == 1
    assert set(found["medians"]) == {"as it is", "refused"}
    status, _, err = command(*ONCE, "--out", data, "--plot", picture, "--", *PYTHON, "pass")
    assert status == 0
    assert err.count("\n") == 1, "that it runs several times, and no more"
    assert picture.read_bytes().startswith(b"<?xml")
    assert tp.load(data).variants == ("as it is", "refused")


@pytest.mark.parametrize("code", [1, 42])
def test_exit_status_is_passed_on(command, code):
    status, _, err = command(*ONCE, "--", *PYTHON, f"raise SystemExit({code})")
    assert status == code
    assert f"every run ended with exit status {code}" in err


def test_exit_statuses_that_differ(log):
    trial = trial_of(
        log.words(1, f"sys.exit(len(open({str(log.path)!r}).readlines()) - 1)"), variants=["refused"]
    )
    assert trial.status == 0
    assert any("exit statuses differ" in text for text in trial.warnings)


def test_a_program_that_a_signal_ends(command, log):
    status, _, err = command(*ONCE, "--", *log.words(1, "os.kill(os.getpid(), 12)"))
    assert status == 128 + 12
    assert f"{signal.Signals(12).name} ended" in err
    assert len(log.lines) == 1, "it is not run again"
    with pytest.raises(variants.ProgramKilledError) as raised:
        trial_of([*PYTHON, "import os; os.kill(os.getpid(), 9)"])
    assert raised.value.signal == signal.SIGKILL


@pytest.mark.parametrize(("name", "status"), [("no-such-program-here", 127), ("/", 126)])
def test_what_cannot_be_run(command, name, status):
    found, _, err = command(*ONCE, "--", name)
    assert found == status
    assert name in err


HEARING = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from tlbprobe.display.commands.main import main; sys.exit(main())"
)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_the_program_and_the_trial(log, tmp_path, number, status):
    """Also of a program that makes nothing of them, which would run again otherwise."""
    out = tmp_path / "t.npz"
    text = f"import signal; signal.signal({int(number)}, lambda *_: sys.exit(0)); import time; time.sleep(30)"
    words = [*ONCE, "--out", str(out), "--", *log.words("os.getpid()", text)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HEARING, *words],
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 30
        while not (log.path.exists() and log.lines) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert len(log.lines) == 1
    assert not Path(f"/proc/{log.lines[0]}").exists()
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["whatif"], "no COMMAND"),
        (["whatif", "--rounds", "0", "--", "true"], "rounds=0"),
        (["whatif", "--rounds", "x", "--", "true"], "--rounds"),
        (["whatif", "--variants", "huge", "--", "true"], "variants='huge'"),
        (["whatif", "--variants", "refused,refused", "--", "true"], "once"),
        (["whatif", "--plot", "x.bmp", "--", "true"], "x.bmp"),
    ],
)
def test_wrong_use_of_the_command(command, arguments, named):
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert named in err


def test_a_file_holds_no_argument_and_no_path(tmp_path):
    path = tmp_path / "t.npz"
    trial_of([*PYTHON, "secret = 'hunter2'"], variants=["refused"]).save(path)
    with np.load(path) as arrays:
        text = b"".join(arrays[name].tobytes() for name in arrays)
    assert b"hunter2" not in text
    assert os.fsencode(Path(sys.executable).parent) not in text


# --- functions -------------------------------------------------------------------------------------------


def test_a_function_on_every_policy():
    seen = []

    def function(array):
        seen.append((array.dtype, array.size))
        array[0] += 1
        return array.sum()

    trial = tp.whatif(function, size="1MiB", variants=["base", "default"], rounds=6, progress=False)
    assert set(seen) == {(np.dtype("float64"), MIB // 8)}
    assert trial.variants == ("base", "default")
    assert trial.reference == "base"
    assert trial.program == "function"
    assert trial.backing["base"].page_size == paging.base_page_size()
    assert trial.backing["base"].proof == "proved"
    assert trial.ratio("default")[1] is not None
    assert trial.params["calls"] >= 1
    assert trial.to_numpy().shape == (12,)


def test_by_default_those_on_offer():
    trial = tp.whatif(lambda array: array.max(), size="4MiB", rounds=1, progress=False)
    offered = [policy.name for policy in tp.page_policies() if policy.offered]
    assert trial.variants[0] == "base"
    assert {*trial.variants, *trial.refused} == {
        name for name in offered if name in ("base", "thp") or name.startswith("hugetlb")
    }


BOTH = ["base", "default"]  # which there are on every machine


@needs_thp
@pytest.mark.parametrize("size", [100, 64 * KIB, PMD or 0])
def test_an_array_smaller_than_a_huge_page_is_on_one_all_the_same(size):
    names = ["base", "thp"]
    trial = tp.whatif(lambda array: None, size=size, dtype="u1", variants=names, rounds=6, progress=False)
    assert trial.pairs["thp"].differs
    assert "no variant had more huge pages" not in str(trial)
    with pytest.raises(ValueError, match="compares two"):
        tp.whatif(lambda array: None, size=size, dtype="u1", variants=names[:1], progress=False)


def test_faults_are_of_one_call():
    """However often it is called in a round."""

    def function(array):
        memory = mmap.mmap(-1, 256 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[:: mmap.PAGESIZE] = bytes(256)

    trial = tp.whatif(function, size="64KiB", variants=BOTH, rounds=3, progress=False)
    assert trial.params["calls"] > 1
    assert 256 <= trial.median("minor", "base") < 300


@needs_thp
def test_huge_pages_are_proved():
    trial = tp.whatif(
        lambda array: array.max(), size=4 * PMD, variants=["base", "thp"], rounds=6, progress=False
    )
    assert trial.backing["thp"].page_size == PMD
    assert trial.median("huge", "thp") == 4 * PMD
    assert trial.median("huge", "base") == 0
    assert "proved" in str(trial)


def test_prepare_comes_before_each_call_and_is_not_timed():
    calls = []

    def prepare(array):
        calls.append("prepare")
        array[:] = 1
        time.sleep(0.05)

    def function(array):
        calls.append("call")
        assert (array == 1).all()
        array[:] = 2

    trial = tp.whatif(
        function, size="64KiB", variants=BOTH, prepare=prepare, rounds=3, dtype="int32", progress=False
    )
    assert calls == ["prepare", "call"] * (len(calls) // 2)
    assert trial.params["calls"] == 1
    assert trial.wall.max() < 0.05


def test_setup_comes_once():
    filled = []

    def setup(array):
        filled.append(array.size)
        array[:] = 3

    def function(array):
        assert array[0] == 3

    tp.whatif(
        function,
        size="64KiB",
        variants=["base", "default"],
        setup=setup,
        rounds=3,
        dtype="u1",
        progress=False,
    )
    assert filled == [64 * KIB] * 2


def test_a_short_function_is_called_often():
    trial = tp.whatif(lambda array: None, size="64KiB", variants=BOTH, rounds=2, progress=False)
    assert trial.params["calls"] > 1000
    assert 0 < trial.wall.max() < 1e-3


def test_what_a_function_raises_comes_through():
    def function(array):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        tp.whatif(function, size="64KiB", variants=BOTH, progress=False)


def test_a_view_that_is_kept_outlives_the_trial():
    kept = []
    tp.whatif(
        kept.append,
        size="64KiB",
        variants=BOTH,
        rounds=1,
        prepare=lambda array: array.fill(7),
        progress=False,
    )
    assert (kept[0] == 7).all()


def test_progress(capsys):
    done = []
    tp.whatif(
        lambda array: None, size="64KiB", variants=BOTH, rounds=3, progress=lambda *both: done.append(both)
    )
    assert done == [(k, 6) for k in range(1, 7)]


WRONG = [
    ((["true"],), {"size": "1MiB"}, ValueError, "size='1MiB'"),
    ((["true"],), {"prepare": print}, ValueError, "prepare="),
    ((["true"],), {"setup": print}, ValueError, "setup="),
    ((print,), {}, ValueError, "size=None"),
    ((print,), {"size": "1MiB", "stdin": "/dev/null"}, ValueError, "stdin="),
    ((print,), {"size": "1MB"}, ValueError, "size='1MB'"),
    ((print,), {"size": 4, "dtype": "float64"}, ValueError, "dtype=float64"),
    ((print,), {"size": 4096, "dtype": object}, ValueError, "dtype="),
    ((print,), {"size": 4096, "dtype": "no"}, TypeError, "no"),
    ((print,), {"size": 4096, "variants": ["colossal"]}, ValueError, "pages='colossal'"),
    ((print,), {"size": 4096, "variants": []}, ValueError, "variants="),
    ((print,), {"size": 4096, "variants": "base"}, TypeError, "variants='base'"),
    ((print,), {"size": 4096, "rounds": 0}, ValueError, "rounds=0"),
    ((print,), {"size": 4096, "rounds": 1.5}, TypeError, "rounds=1.5"),
    ((print,), {"size": 1 << 60}, MemoryError, "MemAvailable"),
    (([],), {}, ValueError, "argv is empty"),
    (("ls",), {}, TypeError, "no shell"),
    ((["true"],), {"variants": ["x"]}, ValueError, "variants='x'"),
    ((["true"],), {"rounds": True}, TypeError, "rounds=True"),
    ((["true"],), {"stdin": "/proc/nonexistent"}, FileNotFoundError, "nonexistent"),
]


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "named"), WRONG, ids=[str(one[:2]) for one in WRONG]
)
def test_wrong_input(arguments, keywords, error, named):
    with pytest.raises(error, match=re.escape(named)):
        tp.whatif(*arguments, **{"progress": False, **keywords})


# --- the result ------------------------------------------------------------------------------------------


def test_a_trial_made_by_hand(made):
    trial = made.trial()
    assert list(trial.pairs) == ["offered", "refused"], "what is asked most first"
    assert trial.verdict.claim.startswith("huge pages help")
    low, high = trial.ratio("offered")[1]
    assert low < 0.8 < high or abs(trial.ratio("offered")[0] - 0.8) < 0.02
    assert "advised only" in str(trial)
    assert trial.summary()["ratios"]["offered"]["wall_interval"] == [low, high]


def test_times_of_zero_have_no_ratio(made):
    """What a program's CPU time is by a clock that goes in steps of milliseconds."""
    trial = made.trial(cpu=np.zeros((8, 3)))
    assert trial.summary()["ratios"]["offered"]["cpu"] is None
    trial.plot(Figure().add_subplot())
    assert trial.verdict.claim.startswith("huge pages help")
    json.dumps(trial.summary(), allow_nan=False)


def test_few_rounds_claim_nothing(made):
    trial = made.trial(rounds=5)
    assert trial.ratio("offered")[1] is None
    assert trial.verdict.claim == "not enough evidence"
    assert whatif.ROUNDS >= 6


@pytest.mark.parametrize("kind", ["trial", "program_run"])
def test_pictures(examples, made, kind):
    for result in (
        examples[kind],
        made.trial(variants=("as it is",), ratios=(1.0,)),
        made.program_run(samples=0),
    ):
        figure = Figure(layout="constrained")
        result.plot(figure.add_subplot())
        figure.canvas.draw()


# --- what outlives a run, and what comes in --------------------------------------------------------------


OUTLIVED = """
import subprocess, sys
subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(" + sys.argv[1] + ")"])
import time
time.sleep(0.2)
"""


def test_a_run_waits_for_what_outlives_the_last_one(monkeypatch):
    words = [sys.executable, "-I", "-S", "-c", OUTLIVED]
    options = {"variants": ["refused"], "rounds": 1, "stdin": os.devnull, "progress": False}
    trial = tp.whatif([*words, "0.5"], **options)
    assert any("outlived it" in text for text in trial.warnings)
    monkeypatch.setattr(variants, "OUTLIVING_SECONDS", 0.3)
    with pytest.raises(RuntimeError, match=r"1 of the processes that .* still run"):
        tp.whatif([*words, "3"], **options)


def test_what_a_killed_run_leaves_behind_does_not_hide_the_signal(monkeypatch):
    monkeypatch.setattr(variants, "_wait_for_children", pytest.fail)
    killed = [sys.executable, "-I", "-S", "-c", "import os; os.kill(os.getpid(), 9)"]
    with pytest.raises(variants.ProgramKilledError, match="SIGKILL"):
        tp.whatif(killed, variants=["refused"], rounds=1, stdin=os.devnull, progress=False)


def test_where_only_base_pages_are_offered_a_function_has_nothing_to_try(monkeypatch):
    """Which is no fault of who asked."""
    monkeypatch.setattr(whatif, "page_policies", lambda: [tp.PagePolicy("base", "base", 4096)])
    with pytest.raises(RuntimeError, match="no other pages than 'base' can be had: none is on offer"):
        tp.whatif(lambda array: None, size="64KiB", progress=False)


def test_a_pipe_is_announced_and_has_a_limit(monkeypatch):
    told = []
    monkeypatch.setattr(variants, "SPOOL_MOST", 1 << 20)
    reader, writer = os.pipe()
    feeding = subprocess.Popen(["yes"], stdout=writer)
    os.close(writer)
    try:
        with pytest.raises(RuntimeError, match="a pipe of more than 1 MiB: put it into a file"):
            variants.try_command(["true"], None, 1, 0, f"/dev/fd/{reader}", False, tell=told.append)
    finally:
        os.close(reader)
        feeding.wait()
    assert [text.partition(":")[0] for text in told[1:]] == ["standard input is a pipe"]


def test_a_folder_is_no_input(tmp_path):
    with pytest.raises(IsADirectoryError, match=f"folder: '{tmp_path}'"):
        tp.whatif(["true"], stdin=str(tmp_path), progress=False)


def test_the_reference_alone_is_no_trial():
    with pytest.raises(ValueError, match="name one of 'refused'"):
        tp.whatif(["true"], variants=["as it is"], stdin=os.devnull)
