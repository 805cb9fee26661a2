"""places: a cycle through places that a list in the memory names."""

from pathlib import Path

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe import _core

SIZE = 1 << 16
CSRC = Path(__file__).parents[1] / "csrc"


@pytest.fixture
def region():
    with tp.Region(SIZE) as region:
        yield region


def words(region):
    return np.frombuffer(memoryview(region), np.uint64)


def session(region, offsets, **changes):
    words(region)[: len(offsets)] = offsets
    return _core.Session(
        [(region, "places", 0, SIZE, {"nodes": len(offsets), "list": 0, "seed": 1, **changes})]
    )


def walked(region, offsets):
    """Places in the order of the cycle, from the first one on."""
    found, at = [], min(offsets)
    for _ in offsets:
        found.append(at)
        at = int(words(region)[at // 8]) - region.address
    return found, at


@pytest.mark.parametrize(
    "offsets", [[8], [0, 8], [4096, 64, 0, 65528], list(range(0, SIZE, 24)), [8, 16, 24, 4096]]
)
def test_the_cycle_goes_through_every_place_once(region, offsets):
    with session(region, offsets) as run:
        assert run.laps == (len(offsets),)
        assert run.verify() == (len(offsets),)
        run.measure((len(offsets) + 1,), 3)
    found, end = walked(region, offsets)
    assert sorted(found) == sorted(offsets)
    assert end == min(offsets)


def test_nothing_but_the_nodes_is_written(region):
    words(region)[:] = 7
    offsets = [256, 4096, 8192]
    session(region, offsets, list=0).close()
    changed = np.flatnonzero(words(region) != 7) * 8
    assert set(changed.tolist()) == {0, 8, 16, *offsets}  # and the list itself


@pytest.mark.parametrize(
    ("offsets", "changes"),
    [
        ([4], {}),
        ([SIZE], {}),
        ([SIZE - 4], {}),
        ([(1 << 64) - 8], {}),
        ([64, 128, 64], {}),
        ([64], {"nodes": 0}),
        ([64], {"nodes": 1 << 61}),
        ([64], {"nodes": (1 << 64) - 1}),
        ([64], {"list": 4}),
        ([64], {"list": SIZE}),
        ([64], {"list": (1 << 64) - 8}),
        ([64], {"nodes": SIZE // 8 + 1}),
    ],
)
def test_what_leaves_the_bytes_is_refused_unwritten(region, offsets, changes):
    words(region)[:] = 7
    words(region)[: len(offsets)] = offsets
    before = words(region).copy()
    with pytest.raises(ValueError, match="'places' leave its"):
        session(region, offsets, **changes)
    assert (words(region) == before).all()


def test_the_seed_decides_the_order(region):
    offsets = list(range(0, 4096, 64))
    orders = []
    for seed in (1, 1, 2):
        session(region, offsets, seed=seed).close()
        orders.append(walked(region, offsets)[0])
    assert orders[0] == orders[1] != orders[2]


def test_the_loop_is_one_load(compile_c, machine_code):
    library = compile_c(CSRC / "kernels" / "places.c", CSRC / "cycle.c")
    loops = machine_code.loops(library, "places_access")
    assert [len(machine_code.memory(loop)) for loop in loops] in ([1], [1, 1], [1, 1, 1])


# --- the probe


def test_the_probe_by_sizes_and_by_default():
    assert tp.places("64KiB", offsets=["4KiB", 0, np.int64(8)], max_seconds=0.02).params["nodes"] == 3
    assert tp.places("64KiB", max_seconds=0.02, verify=True).params["nodes"] == 1024


def test_in_a_region(region):
    measured = tp.places(region, working_set="32KiB", offsets=[32760], max_seconds=0.02)
    assert measured.params["bytes"] == 32768


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ([], TypeError),
        ("4KiB", TypeError),
        (5, TypeError),
        ([1.5], TypeError),
        ([4], ValueError),
        ([SIZE], ValueError),
        ([-8], ValueError),
        ([8, 8], ValueError),
        (["4kB"], ValueError),
    ],
)
def test_wrong_offsets_are_named(offsets, error):
    with pytest.raises(error, match="offsets"):
        tp.places(SIZE, offsets=offsets)
