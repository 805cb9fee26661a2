"""Performance monitoring units, as /sys describes them: what they count, and how an event of them is written.

A folder a unit: ``type`` is the number that perf_event_open takes, ``format`` says in which bits each term of
``cpu/event=0x08,umask=0x10,cmask=1/`` goes, ``events`` names some events. Source: Linux
Documentation/ABI/testing/sysfs-bus-event_source-devices-format and -events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..machine.files import Root, list_names, read_text

DEVICES = "sys/bus/event_source/devices"
CORE = re.compile(r"cpu|cpu_core|cpu_atom|cpu_lowpower|armv[0-9]\w*|apple_\w+")  # those of processor cores
NAME = re.compile(r"[\w.+-]{1,100}", re.ASCII)
NUMBER = re.compile(r"0x[0-9a-f]{1,16}|[0-9]{1,20}", re.ASCII | re.IGNORECASE)
FIELD = re.compile(r"(config[12]?):([0-9,-]{1,200})", re.ASCII)
RAW_NUMBER = re.compile(r"r([0-9a-f]{1,16})", re.ASCII | re.IGNORECASE)
ATTRIBUTES = (".unit", ".scale", ".snapshot", ".per-pkg")  # files of an event that are no events


class Code(NamedTuple):
    """The numbers that say which event of a unit is meant."""

    config: int = 0
    config1: int = 0
    config2: int = 0


@dataclass(frozen=True)
class Pmu:
    """One unit."""

    name: str
    type: int
    root: Root

    def _folder(self, name: str) -> str:
        return f"{DEVICES}/{self.name}/{name}"

    @property
    def events(self) -> list[str]:
        """Names of the events that the kernel announces for it."""
        return [name for name in list_names(self.root, self._folder("events")) if _is_event(name)]

    @property
    def terms(self) -> list[str]:
        """Names of the terms that an event may be written with."""
        return [name for name in list_names(self.root, self._folder("format")) if NAME.fullmatch(name)]

    def serves(self, cpu: int) -> bool:
        """Whether it belongs to a CPU; one that does not say belongs to all."""
        text = read_text(self.root, self._folder("cpus"))
        spans = re.findall(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", text or "")
        return text is None or any(int(first) <= cpu <= int(last or first) for first, last in spans)

    def event(self, name: str) -> str | None:
        """How an announced event is written."""
        known = NAME.fullmatch(name) and _is_event(name)
        return read_text(self.root, self._folder(f"events/{name}")) if known else None

    def encode(self, text: str) -> Code:
        """Encode ``event=0x08,umask=0x10,cmask=1``, the name of an event, or ``r1008``; else a ValueError."""
        terms = [term.strip() for term in text.split(",")]
        plain = [self.event(term) or term for term in terms]
        code = dict.fromkeys(Code._fields, 0)
        for term in ",".join(plain).split(","):
            field, bits = self._term(*term.partition("="))
            code[field] |= bits
        return Code(**code)

    @staticmethod
    def check_numbers(text: str) -> None:
        """Check the numbers in what `encode` takes, where there is no PMU that knows its terms."""
        for term in text.split(","):
            name, given, value = term.strip().partition("=")
            if given:
                _parse_field(name, value)

    def _term(self, name: str, given: str, value: str) -> tuple[str, int]:
        """Field and bits of one term."""
        if not given and (raw := RAW_NUMBER.fullmatch(name)):
            return "config", int(raw[1], 16)
        number = _parse_field(name, value) if given else 1
        if name in Code._fields:
            return name, number
        where = read_text(self.root, self._folder(f"format/{name}")) if name in self.terms else None
        field = FIELD.fullmatch(where or "")
        if field is None:
            known = ", ".join([*self.terms, *self.events, *Code._fields])
            raise ValueError(f"counters: {name!r} is no term of the PMU {self.name!r}, which has {known}")
        return field[1], _spread_bits(name, number, list(_positions(field[2])))


def _is_event(name: str) -> bool:
    return not name.endswith(ATTRIBUTES) and NAME.fullmatch(name) is not None


def _parse_field(name: str, text: str) -> int:
    if not NUMBER.fullmatch(text) or (number := int(text, 16 if text[:2] in ("0x", "0X") else 10)) >= 1 << 64:
        raise ValueError(f"counters: {name}={text!r} must be a number of 64 bits, such as 8 or 0x08")
    return number


def _positions(text: str) -> Iterator[int]:
    """Bits of '0-7,32-35', lowest of the value first."""
    for first, last in re.findall(r"([0-9]{1,2})(?:-([0-9]{1,2}))?", text):
        yield from range(int(first), min(63, int(last or first)) + 1)


def _spread_bits(name: str, number: int, positions: list[int]) -> int:
    """Put the bits of a number where they belong."""
    if number >> len(positions):
        raise ValueError(f"counters: {name}={number:#x} is out of range: it has {len(positions)} bits")
    return sum((number >> k & 1) << position for k, position in enumerate(positions))


def near(name: str, known: Sequence[str]) -> str:
    """Say which names are like one; empty if none is."""
    import difflib  # for errors alone

    written = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), list(written), n=3, cutoff=0.5)
    return f": near are {', '.join(written[one] for one in found)}" if found else ""


def find_pmu(name: str, root: Root = "/") -> Pmu | None:
    """One unit by its name, or ``None`` where there is none."""
    number = read_text(root, f"{DEVICES}/{name}/type") if NAME.fullmatch(name) else None
    known = number is not None and number.isdecimal() and int(number) < 1 << 32
    return Pmu(name, int(number or 0), root) if known else None


def pmu_names(root: Root = "/") -> list[str]:
    """Names of all units."""
    return list_names(root, DEVICES)


def core_pmus(root: Root = "/") -> list[Pmu]:
    """Units of processor cores: one, or one for each kind of core."""
    found = (find_pmu(name, root) for name in pmu_names(root) if CORE.fullmatch(name))
    return [pmu for pmu in found if pmu is not None]


def core_pmu(cpu: int, root: Root = "/") -> Pmu | None:
    """The unit of the core that a CPU is; ``None`` where the kernel shows none."""
    return next((pmu for pmu in core_pmus(root) if pmu.serves(cpu)), None)
