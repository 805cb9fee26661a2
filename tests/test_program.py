"""What is said of somebody else's program: exact where the kernel counts, paced, private, without a shell."""

import dataclasses
import errno
import json
import math
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from trees import write

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.display.commands.main import main
from tlbprobe.machine import paging
from tlbprobe.memory import policies
from tlbprobe.programs import accessed, counted, launching, processes, sampling, stat

KIB, MIB = 1 << 10, 1 << 20
BASE = paging.base_page_size()
PMD = paging.pmd_size()
PYTHON = [sys.executable, "-I", "-S", "-c"]
ROOT = os.geteuid() == 0
QUIET = {"counters": (), "touched": False}

# Touches so many pages of so many bytes after an advice, holds them for so many milliseconds, and says what
# /proc says of it then; in as many processes more as it is told.
TOUCH = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static long field(const char *name)
{
    char line[256];
    long value = -1;
    FILE *const file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name) + 1);
    return value;
}

int main(int count, char **words)
{
    long const pages = atol(words[1]), page = sysconf(_SC_PAGESIZE), large = 1 << 25;
    int const advice = atoi(words[2]), wait_ms = atoi(words[3]), children = count > 4 ? atoi(words[4]) : 0;
    size_t const size = (size_t)pages * page;
    char *const reserved = mmap(0, size + large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *const base = (char *)(((unsigned long)reserved + large - 1) / large * large);
    madvise(base, size, advice);
    int process = 0;
    while (process < children && fork())
        process++;
    for (size_t at = 0; at < size; at += page)
        base[at] = 1;
    usleep(wait_ms * 1000);
    if (process == children) {
        while (children && wait(0) > 0)
            ;
        long const resident = field("Rss:"), huge = field("AnonHugePages:");
        struct rusage used;
        getrusage(RUSAGE_SELF, &used);
        printf("%ld %ld %ld\n", resident, huge, used.ru_minflt);
    }
    return 0;
}
"""


def build(folder, text, *flags):
    """Compile a program."""
    compiler = os.environ.get("CC", "gcc")
    source = folder / "program.c"
    source.write_text(text)
    try:
        subprocess.run([compiler, "-O1", *flags, source, "-o", folder / "touch"], check=True)
    except FileNotFoundError:
        pytest.skip(f"no C compiler {compiler!r}")
    return str(folder / "touch")


@pytest.fixture(scope="session")
def touch(tmp_path_factory):
    return build(tmp_path_factory.mktemp("touch"), TOUCH)


def script(text):
    return [*PYTHON, textwrap.dedent(text)]


def descriptors():
    """Those that we might have left: fonts, which matplotlib keeps open, are not."""
    links = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return sorted(one for one in links if not one.startswith("/") or one.endswith("(deleted)"))


@pytest.fixture(autouse=True)
def nothing_left():
    """No descriptor, no child and no thread of ours outlives a test."""
    before = descriptors()
    yield
    assert descriptors() == before
    assert not [thread for thread in threading.enumerate() if thread.name == "tlbprobe-follow"]
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


# --- exact figures ---------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_page_faults(touch):
    """Loading the program takes a few more or fewer each time."""
    few, many = (
        tp.stat([touch, str(pages), str(policies.MADV_NOHUGEPAGE), "0"], **QUIET) for pages in (1000, 5000)
    )
    assert abs(many.faults["minor"] - few.faults["minor"] - 4000) < 20
    assert few.faults["minor"] > 1000


@pytest.mark.no_asan
def test_page_faults_are_those_that_the_program_had(touch, tmp_path):
    """As it counts them at its end, less those before it became this program."""
    with (tmp_path / "out").open("wb") as out:
        words = [touch, "3000", str(policies.MADV_NOHUGEPAGE), "0"]
        with launching.Launched(words, streams=(None, out.fileno(), None)) as running:
            running.go()
            ended = running.finish()
    own = int((tmp_path / "out").read_text().split()[2])
    assert 0 <= ended.minor + running._start["minor"] - own <= 8, "what its exit takes"


def test_what_children_used_is_included(touch):
    alone, three = (
        tp.stat([touch, "2000", str(policies.MADV_NOHUGEPAGE), "0", children], **QUIET)
        for children in ("0", "3")
    )
    assert 3 * 2000 <= three.faults["minor"] - alone.faults["minor"] < 3 * 2000 + 500


def test_switches(touch):
    few, many = (
        tp.stat(script(f"import time\nfor _ in range({naps}): time.sleep(0.001)"), **QUIET)
        for naps in (5, 105)
    )
    assert 95 <= many.switches["voluntary"] - few.switches["voluntary"] <= 120


def test_times():
    busy = tp.stat(script("import time\nwhile time.process_time() < 0.3: pass"), **QUIET)
    assert 0.25 < busy.user + busy.system < 0.5
    assert busy.wall >= 0.3
    idle = tp.stat(script("import time; time.sleep(0.3)"), **QUIET)
    assert idle.user + idle.system < 0.2
    assert 0.3 <= idle.wall < 5


@pytest.mark.no_asan
@pytest.mark.no_asan  # whose process has more than that itself
def test_peak_is_what_was_there_at_once(touch):
    """Also where it came and went between two samples; more than this process has after many tests."""
    pages = 768 * MIB // BASE
    run = tp.stat([touch, str(pages), str(policies.MADV_NOHUGEPAGE), "0"], **QUIET, interval=60)
    assert run.seconds.size == 0
    assert 768 * MIB <= run.peak < 776 * MIB


def test_a_peak_that_could_be_ours_is_not_told(touch):
    """A process begins with a copy of what its parent has, which the kernel counts as its peak."""
    run = tp.stat([touch, "1", str(policies.MADV_NOHUGEPAGE), "0"], **QUIET, interval=60)
    assert run.peak is None
    assert "not known" in str(run)


@pytest.mark.parametrize("status", [0, 1, 77, 255])
def test_exit_status(status):
    run = tp.stat(script(f"import os; os._exit({status})"), **QUIET)
    assert (run.status, run.signal) == (status, None)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT", "SIGABRT"])
def test_signals(name):
    number = getattr(signal, name)
    run = tp.stat(script(f"import os; os.kill(os.getpid(), {int(number)})"), **QUIET)
    assert (run.status, run.signal) == (None, number)
    assert f"by {name}" in str(run)
    assert run.summary()["signal"] == name


# --- memory, sampled -------------------------------------------------------------------------------------


@pytest.mark.no_asan
def test_memory_over_time(touch, capfd):
    pages = 32 * MIB // BASE
    run = tp.stat([touch, str(pages), str(policies.MADV_NOHUGEPAGE), "1200"], **QUIET, interval=0.3)
    resident, huge = (int(number) * KIB for number in capfd.readouterr().out.split()[:2])
    assert run.seconds.size >= 2
    assert (np.diff(run.seconds) > 0).all()
    assert 0 <= run.seconds[0] <= run.seconds[-1] <= run.wall
    assert resident - 2 * MIB <= run.resident.max() <= resident + MIB
    assert huge == 0
    assert run.huge.max() == 0
    assert run.huge_share == 0
    assert (run.proportional <= run.resident).all()
    assert run.processes.max() == 1


@pytest.mark.skipif(PMD is None, reason="this kernel has no transparent huge pages")
def test_huge_pages_are_seen(touch, capfd):
    """As many as the program itself sees."""
    pages = 16 * PMD // BASE
    run = tp.stat([touch, str(pages), str(policies.MADV_HUGEPAGE), "1000"], **QUIET, interval=0.4)
    huge = int(capfd.readouterr().out.split()[1]) * KIB
    assert run.huge.max() == huge
    assert bool(run.huge_share) == bool(huge)
    assert (run.huge <= run.resident).all()


@pytest.mark.no_asan
def test_descendants_are_sampled(touch):
    pages = 16 * MIB // BASE
    run = tp.stat([touch, str(pages), str(policies.MADV_NOHUGEPAGE), "1200", "3"], **QUIET, interval=0.5)
    assert run.processes.max() == 4
    assert run.resident.max() >= 4 * 16 * MIB
    assert run.proportional.max() >= 4 * 16 * MIB - MIB
    assert "4 at once" in str(run)


def test_a_daemon_is_followed_and_said_to_be_left(tmp_path):
    """Its parent ends, and then the program; it goes on."""
    where = tmp_path / "pid"
    run = tp.stat(script(f"""
        import os, time
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                with open({str(where)!r}, "w") as file:
                    file.write(str(os.getpid()))
                time.sleep(20)
            time.sleep(0.8)
            os._exit(0)
        os.wait()
        time.sleep(0.1)
        """), **QUIET)  # fmt: skip
    pid = int(where.read_text())
    assert run.status == 0
    assert run.processes.max() == 3
    assert any("still run" in warning for warning in run.warnings)
    os.kill(pid, signal.SIGKILL)


def test_pause():
    assert sampling.pause(0.025, 0.01) == pytest.approx(99 * 0.025)
    assert sampling.pause(1e-6, 0.01) == 0.01


@pytest.fixture
def clock(monkeypatch):
    """A clock and a processor's time that are made, and go on only as they are told."""

    class Clock:
        now = spent = 0.0

        def works(self, seconds):
            self.now += seconds
            self.spent += seconds

        def waits(self, seconds):
            self.now += max(seconds, 1e-9)  # a real one goes on, however short the wait

    clock = Clock()
    monkeypatch.setattr(sampling, "now_ns", lambda: int(clock.now * 1e9))
    monkeypatch.setattr(sampling, "spent", lambda: clock.spent)
    return clock


def test_samples_are_paced_by_what_they_cost(clock, monkeypatch):
    """However dear they are: a second costs 10 ms, and what one costs more than was expected of it."""

    def slow(pid, root="/"):
        clock.works(0.002)
        clock.now += 0.5  # and waits for a processor, which costs the program nothing
        return processes.Memory(1, 1, 0, 0)

    def over(seconds):
        clock.waits(seconds)
        return len(sampler.samples) == 20

    monkeypatch.setattr(sampling, "read_memory", slow)
    sampler = sampling.Sampler(os.getpid(), interval=0.001, touched=False, began_ns=0)
    sampler.until(over)
    assert sampler.costs == pytest.approx(20 * 0.002)
    assert (np.diff([one.seconds for one in sampler.samples]) >= 99 * 0.002).all()
    assert 99 * 0.002 * 19 <= clock.now < 1.2 * (100 * 0.002 + 0.5) * 20, "nor far less often"


def test_what_the_processes_use_is_seen_seldom_enough(clock, monkeypatch):
    """Between samples, and with as many processes as there may be."""
    usage = {os.getpid(): processes.Usage(1, False, 0, 0, 0.0, 0.0)}

    def look(self):
        clock.works(0.001)
        return usage

    def over(seconds):
        clock.waits(seconds)
        return clock.now > 100

    monkeypatch.setattr(processes.Tree, "usage", look)
    sampler = sampling.Sampler(os.getpid(), interval=1000, touched=False, began_ns=0)
    sampler.until(over)
    assert not sampler.samples
    assert sampler.sights > 100
    assert sampler.costs <= 1.01 * sampling.SEE_SHARE * clock.now + 0.001


def test_every_process_is_foreseen(clock, monkeypatch):
    """Not only the first one: each has memory, and costs something by itself."""
    sampler = sampling.Sampler(os.getpid(), interval=0.001, touched=False, began_ns=0)
    monkeypatch.setattr(sampling, "read_resident", lambda pid, root: 1000 * BASE)
    alone = sampler.too_early()
    sampler.usage = dict.fromkeys(range(1, 51), processes.Usage(1, False, 0, 0, 0.0, 0.0))
    assert sampler.too_early() == pytest.approx(50 * alone)


def test_a_sample_that_would_be_too_dear_is_not_taken(other):
    """A large program must have run for long: what a sample costs is foreseen."""
    child = other(script(BUSY.format(seconds=30)))
    child.stdout.readline()
    sampler = sampling.Sampler(child.pid, interval=0.001, touched=False)
    early = sampler.too_early()
    assert 100 * (sampling.FIRST_COST + 16 * MIB / BASE * sampling.FIRST_RATE) * 0.9 < early < 3
    sampler.until(lambda seconds: time.sleep(seconds), seconds=early / 2)
    assert not sampler.samples
    assert sampler.peak >= 16 * MIB, "what costs nothing is known all the same"
    assert any("before a sample was due" in text for text in sampler.complaints())


@pytest.mark.no_asan  # under which every program is large, and a sample takes long to pay
def test_the_share_that_sampling_took_is_told():
    run = tp.stat(script("import time; time.sleep(2)"), **QUIET)
    assert run.seconds.size >= 1
    share = run.sampling["seconds"] / run.wall
    assert 0 < share < 0.1, "1 %, and the last sample, however dear"
    assert f"({share:.2%} of the time)" in str(run)


def test_samples_of_a_long_run_are_thinned(monkeypatch):
    monkeypatch.setattr(sampling, "MOST_SAMPLES", 8)
    sampler = sampling.Sampler(os.getpid(), interval=0.25, touched=False)
    for _ in range(20):
        sampler.take()
    assert len(sampler.samples) < 8
    assert sampler.interval == 0.25 * 2**4
    assert sorted(sampler.samples, key=lambda one: one.seconds) == sampler.samples


def test_a_program_too_short_to_be_seen(capsys):
    run = tp.stat(script("pass"), **QUIET, interval=30)
    assert run.seconds.size == run.to_numpy().size == 0
    assert run.huge_share is None
    assert any("before a sample was due" in text for text in run.warnings)
    json.dumps(run.summary(), allow_nan=False)


# --- what it touches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "again", "said"),
    [
        (0, 16.5, ""),
        (0.5, 14.5, ""),
        (0, 0, "not real"),
        (0, 3, "not real"),
        (16.5, 16.5, "not cleared"),
        (None, 16, "too soon"),
        (0, None, "too soon"),
    ],
)
def test_accessed_bits_are_judged(after, again, said):
    seen = [None if size is None else processes.Memory(referenced=int(size * MIB)) for size in (after, again)]
    why = accessed.judge_bits(*seen)
    assert said in why
    assert bool(said) == bool(why)


def test_touched_is_real_or_refused():
    """Of a program that writes to 16 MiB over and over."""
    why = accessed.why_touched_is_unknown()
    run = tp.stat(script("""
        import mmap, time
        memory = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(15)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            for page in range(0, len(memory), mmap.PAGESIZE):
                memory[page] = 1
        """), counters=(), interval=0.1)  # fmt: skip
    if why:
        assert run.refused == {"touched": why}
        assert run.touched_bytes is None
        assert not np.isfinite(run.touched).any()
    elif run.refused:  # a machine so busy that it was too dear
        assert "would have cost more" in run.refused["touched"]
    else:
        assert np.isnan(run.touched[0]), "nothing was forgotten before the first sample"
        assert run.looks >= 1
        assert np.nanmax(run.touched) >= MIB
        assert (run.touched[np.isfinite(run.touched)] <= run.resident[np.isfinite(run.touched)]).all()


def test_touched_is_refused_where_bits_are_not_real(monkeypatch):
    monkeypatch.setattr(stat, "why_touched_is_unknown", lambda: "not real here")
    run = tp.stat(script("import time; time.sleep(0.2)"), counters=())
    assert run.refused == {"touched": "not real here"}
    assert "not real here" in str(run)


def test_a_trial_of_the_bits_that_cannot_run(monkeypatch):
    accessed.why_touched_is_unknown.cache_clear()
    monkeypatch.setattr(accessed.sys, "executable", "/proc/nonexistent/python")
    try:
        assert "could not be run" in accessed.why_touched_is_unknown()
    finally:
        accessed.why_touched_is_unknown.cache_clear()


@pytest.mark.no_asan
def test_a_look_that_would_be_too_dear_is_not_taken(monkeypatch):
    """A large program, or a short one."""
    monkeypatch.setattr(sampling, "FIRST_LOOK", 1.0)
    monkeypatch.setattr(stat, "why_touched_is_unknown", lambda: "")
    run = tp.stat(script("import time; time.sleep(1)"), counters=())
    assert "would have cost more" in run.refused["touched"]
    assert run.looks == 0
    assert "over before it could be looked at" in tp.stat(["true"], counters=()).refused["touched"]


def test_looks_keep_to_their_share(clock, monkeypatch):
    """All that they cost, with what the program pays for them, and the samples between them."""

    def read(pid, root="/"):
        clock.works(0.003)
        return processes.Memory(resident=64 * MIB, referenced=16 * MIB)

    monkeypatch.setattr(sampling, "forget_accesses", lambda pid, root: clock.works(0.002))
    monkeypatch.setattr(sampling, "read_memory", read)
    monkeypatch.setattr(sampling, "read_resident", lambda pid, root: 64 * MIB)
    sampler = sampling.Sampler(os.getpid(), interval=0.001, touched=True, began_ns=0)

    def over(seconds):
        assert sampler.costs <= 0.0101 * clock.now
        clock.waits(seconds)
        return clock.now > 100

    sampler.until(over)
    assert sampler.looks >= 10
    assert sampler.costs >= 0.5 * 0.01 * clock.now, "nor far below it"
    marking = sampling.MARKING * 16 * MIB / BASE
    assert sampler.costs == pytest.approx(0.003 * len(sampler.samples) + (0.002 + marking) * sampler.looks)


def test_looks_that_are_refused(monkeypatch):
    """By a program that changes its user: what was not forgotten says nothing."""

    def forget(pid, root):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(stat, "why_touched_is_unknown", lambda: "")
    monkeypatch.setattr(sampling, "forget_accesses", forget)
    monkeypatch.setattr(sampling, "COST_SHARE", 0.5)
    run = tp.stat(script("import time; time.sleep(0.3)"), counters=())
    assert run.refused["touched"] == "/proc/PID/clear_refs is refused: Permission denied"
    assert run.looks == 0
    assert run.seconds.size > 1


def test_thinning_keeps_looks():
    """Also where they take turns with samples."""
    taken = [sampling.MemorySample(k, processes.Memory(), 1, k if k % 2 else math.nan) for k in range(40)]
    kept = sampling.thinned(taken)
    assert [one.seconds for one in kept] == sorted(one.seconds for one in kept)
    assert sum(one.touched >= 0 for one in kept) == 10
    assert len(kept) == 20


# --- counters --------------------------------------------------------------------------------------------


def test_every_counter_has_a_value_or_a_reason():
    run = tp.stat(script("pass"), touched=False)
    assert set(run.counters) | set(run.refused) == set(tp.stat.__kwdefaults__["counters"])
    assert not set(run.counters) & set(run.refused)
    assert all(run.refused.values())


THREADS = """
import mmap, threading, time
def work():
    begin.wait()
    for _ in range({pages}):
        mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)[0] = 1
begin = threading.Barrier(3, timeout=20)
threads = [threading.Thread(target=work) for _ in range(3)]
[one.start() for one in threads[:2]]
print(flush=True)
time.sleep(0.5)
threads[2].start()
[one.join() for one in threads]
time.sleep(20)
"""


def test_every_thread_is_counted(other):
    """Those that there are as it is attached to, and those that begin later."""
    pages = 5000
    child = other(script(THREADS.format(pages=pages)))
    child.stdout.readline()
    run = tp.stat(pid=child.pid, seconds=1.5, counters=("page-faults", "task-clock"))
    assert 3 * pages <= run.counters["page-faults"] < 3 * pages + 1000
    assert run.counters["page-faults"] == run.faults["minor"] + run.faults["major"]
    assert run.counters["task-clock"] > 0


def test_threads_that_end_as_they_are_attached_to(monkeypatch):
    """The others are counted; where there is none left, that is a reason and no count of zero."""
    mine, other = os.getpid(), 4194304
    for threads, there in (([mine, other], True), ([other], False), ([], False)):
        monkeypatch.setattr(counted.files, "list_names", lambda root, path, found=threads: map(str, found))
        with counted.counting_program(("page-faults",), mine, held=False) as read:
            found = read()
        assert ("page-faults" in found.values) == there
        assert ("page-faults" in found.refused) != there


def test_a_thread_that_never_had_a_counter_is_scaled_like_the_others():
    def group(enabled, running, count):
        return SimpleNamespace(read=lambda: (enabled, running, (count,)))

    groups = {"cycles": [group(100, 50, 7), group(100, 0, 0)], "walks": [group(0, 0, 0)]}
    found = counted._sum_of_threads({**groups, "never": [group(10, 0, 0)]}, {}, ())
    assert found.values == {"cycles": 28, "walks": 0}
    assert found.refused == {"never": counted.PROGRAM_NEVER_RAN}
    assert any("25.0% of the time" in text for text in found.warnings)


def test_no_counter_costs_nothing(monkeypatch):
    """Not even the trials of counters."""
    monkeypatch.setattr(counted.groups, "prove", pytest.fail)
    with counted.counting_program((), os.getpid(), held=False) as read:
        assert read() == counted.Counted({}, {})


# --- attached --------------------------------------------------------------------------------------------


@pytest.fixture
def other():
    """Start a program that is not the one to be watched; it is killed afterwards."""
    started = []

    def start(argv):
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()
        one.stdout.close()


BUSY = """
import mmap, time
memory = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = bytes(len(memory))
print(flush=True)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    pass
"""


def test_a_program_that_runs_already(other):
    child = other(script(BUSY.format(seconds=30)))
    child.stdout.readline()
    run = tp.stat(pid=child.pid, seconds=0.5, counters=())
    assert child.poll() is None, "it was left alone"
    assert run.attached
    assert (run.status, run.signal) == (None, None)
    assert 0.5 <= run.wall < 3
    assert run.resident.min() >= 16 * MIB
    assert 0 <= run.faults["minor"] < 1000
    assert run.switches["involuntary"] >= 0
    assert run.user + run.system <= run.wall + 0.1
    assert run.program == Path(f"/proc/{child.pid}/comm").read_text().strip()


def test_a_program_that_ends_while_it_is_watched(other):
    """Nobody has asked for its status yet, so that all that it used is known."""
    child = other(script(BUSY.format(seconds=0.5)))
    child.stdout.readline()
    name = Path(f"/proc/{child.pid}/comm").read_text().strip()
    start = time.monotonic()
    run = tp.stat(pid=child.pid, counters=())
    assert time.monotonic() - start < 5
    assert run.program == name
    assert run.seconds.size
    assert 0.05 < run.user + run.system <= run.wall + 0.05
    assert run.verdict.claim != "not bound by translation" or "computes for" not in str(run)


ENDS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
import time
time.sleep(20)
"""


@pytest.mark.parametrize("interval", [0.01, 20])
def test_a_program_that_vanishes_while_it_is_watched(other, interval):
    """Its parent asks for its status at once: what was seen last is known, for the time until then."""
    parent = other([*script(ENDS), BUSY.format(seconds=1.0)])
    pid = int(parent.stdout.readline())
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    run = tp.stat(pid=pid, counters=(), interval=interval)
    assert run.program == name
    if run.user is not None:
        assert run.user + run.system <= run.wall + 3 * processes.tick()
    assert ("unknown voluntary" in str(run)) == (run.switches["voluntary"] is None)
    assert "computes for" not in str(run)


def test_a_while_too_short_for_the_clock_of_the_kernel(other):
    """Of a busy program a tick or none is counted: that is not waiting."""
    child = other(script(BUSY.format(seconds=20)))
    child.stdout.readline()
    for seconds in (1e-9, 0.005, 0.02):
        run = tp.stat(pid=child.pid, seconds=seconds, counters=())
        assert "computes for" not in str(run)
        assert run.uncounted >= 2 * processes.tick()


def test_a_program_that_is_stopped_does_not_wait(other):
    child = other(script(BUSY.format(seconds=20)))
    child.stdout.readline()
    child.send_signal(signal.SIGSTOP)
    run = tp.stat(pid=child.pid, seconds=0.5, counters=())
    assert run.sampling["stopped"] > 0.5
    assert "computes for" not in str(run)
    assert any("it was stopped" in text for text in run.warnings)


FIRST_THREAD_ENDS = """
import ctypes, threading, time
def work():
    memory = bytearray(32 << 20)
    for _ in range(60):
        memory[:] = bytes(len(memory))
        time.sleep(0.03)
threading.Thread(target=work).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_program_whose_first_thread_has_ended(other):
    """It runs on, and its memory is told by another thread."""
    run = tp.stat([sys.executable, "-c", FIRST_THREAD_ENDS], counters=())
    assert run.resident.max() >= 32 * MIB
    child = other([sys.executable, "-c", FIRST_THREAD_ENDS])
    child.stdout.readline()
    time.sleep(0.3)
    watched = tp.stat(pid=child.pid, seconds=0.5, counters=())
    assert watched.peak >= 32 * MIB


IGNORES_ITS_CHILDREN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[1]], stdout=subprocess.DEVNULL)
child.wait()
time.sleep(0.5)
"""
LEAVES_ITS_CHILDREN = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-I", "-S", "-c", sys.argv[1]], stdout=subprocess.DEVNULL)
time.sleep(1)
"""


@pytest.mark.no_asan  # under which looks cost so much that they are few
@pytest.mark.parametrize(
    ("parent", "words"), [(IGNORES_ITS_CHILDREN, "nobody waited"), (LEAVES_ITS_CHILDREN, "still run")]
)
def test_times_that_lack_a_child_prove_no_waiting(parent, words):
    """The child computes all the time, and the parent waits; of its memory a sample knows no more."""
    run = tp.stat([*script(parent), BUSY.format(seconds=2.5)], **QUIET)
    assert run.uncounted is None
    assert any(words in text for text in run.warnings)
    assert "computes for" not in str(run)
    assert run.sampling["processes"] == 2
    assert "at least" in dict(run.rows())["peak memory"]
    assert "all of its memory" not in str(run)


@pytest.mark.no_asan
def test_a_child_that_takes_its_times_along_while_it_is_watched(other):
    parent = other(
        [*script("print(flush=True)\n" + textwrap.dedent(IGNORES_ITS_CHILDREN)), BUSY.format(seconds=1)]
    )
    parent.stdout.readline()
    run = tp.stat(pid=parent.pid, counters=())
    assert run.user is None
    assert run.faults["minor"] is None
    assert any("nobody waited" in text for text in run.warnings)
    assert "computes for" not in str(run)


def test_who_watches_is_no_child_of_what_is_watched(run_python):
    """A shell that starts us, say."""
    most = run_python("""
        import subprocess
        run = f"tp.stat(pid={os.getpid()}, seconds=0.3, counters=())"
        words = [sys.executable, "-c", f"import tlbprobe as tp; print({run}.sampling['processes'])"]
        answer(int(subprocess.run(words, capture_output=True, text=True).stdout))
        """)
    assert most == 1


def test_without_pidfd_too(other, monkeypatch):
    def refuse(pid):
        raise OSError(38, "no such call")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    child = other(script(BUSY.format(seconds=0.5)))
    child.stdout.readline()
    assert tp.stat(pid=child.pid, seconds=0.2, counters=()).wall >= 0.2
    assert tp.stat(pid=child.pid, counters=()).wall < 5


def test_children_that_an_attached_program_has_waited_for_count_once(other):
    child = other(script("""
        import os, sys, time
        for line in range(3):
            print(flush=True)
            time.sleep(0.2)
            if os.fork() == 0:
                memory = bytearray(8 << 20)
                os._exit(0)
            os.wait()
        """))  # fmt: skip
    child.stdout.readline()
    run = tp.stat(pid=child.pid, counters=(), interval=0.01)
    assert run.faults["minor"] >= 0


def test_no_such_program(capsys):
    with pytest.raises(ProcessLookupError, match="pid=4194304"):
        tp.stat(pid=4194304)
    assert main(["stat", "--pid", "4194304"]) == 1
    assert "no such program" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/2/stat").exists(), reason="no kernel thread can be seen")
def test_a_kernel_thread():
    if "kthreadd" not in Path("/proc/2/comm").read_text():
        pytest.skip("process 2 is no kernel thread here")
    with pytest.raises(ProcessLookupError, match="kernel thread"):
        tp.stat(pid=2)


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
def test_somebody_elses_program(run_python):
    kind, text, _ = run_python("""
        victim = os.getpid()
        tp.stat  # imported by a user who may read it
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setuid(65534)
            os.write(writer, json.dumps(caught(tp.stat, pid=victim)).encode())
            os._exit(0)
        os.wait()
        print(os.read(reader, 4096).decode())
        """)
    assert kind == "PermissionError"
    assert "another user's program" in text


@pytest.mark.skipif(not ROOT, reason="only root can become somebody else")
@pytest.mark.no_asan
def test_no_privilege_is_needed(run_python):
    status, samples, warned, tried, seen = run_python("""
        def both():
            run = tp.stat(["sleep", "1"], counters=(), touched=False)
            options = {"variants": ["refused"], "rounds": 1, "stdin": os.devnull, "progress": False}
            return run, tp.whatif(["sleep", "0.1"], **options)

        both()  # what Python loads late may lie where only root can read
        os.setgid(65534)
        os.setuid(65534)
        run, trial = both()
        answer([run.status, run.seconds.size, run.warnings, trial.status, trial.median("huge", "refused")])
        """)
    assert (status, tried, warned) == (0, 0, [])
    assert samples >= 1
    assert seen == 0, "it was looked at before its exit"


# --- how it is run ---------------------------------------------------------------------------------------


def test_no_shell(capfd, tmp_path):
    words = ["$HOME", "a;b", "`id`", "x y", "*", "é\n", ""]
    run = tp.stat(script("import sys; print(sys.argv[1:])") + words, **QUIET)
    assert run.status == 0
    assert capfd.readouterr().out.strip() == str(words)


def test_words_that_are_bytes_and_paths(touch, tmp_path):
    assert tp.stat([Path(touch), b"1", "15", os.fsencode("0")], **QUIET).status == 0


def test_its_streams_and_environment_are_ours(capfd, monkeypatch):
    monkeypatch.setenv("TLBPROBE_TEST", "é=1")
    text = "import os, sys; print(os.environ['TLBPROBE_TEST']); print('e', file=sys.stderr)"
    tp.stat([sys.executable, "-c", text], **QUIET)
    assert capfd.readouterr() == ("é=1\n", "e\n")


def test_it_is_found_in_path(monkeypatch, tmp_path):
    """Folders in order; what cannot be executed is passed over; an empty folder is where we are."""
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "it").write_text("#!/bin/true\n")  # no program: nobody may execute it
    (tmp_path / "two" / "it").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}/none:{tmp_path}/one:{tmp_path}/two")
    assert tp.stat(["it", "-I", "-c", "raise SystemExit(5)"], **QUIET).status == 5
    monkeypatch.setenv("PATH", f"{tmp_path}/one")
    with pytest.raises(PermissionError, match="'it'"):
        tp.stat(["it"], **QUIET)
    monkeypatch.chdir(tmp_path / "two")
    monkeypatch.setenv("PATH", "")
    assert launching.paths_of(b"it", {"PATH": ":/bin"}) == (b"it", b"/bin/it")


def test_signals_are_as_for_any_program(run_python):
    """Python's own ignored ones are not, what the user ignores stays so, and nothing is blocked."""
    found = run_python("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        script = f"import os; os.write({writer}, open('/proc/self/status', 'rb').read())"
        tp.stat([sys.executable, "-I", "-S", "-c", script], counters=(), touched=False)
        status = os.read(reader, 1 << 16).decode()
        answer({name: int(re.search(name + r":\\t(\\w+)", status)[1], 16) for name in ("SigIgn", "SigBlk")})
        """)
    ignored = {number for number in range(1, 65) if found["SigIgn"] >> (number - 1) & 1}
    # A Python ignores two by itself, and the one that ran the script is one.
    assert signal.SIGHUP in ignored
    assert signal.SIGUSR1 not in ignored
    assert found["SigBlk"] == 0


def test_a_broken_pipe_ends_it_as_it_would_without_us(touch, run_python):
    """Python ignores SIGPIPE: a program that it starts does not."""
    killed = run_python("""
        reader, writer = os.pipe()
        os.close(reader)
        from tlbprobe.programs.launching import Launched
        with Launched(["yes"], streams=(None, writer, None)) as running:
            running.go()
            answer(running.finish().signal)
        """)
    assert killed == signal.SIGPIPE


def test_from_another_thread():
    found = []
    worker = threading.Thread(target=lambda: found.append(tp.stat(script("import os; os._exit(4)"), **QUIET)))
    worker.start()
    worker.join()
    assert found[0].status == 4


def test_it_ends_with_us():
    """However that comes: nobody would wait for it."""
    text = "import tlbprobe as tp; tp.stat(['sleep', '31.5'], touched=False)"
    watcher = subprocess.Popen([sys.executable, "-P", "-c", text])
    deadline = time.monotonic() + 20
    child = []
    while not child and time.monotonic() < deadline:
        time.sleep(0.05)
        child = [pid for pid in processes.Tree(watcher.pid).usage() if processes.read_name(pid) == "sleep"]
    watcher.kill()
    watcher.wait()
    while processes.read_memory(child[0]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes.read_memory(child[0]) is None


def test_a_program_that_is_never_let_go_never_runs(tmp_path):
    mark = tmp_path / "ran"
    with launching.Launched(["touch", str(mark)]) as held:
        assert held.pid > 0
    assert not mark.exists()


def test_one_that_is_killed_while_it_is_held():
    with launching.Launched(["true"]) as held:
        os.kill(held.pid, signal.SIGKILL)
        time.sleep(0.05)
        with pytest.raises(ProcessLookupError, match="before it began"):
            held.go()


def test_at_its_exit_it_is_still_whole():
    """Traced, it stops; the time for which it stands is not its own."""
    seen = []

    def look():
        seen.append(processes.read_memory(running.pid))
        time.sleep(0.3)

    with launching.Launched(script("x = bytearray(32 << 20)"), at_exit=look) as running:
        running.go()
        ended = running.finish()
    if not running.traced:
        pytest.skip("this kernel forbids to trace")
    assert len(seen) == 1
    assert seen[0].resident > MIB
    assert ended.wall < 0.3 + 5
    start = time.monotonic()
    with launching.Launched(script("pass"), at_exit=lambda: time.sleep(0.5)) as running:
        running.go()
        ended = running.finish()
    assert time.monotonic() - start > ended.wall + 0.4


def test_a_look_that_fails_leaves_it_alone():
    with launching.Launched(script("import os; os._exit(3)"), at_exit=lambda: 1 / 0) as running:
        running.go()
        assert running.finish().status == 3


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGSTOP"])
def test_a_traced_program_gets_its_signals(name, tmp_path):
    text = """
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: os._exit(41))
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(42))
        signal.signal(signal.SIGCONT, lambda *_: os._exit(43))
        print(flush=True)
        time.sleep(30)
        """
    reader, writer = os.pipe()
    with launching.Launched(script(text), streams=(None, writer, None), at_exit=lambda: None) as running:
        running.go()
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        running.send(getattr(signal, name))
        if name == "SIGSTOP":
            assert not running.wait(0.2), "it stays stopped"
            running.send(signal.SIGCONT)
        ended = running.finish()
    assert ended.status == {"SIGTERM": 41, "SIGUSR1": 42, "SIGSTOP": 43}[name]


# --- Ctrl-C and other signals ----------------------------------------------------------------------------

HEARING = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from tlbprobe.display.commands.main import main; print('here', flush=True); sys.exit(main())"
)
SLEEP = "import time; print('there', flush=True); time.sleep(30)"


@pytest.fixture
def started():
    """Run a command in a process of its own, until its program says that it is there."""

    @dataclasses.dataclass
    class Started:
        process: subprocess.Popen

        def told(self, number):
            self.process.send_signal(number)
            start = time.monotonic()
            out, err = self.process.communicate(timeout=60)
            return self.process.returncode, out, err, time.monotonic() - start

    running = []

    def start(*arguments):
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", "-c", HEARING, *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        running.append(process)
        assert process.stdout.readline() == "here\n"
        assert process.stdout.readline() == "there\n"
        return Started(process)

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_ctrl_c_reaches_the_program_and_there_is_a_report(started, tmp_path):
    out = tmp_path / "run.npz"
    status, printed, said, seconds = started("stat", "--out", str(out), "--", *PYTHON, SLEEP).told(
        signal.SIGINT
    )
    assert status == 130
    assert (printed, said) == ("", "") or "KeyboardInterrupt" in said, "the program's own words alone"
    assert seconds < 10
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]
    assert tp.load(out).signal in (signal.SIGINT, None)


ON_A_TERMINAL = (
    "import os, sys; os.setsid(); terminal = os.open(sys.argv[1], os.O_RDWR);"
    "[os.dup2(terminal, number) for number in range(3)]; os.execv(sys.argv[2], sys.argv[2:])"
)


def test_ctrl_c_on_a_terminal_reaches_the_program_once(tmp_path):
    """From the terminal, which tells both: a second one might make it leave things half done."""
    log = tmp_path / "log"
    log.touch()
    text = f"""
        import os, signal, time
        def note(*_):
            with open({str(log)!r}, "a") as file:
                file.write("x")
        signal.signal(signal.SIGINT, note)
        print("there", flush=True)
        time.sleep(2)
        os._exit(9)
        """
    terminal, side = pty.openpty()
    words = [sys.executable, "-P", "-m", "tlbprobe", "stat", "--no-touched", "--", *script(text)]
    with subprocess.Popen([*PYTHON, ON_A_TERMINAL, os.ttyname(side), *words]) as process:
        shown = b""
        while b"there" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"\x03")
        while process.poll() is None:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 4096)
    os.close(side)
    os.close(terminal)
    assert process.returncode == 9
    assert log.read_text() == "x"


def test_ctrl_c_raises_in_python(run_python):
    found = run_python("""
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        error = caught(tp.stat, ["sleep", "30"], touched=False)
        from tlbprobe.programs.processes import Tree
        answer([error[0], len(Tree(os.getpid()).usage())])
        """)
    assert found == ["KeyboardInterrupt", 1], "and no process but the one that started it is left"


def test_ctrl_c_ends_watching_without_an_error(run_python):
    wall = run_python("""
        import subprocess
        with subprocess.Popen(["sleep", "30"]) as child:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            run = tp.stat(pid=child.pid, counters=())
            assert child.poll() is None
            child.kill()
        answer(run.wall)
        """)
    assert 0.3 < wall < 10


def test_ctrl_c_is_the_program_s_alone(started):
    """It may go on, and is watched on: as without us."""
    text = """
        import signal, time
        heard = []
        signal.signal(signal.SIGINT, lambda *_: heard.append(1))
        print("there", flush=True)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            pass
        raise SystemExit(40 + len(heard))
        """
    program = started("stat", "--no-touched", "--json", "--", *script(text))
    program.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    status, _, said, _ = program.told(signal.SIGINT)
    assert status == 42
    assert json.loads(said)["wall_seconds"] >= 1.5


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1"])
def test_other_signals_are_passed_on(started, name):
    number = getattr(signal, name)
    status, _, said, _ = started("stat", "--no-touched", "--", *PYTHON, SLEEP).told(number)
    assert status == 128 + number
    assert f"by {name}" in said


# --- saved, compared, drawn ------------------------------------------------------------------------------


def test_a_file_holds_no_argument_and_no_path(touch, tmp_path):
    path = tmp_path / "run.npz"
    run = tp.stat([touch, "1", "15", "300", "0", "--password=hunter2"], touched=False)
    run.save(path)
    with np.load(path) as arrays:
        text = b"".join(arrays[name].tobytes() for name in arrays)
    assert run.program == "touch"
    assert b"touch" in text
    for private in (
        b"hunter2",
        os.fsencode(Path(touch).parent),
        os.fsencode(Path.home()),
        os.uname().nodename.encode(),
    ):
        assert len(private) < 4 or private not in text
    assert "hunter2" not in str(run)
    loaded = tp.load(path)
    assert loaded.summary() == run.summary()


def test_names_forge_nothing(tmp_path):
    odd = tmp_path / "a\x1b[2Jb"
    odd.symlink_to(sys.executable)
    run = tp.stat([str(odd), "-I", "-S", "-c", "pass"], **QUIET)
    assert "\x1b" not in str(run)


def test_against_an_earlier_run(tmp_path, made):
    path = tmp_path / "before.npz"
    before = made.program_run(counters={"cycles": 4e9, "instructions": 7.2e9, "walks": 4.2e6}, wall=1.0)
    before.save(path)
    run = tp.stat(script("pass"), **QUIET, against=path)
    assert run.against["program"] == before.program
    assert run.summary()["against"] == before.figures
    assert "wall time, against" in str(run)
    assert "times the 1 s of app" in str(run)
    assert "of another program, app" in str(run)
    now = made.program_run(counters={"cycles": 4e9, "instructions": 5.96e9, "walks": 27.8e6}, wall=1.0)
    judged = dataclasses.replace(now, against=before.figures)
    assert judged.verdict.claim == "bound by translation"
    assert any("packet gateway" in text for text in judged.verdict.evidence)


def test_against_what_is_no_run(made, tmp_path, capsys):
    made.measurement().save(tmp_path / "m.npz")
    with pytest.raises(ValueError, match="no run of a program, but a measurement"):
        tp.stat(["true"], against=tmp_path / "m.npz")
    assert main(["stat", "--against", str(tmp_path / "m.npz"), "--", "true"]) == 2
    assert main(["stat", "--against", str(tmp_path / "none.npz"), "--", "true"]) == 1
    assert "none.npz" in capsys.readouterr().err


def test_a_table_of_samples(made):
    run = made.program_run()
    table = run.to_numpy()
    assert table.dtype.names == tuple(sampling.SAMPLED)
    assert table["resident"].tolist() == run.resident.tolist()


# --- the command -----------------------------------------------------------------------------------------


@pytest.fixture
def command(run):
    return run  # whose name is that of many a result here


def test_report_on_stderr_and_output_on_stdout(command):
    status, out, err = command("stat", "--no-touched", "--", *PYTHON, "print('hello'); raise SystemExit(7)")
    assert (status, out) == (7, "hello\n")
    assert err.startswith(f"run of {Path(sys.executable).name}\n")
    assert "verdict" in err
    assert "exit status 7" in err


def test_without_the_two_dashes(command):
    status, out, _ = command("stat", "--no-touched", *PYTHON, "print(1)")
    assert (status, out) == (0, "1\n")


def test_json_and_files(command, tmp_path):
    data, picture = tmp_path / "r.npz", tmp_path / "r.png"
    text = "import time; time.sleep(0.4)"
    status, out, err = command("stat", "--json", "--no-touched", "--", *PYTHON, text)
    assert (status, out) == (0, "")
    assert json.loads(err)["status"] == 0
    status, out, err = command("stat", "--out", data, "--plot", picture, "--no-touched", "--", *PYTHON, text)
    assert (status, out, err) == (0, "", "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    status, out, _ = command("show", data)
    assert status == 0
    assert "verdict" in out
    _, out, _ = command("show", data, "--csv")
    assert out.startswith("seconds,processes,resident")


@pytest.mark.parametrize(
    ("name", "status"),
    [("no-such-program-here", 127), ("/proc/no-such-program", 127), ("/etc/passwd", 126), ("/", 126)],
)
def test_what_cannot_be_run(command, name, status):
    found, out, err = command("stat", "--no-touched", "--", name, "argument")
    assert (found, out) == (status, "")
    assert name in err
    assert err.count("\n") == 1
    with pytest.raises(OSError, match=name):
        tp.stat([name], **QUIET)


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("exit 3\n", 126, "no shell is started"),
        ("#!/proc/nonexistent/interpreter\n", 127, "the interpreter of its '#!' line"),
    ],
)
def test_what_has_no_interpreter(command, tmp_path, text, status, words):
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(0o755)
    found, _, err = command("stat", "--", script)
    assert found == status
    assert words in err
    assert "'#!' line" not in command("stat", "--", tmp_path / "none")[2]


def test_out_is_checked_before_anything_runs(command, tmp_path):
    mark = tmp_path / "ran"
    for option, path in (("--out", tmp_path / "none" / "x.npz"), ("--plot", tmp_path / "x.bmp")):
        status, _, err = command("stat", option, path, "--", "touch", mark)
        assert status in (1, 2)
        assert path.name in err
    assert not mark.exists()


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_with_closed_streams(closed):
    """Whatever descriptors the pipes get then."""
    words = [sys.executable, "-P", "-m", "tlbprobe", "stat", "--no-touched", "--", *PYTHON, "print(6 * 7)"]
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "42\n")


WRONG = [
    ({"argv": []}, ValueError, "argv is empty"),
    ({"argv": "ls -l"}, TypeError, "no shell splits it"),
    ({"argv": b"ls"}, TypeError, "no shell splits it"),
    ({"argv": None}, TypeError, "argv=None"),
    ({"argv": [1]}, TypeError, "strings or paths"),
    ({"argv": [""]}, ValueError, "its first word is empty"),
    ({"argv": ["a\0b"]}, ValueError, "NUL"),
    ({"argv": ["true"], "pid": 1}, ValueError, "pid=1"),
    ({"pid": 0}, ValueError, "pid=0"),
    ({"pid": True}, TypeError, "pid=True"),
    ({"pid": "1"}, TypeError, "pid='1'"),
    ({"argv": ["true"], "interval": 0}, ValueError, "interval=0"),
    ({"argv": ["true"], "interval": "x"}, TypeError, "interval='x'"),
    ({"argv": ["true"], "seconds": 1}, ValueError, "seconds=1"),
    ({"pid": 1, "seconds": -1}, ValueError, "seconds=-1"),
    ({"argv": ["true"], "touched": "no"}, TypeError, "touched='no'"),
    ({"argv": ["true"], "counters": "cycles"}, TypeError, "counters='cycles'"),
    ({"argv": ["true"], "counters": [1]}, TypeError, "counters="),
    ({"argv": ["true"], "against": "/proc/nonexistent"}, FileNotFoundError, "nonexistent"),
]


@pytest.mark.parametrize(("keywords", "error", "named"), WRONG, ids=[str(one[0]) for one in WRONG])
def test_wrong_input(keywords, error, named):
    with pytest.raises(error, match=named):
        tp.stat(**{"touched": False, **keywords})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["stat"], "no COMMAND"),
        (["stat", "--"], "no COMMAND"),
        (["stat", "--pid", "x"], "--pid"),
        (["stat", "--pid", "1", "--", "true"], "pid=1"),
        (["stat", "--interval", "0", "--", "true"], "interval"),
        (["stat", "--counters", "a,,b", "--", "true"], "empty name"),
        (["stat", "--nonsense", "--", "true"], "--nonsense"),
    ],
)
def test_wrong_use_of_the_command(command, arguments, named):
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert named in err


# --- /proc, made up --------------------------------------------------------------------------------------


def stat_line(pid, parent, name="x", started=5, minor=10, reaped=3, ticks=(200, 100, 50, 0)):
    fields = [str(parent), *["0"] * 5, str(minor), str(reaped), "1", "0", *map(str, ticks), *["0"] * 4]
    return f"{pid} ({name}) S {' '.join(fields)} {started} 0"


ROLLUP = """55-77 ---p 00000000 00:00 0    [rollup]
Rss:                1000 kB
Pss:                 600 kB
Referenced:          700 kB
AnonHugePages:       100 kB
ShmemPmdMapped:       50 kB
FilePmdMapped:        20 kB
Shared_Hugetlb:     2048 kB
Private_Hugetlb:    4096 kB
"""


def test_memory_is_read_with_hugetlb_which_the_kernel_leaves_out(tmp_path):
    root = write(tmp_path, {"proc/7/smaps_rollup": ROLLUP, "proc/8/smaps_rollup": ""})
    memory = processes.read_memory(7, root)
    assert memory.resident == (1000 + 6144) * KIB
    assert memory.proportional == (600 + 6144) * KIB
    assert memory.huge == (170 + 6144) * KIB
    assert memory.referenced == 700 * KIB
    assert processes.read_memory(8, root) is None
    assert processes.read_memory(9, root) is None


@pytest.mark.parametrize("name", ["x", "a b", "a) S 1 (b", "((", ")"])
def test_usage_whatever_the_name(tmp_path, name):
    root = write(tmp_path, {"proc/7/stat": stat_line(7, 1, name), "proc/8/stat": "8 (cut"})
    usage = processes.read_usage(7, root)
    tick = os.sysconf("SC_CLK_TCK")
    assert (usage.started, usage.minor, usage.major) == (5, 13, 1)
    assert (usage.user, usage.system) == (250 / tick, 100 / tick)
    assert not usage.over
    assert processes.read_usage(8, root) is None


@pytest.mark.parametrize("listed", [True, False])
def test_descendants_are_found_and_remembered(tmp_path, listed):
    """Whether the kernel lists children or only parents."""
    parents = {7: 1, 8: 7, 9: 8, 10: 1, 11: 10}
    files = {f"proc/{pid}/stat": stat_line(pid, parent) for pid, parent in parents.items()}
    if listed:
        for pid in parents:
            children = " ".join(str(one) for one, parent in parents.items() if parent == pid)
            files[f"proc/{pid}/task/{pid}/children"] = children
    tree = processes.Tree(7, write(tmp_path, files))
    assert set(tree.usage()) == {7, 8, 9}
    (tmp_path / "proc/8/stat").unlink()  # its child goes to another parent
    write(
        tmp_path,
        {"proc/9/stat": stat_line(9, 1), "proc/7/task/7/children": ""}
        if listed
        else {"proc/9/stat": stat_line(9, 1)},
    )
    assert set(tree.usage()) == {7, 9}
    write(tmp_path, {"proc/9/stat": stat_line(9, 1, started=77)})  # another process of that number
    assert set(tree.usage()) == {7}


def test_switches_of_all_threads(tmp_path):
    status = "voluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t{}\n"
    root = write(tmp_path, {
        "proc/7/task/7/status": status.format(3, 4),
        "proc/7/task/8/status": status.format(30, 40),
    })  # fmt: skip
    before = processes.read_switches(7, root)
    assert before == {7: (3, 4), 8: (30, 40)}
    write(root, {"proc/7/task/7/status": status.format(5, 4), "proc/7/task/9/status": status.format(1, 1)})
    later = processes.read_switches(7, root)
    assert stat.switched_between(before, later) == {"voluntary": 3, "involuntary": 1}
    (root / "proc/7/task/8/status").unlink()
    later = processes.read_switches(7, root)
    for then, now in ((before, later), ({}, {})):
        assert stat.switched_between(then, now) == {"voluntary": None, "involuntary": None}


def test_what_vanished_is_not_known():
    """A child that was waited for left all to its parent; another took it along."""

    def used(minor, user):
        return processes.Usage(0, False, minor, 0, user, 0.0)

    before = {1: used(100, 1.0), 2: used(50, 0.5)}
    waited = stat.used_between(before, {1: used(170, 1.75)})
    assert waited == {"minor": 20, "major": 0, "user": 0.25, "system": 0}
    took = stat.used_between(before, {1: used(120, 1.1)})
    assert took == {"minor": None, "major": 0, "user": None, "system": 0}
    rounded = stat.used_between(before, {1: used(150, 1.49)})
    assert rounded == {"minor": 0, "major": 0, "user": 0, "system": 0}, "a tick less is rounding"


# --- the clock of the kernel and ours --------------------------------------------------------------------


def test_moments_are_of_one_clock():
    before = _core.clock_moment()[0]
    now = launching.now_ns()
    assert before <= now <= _core.clock_moment()[0]
