"""Counters of a simulated processor: exact, under the names that real ones have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..cores.description import CACHES, Description
from ..cores.simulated import SimulatedCore
from .events import MEANINGS, SOFTWARE, TLB_EVENTS, TLB_SET, Absent, Event


def counted_as(described: Description) -> dict[str, str]:
    """What the model calls each event that it counts, by the event's name."""
    data, code = (_which_levels(described.tables["tlb"], side) for side in ("data", "code"))
    caches = _which_levels(described.tables["cache"], "data")
    found = {
        **{name: name for name in ("cycles", "loads", "stores", "walk_pending", "walk_active")},
        "walks": "walks.data",
        "walks_code": "walks.code",
        "walk_steps": "walk_loads",
        "walk_memory": f"cache_hits.tables.{CACHES}",
        "llc_misses": f"cache_hits.data.{CACHES}",
        "l1_dtlb_misses": f"tlb_misses.data.{data[0]}",
        "l1_itlb_misses": f"tlb_misses.code.{code[0]}" if code else "",
    }
    found |= {f"walk_l{number}": f"cache_hits.tables.{place}" for number, place in enumerate(caches[:3], 1)}
    if len(data) > 1:
        found |= {"stlb_hit": f"tlb_hits.data.{data[1]}", "stlb_misses": f"tlb_misses.data.{data[1]}"}
    return {name: raw for name, raw in found.items() if raw}


def _which_levels(levels: Sequence[dict[str, str]], side: str) -> list[int]:
    """Places of the levels of a side in the description, the first level first."""
    return [place for place, level in enumerate(levels) if level["side"] in (side, "both")]


def find_simulated(names: Sequence[str], core: SimulatedCore) -> Iterator[Event | Absent]:
    """Events by name; what the model does not count, with that reason."""
    known = counted_as(core.description)
    listed = [one for name in names for one in (TLB_EVENTS if name == TLB_SET else (name,))]
    for name in dict.fromkeys(listed):
        meaning = MEANINGS[name].text if name in MEANINGS else ""
        if name in known:
            yield Event(name, meaning, SOFTWARE, 0, encoding=known[name], source=str(core))
        else:
            yield Absent(name, f"no counter of {core}: it counts {', '.join(known)}", "", meaning)
