"""Effective translation size: inferred from constructed costs, and within contract on real memory."""

import pytest

import tlbprobe as tp
from tlbprobe.hierarchy import effective
from tlbprobe.machine import paging

BASE, PMD = paging.base_page_size(), paging.pmd_size() or 1 << 21
HIT = 1.0


@pytest.fixture
def hardware(monkeypatch):
    """A first level of 64 entries that holds translations of a size at each offset."""

    def build(size_at, entries=64):
        def cost(region, offset, beside, nodes, spacing, seed):
            needed = max(1, min(nodes, nodes * spacing // size_at(offset)))
            return (1.9 if needed > entries else 0.0), HIT

        monkeypatch.setattr(effective, "added_cost", cost)
        monkeypatch.setattr(effective, "first_level_entries", lambda: 64)

    return build


@pytest.mark.parametrize("factor", [1, 4, 16])
def test_small_translations(hardware, factor):
    hardware(lambda _: factor * BASE)
    with tp.Region("16MiB") as region:
        found = tp.effective_page_size(region)
    assert found.page_size == factor * BASE
    assert {*found.places, None} == {factor * BASE, None}  # a place near the end may not show it
    assert found.backing == BASE
    assert found.entries == 64
    assert found.reason == ""


@pytest.mark.skipif(not paging.pmd_size(), reason="no transparent huge pages")
@pytest.mark.parametrize("size", ["8MiB", "64MiB", "512MiB"])
def test_huge_translations_of_any_region(hardware, size):
    """The step is beyond the end of a small region: then nothing smaller than the page itself is left."""
    hardware(lambda _: PMD)
    with tp.Region(size, "thp") as region:
        found = tp.effective_page_size(region)
    assert found.page_size in (PMD, None)  # too small a region may leave several sizes open
    if size != "8MiB":
        assert found.page_size == PMD
        assert str(found) == f"the TLB holds {effective.format_size(PMD)} translations"


@pytest.mark.skipif(not paging.pmd_size(), reason="no transparent huge pages")
def test_huge_pages_in_pieces_are_told(hardware):
    hardware(lambda _: BASE)
    with tp.Region("16MiB", "thp") as region:
        found = tp.effective_page_size(region)
    assert (found.page_size, found.backing) == (BASE, PMD)
    assert "although the pages are" in str(found)


def test_places_that_differ_are_not_one_size(hardware):
    hardware(lambda offset: BASE if offset == 0 else 16 * BASE)
    with tp.Region("16MiB") as region:
        found = tp.effective_page_size(region)
    assert found.page_size is None
    assert {*found.places, None} == {BASE, 16 * BASE, None}
    assert "not identifiable" in str(found)
    assert found._repr_html_().startswith("<table")


def test_no_step_with_base_pages(monkeypatch):
    monkeypatch.setattr(effective, "first_level_entries", lambda: None)
    with tp.Region("16MiB") as region:
        found = tp.effective_page_size(region)
    assert found.page_size is None
    assert "no step" in found.reason


def test_too_small_a_region(hardware):
    hardware(lambda _: BASE)
    with tp.Region(BASE) as region, pytest.raises(ValueError, match="the test needs"):
        tp.effective_page_size(region)


@pytest.mark.parametrize("entries", [9, 16, 48, 64, 72, 96, 100, 512])
def test_entries_are_found_within_a_sixteenth(entries):
    found = effective._bisect(lambda nodes: nodes > entries, 8, 2048)
    assert entries * 15 / 16 - 1 <= found <= entries


@pytest.mark.parametrize("entries", [4, 5000])
def test_entries_out_of_range_are_not_identifiable(entries):
    assert effective._bisect(lambda nodes: nodes > entries, 8, 2048) is None


def test_on_real_memory():
    with tp.Region("8MiB") as region:
        found = tp.effective_page_size(region)
    assert found.page_size is None or found.page_size in effective.translation_sizes(BASE)
    assert found.page_size is not None or found.reason


@pytest.mark.parametrize("region", [5, "64MiB", None])
def test_it_belongs_to_a_region(region):
    with pytest.raises(TypeError, match="must be a Region"):
        tp.effective_page_size(region)


@pytest.mark.parametrize("seed", [-1, 1 << 64, "a", 1.5])
def test_a_wrong_seed_is_named(seed):
    with tp.Region("8MiB") as region, pytest.raises((ValueError, TypeError), match="seed="):
        tp.effective_page_size(region, seed=seed)


def test_a_closed_region():
    region = tp.Region("8MiB")
    region.close()
    with pytest.raises(ValueError, match="closed"):
        tp.effective_page_size(region)
