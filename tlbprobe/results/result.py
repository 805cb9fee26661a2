"""Results: frozen, with raw samples and everything that was true of them, saved and loaded.

A file is a NumPy ``.npz`` without pickle: arrays, and a JSON header of ``format``, ``version``, ``kind``.
Format version 1: first.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import re
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from ..declared import Declared
from ..markup import html_table
from ..units import Array
from .words import recorded_host

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMAT = "tlbprobe"
FORMAT_VERSION = 1

StrPath = str | os.PathLike[str]


@functools.cache
def package_version() -> str:
    """Version of the installed package; looked up when it is asked for, since that is slow."""
    from importlib.metadata import version

    return version("tlbprobe")


# --- what all results can do -----------------------------------------------------------------------------

RESULTS: dict[str, type[Result]] = {}


class Result(Declared, ABC):
    """What can be read, shown in a notebook, and saved; every class of results registers for `load`."""

    kind: ClassVar[str]
    # What only the whole package knows, which sets them: what draws, and where all other results are.
    pictures: ClassVar[Callable[[], Any]]
    import_others: ClassVar[Callable[[], object]]

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            RESULTS[cls.kind] = cls

    @property
    @abstractmethod
    def subject(self) -> str:
        """What was measured, in a few words."""

    @property
    def title(self) -> str:
        """What was measured, and where that was no real machine."""
        return f"{self.subject} (simulated: {self.simulated})" if self.simulated else self.subject

    @property
    def simulated(self) -> str:
        """Name of the simulated machine that it was measured on; empty of a real one."""
        host = recorded_host(getattr(self, "host", {}))
        return str(host.get("simulation.machine") or "") if host else ""

    @abstractmethod
    def rows(self) -> Iterator[tuple[str, str]]:
        """What a reader wants to know: names and texts."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Every figure as a plain value, without the raw slices; what is missing is ``None``."""

    @property
    def nothing(self) -> str:
        """What could not be had, where nothing was measured at all; empty if something was."""
        return ""

    @property
    def misused(self) -> bool:
        """Whether nothing was measured because it was asked for wrongly."""
        return False

    @property
    def drawable(self) -> bool:
        """Whether a picture shows anything."""
        return not self.nothing

    def save(self, path: StrPath) -> None:
        """Write it to a file that `load` reads; it holds no host name, user name or path."""
        arrays: dict[str, Array] = {}
        data = self.to_parts(arrays.__setitem__)
        header = {"format": FORMAT, "version": FORMAT_VERSION, "kind": self.kind, "data": data}
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, header=text, **arrays)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it on the given Axes, or on new ones; returns the Axes."""
        axes: Axes = type(self).pictures().picture(self, ax)
        return axes

    def figure(self) -> Figure:
        """Draw all that there is to see of it; returns the Figure."""
        figure: Figure = type(self).pictures().whole_picture(self)
        return figure

    def __str__(self) -> str:
        rows = list(self.rows())
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join((self.title, *(f"  {name:{width}}  {text}" for name, text in rows)))

    def __repr__(self) -> str:
        return f"<{self}>"

    def _repr_html_(self) -> str:
        return html_table(self.title, self.rows())


Saved = TypeVar("Saved", bound=Result)


# --- files -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _beside(path: StrPath) -> Iterator[tuple[Path, Path]]:
    """An output file, and an empty temporary one in its folder; errors name the path that was asked for."""
    target = Path(os.path.realpath(path))  # a link stays a link
    if target.is_dir() or os.fspath(path).endswith("/"):
        raise IsADirectoryError(errno.EISDIR, "it is a folder: name a file in it", os.fspath(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is a device or a pipe: name an ordinary file", os.fspath(path))
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "it is write-protected", os.fspath(path))
    temporary = target.with_name(f".tlbprobe-{os.urandom(8).hex()}{target.suffix}")
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    try:
        yield target, temporary
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: StrPath) -> None:
    """Raise the OSError that writing an output file would end with, before anything is measured for it."""
    with _beside(path):
        pass


@contextlib.contextmanager
def replacing(path: StrPath) -> Iterator[Path]:
    """Write a file beside its target and move it there when it is whole: nothing is lost half-way."""
    with _beside(path) as (target, temporary):
        yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)


class FileFormatError(ValueError):
    """A file that is not ours, is damaged, or was written by a newer version than this one."""


def load(path: StrPath) -> Any:
    """Read a result of any kind from a file.

    Parameters
    ----------
    path : path
        A file that a result's ``save`` wrote.

    Returns
    -------
    Result

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is not one of ours, is damaged, or was written by a newer version.
    """
    if not os.fspath(path):
        raise ValueError("path is empty: it must name a file that a result's save wrote")
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # which fails by itself, as it always does
        raise FileFormatError(f"{os.fspath(path)!r} is no regular file: results are saved in one")
    content = Path(path).read_bytes()
    try:
        return _decode(content)
    except FileFormatError as error:
        raise FileFormatError(f"{os.fspath(path)!r} {error}") from None
    except Exception as error:  # there is no end to what damage looks like
        message = f"{os.fspath(path)!r} is damaged, not a whole tlbprobe file: {error}"
        raise FileFormatError(message) from error


def load_as(path: StrPath, kind: type[Saved], name: str, what: str) -> Saved:
    """Read a result of one kind, as a parameter of that name wants it; a ValueError for any other."""
    found = load(path)
    if not isinstance(found, kind):
        raise ValueError(f"{name}={os.fspath(path)!r} holds no {what}, but a {found.kind}")
    return found


def _decode(content: bytes) -> Result:
    if not content.startswith(b"PK\3\4"):
        raise FileFormatError("is no tlbprobe file: those are what --out and .save() write")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        header = _header(arrays)
        if header["kind"] not in RESULTS:
            Result.import_others()
        if header["version"] > FORMAT_VERSION or header["kind"] not in RESULTS:
            raise FileFormatError(
                f"has format version {header['version']} and kind {header['kind']!r}; tlbprobe "
                f"{package_version()} reads up to version {FORMAT_VERSION} of {', '.join(sorted(RESULTS))}: "
                "a newer tlbprobe reads it"
            )
        return RESULTS[header["kind"]].from_parts(header["data"], arrays.__getitem__)


# Written as they are, or as JSON escapes them: they would reach the terminal of whoever prints the file.
CONTROLS = re.compile(r"[\x7f-\x9f]|(?<!\\)((?:\\\\)*)\\u00([01][0-9a-f]|7f|[89][0-9a-f])", re.IGNORECASE)


def _visible(control: re.Match[str]) -> str:
    """A control character as its number, in JSON."""
    return f"{control[1] or ''}\\\\x{control[2] or format(ord(control[0]), 'x')}"


def _header(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """The header, if the file says that it is ours."""
    text = arrays["header"].tobytes().decode() if "header" in arrays else "null"
    header = json.loads(CONTROLS.sub(_visible, text))
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FileFormatError("is no tlbprobe file, but another kind of archive")
    return header
