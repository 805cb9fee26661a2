"""Words for figures, for counters that were refused, and for hazards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..grouping import grouped
from ..machine.facts import Host
from ..machine.hazards import Hazard
from ..units import Interval, format_seconds


def format_time(ns: float) -> str:
    """Nanoseconds, or a larger unit for many of them."""
    return format_ns(ns) if ns < 1e4 else format_seconds(ns * 1e-9)


# --- words -----------------------------------------------------------------------------------------------


def format_number(ns: float) -> str:
    """Nanoseconds with the digits that mean something, and no minus before a zero."""
    return f"{ns:z.2f}" if abs(ns) < 100 else f"{ns:.1f}" if abs(ns) < 1000 else f"{ns:.0f}"


def format_ns(ns: float) -> str:
    """Nanoseconds with their unit."""
    return f"{format_number(ns)} ns"


def counted_text(count: Any) -> str:
    """What was counted, or several of it by name."""
    if isinstance(count, Mapping):
        return ", ".join(f"{name} {counted_text(each)}" for name, each in count.items())
    return (
        f"{count:,}" if isinstance(count, int) else f"{count:.4g}" if isinstance(count, float) else str(count)
    )


def refused_rows(refused: Mapping[str, str]) -> Iterator[str]:
    """Why counters are missing: those with the same reason together."""
    for reason, alike in grouped(refused, refused.__getitem__).items():
        yield f"{', '.join(alike)}: {reason}"


def format_interval(interval: Interval) -> str:
    """Write an interval, or say that there is none."""
    if interval is None:
        return "too few slices for an interval"
    return f"95 %: {format_number(interval[0])} to {format_number(interval[1])}"


# --- hazards ---------------------------------------------------------------------------------------------


def recorded_host(host: dict[str, Any]) -> Host | None:
    """The machine that a result was measured on; ``None`` where its record is not one of this version."""
    global _last_read
    last = _last_read
    if last[0] is not host:  # results in a row share one record
        try:
            last = _last_read = host, Host.from_dict(host)
        except ValueError:
            last = _last_read = host, None
    return last[1]


_last_read: tuple[dict[str, Any], Host | None] = {}, None


def hazards_of(host: dict[str, Any], probe: str) -> tuple[Hazard, ...]:
    """Hazards that touch the results of a probe, by the recorded facts of a machine; none without facts."""
    found = recorded_host(host)
    return () if found is None else found.hazards_for(probe)


def hazard_rows(hazards: Iterable[Hazard]) -> Iterator[tuple[str, str]]:
    """One row for each that matters, and one for all that are low or unknown."""
    for severity, alike in grouped(hazards, lambda hazard: hazard.severity).items():
        if severity in ("high", "medium"):
            for hazard in alike:
                remedy = f"; to remove it: {hazard.command}" if hazard.command else ""
                yield f"{severity} hazard", f"{hazard.what}: {hazard.effect}{remedy}"
        else:
            yield f"{severity} hazard" + "s" * (len(alike) > 1), ", ".join(hazard.what for hazard in alike)
