"""Shootdowns: how many calls on how many CPUs, on which pages, and what was counted; never how long."""

import errno
import json
import os
import platform
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe import _core
from tlbprobe.machine import paging
from tlbprobe.probes import shootdown
from tlbprobe.units import parse_size

KIB, MIB = 1 << 10, 1 << 20
BASE, PMD = paging.base_page_size(), paging.pmd_size()
CPUS = len(os.sched_getaffinity(0))
SEVERAL = pytest.mark.skipif(CPUS < 2, reason="one CPU alone")
SHOWN = "  0:  1  2  IO-APIC  timer\n"


def offered(name):
    return any(policy.offered and policy.name == name for policy in tp.page_policies())


# --- calls -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", shootdown.SHOOTDOWN_KINDS)
@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize(("size", "step"), [(16, 1), (17, 4), (16, 16), (1, 1)])
def test_one_time_a_call(kind, threads, size, step):
    if threads >= CPUS:
        pytest.skip("one CPU alone")
    m = tp.shootdown(size * BASE, kind=kind, threads=threads, step=step * BASE)
    calls = size // step
    assert m.ns.shape == (calls,)
    assert m.others.shape == (threads, calls)
    assert m.quiet_ns.shape == (threads,)
    assert (m.ns > -m.overhead_ns).all()
    assert (m.others >= -m.quiet_ns[:, None]).all()
    assert (m.quiet_ns > 0).all()
    assert (m.params["kind"], m.params["threads"], m.params["step"]) == (kind, threads, step * BASE)
    assert m.warnings == ()


def test_as_many_threads_as_there_are_other_cpus():
    m = tp.shootdown(16 * BASE)
    assert m.params["threads"] == len(m.others) == min(CPUS, _core.THREADS_MOST) - 1
    assert m.params["cpu"] in os.sched_getaffinity(0)
    with pytest.raises(
        ValueError, match=rf"threads={CPUS} is out of range.*this process may use {CPUS} CPUs"
    ):
        tp.shootdown(16 * BASE, threads=CPUS)


def test_the_callers_cpu_is_none_of_the_others(monkeypatch):
    """Each has one of its own, and no more of them than the compiled part has room for."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(200)))
    assert shootdown._callers_and_others(3, 1) == (1, 0, 2, 3)
    assert len(shootdown._callers_and_others(None, 7)) == _core.THREADS_MOST
    with pytest.raises(ValueError, match="threads=64 is out of range, 0 to 63"):
        shootdown._callers_and_others(64, 7)


@SEVERAL
def test_others_are_seen_to_lose_time_to_every_call():
    """Whatever it is: the longest round that a call fell into is one that there was."""
    m = tp.shootdown(64 * BASE, threads=1)
    assert (m.others + m.quiet_ns[:, None] > 0).all()
    assert m.others_median == np.median(m.others)
    assert tp.shootdown(64 * BASE, threads=0).others_median is None


@SEVERAL
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors broadcast, and interrupt nobody")
@pytest.mark.parametrize("kind", shootdown.SHOOTDOWN_KINDS)
def test_another_cpu_is_interrupted(kind):
    """Once a call, but for calls while the other thread had been taken off its CPU."""
    if shootdown.interrupts() is None:
        pytest.skip("/proc/interrupts has no row of TLB shootdowns")
    calls = 256
    counted = [tp.shootdown(calls * BASE, kind=kind, threads=1).counts["interrupts"] for _ in range(5)]
    assert max(counted) >= calls // 2, counted


def test_pages_are_proved_before_they_are_taken_away():
    m = tp.shootdown(16 * BASE)
    assert (m.backing.asked, m.backing.page_size, m.backing.proof) == ("base", BASE, "proved")
    assert m.setup.keys() == {"map", "populate"}
    assert m.setup["populate"] > 0


@pytest.mark.skipif(not offered("thp"), reason="no transparent huge pages")
@pytest.mark.parametrize("kind", shootdown.SHOOTDOWN_KINDS)
@pytest.mark.parametrize("step", [None, "4KiB", "4MiB"])
def test_huge_pages(kind, step):
    """Whole ones, parts of them, or several."""
    if step is not None and parse_size(step) % BASE:
        pytest.skip("no multiple of a base page")
    m = tp.shootdown(2 * PMD, "thp", kind=kind, step=step)
    assert (m.backing.page_size, m.backing.proof) == (PMD, "proved")
    assert m.ns.size == 2 * PMD // m.params["step"]


def test_reserved_pages(setting):
    size = paging.default_hugetlb_size()
    if size is None or size > 64 * MIB:
        pytest.skip("no pool of a size that a test may fill")
    setting(f"/sys/kernel/mm/hugepages/hugepages-{size >> 10}kB/nr_hugepages", 4)
    if paging.hugetlb_pools()[size].available != 4:
        pytest.skip("the kernel could not fill the pool")
    for kind in ("unmap", "protect"):
        m = tp.shootdown(4 * size, "hugetlb", kind=kind)
        assert (m.ns.size, m.backing.page_size) == (4, size)
    with pytest.raises(ValueError, match="must be a multiple of 2 MiB" if size == 2 * MIB else "multiple"):
        tp.shootdown(4 * size, "hugetlb", step=BASE)
    assert paging.hugetlb_pools()[size].free == 4


def test_other_pages_than_asked(monkeypatch):
    real = _core.shootdown

    def fake(*arguments, **keywords):
        found = real(*arguments, **keywords)
        return {**found, "scan": {**found["scan"], "present": 0}}

    monkeypatch.setattr(_core, "shootdown", fake)
    with pytest.raises(tp.BackingError, match="64 KiB not in memory"):
        tp.shootdown(64 * KIB)
    assert "not in memory" in tp.shootdown(64 * KIB, strict=False).warnings[0]


# --- interrupts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (f"     CPU0  CPU1\n{SHOWN}TLB:   12   30   TLB shootdowns\n", 42),
        (f"{SHOWN} TLB:   7   TLB shootdowns\n", 7),
        ("TLB: 18446744073709551615 1 TLB shootdowns\n", 1 << 64),
        (SHOWN, None),
        ("", None),
        ("TLB: none\n", None),
        ("IPI: 12 TLB: 5\n", None),
    ],
)
def test_interrupts(tmp_path, text, count):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/interrupts").write_text(text)
    assert shootdown.interrupts(tmp_path) == count


def test_no_interrupts_are_counted(tmp_path, monkeypatch):
    assert shootdown.interrupts(tmp_path) is None
    monkeypatch.setattr(shootdown, "interrupts", lambda: None)
    m = tp.shootdown(16 * BASE)
    assert m.counts == {}
    assert "has no row of TLB shootdowns here" in str(m)


# --- wrong parameters ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"kind": "free"}, ValueError, "kind='free' is none of unmap, protect, dontneed"),
        ({"kind": ["unmap"]}, ValueError, "kind="),
        ({"pages": "collapse"}, ValueError, "pages='collapse' makes no sense"),
        ({"threads": -1}, ValueError, "threads=-1 is out of range"),
        ({"threads": True}, TypeError, "threads=True must be a whole number"),
        ({"threads": 0.5}, TypeError, "threads=0.5 must be a whole number"),
        ({"step": 100}, ValueError, "step='100 B' must be a multiple of"),
        ({"step": "2MiB"}, ValueError, "at most the size of 1 MiB"),
        ({"step": 0}, ValueError, "step=0"),
        ({"size": 0}, ValueError, "size=0"),
        ({"size": BASE - 1, "step": BASE}, ValueError, "at most the size of"),
        ({"size": 4097 * BASE}, ValueError, "is 4097 calls of .*, more than 4096: at most"),
    ],
)
def test_wrong_parameters(monkeypatch, parameters, error, words):
    monkeypatch.setattr(_core, "shootdown", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(error, match=words):
        tp.shootdown(**{"size": MIB, **parameters})


def test_what_cannot_fit(monkeypatch):
    monkeypatch.setattr(_core, "shootdown", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(MemoryError, match=r"shootdown\(size='1024 TiB', pages='base'\) needs"):
        tp.shootdown("1024TiB", step="1TiB")


CORE = {"size": 16 * BASE, "alignment": BASE, "base_page": BASE, "page": BASE, "huge_shift": 0, "piece": 0}
CORE |= {"advice": -1, "step": BASE, "calls": 16, "cpus": (-1,)}


@pytest.mark.parametrize(
    "changes",
    [
        {"calls": 17},
        {"calls": 0},
        {"calls": 1 << 40, "size": 1 << 41, "step": 1},
        {"step": 0},
        {"step": 17 * BASE},
        {"cpus": ()},
        {"cpus": (-1,) * 65},
        {"size": 1},
        {"size": 0},
        {"alignment": 3},
        {"huge_shift": 64},
    ],
)
def test_the_compiled_part_checks_for_itself(changes):
    with pytest.raises(ValueError, match=r"fit|out of range"):
        _core.shootdown("unmap", **{**CORE, **changes})


def test_what_went_wrong_is_told_as_it_is(monkeypatch):
    with pytest.raises(ValueError, match="no kind of shootdown 'x'"):
        _core.shootdown("x", **CORE)
    assert _core.shootdown("unmap", **CORE | {"advice": 12345}) == ("mapping", errno.EINVAL, 0)
    half = CORE | {"step": BASE // 2, "calls": 2}
    assert _core.shootdown("protect", **half) == ("taking pages away", errno.EINVAL, 0)
    for ended, error in (
        (("taking pages away", errno.EINVAL, 0), OSError),
        (("mapping", errno.ENOMEM, 0), MemoryError),
        (("", 0, int(signal.SIGKILL)), MemoryError),
        (("", 0, int(signal.SIGBUS)), MemoryError),
    ):
        monkeypatch.setattr(_core, "shootdown", lambda *_, ended=ended, **__: ended)
        with pytest.raises(error):
            tp.shootdown(MIB)


# --- results ---------------------------------------------------------------------------------------------


def test_saved_loaded_shown_and_drawn(tmp_path):
    m = tp.shootdown(64 * BASE, counters=["cycles"])
    assert isinstance(m, tp.Measurement)
    assert m.low is m.interval is m.cycles is None
    assert m.estimate == m.median
    assert m.refused.keys() == {"cycles"}
    m.save(tmp_path / "m")
    loaded = tp.load(tmp_path / "m")
    assert type(loaded) is tp.ShootdownTimes
    assert str(loaded) == str(m)
    assert loaded.summary() == m.summary()
    for name in m.arrays:
        assert (getattr(m, name) == getattr(loaded, name)).all()
        assert getattr(m, name).shape == getattr(loaded, name).shape
    assert json.loads(json.dumps(m.summary(), allow_nan=False))["calls"] == 64
    text = str(m)
    assert re.match(r"shootdown: unmap of .* on 'base' pages, .* a call, \d+ other threads?\n", text)
    assert text.count(" lost ") == len(m.others)


@pytest.mark.parametrize("threads", [0, 1, 5])
@pytest.mark.parametrize("calls", [1, 64])
def test_pictures(made, threads, calls):
    import matplotlib as mpl

    mpl.use("agg")
    ax = made.shootdown(calls, threads).plot()
    ax.figure.canvas.draw()
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert min(*ax.get_xlim(), *ax.get_ylim()) > 0
    assert (ax.get_legend() is not None) == (threads > 0)
    drawn = sum(patch.get_data().values.sum() for patch in ax.patches)
    assert drawn == calls * (1 + threads)
    assert ax.get_xlabel() == "time of one call"


@SEVERAL
def test_a_sweep_over_threads(tmp_path):
    swept = tp.sweep(tp.shootdown, size=64 * BASE, threads=[0, 1], kind=["unmap", "protect"], progress=False)
    assert not swept.refused
    table = swept.to_numpy()
    assert table["slices"].tolist() == [64.0] * 4
    assert table["threads"].tolist() == [0, 0, 1, 1]
    swept.save(tmp_path / "s")
    assert tp.load(tmp_path / "s").to_numpy()["median_ns"].tolist() == table["median_ns"].tolist()
    swept.plot().figure.canvas.draw()


def test_command(run, tmp_path):
    out, picture = tmp_path / "s", tmp_path / "s.png"
    status, text, err = run("shootdown", "256K", "--kind", "protect", "--out", out, "--plot", picture)
    assert (status, err) == (0, "")
    assert "shootdown: protect of 256 KiB on 'base' pages" in text
    assert tp.load(out).ns.size == 256 * KIB // BASE
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(run("shootdown", "64K", "--json")[1])["probe"] == "shootdown"
    assert run("shootdown", "64K", "--csv")[1].count("\n") == 2


def test_command_with_lists(run):
    status, text, err = run("shootdown", "64K,128K", "--kind", "unmap,dontneed", "--threads", "0")
    assert (status, err) == (0, "")
    assert len(re.findall(r"(?:unmap|dontneed)", text)) == 4
    assert "others lost" in text
    assert run("shootdown", "64K", "--threads", "0,99999")[0] == 0
    status, _, err = run("shootdown", "64K", "--threads", "99999")
    assert status == 2
    assert "threads=99999 is out of range" in err


def test_no_file_of_the_process_is_left_open():
    before = sorted(Path("/proc/self/fd").iterdir())
    for kind in shootdown.SHOOTDOWN_KINDS:
        tp.shootdown(16 * BASE, kind=kind)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
