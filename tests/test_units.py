"""Sizes and times: read exactly, or refused by name; written so that they can be read back."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlbprobe import units
from tlbprobe.units import (
    LARGEST,
    approximate_size,
    format_count,
    format_seconds,
    format_size,
    page_suffix,
    parse_count,
    parse_size,
)

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
sizes = st.integers(1, LARGEST)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        ("64K", 64 * KIB),
        ("64k", 64 * KIB),
        ("64KiB", 64 * KIB),
        (" 64 kib ", 64 * KIB),
        ("2M", 2 * MIB),
        ("2MiB", 2 * MIB),
        ("1.5GiB", 3 * GIB // 2),
        ("1T", TIB),
        ("77 B", 77),
        ("+7", 7),
        ("007", 7),
        ("0.0009765625K", 1),
        ("4194304T", LARGEST),
    ],
)
def test_sizes_mean_powers_of_1024(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["64kB", "64KB", "1 MB", "1.5GB", "2tb"])
def test_decimal_units_are_refused_with_what_to_write(text):
    with pytest.raises(ValueError, match=r"stride='.*' is ambiguous.*write [0-9.]+[KMGT]iB"):
        parse_size(text, "stride")


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "K", "iB", "64iB", "big", "1e9", "0x10", "1_000", "1,5K", "64 K iB", "64P", "--1", "nan"),
        *("64\u212a", "\u0663K", "1K\u0131B", "\u22125", "64K\0", "64K\n64K", "9" * 101),
        *(pytest.param("1" * 5000, id="long"), pytest.param("é" * 5000, id="letters")),
    ],
)
def test_what_is_no_size_is_refused_by_name(text):
    with pytest.raises(ValueError, match=r"^stride='.*is no size") as refused:
        parse_size(text, "stride")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "size",
    [
        0,
        -1,
        -(1 << 70),
        LARGEST + 1,
        1 << 64,
        pytest.param(10**5000, id="enormous"),
        "0",
        "-4K",
        "0.0K",
        "-0.5K",
        "4194305T",
        "9" * 99,
    ],
)
def test_sizes_out_of_range_are_refused_by_name(size):
    with pytest.raises(ValueError, match=r"^stride=.*out of range: from 1 byte to 4194304 TiB") as refused:
        parse_size(size, "stride")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("text", ["0.5", "1.1K", "0.0001G", "1." + "3" * 100 + "T"])
def test_fractions_of_a_byte_are_refused(text):
    with pytest.raises(ValueError, match=r"^size=.*not a whole number of bytes"):
        parse_size(text)


@pytest.mark.parametrize(
    "size", [None, True, False, np.True_, 4096.0, np.float64(4096), b"64K", [1], np.array([1, 2]), 1j, object]
)
def test_other_types_are_refused_by_name(size):
    with pytest.raises(TypeError, match=r"^stride=.*must be a whole number of bytes or a string"):
        parse_size(size, "stride")


@pytest.mark.parametrize("kind", [int, np.int32, np.uint64, np.array])
def test_any_integer_is_taken(kind):
    parsed = parse_size(kind(4096))
    assert parsed == 4096
    assert type(parsed) is int


@given(sizes)
def test_integers_and_their_texts_are_exact(size):
    assert parse_size(size) == parse_size(str(size)) == parse_size(f"{size}B") == size


@given(sizes)
def test_formatted_sizes_read_back(size):
    assert parse_size(format_size(size)) == size


@given(st.integers(1, 1 << 20), st.sampled_from("KMGT"), st.sampled_from(["", "iB"]))
def test_units_scale_exactly(number, prefix, suffix):
    assert parse_size(f"{number}{prefix}{suffix}") == number << units.POWERS[prefix]


@given(st.decimals(min_value=0, max_value=1000, places=10), st.sampled_from("KMGT"))
def test_fractions_are_exact_or_refused(number, prefix):
    exact = number * (1 << units.POWERS[prefix])
    if exact == int(exact) and exact >= 1:
        assert parse_size(f"{number:f}{prefix}") == exact
    else:
        with pytest.raises(ValueError, match="size="):
            parse_size(f"{number:f}{prefix}")


@given(st.text())
def test_any_text_is_a_size_or_a_value_error(text):
    try:
        assert 1 <= parse_size(text) <= LARGEST
    except ValueError as error:
        assert str(error).startswith("size=")  # noqa: PT017 - any text may also be right


@given(st.floats(1, 1e18))
def test_approximate_sizes_are_near_and_without_exponent(size):
    number, prefix = re.fullmatch(r"([0-9.]+) ([KMGT]?)(?:iB|B)", approximate_size(size)).groups()
    assert float(number) * (1 << units.POWERS[prefix]) == pytest.approx(size, rel=0.51)
    assert size < KIB or float(number) * (1 << units.POWERS[prefix]) == pytest.approx(size, rel=0.006)


@given(st.floats(1e-9, 1e7))
def test_seconds_are_near_and_without_exponent(seconds):
    number, unit = re.fullmatch(r"([0-9.]+) (s|ms|us|ns)", format_seconds(seconds)).groups()
    assert float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit] == pytest.approx(
        seconds, rel=0.006
    )


@pytest.mark.parametrize(("size", "text"), [(4096, "4K"), (1 << 16, "64K"), (1 << 21, "2M"), (1 << 30, "1G")])
def test_page_sizes_as_policies_write_them(size, text):
    assert page_suffix(size) == text
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "count"),
    [(1, 1), ("1", 1), ("200K", 200_000), ("400M", 400_000_000), (" 1.5 k ", 1500), ("0.25G", 250_000_000),
     ("2T", 2 * 10**12), (np.int32(7), 7), (1 << 62, 1 << 62)],
)  # fmt: skip
def test_counts_are_in_powers_of_1000(text, count):
    assert parse_count(text, "records") == count


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (0, ValueError, "records=0 is out of range: from 1 to 2**62"),
        ("-3", ValueError, "records='-3' is out of range"),
        ((1 << 62) + 1, ValueError, "out of range"),
        ("1e6", ValueError, "records='1e6' is no count"),
        ("5KiB", ValueError, "records='5KiB' is no count"),
        ("", ValueError, "records='' is no count"),
        ("1.5", ValueError, "records='1.5' is not a whole number of records"),
        ("1.0001K", ValueError, "not a whole number"),
        (1.0, TypeError, "records=1.0 must be a whole number"),
        (True, TypeError, "records=True"),
        (None, TypeError, "records=None"),
    ],
)
def test_wrong_counts_are_named(value, error, said):
    with pytest.raises(error, match=re.escape(said)):
        parse_count(value, "records", "records")


@given(st.integers(1, 1 << 62))
def test_a_formatted_count_is_exact_where_it_has_a_prefix(count):
    assert parse_count(format_count(count), "count") == count


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1"), (999, "999"), (1500, "1.5 K"), (1234, "1234"), (400_000_000, "400 M")]
)
def test_format_count(count, text):
    assert format_count(count) == text
