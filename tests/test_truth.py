"""What `anatomy` says of machines that are known, end to end; `make truth` asks more of them."""

import tomllib

import pytest

import tlbprobe as tp
from tlbprobe.cores.description import describe, known_machines, parse

pytest.importorskip("tlbprobe._simulated", reason="this build cannot simulate: sanitizers exclude it")

KIB, MIB = 1 << 10, 1 << 20
PAGES = ["4KiB", "2MiB"]
CODE = {"side": "code", "entries": [{"pages": PAGES, "entries": 8}], "source": "made up"}


def made(name, *levels, **changes):
    """The machine of two levels, with data levels of its own: tables of entries, and cycles of a hit."""
    content = tomllib.loads(known_machines()["two-levels"].read_text())
    data = (
        {"side": "data", "cycles": cycles, "entries": entries, "source": "made up"}
        for entries, cycles in levels
    )
    return parse({**content, "tlb": [*data, CODE], **changes}, name)


def small(entries, ways=0, **how):
    """Entries for pages of both sizes."""
    return [{"pages": PAGES, "entries": entries, "ways": ways, **how}]


# Entries, ways and sets of each level, and nanoseconds of a hit in it, at 2 GHz.
EXACT = {
    "two-levels": (describe("two-levels"), [(8, 8, 1, 0), (32, 4, 8, 4)]),
    "plru": (
        made("plru", (small(16, 4, replacement="plru"), 0), (small(128, 8, index="folded"), 6)),
        [(16, 4, 4, 0), (128, 8, 16, 3)],
    ),
    "one-level": (describe("one-level"), [(8, 8, 1, 0)]),  # a data cache looked like two more
}


@pytest.fixture(scope="module", params=EXACT)
def known(request):
    """A machine, what is true of it, and what was said of it."""
    machine, levels = EXACT[request.param]
    with tp.simulated(machine):
        return machine, levels, tp.anatomy(["base", "thp"], memory="128MiB")


def parts(found):
    """Sides by name and pages."""
    return {(part.name, part.pages): part for part in found.parts}


def test_levels_entries_and_ways_are_exact(known):
    _, levels, found = known
    side = parts(found)["data", "base"].side
    assert [level.entries.range for level in side.levels] == [(entries,) * 2 for entries, *_ in levels]
    assert [(level.ways, level.sets) for level in side.levels] == [
        (ways, sets) for _, ways, sets, _ in levels
    ]
    words = "one level" if len(levels) == 1 else f"{len(levels)} levels"
    assert found.sentences()[0].startswith(f"The data side shows {words}")


def test_a_hit_in_the_second_level_costs_what_it_costs(known):
    _, levels, found = known
    if len(levels) == 1:
        pytest.skip("there is none")
    first = parts(found)["data", "base"].levels[0].miss_ns
    assert first.ns == pytest.approx(levels[1][-1], rel=0.02)
    assert first.low <= levels[1][-1] <= 1.001 * first.high


def test_a_walk_costs_what_it_costs(known):
    """The walk, and the last table from the first cache: neighbours share its lines."""
    machine, _, found = known
    walk = (machine.tables["walk"]["cycles"] + machine.tables["cache"][0]["cycles"]) / machine.ghz
    cost = parts(found)["data", "base"].levels[-1].miss_ns
    assert cost.nodes > 256 or cost.ns == pytest.approx(walk, rel=0.02)  # more nodes leave the first cache
    assert cost.ns >= 0.98 * walk


def test_levels_of_larger_pages(known):
    """They share the entries here."""
    _, levels, found = known
    part = parts(found)["data", "thp"]
    assert part.unit == 2 * MIB
    count = 1 if len(part.levels) == 1 and not part.complete else len(levels)
    assert len(part.levels) == count
    for level, (entries, *_) in zip(part.levels, levels, strict=False):
        low, high = level.entries.range
        assert 0.95 * entries - 1 <= low <= entries <= high


@pytest.mark.parametrize(("smallest", "holds"), [(0, 2 * MIB), (4 * KIB, 4 * KIB)])
def test_what_the_tlb_holds_of_huge_pages(smallest, holds):
    frames = {"smallest": "4KiB"} if smallest else {}
    with (
        tp.simulated(made("backed", (small(16), 0), (small(64, 4), 8), frames=frames)),
        tp.Region("256MiB", "thp") as region,
    ):
        assert tp.effective_page_size(region).page_size == holds


def test_far_fewer_entries_of_larger_pages_are_no_smaller_pages():
    """With 8 entries of 2 MiB beside 64 of 4 KiB huge pages overflow as pages of 64 KiB would."""
    entries = [{"pages": ["4KiB"], "entries": 64}, {"pages": ["2MiB"], "entries": 8}]
    with tp.simulated(made("few", (entries, 0))), tp.Region("256MiB", "thp") as region:
        assert tp.effective_page_size(region).page_size in (None, 2 * MIB)


def test_a_miss_costs_what_it_costs_where_replacement_is_random():
    """Some of the accesses hit, up to several times as many pages as there are entries."""
    first, second = small(40, replacement="random"), small(512, 8)
    with tp.simulated(made("random", (first, 0), (second, 4))):
        level = parts(tp.anatomy("base", memory="32MiB"))["data", "base"].levels[0]
    assert level.entries.range in ((39, 40), (40, 40))
    assert level.miss_ns.ns == pytest.approx(2, rel=0.02)
    assert level.miss_ns.low <= 2 <= level.miss_ns.high
