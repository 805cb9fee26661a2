"""Descriptions of simulated processors: TOML files, one a machine, checked, every figure with its source."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..units import parse_size, short_size

FOLDER = Path(__file__).parent / "machines"

SIDES = {"data": 1, "code": 2, "both": 3}
INDEXES = ("plain", "folded", "hashed")
REPLACEMENTS = ("lru", "plru", "random")
# How many of each the model has room for: as in csrc/simulated/model.h.
TLBS, ARRAYS, PAGES, CACHES, LEVELS, BURSTS, NEIGHBOURS = 8, 4, 8, 8, 5, 4, 8
BASE_PAGES = tuple(1 << shift for shift in range(12, 17))
LARGEST_FILE = 1 << 20  # of a file; those that come with the package have some 4 KiB

TomlTable = Mapping[str, Any]
REQUIRED = object()


@dataclass(frozen=True)
class Key:
    """One key of a table: its kind, what it is if it is left out, and the numbers that it may be."""

    kind: type | tuple[str, ...] | str  # a type, the words there are, or "size" or "sizes"
    default: Any = REQUIRED
    least: float = -math.inf
    most: float = math.inf


def _cycles(default: Any = REQUIRED, least: float = 0) -> Key:
    return Key(float, default, least, 1e6)


# What each table may say, and no more. All but the first have a source. Limits as in csrc/simulated/config.c.
SHORTEST = 1 / 1024  # cycles: the model counts in these
SOURCE = {"source": Key(str)}
ORGANISATION = {
    "ways": Key(int, 0, 0, 1 << 26),
    "index": Key(INDEXES, "plain"),
    "replacement": Key(REPLACEMENTS, "lru"),
}
SETS = {"entries": Key(int, REQUIRED, 1, 1 << 26), **ORGANISATION}
TABLES: dict[str, dict[str, Key]] = {
    "": {
        "about": Key(str),
        "ghz": Key(float, REQUIRED, 0.01, 100),
        "pages": Key("sizes"),
        "family": Key(str, ""),
    },
    "tlb": {"side": Key(tuple(SIDES)), "cycles": _cycles(0.0), "entries": Key(list), **SOURCE},
    "tlb.entries": {"pages": Key("sizes"), **SETS},
    "cache": {
        "side": Key(tuple(SIDES)),
        "size": Key("size"),
        "line": Key(int, 64, 16, 4096),
        **ORGANISATION,
        "cycles": _cycles(),
        **SOURCE,
    },
    "memory": {"cycles": _cycles(), **SOURCE},
    "walk": {
        "levels": Key(int, 4, 3, LEVELS),
        "walkers": Key(int, 1, 1, 64),
        "cycles": _cycles(0.0),
        "cache": Key(int, 1, 1, CACHES),
        "upper": Key(list, ()),
        **SOURCE,
    },
    "walk.upper": SETS,
    "overlap": {
        "window": Key(int, REQUIRED, 1, 4096),
        "misses": Key(int, REQUIRED, 1, 256),
        "stores": Key(int, REQUIRED, 1, 4096),
        "cycles": _cycles(least=SHORTEST),
        "ahead": Key(int, 1, 1, 4096),
        "jump_cycles": _cycles(1.0, SHORTEST),
        **SOURCE,
    },
    "clock": {"read_ns": Key(float, 4.0, 0, 1e6), "step_ns": Key(float, 1.0, 1, 1e6)},
    "frames": {"contiguous": Key(bool, False), "smallest": Key("size", 0)},
    "burst": {
        "rate": Key(float, REQUIRED, 0, 1e6),
        "least_ms": Key(float, REQUIRED, 1e-3, 1e6),
        "most_ms": Key(float, REQUIRED, 1e-3, 1e6),
        "factor": Key(float, 1.0, 1, 1e6),
        "added_ns": Key(float, 0.0, 0, 1e6),
        "stolen": Key(float, 0.0, 0, 0.999),
    },
    "drift": {"amplitude": Key(float, REQUIRED, 0, 1e3), "memory_ms": Key(float, REQUIRED, 1e-2, 1e6)},
    "steps": {"every_ms": Key(float, REQUIRED, 1e-2, 1e6), "factor": Key(float, REQUIRED, 1e-3, 1)},
    "neighbour": {
        "cycles": Key(float, REQUIRED, 1, 1e15),
        "of": Key(("tlb", "cache")),
        "level": Key(int, REQUIRED, 1, max(TLBS, CACHES)),
    },
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
    neighbours = ([one["cycles"], one["of"] == "cache", one["level"] - 1] for one in tables["neighbour"])
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
        path = Path(text).expanduser()
        if not path.is_file():
            names = ", ".join(known)
            raise DescriptionError(f"machine={text!r} is no file; by name, without .toml, there are {names}")
        if path.stem in known and not path.samefile(known[path.stem]):
            raise DescriptionError(
                f"machine={text!r}: a machine of that name comes with the package: name the file otherwise"
            )
    else:
        names = ", ".join(known)
        raise DescriptionError(f"machine={text!r} is neither a file that ends in .toml nor one of {names}")
    return parse(_read(path), path.stem)


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise DescriptionError(
            f"{path.name}: is larger than {LARGEST_FILE >> 20} MiB, so it is no description"
        )
    import tomllib  # seldom wanted

    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of numbers with thousands of digits
        raise DescriptionError(f"{path.name}: is no TOML file: {error}") from error


def parse(content: TomlTable, name: str) -> Description:
    """Check a description, and complete it."""
    known = {"", *TABLES} - {inner for inner in TABLES if "." in inner}
    own = {key: value for key, value in content.items() if key not in known}
    for key, value in own.items():
        if isinstance(value, list | Mapping) and key not in TABLES[""]:
            raise DescriptionError(
                f"{name}: there is no table {key}: these are: {', '.join(sorted(known - {''}))}"
            )
    head = _checked(own, TABLES[""], name, "")
    tables: dict[str, Any] = {"": head}
    for table in sorted(known - {""}):
        if table in NEEDED and table not in content:
            header = f"[[{table}]]" if table in LISTED else f"[{table}]"
            raise DescriptionError(f"{name}: there is no {header}, which every machine has")
        tables[table] = _table(content.get(table), table, name)
    for place, level in enumerate(tables["tlb"], 1):
        level["entries"] = _rows(level["entries"], "tlb.entries", ARRAYS, name, f"tlb {place}: ")
    tables["walk"]["upper"] = _rows(tables["walk"]["upper"], "walk.upper", LEVELS - 1, name, "walk: ")
    _check(tables, name)
    return Description(name, head["about"], tuple(head["pages"]), tables)


def _table(given: Any, table: str, name: str) -> Any:
    """A list of tables, or the one table that there is; of noise, a list of one or none."""
    most = LISTED.get(table, 1)
    if table in ("drift", "steps"):
        return _rows([] if given is None else [given], table, 1, name, "")
    if table in LISTED:
        return _rows([] if given is None else given, table, most, name, "")
    return _checked({} if given is None else given, TABLES[table], name, table)


def _rows(given: Any, table: str, most: int, name: str, before: str) -> list[dict[str, Any]]:
    key = table.rpartition(".")[2]
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise DescriptionError(f"{name}: {before}{key}={given!r} must be a list of tables")
    if len(given) > most:
        raise DescriptionError(f"{name}: {before}{key} has {len(given)} tables, at most {most} fit")
    return [_checked(row, TABLES[table], name, f"{before}{key} {k}") for k, row in enumerate(given, 1)]


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
    if kind in (int, float):
        return _number(value, rule, what)
    if not isinstance(value, kind):
        raise DescriptionError(f"{what}={value!r} must be {KIND_WORDS[kind]}")
    if isinstance(value, str) and not value.strip():
        raise DescriptionError(f"{what} is empty")
    return value


def _number(value: Any, rule: Key, what: str) -> int | float:
    kinds = (int, float) if rule.kind is float else (int,)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise DescriptionError(f"{what}={value!r} must be {KIND_WORDS[rule.kind]}")
    if not rule.least <= value <= rule.most:  # not so of a NaN
        raise DescriptionError(f"{what}={value!r} must be {rule.least:.9g} to {rule.most:.9g}")
    return float(value) if rule.kind is float else value


KIND_WORDS: dict[Any, str] = {
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


# --- what only several keys together can be wrong in ------------------------------------------------------


def _check(tables: TomlTable, name: str) -> None:
    pages: list[int] = tables[""]["pages"]
    _check_pages(pages, f"{name}: ")
    for place, level in enumerate(tables["tlb"], 1):
        _check_tlb(level, pages, f"{name}: tlb {place}: ")
    for place, cache in enumerate(tables["cache"], 1):
        _check_cache(cache, f"{name}: cache {place}: ")
    if not any(level["side"] != "code" for level in tables["tlb"]):
        raise DescriptionError(f"{name}: tlb: one or more must have side='data' or 'both'")
    caches = sum(cache["side"] != "code" for cache in tables["cache"])
    if not caches:
        raise DescriptionError(f"{name}: cache: one or more must have side='data' or 'both'")
    _check_walk(tables["walk"], caches, f"{name}: walk: ")
    smallest = tables["frames"]["smallest"]
    if smallest and smallest not in pages:
        raise DescriptionError(f"{name}: frames: smallest={short_size(smallest)} {_one_of(pages)}")
    _check_noise(tables, name)


def _check_pages(pages: list[int], where: str) -> None:
    shown = f"{where}pages={[short_size(page) for page in pages]}"
    if pages != sorted(set(pages)):
        raise DescriptionError(f"{shown} must begin with the base page and go up")
    if not all(map(_is_power, pages)):
        raise DescriptionError(f"{shown} must be powers of two")
    if pages[0] not in BASE_PAGES:
        smallest, largest = short_size(BASE_PAGES[0]), short_size(BASE_PAGES[-1])
        raise DescriptionError(f"{shown} must begin with a base page of {smallest} to {largest}")
    if len(pages) > PAGES:
        raise DescriptionError(f"{shown}: at most {PAGES} fit")


def _check_tlb(level: TomlTable, pages: list[int], where: str) -> None:
    if not level["entries"]:
        raise DescriptionError(f"{where}entries is empty: a level has one table or more")
    seen: set[int] = set()
    for place, one in enumerate(level["entries"], 1):
        within = f"{where}entries {place}: "
        _check_sets(one, one["entries"], within)
        if len(one["pages"]) > PAGES:
            raise DescriptionError(f"{within}pages: at most {PAGES} fit")
        for page in one["pages"]:
            _check_held(page, pages, within)
            if page in seen:
                raise DescriptionError(f"{within}pages: {short_size(page)} is twice in this level")
            seen.add(page)


def _check_held(page: int, pages: list[int], where: str) -> None:
    """Entries are of pages that there are, or of parts of the larger ones of them."""
    if page not in pages and not (_is_power(page) and pages[0] < page < pages[-1]):
        raise DescriptionError(f"{where}pages: {short_size(page)} {_one_of(pages)}")


def _check_cache(cache: TomlTable, where: str) -> None:
    line, size = cache["line"], cache["size"]
    if not _is_power(line):
        raise DescriptionError(f"{where}line={line} must be a power of two")
    if size % line:
        raise DescriptionError(f"{where}size={short_size(size)} must be a multiple of line={line}")
    if size // line > 1 << 26:
        raise DescriptionError(f"{where}size={short_size(size)} must be {short_size(line << 26)} at most")
    _check_sets(cache, size // line, where)


def _check_sets(sets: TomlTable, entries: int, where: str) -> None:
    ways = sets["ways"] or entries
    if entries % ways:
        raise DescriptionError(f"{where}ways={ways} must divide the {entries} entries")
    if sets["index"] != "plain" and not _is_power(entries // ways):
        raise DescriptionError(
            f"{where}index={sets['index']!r} needs a power of two of sets, not {entries} / {ways}"
        )
    if sets["replacement"] == "plru" and not _is_power(ways):
        raise DescriptionError(f"{where}replacement='plru' needs a power of two of ways, not {ways}")


def _check_walk(walk: TomlTable, caches: int, where: str) -> None:
    if walk["cache"] > caches:
        raise DescriptionError(f"{where}cache={walk['cache']} must be one of the {caches} caches for data")
    if len(walk["upper"]) >= walk["levels"]:
        raise DescriptionError(f"{where}upper has {len(walk['upper'])} tables for {walk['levels']} levels")
    for place, sets in enumerate(walk["upper"], 1):
        _check_sets(sets, sets["entries"], f"{where}upper {place}: ")


def _check_noise(tables: TomlTable, name: str) -> None:
    for place, burst in enumerate(tables["burst"], 1):
        if burst["most_ms"] < burst["least_ms"]:
            raise DescriptionError(f"{name}: burst {place}: most_ms={burst['most_ms']} is below least_ms")
    for place, taker in enumerate(tables["neighbour"], 1):
        levels = len(tables[taker["of"]])
        if taker["level"] > levels:
            raise DescriptionError(f"{name}: neighbour {place}: level={taker['level']} must be 1 to {levels}")


def _is_power(number: int) -> bool:
    return number > 0 and not number & (number - 1)


def _one_of(pages: list[int]) -> str:
    return f"is none of the machine's pages: {', '.join(map(short_size, pages))}"
