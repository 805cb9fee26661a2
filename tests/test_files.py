"""Saved results: whole or not at all, exact, private, and never trusted."""

import contextlib
import dataclasses
import functools
import getpass
import io
import itertools
import json
import math
import operator
import os
import pickle
import platform
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe.declared import FieldError
from tlbprobe.results import result
from tlbprobe.sweeps import sweep

SINGLE = ["page_times", "shootdown_times", "fault_parts"]  # of times of single accesses
KINDS = [
    "measurement",
    "translation",
    "refusal",
    "sweep",
    "curve",
    "anatomy",
    "program_run",
    "trial",
    *SINGLE,
]


def same(one, other):
    """Whether two results are equal in every field, arrays bit by bit."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        fields = one.__dataclass_fields__
        return type(one) is type(other) and all(same(getattr(one, f), getattr(other, f)) for f in fields)
    return one == other


def contents(path):
    """Every byte that the file says: its header and its arrays."""
    with np.load(path, allow_pickle=False) as arrays:
        return b"".join(arrays[name].tobytes() for name in arrays) + " ".join(arrays.files).encode()


def header_of(path):
    with np.load(path) as arrays:
        return json.loads(arrays["header"].tobytes())


def rewrite(path, **changes):
    """Change fields of the header."""
    with np.load(path) as arrays:
        parts = dict(arrays)
    header = {**json.loads(parts["header"].tobytes()), **changes}
    parts["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **parts)


@pytest.fixture
def saved(examples, tmp_path):
    path = tmp_path / "saved.npz"
    examples["curve"].save(path)
    return path


# --- round trips -----------------------------------------------------------------------------------------


def test_every_kind_has_an_example():
    assert sorted(KINDS) == sorted(result.RESULTS)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(examples, tmp_path, kind):
    path = tmp_path / "any name"
    examples[kind].save(path)
    loaded = tp.load(str(path))
    assert same(examples[kind], loaded)
    assert repr(examples[kind]) == repr(loaded)
    assert header_of(path)["kind"] == kind


def test_a_fresh_process_loads_every_kind(examples, tmp_path):
    """Whose files are imported when one is used: also those that nothing has used yet."""
    code = "import sys, tlbprobe as tp; print(*(tp.load(path).kind for path in sys.argv[1:]))"
    for kind in KINDS:
        examples[kind].save(tmp_path / "saved.npz")
        command = [sys.executable, "-P", "-c", code, tmp_path / "saved.npz"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == [kind]


def test_every_field_survives(made, tmp_path):
    m = made.measurement(
        ns=np.array([0.1, np.nextafter(1, 2), 1e-300, 5.0]),
        disturbed=[True, False, True, False],
        counters={"cycles": [1.0, 2, 3, 4], "a/b c": [0.1] * 4},
        refused={"x": "no"},
        warnings=("w", "é<&"),
        core_ghz=None,
        version="0.0.1",
        faults={"minor": 1, "major": 0, "expected": None},
        backing=tp.Backing("thp", None, {4096: 0.25, 2097152: 0.75}, "unknown", "smaps", "odd"),
    )
    m.save(tmp_path / "m")
    loaded = tp.load(tmp_path / "m")
    assert same(m, loaded)
    assert not loaded.ns.flags.writeable
    assert loaded.backing.shares == m.backing.shares


def test_a_measured_one_survives(tmp_path):
    m = tp.chase("64KiB", max_seconds=0.05)
    m.save(tmp_path / "m")
    assert same(json.loads(json.dumps(m.host)), tp.load(tmp_path / "m").host)
    assert m.summary() == tp.load(tmp_path / "m").summary()


def test_facts_of_the_host_are_written_once(made, tmp_path):
    host = {"facts": [{"name": "cpu.name", "value": "x" * 5000}]}
    points = {(seed,): made.measurement(host=host) for seed in range(20)}
    swept = tp.Sweep("chase", {"seed": list(range(20))}, points)
    swept.save(tmp_path / "s")
    assert contents(tmp_path / "s").count(b"x" * 5000) == 1
    loaded = [point.host for _, point in tp.load(tmp_path / "s")]
    assert all(one is loaded[0] for one in loaded)
    assert swept[0].host is host, "saving changed the result"


# --- the format ------------------------------------------------------------------------------------------

DATA = Path(__file__).parent / "data"
RECORDED = sorted((Path(__file__).parents[1] / "notebooks" / "data").glob("*.npz"))


def stated(path):
    """The header of a file, and the type and shape of each array in it."""
    with np.load(path) as arrays:
        text = arrays["header"].tobytes().decode()
        shapes = {name: f"{arrays[name].dtype} {arrays[name].shape}" for name in sorted(arrays.files)}
    del shapes["header"]
    return {"header": json.loads(text.replace(f'"{tp.__version__}"', '"VERSION"')), "arrays": shapes}


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_written_as_ever(examples, tmp_path, kind):
    examples[kind].save(tmp_path / "x")
    expected = json.loads((DATA / "headers.json").read_text())[kind]
    assert json.dumps(stated(tmp_path / "x")) == json.dumps(expected)  # the order of keys too


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_files_are_written_again_as_they_are(tmp_path, path):
    tp.load(path).save(tmp_path / "x")
    with np.load(path) as before, np.load(tmp_path / "x") as after:
        assert sorted(before.files) == sorted(after.files)
        for name in before.files:
            assert before[name].tobytes() == after[name].tobytes(), name


# --- privacy ---------------------------------------------------------------------------------------------


def test_no_names_and_no_paths(tmp_path):
    names = {platform.node(), os.uname().nodename, str(Path.home()), str(Path.cwd()), str(tmp_path)}
    names |= {os.environ.get("USER", ""), os.environ.get("HOSTNAME", ""), getpass.getuser()} - {"root"}
    c = tp.curve(["64KiB", "900000TiB"], "base", max_seconds=0.05, progress=False)
    c.save(tmp_path / "c")
    text = contents(tmp_path / "c")
    assert b"MemoryError" in text, "the refusal should be in it"
    for name in names - {"localhost"}:
        assert len(name) < 4 or name.encode() not in text


def test_refusals_keep_no_private_path():
    error = MemoryError("control group limit /user.slice/user-1000.slice/memory.max has 1 GiB left")
    error.add_note("see '/home/ann/x.npz'; allow it: echo 1 | sudo tee /sys/kernel/mm/hugepages/n or/and 3/4")
    reason = tp.Refusal.of(error).reason
    assert "user" not in reason
    assert "ann" not in reason
    assert "control group limit memory.max has" in reason
    assert "/sys/kernel/mm/hugepages/n or/and 3/4" in reason


# --- foreign and damaged ---------------------------------------------------------------------------------


class Bomb:
    exploded = False

    def __reduce__(self):
        return setattr, (Bomb, "exploded", True)


def test_truncated(saved):
    whole = saved.read_bytes()
    for length in (0, 1, 2, 4, 30, 100, len(whole) // 3, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        saved.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"saved\.npz"):
            tp.load(saved)


def test_damaged(saved):
    """Whatever byte is flipped: an error, or a file that still says the same."""
    whole, expected = saved.read_bytes(), tp.load(saved)
    for position in np.linspace(0, len(whole) - 1, 150).astype(int):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        saved.write_bytes(damaged)
        with contextlib.suppress(ValueError):
            assert same(expected, tp.load(saved))


def archive(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def header(text):
    return archive(header=np.frombuffer(text.encode(), np.uint8))


FOREIGN = {
    "empty": b"",
    "text": b"size,low_ns\n1,2\n",
    "pickle": pickle.dumps(Bomb()),
    "npy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }",
    "other npz": archive(a=np.arange(3)),
    "pickle in npz": archive(header=np.array([Bomb()], dtype=object)),
    "no json": header("hello"),
    "json of another kind": header("[1, 2]"),
    "another format": header('{"format": "x", "version": 1, "kind": "curve", "data": {}}'),
    "no data": header('{"format": "tlbprobe", "version": 1, "kind": "curve"}'),
    "wrong data": header('{"format": "tlbprobe", "version": 1, "kind": "curve", "data": [1]}'),
    "no arrays": header('{"format": "tlbprobe", "version": 1, "kind": "measurement", "data": {}}'),
    "odd version": header('{"format": "tlbprobe", "version": "x", "kind": "curve", "data": {}}'),
    "deep": header("[" * 100_000),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign(tmp_path, name):
    path = tmp_path / "foreign.npz"
    path.write_bytes(FOREIGN[name])
    with pytest.raises(ValueError, match=r"foreign\.npz.*tlbprobe file") as error:
        tp.load(path)
    assert "allow_pickle" not in str(error.value) or name == "pickle in npz"
    assert not Bomb.exploded


def test_a_folder_and_a_missing_file_are_os_errors(tmp_path):
    with pytest.raises(IsADirectoryError):
        tp.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="none"):
        tp.load(tmp_path / "none")


@pytest.mark.parametrize("changes", [{"version": 99}, {"kind": "physiology"}])
def test_newer(saved, changes):
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match="a newer tlbprobe reads it") as error:
        tp.load(saved)
    assert str(*changes.values()) in str(error.value)
    assert "damaged" not in str(error.value)


def test_a_later_field_is_no_obstacle(saved):
    rewrite(saved, remark="from a later release")
    assert tp.load(saved).policies == ["base", "thp"]


# --- damaged fields --------------------------------------------------------------------------------------

GONE = object()
WRONG = (GONE, None, "text", -1, 1.5, math.nan, 10**400, [], [None], {}, {"a": None})
WRONG_ARRAYS = {
    "more axes": lambda array: array[None],
    "text": lambda array: np.full(array.shape, "1"),
    "complex": lambda array: array.astype(complex),
    "infinite": lambda array: np.full(array.shape, np.inf),
    "twice as long": lambda array: np.concatenate([array, array]),
}
# Arrays that may hold anything, in any number, as long as they are arrays of numbers.
FREE = {
    ("page_times", "after"): {"twice as long"},
    **{(kind, name): {"twice as long"} for kind in SINGLE for name in ("disturbed", "write/after")},
}


def ways(value, way=()):
    """The way to every part of a header; of lists, to the first two."""
    if way:
        yield way
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in itertools.islice(inside, 2 if isinstance(value, list) else None):
        if name != "host":
            yield from ways(one, (*way, name))


def changed(parts, way, value):
    """A copy with one part changed."""
    copied = json.loads(json.dumps(parts))
    inside = functools.reduce(operator.getitem, way[:-1], copied)
    if value is GONE:
        del inside[way[-1]]
    else:
        inside[way[-1]] = value
    return copied


@pytest.fixture
def parts_of(examples, tmp_path):
    def read(kind):
        examples[kind].save(tmp_path / "x")
        with np.load(tmp_path / "x") as arrays:
            return header_of(tmp_path / "x")["data"], {name: arrays[name] for name in arrays.files}

    return read


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_field_is_named_or_harmless(parts_of, kind):
    """Whatever stands in its place: an error that says where, or a result that can be read and saved."""
    parts, arrays = parts_of(kind)
    for way in ways(parts):
        for value in WRONG:
            try:
                found = result.RESULTS[kind].from_parts(changed(parts, way, value), arrays.__getitem__)
            except FieldError as error:
                named = {*re.findall(r"\w+", str(error)), *error.where}
            else:
                named = set(way)
                assert str(found)
                json.dumps(found.summary())
                found.to_parts({}.__setitem__)
            # A point that is on no axis is as wrong as the axis that it is not on.
            assert named & {*(name for name in way if isinstance(name, str)), "points"}, way


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("damage", WRONG_ARRAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_array_is_refused(parts_of, kind, damage):
    parts, arrays = parts_of(kind)
    written_twice = re.compile(r"part\d+/(nodes|spread|packed)|header")
    for name, array in arrays.items():
        if not written_twice.fullmatch(name) and array.size and damage not in FREE.get((kind, name), ()):
            damaged = {**arrays, name: WRONG_ARRAYS[damage](array)}
            with pytest.raises(FieldError):
                result.RESULTS[kind].from_parts(parts, damaged.__getitem__)
            del damaged[name]
            with pytest.raises(FieldError, match="is missing"):
                result.RESULTS[kind].from_parts(parts, damaged.__getitem__)


def test_the_file_and_the_field_are_named(saved):
    data = changed(header_of(saved)["data"], ("chase", "points", 1, "data", "setup", "map"), "a while")
    rewrite(saved, data=data)
    message = r"saved\.npz.*damaged.*chase\.points\.1\.setup\.map is 'a while': must be a number"
    with pytest.raises(result.FileFormatError, match=message):
        tp.load(saved)


# --- where it cannot be written --------------------------------------------------------------------------


def refuses(result, path, error=OSError):
    """Saving fails, names the path, and leaves the folder as it was."""
    folder = Path(path).parent
    before = (
        {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()} if folder.is_dir() else {}
    )
    with pytest.raises(error) as raised:
        result.save(path)
    assert str(path) in str(raised.value)
    after = (
        {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()} if folder.is_dir() else {}
    )
    assert before == after


def test_missing_folder_and_folder(examples, tmp_path):
    refuses(examples["measurement"], tmp_path / "none" / "x.npz", FileNotFoundError)
    refuses(examples["measurement"], tmp_path, IsADirectoryError)


def test_device_and_pipe_are_left_alone(examples, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", str(tmp_path / "pipe")):
        with pytest.raises(OSError, match="ordinary file"):
            examples["measurement"].save(path)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116 - of the device itself


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only(examples, tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(b"old")
    path.chmod(0o444)
    refuses(examples["measurement"], path, PermissionError)
    path.chmod(0o644)
    tmp_path.chmod(0o555)
    try:
        refuses(examples["measurement"], path, PermissionError)
    finally:
        tmp_path.chmod(0o755)


@pytest.fixture
def mounted(tmp_path):
    """Mount a tmpfs of 64 KiB, if we may."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True)
    if done.returncode:
        pytest.skip("only root may mount a file system to fill")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_full_disk(made, mounted):
    path = mounted / "x.npz"
    small = made.measurement(slices=10)
    small.save(path)
    noise = np.random.default_rng(0).random(50_000)
    large = made.measurement(ns=noise, disturbed=noise > 0.5)
    with pytest.raises(OSError, match="No space left"):
        large.save(path)
    assert [one.name for one in mounted.iterdir()] == ["x.npz"]
    assert same(small, tp.load(path))


def test_read_only_file_system(examples, mounted):
    (mounted / "x.npz").write_bytes(b"old")
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    refuses(examples["measurement"], mounted / "x.npz", OSError)
    refuses(examples["measurement"], mounted / "y.npz", OSError)


def test_interrupted_half_way(examples, tmp_path, monkeypatch):
    def interrupted(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    path = tmp_path / "x.npz"
    examples["measurement"].save(path)
    old = path.read_bytes()
    monkeypatch.setattr(np, "savez_compressed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        examples["curve"].save(path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_modes_and_links(examples, tmp_path):
    mask = os.umask(0o027)
    try:
        path = tmp_path / "x.npz"
        examples["measurement"].save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o600)
        link = tmp_path / "latest.npz"
        link.symlink_to(path.name)
        examples["curve"].save(link)
    finally:
        os.umask(mask)
    assert link.is_symlink()
    assert tp.load(path).kind == "curve"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_check_writable_leaves_nothing(tmp_path):
    result.check_writable(tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == []


def test_points_know_their_kinds():
    assert set(sweep.POINTS) <= set(result.RESULTS)


def test_what_is_no_regular_file_is_not_read():
    with pytest.raises(ValueError, match="no regular file"):
        tp.load("/dev/zero")
