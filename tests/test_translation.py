"""translation: the same lines in the same order, on many pages and on few."""

import re

import numpy as np
import pytest

import tlbprobe as tp
from tlbprobe.machine import paging
from tlbprobe.units import parse_size

BASE = paging.base_page_size()
LINE = paging.cache_line_size()
QUICK = {"max_seconds": 0.05}


def successors(words, at, base):
    """Index of the successor of each node, from the pointers that lie at these offsets."""
    found = words[at // 8] - np.uint64(base)
    order = np.argsort(at)
    return order[np.searchsorted(at[order], found)]


def test_both_have_the_same_nodes():
    measured = tp.translation(64 * BASE, seed=4, counters=("walks",), **QUICK)
    spread, packed = measured.spread.params, measured.packed.params
    assert spread["nodes"] == packed["nodes"] == 64
    assert spread["stride"] == packed["stride"] == BASE
    assert (spread["bytes"], packed["bytes"]) == (64 * BASE, 64 * LINE)
    assert (spread["placement"], packed["placement"]) == ("spread", "packed")
    differing = {name for name in spread if spread[name] != packed[name]}
    assert differing == {"bytes", "placement"}
    assert spread.keys() == packed.keys()
    assert spread.keys() == tp.chase("64KiB", **QUICK).params.keys()
    for run in (measured.spread, measured.packed):
        assert run.refused.keys() | run.counters.keys() == {"walks"}
        assert run.faults == {"minor": 0, "major": 0, "expected": 0}


def test_cost_is_the_difference_of_the_low_estimates():
    measured = tp.translation(64 * BASE, **QUICK)
    assert measured.spread.ns.shape == measured.packed.ns.shape
    assert measured.cost == measured.spread.low - measured.packed.low
    if measured.interval is not None:
        low, high = measured.interval
        assert low <= measured.cost <= high


def test_packed_lines_lie_beside_the_spread_nodes_in_the_same_order():
    nodes, size = 64, 64 * BASE + BASE // 2  # half a page more holds no node more
    beside = 65 * BASE
    with tp.Region(beside + nodes * LINE) as region:
        with memoryview(region) as view:
            view[:] = bytes(len(view))
        measured = tp.translation(region, working_set=size, seed=9, **QUICK)
        assert measured.spread.params["nodes"] == nodes
        words = np.frombuffer(region, np.uint64).copy()
        address = region.address
    lines = BASE // LINE
    cell = np.arange(nodes)
    spread_at = cell * BASE + (cell % lines + cell // lines) % lines * LINE  # the digit sum in base `lines`
    packed_at = beside + cell * LINE
    spread, packed = (successors(words, at, address) for at in (spread_at, packed_at))
    assert (spread == packed).all()
    assert (words[packed_at // 8] >= address + beside).all()
    assert not words[(beside + nodes * LINE) // 8 :].any()


@pytest.mark.parametrize("size", [1, LINE, BASE, 2 * BASE - 1])
def test_fewer_than_two_nodes_are_refused(size):
    with pytest.raises(ValueError, match=rf"size=.* holds {size // BASE} base pages .* at least two"):
        tp.translation(size)


def test_two_nodes_are_enough():
    assert tp.translation(2 * BASE, **QUICK).spread.params["nodes"] == 2


def test_a_region_that_does_not_hold_both_is_refused_with_figures():
    with tp.Region(8 * BASE) as region:
        for arguments in ({}, {"working_set": 8 * BASE}):
            with pytest.raises(
                ValueError, match=r"working_set=32 KiB.*need .* has 32 KiB.*smaller"
            ) as refused:
                tp.translation(region, **arguments)
            assert BASE != 4096 or "32.5 KiB" in str(refused.value)
        with pytest.raises(ValueError, match="working_set"):
            tp.translation(region, working_set=9 * BASE)
        assert tp.translation(region, working_set=7 * BASE, **QUICK).spread.params["nodes"] == 7
    with pytest.raises(ValueError, match="closed"):
        tp.translation(region, working_set=7 * BASE)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"size": -1}, ValueError, "size=-1"),
        ({"size": "1MB"}, ValueError, "1MiB"),
        ({"working_set": "64KiB"}, ValueError, "working_set='64KiB'"),
    ],
)
def test_wrong_parameters_are_named(arguments, error, said):
    with pytest.raises(error, match=re.escape(said)):
        tp.translation(**{"size": "1MiB", **arguments})


def test_proof_covers_both(monkeypatch):
    """Huge pages below the spread nodes alone are not enough: the packed lines are measured too."""
    asked = []
    backing = tp.Region.backing

    def spy(region, working_set=None, **more):
        asked.append(working_set)
        return backing(region, working_set, **more)

    with tp.Region("1MiB") as region:
        monkeypatch.setattr(tp.Region, "backing", spy)
        measured = tp.translation(region, working_set=64 * BASE, **QUICK)
    assert asked == [64 * BASE + 64 * LINE] * 2  # before and after
    assert measured.backing == measured.spread.backing == measured.packed.backing
    assert measured.backing.page_size == BASE


def test_warnings_of_both_are_told_once():
    measured = tp.translation(64 * BASE, max_seconds=1e-6)
    assert len(measured.warnings) == len(set(measured.warnings)) >= 1
    assert measured.interval is None


@pytest.mark.parametrize("stride", [2 * BASE, "2MiB", "1GiB"])
def test_nodes_further_apart_are_as_many_lines(stride):
    size = 50 * parse_size(stride)
    measured = tp.translation(size, stride=stride, **QUICK)
    spread, packed = measured.spread, measured.packed
    assert spread.params["nodes"] == packed.params["nodes"] == 50
    assert spread.params["stride"] == parse_size(stride)
    assert spread.backing.page_size == packed.backing.page_size == BASE
    assert packed.params["mapped_bytes"] == -(-50 * LINE // BASE) * BASE


def test_a_stride_in_a_region_needs_less_room_beside_it():
    with tp.Region("1MiB") as region:
        size = 15 * 16 * BASE
        assert (
            tp.translation(region, working_set=size, stride=16 * BASE, **QUICK).spread.params["nodes"] == 15
        )


@pytest.mark.parametrize("stride", [64, BASE + 64, BASE // 2])
def test_a_stride_of_no_whole_pages_is_refused(stride):
    with pytest.raises(ValueError, match=f"stride={stride} must be a multiple of the base page"):
        tp.translation("1MiB", stride=stride)
    with pytest.raises(ValueError, match="holds 1 cells of 2 MiB"):
        tp.translation("2MiB", stride="2MiB")
