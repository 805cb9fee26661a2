"""Options from what a function says of itself: its signature, its docstring, its record."""

from __future__ import annotations

import argparse
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ...record import COMMAND_HELPS, SHARED_HELPS, count_parameters, size_parameters
from ...sweeps.axes import counts, sizes

MOST_VALUES = 1000  # of a range: each is measured
LONG_CHOICES = 40  # characters of choices that no line of help has the room for


NO_YES = {False: "no", True: "yes"}


def add_command(commands: Any, name: str, run: Callable[[Any], int], about: str) -> argparse.ArgumentParser:
    """Add a command of a name: what runs it, and what it is about."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.set_defaults(run=run)
    return parser


def about(function: Callable[..., Any]) -> str:
    """First line of a docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def add_parameters(
    parser: argparse.ArgumentParser,
    function: Callable[..., Any],
    names: Sequence[str],
    more: Mapping[str, str] | None = None,
    *,
    several: bool = False,
) -> None:
    """Add an option for each of some parameters of a function, by its name, type, default and docstring.

    What `more` says of one goes before the docstring. None is explained in the words of another function, but
    for those that mean the same everywhere.
    """
    parameters = inspect.signature(function).parameters
    kinds = typing.get_type_hints(function)
    helps = {**SHARED_HELPS, **_parameter_helps(function), **COMMAND_HELPS, **(more or {})}
    for name in names:
        if name not in helps:
            raise LookupError(f"{function.__name__}: its docstring says nothing of its parameter {name}")
        default = parameters[name].default
        shown = "" if default in (None, ()) else f" (default: {_default(default)})"
        if default is inspect.Parameter.empty:
            parser.add_argument(name, metavar=name.upper(), help=helps[name])
        else:
            option = "--" + name.replace("_", "-")
            reading = _reading(kinds[name], several)
            if name in count_parameters():
                reading["metavar"] = "COUNT"
            parser.add_argument(option, default=default, help=helps[name] + shown, **reading)


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return NO_YES[value] if isinstance(value, bool) else str(value)


def _reading(kind: Any, several: bool) -> dict[str, Any]:
    """How argparse reads a parameter of a type, or several values of it."""
    parts = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    first = parts[0]
    if first is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(first) is Sequence:
        return {"type": names_in, "metavar": "NAME,..."}
    if typing.get_origin(first) is Literal:
        choices = typing.get_args(first)
        shown = "{" + ",".join(choices) + "}"
        return {
            "type": _several(_choice_of(choices)),
            "metavar": shown if len(shown) < LONG_CHOICES else "NAME",
        }
    if str in parts:  # sizes and counts are int or str
        return {"metavar": "SIZE" if int in parts else "NAME"}
    return {"type": _several(first) if several else first, "metavar": "N" if first is int else "X"}


def _several(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Read one value, or a list of those that have commas between them."""

    def read_all(text: str) -> Any:
        if read is int and re.fullmatch(r"\d+:\d+", text):
            first, last = map(int, text.split(":"))
            if last - first >= MOST_VALUES:
                raise argparse.ArgumentTypeError(f"{text!r} is more than {MOST_VALUES} values")
            return list(range(first, last + 1))
        return [read(one.strip()) for one in text.split(",")] if "," in text else read(text)

    read_all.__name__ = read.__name__  # for the words of argparse
    return read_all


def _choice_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def choice(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return choice


# Commas between the slashes of cpu/event=0x08,umask=0x10/ belong to the name.
BETWEEN_NAMES = re.compile(r",(?=[^/]*(?:/[^/]*/[^/]*)*$)")


def names_in(text: str) -> tuple[str, ...]:
    """Names with commas between them, none of them empty."""
    names = tuple(name.strip() for name in BETWEEN_NAMES.split(text))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name: write names with commas between them")
    return names


def _parameter_helps(function: Callable[..., Any]) -> dict[str, str]:
    """First sentence of each parameter in a numpydoc docstring, but for those that refer to another one."""
    section = (inspect.getdoc(function) or "").partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^(\S[^:\n]*) ?:?[^\n]*\n((?: {4}[^\n]*\n?)+)", section + "\n", re.MULTILINE)
    helps: dict[str, str] = {}
    for names, text in entries:
        sentence = re.split(r"\.(?:\s|$)", " ".join(text.split()))[0].replace("`", "").replace("%", "%%")
        if not sentence.startswith("As for "):
            plain = sentence if sentence[1:2].isupper() else sentence[0].lower() + sentence[1:]
            helps |= dict.fromkeys(re.split(r",\s*", names.strip()), plain)
    return helps


def values_in(name: str, given: Any) -> Any:
    """A value, or a list of them where the text has commas or is a range."""
    if not isinstance(given, str) or name not in (*size_parameters(), *count_parameters(), "pages"):
        return given
    if ":" in given and name != "pages":
        return range_in(name, given)
    if "," not in given:
        return given
    values = [one.strip() for one in given.split(",")]
    if not all(values):
        raise ValueError(f"{name}={given!r} has an empty value: write values with commas between them")
    return values


def range_in(name: str, text: str) -> list[int]:
    """Read ``16KiB:1GiB:4`` or ``1K:1M``."""
    first, last, *per_octave = text.split(":")
    if len(per_octave) > 1 or (per_octave and not per_octave[0].isdecimal()):
        raise ValueError(f"{name}={text!r} must be FIRST:LAST or FIRST:LAST:N with N points an octave")
    spaced: Callable[..., list[int]] = counts if name in count_parameters() else sizes
    try:
        return spaced(first, last, *map(int, per_octave))
    except ValueError as error:
        raise ValueError(f"{name}={text!r}: {error}") from error
