"""Declared fields: said once, and by them checked, frozen, copied, written and read."""

import copy
import dataclasses
import pickle
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from tlbprobe.declared import (
    Bytes,
    Declared,
    FieldError,
    Keys,
    Number,
    Share,
    Spec,
    Whole,
    declared_fields,
    form_of,
)
from tlbprobe.results.result import RESULTS
from tlbprobe.units import Floats


@dataclass(frozen=True)
class Inner(Declared):
    name: str
    share: Share = 0.5


@dataclass(frozen=True)
class Outer(Declared):
    size: Bytes
    kind: Literal["a", "b"]
    times: Annotated[Floats, Spec("ns", ("times",), least=0)]
    missing: Annotated[Floats, Spec("ns", ("times",), gaps=True)]
    inner: Inner
    several: tuple[Inner, ...] = ()
    by_size: dict[Bytes, Share] = field(default_factory=dict)
    curves: dict[str, Annotated[Floats, Spec("ns", ("times",))]] = field(default_factory=dict)
    limits: tuple[Whole, Whole] | None = None
    counts: dict[str, Number | dict[str, Number]] = field(default_factory=dict)
    told: dict[str, tuple[Whole, Whole] | str] = field(default_factory=dict)
    params: Annotated[dict[str, Any], Keys(("seed",), seed=Whole, cpu=Whole | None)] = field(
        default_factory=lambda: {"seed": 0}
    )


def make(**changes):
    plain = {"size": 4096, "kind": "a", "times": [1, 2.5], "missing": [1, np.nan], "inner": Inner("x")}
    return Outer(**{**plain, **changes})


FULL = {
    "several": [Inner("y"), Inner("z", 1)],
    "by_size": {4096: 0.25, 2097152: 0.75},
    "curves": {"a": [1, 2], "b/c d": [3, 4]},
    "limits": [1, 2],
    "counts": {"hits": 3, "bytes": {"before": 1, "after": 2.5}},
    "told": {"range": [1, 2], "reason": "none"},
    "params": {"seed": np.uint64(7), "cpu": None, "more": [np.float32(0.5)]},
}


def test_what_is_held_is_plain_and_frozen():
    given = np.array([1.0, 2.0])
    made = make(times=given, size=np.int64(8192), **FULL)
    given[:] = 9
    assert made.times.tolist() == [1.0, 2.0]
    assert not made.times.flags.writeable
    assert not made.curves["a"].flags.writeable
    assert type(made.size) is int
    assert made.several == (Inner("y"), Inner("z", 1))
    assert made.limits == (1, 2)
    assert made.params == {"seed": 7, "cpu": None, "more": [0.5]}
    assert type(made.params["more"][0]) is float


def test_it_is_read_as_it_was_written():
    made, arrays = make(**FULL), {}
    parts = made.to_parts(arrays.__setitem__)
    assert sorted(arrays) == ["curves/a", "curves/b/c d", "missing", "times"]
    assert parts["by_size"] == {"4096": 0.25, "2097152": 0.75}
    assert parts["curves"] == ["a", "b/c d"]
    found = Outer.from_parts(parts, arrays.__getitem__)
    for name in declared_fields(Outer):
        np.testing.assert_equal(getattr(found, name), getattr(made, name))
    assert Inner.from_plain({"name": "x", "later": 1}) == Inner("x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": -1}, r"size is -1: must be at least 0 and at most 1\.84467e\+19"),
        ({"size": True}, "size is True: must be a whole number"),
        ({"size": 1.0}, r"size is 1\.0: must be a whole number"),
        ({"kind": "c"}, "kind is 'c': must be one of a, b"),
        ({"times": [[1.0, 2.0]]}, "times has 2 axes: must have 1, times"),
        ({"times": [1.0, -2.0]}, r"times is -2\.0: must be at least 0"),
        ({"times": [1.0, np.nan]}, "times is nan: must be at least 0"),
        ({"missing": [1.0, np.inf]}, "missing is inf: must be finite"),
        ({"missing": [1.0]}, "missing has 1 times: must have 2"),
        ({"curves": {"a": [1.0, 2.0, 3.0]}}, "curves has 3 times: must have 2"),
        ({"inner": "x"}, "inner is of type str: must be of Inner"),
        ({"several": [Inner("x"), None]}, r"several\.1 is of type NoneType: must be of Inner"),
        ({"by_size": {4096: 1.5}}, r"by_size\.4096 is 1\.5: must be at least 0 and at most 1"),
        ({"by_size": {"x": 0.5}}, r"by_size\.x is 'x': must be a whole number"),
        ({"limits": [1, 2, 3]}, "limits is .*: must be a list of 2"),
        ({"told": {"a": [1, 2, 3]}}, r"told\.a is .*: must be text"),
        ({"params": {}}, r"params\.seed is missing"),
        ({"params": {"seed": 0, "cpu": "0"}}, r"params\.cpu is '0': must be a whole number"),
    ],
)
def test_what_a_field_cannot_hold_is_named(changes, message):
    with pytest.raises(FieldError, match=f"^{message}$"):
        make(**changes)


def test_a_number_or_an_array_without_a_unit_is_no_declaration():
    for hint in (int, float, Floats, dict[str, float], tuple[int, ...], float | None):
        with pytest.raises(TypeError, match="without a Spec"):
            form_of(hint)


# --- the results -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RESULTS)
def test_every_field_of_a_result_is_declared_and_documented(kind):
    cls = RESULTS[kind]
    documented = " ".join(base.__doc__ or "" for base in cls.__mro__)
    for name in declared_fields(cls):
        assert re.search(rf"^ {{4}}(\w+, )*{name}(, \w+)* : ", documented, re.MULTILINE), name


def arrays_in(value):
    """Every array in a result."""
    if isinstance(value, np.ndarray):
        yield value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    inside = vars(value).values() if dataclasses.is_dataclass(value) else inside
    for one in inside:
        yield from arrays_in(one)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize("kind", RESULTS)
def test_copies_are_as_frozen_as_the_original(examples, kind, copied):
    made = copied(examples[kind])
    assert str(made) == str(examples[kind])
    assert not any(array.flags.writeable for array in arrays_in(made))
