"""Descriptions of simulated processors: TOML files, one a machine, checked, every figure with its source."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..units import parse_size

FOLDER = Path(__file__).parent / "machines"

SIDES = {"data": 1, "code": 2, "both": 3}
INDEXES = ("plain", "folded", "hashed")
REPLACEMENTS = ("lru", "plru", "random")
# How many of each the model has room for: as in csrc/simulated/model.h.
TLBS, ARRAYS, PAGES, CACHES, LEVELS, BURSTS, NEIGHBOURS = 8, 4, 8, 8, 5, 4, 8

TomlTable = Mapping[str, Any]
REQUIRED = object()


@dataclass(frozen=True)
class Key:
    """One key of a table: its kind, and what it is if it is left out."""

    kind: type | tuple[str, ...] | str  # a type, the words there are, or "size" or "sizes"
    default: Any = REQUIRED


# What each table may say, and no more. All but the first have a source.
SOURCE = {"source": Key(str)}
SETS = {
    "entries": Key(int),
    "ways": Key(int, 0),
    "index": Key(INDEXES, "plain"),
    "replacement": Key(REPLACEMENTS, "lru"),
}
TABLES: dict[str, dict[str, Key]] = {
    "": {"about": Key(str), "ghz": Key(float), "pages": Key("sizes"), "family": Key(str, "")},
    "tlb": {"side": Key(tuple(SIDES)), "cycles": Key(float, 0.0), "entries": Key(list), **SOURCE},
    "tlb.entries": {"pages": Key("sizes"), **SETS},
    "cache": {
        "side": Key(tuple(SIDES)),
        "size": Key("size"),
        "line": Key(int, 64),
        "ways": Key(int, 0),
        "index": Key(INDEXES, "plain"),
        "replacement": Key(REPLACEMENTS, "lru"),
        "cycles": Key(float),
        **SOURCE,
    },
    "memory": {"cycles": Key(float), **SOURCE},
    "walk": {
        "levels": Key(int, 4),
        "walkers": Key(int, 1),
        "cycles": Key(float, 0.0),
        "cache": Key(int, 1),
        "upper": Key(list, ()),
        **SOURCE,
    },
    "walk.upper": SETS,
    "overlap": {
        "window": Key(int),
        "misses": Key(int),
        "stores": Key(int),
        "cycles": Key(float),
        "ahead": Key(int, 1),
        "jump_cycles": Key(float, 1.0),
        **SOURCE,
    },
    "clock": {"read_ns": Key(float, 4.0), "step_ns": Key(float, 1.0)},
    "frames": {"contiguous": Key(bool, False), "smallest": Key("size", 0)},
    "burst": {
        "rate": Key(float),
        "least_ms": Key(float),
        "most_ms": Key(float),
        "factor": Key(float, 1.0),
        "added_ns": Key(float, 0.0),
        "stolen": Key(float, 0.0),
    },
    "drift": {"amplitude": Key(float), "memory_ms": Key(float)},
    "steps": {"every_ms": Key(float), "factor": Key(float)},
    "neighbour": {"cycles": Key(float), "of": Key(("tlb", "cache")), "level": Key(int)},
}
LISTED = {"tlb": TLBS, "cache": CACHES, "burst": BURSTS, "neighbour": NEIGHBOURS}
NEEDED = ("tlb", "cache", "memory", "walk", "overlap")


class DescriptionError(ValueError):
    """A description of a machine that is none: the message names its file, the place, and what would do."""


@dataclass(frozen=True)
class Description:
    """A simulated processor: what its file says, checked and completed.

    Attributes
    ----------
    name : str
        Of the machine, that results carry.
    about : str
        One line.
    pages : tuple of int
        Page sizes in bytes, the base page first.
    tables : dict
        Everything else, by table: sizes in bytes, latencies in core cycles.
    """

    name: str
    about: str
    pages: tuple[int, ...]
    tables: TomlTable

    def __str__(self) -> str:
        return f"{self.name}: {self.about}"

    @property
    def base_page(self) -> int:
        """Bytes of the smallest page."""
        return self.pages[0]

    @property
    def line(self) -> int:
        """Bytes of a line of the first data cache."""
        return int(next(cache["line"] for cache in self.tables["cache"] if cache["side"] != "code"))

    @property
    def ghz(self) -> float:
        """The core clock."""
        return float(self.tables[""]["ghz"])

    def true_page(self, page: int) -> int:
        """Bytes of the translations that back a page: its own, or smaller ones of a hypervisor."""
        smallest = int(self.tables["frames"]["smallest"])
        return page if not smallest else min(page, smallest)

    def numbers(self, seed: int) -> list[float]:
        """Everything as the flat list that the model in C reads, in the order of its fields."""
        return [float(number) for number in _numbers(self, seed)]


def _numbers(described: Description, seed: int) -> Iterator[float]:
    tables = described.tables
    overlap, walk, memory = tables["overlap"], tables["walk"], tables["memory"]
    clock, frames = tables["clock"], tables["frames"]
    yield from (described.ghz, clock["read_ns"], clock["step_ns"], seed)
    yield from (described.base_page, frames["contiguous"], memory["cycles"])
    yield from (overlap[name] for name in ("window", "misses", "stores", "cycles", "ahead", "jump_cycles"))
    yield from (walk["levels"], walk["walkers"], walk["cycles"], walk["cache"] - 1)
    yield from _padded(map(_sets, walk["upper"]), LEVELS - 1, 4)
    yield from _padded(map(_tlb_numbers, tables["tlb"]), TLBS, 2 + ARRAYS * (4 + PAGES))
    yield from _padded(map(_cache_numbers, tables["cache"]), CACHES, 7)
    burst = ("rate", "least_ms", "most_ms", "factor", "added_ns", "stolen")
    yield from _padded(([one[name] for name in burst] for one in tables["burst"]), BURSTS, len(burst))
    yield from _padded(([one["amplitude"], one["memory_ms"]] for one in tables["drift"]), 1, 2)
    yield from _padded(([one["every_ms"], one["factor"]] for one in tables["steps"]), 1, 2)
    neighbours = ([one["cycles"], one["of"] == "cache", one["level"]] for one in tables["neighbour"])
    yield from _padded(neighbours, NEIGHBOURS, 3)


def _padded(rows: Iterator[Sequence[float]], most: int, width: int) -> Iterator[float]:
    """So many rows of numbers; those that there are not are zero."""
    absent = itertools.repeat([0.0] * width)
    return itertools.chain.from_iterable(itertools.islice(itertools.chain(rows, absent), most))


def _sets(sets: TomlTable) -> list[float]:
    index, replacement = INDEXES.index(sets["index"]), REPLACEMENTS.index(sets["replacement"])
    return [sets["entries"], sets["ways"], index, replacement]


def _tlb_numbers(level: TomlTable) -> list[float]:
    arrays = (
        [*_sets(one), *_padded(([size] for size in one["pages"]), PAGES, 1)] for one in level["entries"]
    )
    return [SIDES[level["side"]], level["cycles"], *_padded(arrays, ARRAYS, 4 + PAGES)]


def _cache_numbers(level: TomlTable) -> list[float]:
    *_, index, replacement = _sets({**level, "entries": 0})
    return [
        SIDES[level["side"]],
        level["size"],
        level["line"],
        level["ways"],
        index,
        replacement,
        level["cycles"],
    ]


# --- reading and checking --------------------------------------------------------------------------------


def known_machines() -> dict[str, Path]:
    """Files of the machines that come with the package, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def describe(machine: str | os.PathLike[str]) -> Description:
    """Read the description of a machine: one that comes with the package, by name, or any TOML file.

    Raises
    ------
    OSError
        If the file cannot be read.
    DescriptionError
        If it is no description: with the place, the value, and what would do.
    """
    known = known_machines()
    text = os.fspath(machine)
    if text in known:
        path = known[text]
    elif text.endswith(".toml"):
        path = Path(text)
    else:
        names = ", ".join(known)
        raise DescriptionError(f"machine={text!r} is neither a file that ends in .toml nor one of {names}")
    import tomllib  # seldom wanted

    try:
        content = tomllib.loads(path.read_bytes().decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DescriptionError(f"{path.name}: {error}") from error
    return parse(content, path.stem)


def parse(content: TomlTable, name: str) -> Description:
    """Check a description, and complete it."""
    known = {"", *TABLES} - {inner for inner in TABLES if "." in inner}
    own = {key: value for key, value in content.items() if key not in known}
    head = _checked(own, TABLES[""], name, "")
    tables: dict[str, Any] = {"": head}
    for table in sorted(known - {""}):
        if table in NEEDED and table not in content:
            raise DescriptionError(f"{name}: there is no [{table}], which every machine has")
        tables[table] = _table(content.get(table), table, name)
    for place, level in enumerate(tables["tlb"], 1):
        level["entries"] = _rows(level["entries"], "tlb.entries", ARRAYS, name, f"tlb {place}: ")
    tables["walk"]["upper"] = _rows(tables["walk"]["upper"], "walk.upper", LEVELS - 1, name, "walk: ")
    pages = tuple(head["pages"])
    if list(pages) != sorted(set(pages)):
        raise DescriptionError(f"{name}: pages={head['pages']} must begin with the base page and go up")
    return Description(name, head["about"], pages, tables)


def _table(given: Any, table: str, name: str) -> Any:
    """A list of tables, or the one table that there is; of noise, a list of one or none."""
    most = LISTED.get(table, 1)
    if table in ("drift", "steps"):
        return _rows([] if given is None else [given], table, 1, name, "")
    if table in LISTED:
        return _rows([] if given is None else given, table, most, name, "")
    return _checked({} if given is None else given, TABLES[table], name, table)


def _rows(given: Any, table: str, most: int, name: str, before: str) -> list[dict[str, Any]]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise DescriptionError(f"{name}: {before}{table} must be a list of tables: [[{table}]]")
    if len(given) > most:
        raise DescriptionError(f"{name}: {before}{table} has {len(given)} tables, at most {most} fit")
    return [_checked(row, TABLES[table], name, f"{before}{table} {k}") for k, row in enumerate(given, 1)]


def _checked(given: Any, keys: Mapping[str, Key], name: str, place: str) -> dict[str, Any]:
    where = f"{name}: {place}: " if place else f"{name}: "
    if not isinstance(given, Mapping):
        raise DescriptionError(f"{where}must be a table, not {given!r}")
    for key in given:
        if key not in keys:
            raise DescriptionError(f"{where}{key} is no key of it: these are: {', '.join(keys)}")
    found = {}
    for key, rule in keys.items():
        if key not in given and rule.default is REQUIRED:
            raise DescriptionError(f"{where}{key} is missing")
        found[key] = _value(given[key], rule, f"{where}{key}") if key in given else rule.default
    return found


def _value(value: Any, rule: Key, what: str) -> Any:
    kind = rule.kind
    if kind == "size":
        return _size(value, what)
    if kind == "sizes":
        if not isinstance(value, list) or not value:
            raise DescriptionError(f"{what}={value!r} must be a list of sizes, such as ['4KiB', '2MiB']")
        return [_size(one, what) for one in value]
    if isinstance(kind, tuple):
        if value not in kind:
            raise DescriptionError(f"{what}={value!r} must be one of {', '.join(kind)}")
        return value
    assert isinstance(kind, type)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise DescriptionError(f"{what}={value!r} must be {WORDS[kind]}")
    if isinstance(value, str) and not value.strip():
        raise DescriptionError(f"{what} is empty")
    return value


WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list of tables",
}


def _size(value: Any, what: str) -> int:
    try:
        return parse_size(value, what)
    except (ValueError, TypeError) as error:
        raise DescriptionError(str(error)) from error
