"""Declared fields: the type, unit, axes and range of each field of a result, said once, in its annotation.

By them a value is checked and frozen when it is made, written to a file, and read back. Numbers and arrays
carry a `Spec`, in ``Annotated``; texts, flags, choices and other declared classes need none. Where the type
that readers see says too little, `Keys` or the narrower type stands there instead.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

import numpy as np

from .units import Array

LARGEST_FLOAT = sys.float_info.max
Put = Callable[[str, Array], None]  # puts an array into a file, under a name
Get = Callable[[str], Array]  # gets it back


@dataclass(frozen=True)
class Spec:
    """What the type of a field does not say.

    Attributes
    ----------
    unit : str
        Of each number; empty for counts, shares and flags.
    axes : tuple of str
        Of an array, or the one of a list: what has the same name has the same length in one result.
    least, most : float
        Range of each number.
    gaps : bool
        Whether an array may hold NaN, for not known.
    some : bool
        Whether there is one value at least.
    place : str
        Where a file holds the arrays of each value, by its key: below the name of the field by default.
    """

    unit: str = ""
    axes: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    gaps: bool = False
    some: bool = False
    place: str = ""

    def check(self, number: float) -> None:
        """Raise a FieldError for a number out of range, or not finite."""
        if not (self.least <= number <= self.most and abs(number) <= LARGEST_FLOAT):
            limits = (("at least", self.least), ("at most", self.most))
            wanted = " and ".join(f"{word} {limit:g}" for word, limit in limits if math.isfinite(limit))
            raise must_be(wanted or "finite", number)

    def check_size(self, values: Any) -> None:
        """Raise a FieldError where there must be a value and is none."""
        if self.some and not len(values):
            raise FieldError("is empty")

    def within(self, name: str, key: object) -> str:
        """Where a file holds the arrays of one value of many."""
        return (self.place or name + "/{}").format(key)


class Keys:
    """What some keys of a mapping hold; `needed` are there in any case, which are all of them by default."""

    def __init__(self, needed: Iterable[str] | None = None, /, **known: Any) -> None:
        self.known, self.needed = known, set(known if needed is None else needed)

    def check(self, name: str, value: Any) -> None:
        """Raise a FieldError for the mapping of that name if it does not hold them."""
        change_each([(name, value)], lambda _, value: form_of(self).take(value))


Nanoseconds = Annotated[float, Spec("ns")]
Seconds = Annotated[float, Spec("s", least=0)]
Bytes = Annotated[int, Spec("B", least=0, most=1 << 64)]
Whole = Annotated[int, Spec(least=0, most=1 << 64)]
Share = Annotated[float, Spec(least=0, most=1)]
Number = Annotated[int | float, Spec()]


class FieldError(ValueError):
    """A value that a field cannot have, with the way to it."""

    def __init__(self, what: str, *where: str) -> None:
        super().__init__(" ".join((".".join(where), what)).strip())
        self.what, self.where = what, where


def must_be(wanted: str, value: object) -> FieldError:
    """The error that a value is something else."""
    return FieldError(f"is {value!r:.60}: must be {wanted}")


def change_each(pairs: Iterable[tuple[Any, Any]], change: Callable[..., Any], *within: str) -> dict[Any, Any]:
    """Change the value of each name; an error says of which one, and within what."""
    found = {}
    for name, value in pairs:
        try:
            found[name] = change(name, value)
        except FieldError as error:
            raise FieldError(error.what, *within, str(name), *error.where) from None
    return found


def below(prefix: str, put: Put) -> Put:
    """Put arrays under a prefix."""
    return lambda name, array: put(f"{prefix}/{name}", array)


def from_below(prefix: str, get: Get) -> Get:
    """Get arrays from under a prefix."""
    return lambda name: get(f"{prefix}/{name}")


# --- classes with declared fields ------------------------------------------------------------------------


class Declared:
    """A frozen dataclass that holds what its annotations declare, and nothing else."""

    def __post_init__(self) -> None:
        lengths: dict[str, int] = {}

        def take(name: str, form: Form) -> Any:
            value = form.take(getattr(self, name))
            for axis, length in form.lengths(value):
                if lengths.setdefault(axis, length) != length:
                    raise FieldError(f"has {length} {axis}: must have {lengths[axis]}")
            return value

        for name, value in change_each(declared_fields(type(self)).items(), take).items():
            object.__setattr__(self, name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What is unpickled or copied is frozen again."""
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the fields that are arrays."""
        return tuple(name for name, form in declared_fields(type(self)).items() if form.beside)

    def to_parts(self, put: Put) -> dict[str, Any]:
        """Plain values; each array goes to `put`."""
        forms = declared_fields(type(self))
        written = {name: form.write(getattr(self, name), name, put) for name, form in forms.items()}
        return {name: value for name, value in written.items() if not forms[name].beside}

    @classmethod
    def from_parts(cls, parts: Any, get: Get) -> Self:
        """Read back what `to_parts` wrote; a later field, which an older file lacks, has its default."""
        if not isinstance(parts, dict):
            raise must_be("a record", parts)

        def take(name: str, form: Form) -> Any:
            if name not in parts and not form.beside:
                raise FieldError("is missing")
            return form.take(parts.get(name), name, get)

        wanted = {name: form for name, form in declared_fields(cls).items() if form.needed or name in parts}
        return cls(**change_each(wanted.items(), take))

    def plain(self, *names: str) -> dict[str, Any]:
        """Plain values of some fields, or of all; arrays are left out."""
        parts = self.to_parts(lambda name, array: None)
        return {name: parts[name] for name in names or parts}

    @classmethod
    def from_plain(cls, parts: Any) -> Self:
        """Read back plain values of all fields, none of which is an array."""
        return cls.from_parts(parts, dict[str, Array]().__getitem__)


# --- forms of values -------------------------------------------------------------------------------------


class Form:
    """How values of one annotation are held and written.

    Of this very class: plain values, or a mapping of such, as they are. Facts of a machine are the same
    object in many results, so that nobody looks at all of them again and again.
    """

    beside = False  # whether it is an array, which lies beside the header of a file
    needed = True  # whether every file has it, since there is no default

    def __init__(self, hint: Any, spec: Spec | None) -> None:
        self.origin, self.arguments, self.spec = get_origin(hint), get_args(hint) or (hint,), spec or Spec()

    def take(self, value: Any, name: str = "", get: Get | None = None) -> Any:
        """The value as it is held, from what a caller gave, or from a file with `get`; else a FieldError."""
        if self.origin is dict and not isinstance(value, dict):
            raise must_be("a mapping", value)
        return value

    def write(self, value: Any, name: str, put: Put) -> Any:
        """What the header of a file says; arrays go to `put`."""
        return value

    def lengths(self, value: Any) -> Iterable[tuple[str, int]]:
        """Its axes, and how long they are."""
        return zip(self.spec.axes, np.shape(value), strict=True) if self.spec.axes else ()


def _without_numpy(value: Any) -> Any:
    """Scalars of NumPy become Python's, since JSON knows no others; what holds none stays the same object."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, dict | list | tuple):
        return value
    before = list(value.values()) if isinstance(value, dict) else value
    after = list(map(_without_numpy, before))
    if all(map(operator.is_, after, before)):
        return value
    return dict(zip(value, after, strict=True)) if isinstance(value, dict) else type(value)(after)


SCALARS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class _ScalarForm(Form):
    """A text, a flag, or a number; where any number may be, a whole one may."""

    def take(self, value: Any, name: str = "", get: Get | None = None) -> Any:
        value = value.item() if isinstance(value, np.generic) else value
        kind = type(value)
        if kind not in self.arguments and not (kind is int and float in self.arguments):
            raise must_be(" or ".join(SCALARS[kind] for kind in self.arguments), value)
        if kind is not str:
            self.spec.check(value)
        return value


class _ChoiceForm(Form):
    """One of some texts."""

    def take(self, value: Any, name: str = "", get: Get | None = None) -> Any:
        if value not in self.arguments:
            raise must_be(f"one of {', '.join(self.arguments)}", value)
        return value


class _UnionForm(Form):
    """A value or None, or one of several forms, which are of plain values then; scalars are one form."""

    def __init__(self, hint: Any, spec: Spec | None) -> None:
        super().__init__(hint, spec)
        kinds = [one for one in self.arguments if one is not NoneType]
        scalars = spec and set(kinds) <= set(SCALARS)
        self.forms = [_ScalarForm(hint, spec)] if scalars else [form_of(kind, spec) for kind in kinds]

    def take(self, value: Any, name: str = "", get: Get | None = None) -> Any:
        if value is None and NoneType in self.arguments:
            return None
        for form in self.forms[:-1]:
            with suppress(FieldError):
                return form.take(value)
        return self.forms[-1].take(value, name, get)

    def write(self, value: Any, name: str, put: Put) -> Any:
        return value if value is None or len(self.forms) > 1 else self.forms[0].write(value, name, put)


class _ArrayForm(Form):
    """An array, of which a read-only copy is held."""

    beside = True

    def __init__(self, hint: Any, spec: Spec | None) -> None:
        super().__init__(hint, spec)
        self.dtype: np.dtype[Any] = np.dtype(get_args(self.arguments[1])[0])

    def take(self, value: Any, name: str = "", get: Get | None = None) -> Any:
        array = np.array(self._read(name, get) if get else value, self.dtype)
        array.flags.writeable = False
        axes = self.spec.axes
        if array.ndim != len(axes):
            raise FieldError(f"has {array.ndim} axes: must have {len(axes)}, {' and '.join(axes)}")
        self.spec.check_size(array)
        known = array[~np.isnan(array)] if self.spec.gaps else array
        for extreme in (known.min().item(), known.max().item()) if known.size else ():
            self.spec.check(extreme)
        return array

    def _read(self, name: str, get: Get) -> Array:
        try:
            array = get(name)
        except KeyError:
            raise FieldError("is missing") from None
        if not np.can_cast(array.dtype, self.dtype, "safe"):
            raise FieldError(f"is of {array.dtype}: must be of {self.dtype}")
        return array

    def write(self, value: Any, name: str, put: Put) -> Any:
        put(name, value)


class _ObjectForm(Form):
    """An object of a declared class; its arrays are below its name."""

    def take(self, value: Any, name: str = "", get: Get | None = None) -> Any:
        (cls,) = self.arguments
        if get:
            return cls.from_parts(value, from_below(name, get))
        if not isinstance(value, cls):
            raise FieldError(f"is of type {type(value).__name__}: must be of {cls.__name__}")
        return value

    def write(self, value: Any, name: str, put: Put) -> Any:
        return value.to_parts(below(name, put))


class _SeriesForm(Form):
    """A list or tuple of values of one form; ``tuple[int, int]`` is of two."""

    def __init__(self, hint: Any, spec: Spec | None) -> None:
        super().__init__(hint, spec)
        self.form = form_of(self.arguments[0])
        self.any_length = self.origin is list or self.arguments[-1] is Ellipsis

    def take(self, value: Any, name: str = "", get: Get | None = None) -> Any:
        if not isinstance(value, list | tuple):
            raise must_be("a list", value)
        if not self.any_length and len(value) != len(self.arguments):
            raise must_be(f"a list of {len(self.arguments)}", value)
        self.spec.check_size(value)

        def take(at: int, one: Any) -> Any:
            return self.form.take(one, self.spec.within(name, at), get)

        return self.origin(change_each(enumerate(value), take).values())

    def write(self, value: Any, name: str, put: Put) -> Any:
        return [self.form.write(one, self.spec.within(name, at), put) for at, one in enumerate(value)]


class _KeysForm(Form):
    """Plain values by keys of which some are known; others may be there too."""

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys, None)
        self.forms = {name: form_of(hint) for name, hint in keys.known.items()}
        self.keys = keys.needed

    def take(self, value: Any, name: str = "", get: Get | None = None) -> Any:
        if not isinstance(value, dict):
            raise must_be("a mapping", value)

        def take(key: str, form: Form) -> Any:
            if key not in value:
                raise FieldError("is missing")
            return form.take(value[key])

        there = {key: form for key, form in self.forms.items() if key in value or key in self.keys}
        known = change_each(there.items(), take)
        return _without_numpy(value | known if known else value)


class _MappingForm(Form):
    """Values of one form by their keys; of arrays, the header lists the keys."""

    def __init__(self, hint: Any, spec: Spec | None) -> None:
        super().__init__(hint, spec)
        self.key, self.form = map(form_of, self.arguments)

    def take(self, value: Any, name: str = "", get: Get | None = None) -> Any:
        if get and self.form.beside and isinstance(value, list):
            value = {str(key): None for key in value}
        if not isinstance(value, dict):
            raise must_be("a mapping", value)
        self.spec.check_size(value)

        def take(key: Any, one: Any) -> tuple[Any, Any]:
            return self._key(key), self.form.take(one, self.spec.within(name, key), get)

        return dict(change_each(value.items(), take).values())

    def _key(self, key: Any) -> Any:
        """Whole numbers are texts in JSON."""
        whole = int in self.key.arguments and isinstance(key, str) and re.fullmatch("[0-9]{1,20}", key)
        return self.key.take(int(key) if whole else key)

    def write(self, value: Any, name: str, put: Put) -> Any:
        written = {
            str(key): self.form.write(one, self.spec.within(name, key), put) for key, one in value.items()
        }
        return list(written) if self.form.beside else written

    def lengths(self, value: Any) -> Iterable[tuple[str, int]]:
        return (pair for one in value.values() for pair in self.form.lengths(one))


FORMS: dict[Any, type[Form]] = {np.ndarray: _ArrayForm, Literal: _ChoiceForm, dict: _MappingForm}
FORMS |= dict.fromkeys((Union, UnionType), _UnionForm) | dict.fromkeys((tuple, list), _SeriesForm)


def form_of(hint: Any, spec: Spec | None = None) -> Form:
    """The form of an annotation; TypeError for a number or an array without a `Spec`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hasattr(origin, "__value__"):  # NumPy's types are aliases of arrays where Python can say that
        return form_of(origin.__value__[arguments], spec)
    if origin is Annotated:
        return form_of(*arguments) if isinstance(arguments[1], Spec) else form_of(arguments[1])
    if isinstance(hint, Keys):
        return _KeysForm(hint)
    if spec is None and (hint in (int, float) or origin is np.ndarray):
        raise TypeError(f"{hint} without a Spec: of which unit and axes?")
    if hint in (Any, dict[str, Any]):
        return Form(hint, spec)
    return FORMS.get(origin, _ScalarForm if hint in SCALARS else _ObjectForm)(hint, spec)


def _declared_fields(cls: type) -> dict[str, Form]:
    """Forms of all fields of a class, in their order."""
    hints = get_type_hints(cls, include_extras=True)
    forms = {one.name: form_of(hints[one.name]) for one in fields(cls)}
    for one in fields(cls):
        form = forms[one.name]
        form.needed = form.beside or one.default is one.default_factory is MISSING
    return forms


declared_fields: Callable[[type], dict[str, Form]] = functools.cache(_declared_fields)
