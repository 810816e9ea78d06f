"""Sizes as people write them, and as they are written for people."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pinferry.errors import InvalidArgument, InvalidSize
from pinferry.pool import format_bytes, parse_size

POWERS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
MOST = 2**47


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("8GiB", 8 * 2**30),
        ("1.5 GB", 1_500_000_000),
        ("1.5GiB", 3 * 2**29),
        ("  64 MiB  ", 64 * 2**20),
        ("1gib", 2**30),
        ("0.1 TB", 10**11),
        ("0.001 kB", 1),
        ("128TiB", MOST),
        (MOST, MOST),
        (0, 0),
        (np.int64(4096), 4096),
        (np.uint8(7), 7),
        (torch.tensor(4096), 4096),
    ],
)
def test_a_size_is_read_as_written(text: int | str, nbytes: int) -> None:
    parsed = parse_size(text)
    assert parsed == nbytes
    assert type(parsed) is int


@given(st.integers(0, 127), st.sampled_from(sorted(POWERS)))
def test_a_whole_number_of_any_unit_is_exact(count: int, unit: str) -> None:
    assert parse_size(f"{count}{unit}") == count * POWERS[unit]
    assert parse_size(f"{count} {unit.upper()}") == count * POWERS[unit]


@given(st.integers(0, MOST))
def test_a_plain_number_is_its_own_size_as_int_and_as_text(nbytes: int) -> None:
    assert parse_size(nbytes) == parse_size(str(nbytes)) == nbytes


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        " ",
        "GiB",
        "-1",
        "-1GiB",
        "+1",
        "nan",
        "NaN GB",
        "inf",
        "1e3",
        "1,5 GB",
        "1..5 GB",
        ".5 GB",
        "0x10",
        "1_000",
        "1 k",
        "1 XiB",
        "1 gigabyte",
        "1 GB 1",
        "1G B",
        "½ GB",
        "129TiB",
        "99999999999999999999 TB",
        "9" * 400 + " TiB",
        -1,
        -(2**63),
        MOST + 1,
        2**64,
        10**400,
        1.0,
        1.5,
        float("nan"),
        float("inf"),
        True,
        False,
        None,
        b"1GiB",
        [1],
        np.float64(1.0),
        np.True_,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_nonsense_is_refused_with_the_library_s_own_error(nonsense: object) -> None:
    with pytest.raises(InvalidSize) as caught:
        parse_size(nonsense)  # type: ignore[arg-type]
    assert isinstance(caught.value, (InvalidArgument, ValueError))


@pytest.mark.parametrize(
    "nonsense",
    ["9" * 5000, "9" * 5000 + "GiB", "9" * 400 + ".5 GB", 10**5000, -(10**5000)],
    ids=["digits", "digits with a unit", "a fraction beyond float", "int", "negative int"],
)
def test_a_number_too_long_to_print_is_refused_like_any_other(nonsense: int | str) -> None:
    with pytest.raises(InvalidSize):
        parse_size(nonsense)


@pytest.mark.parametrize(
    "nonsense",
    [torch.tensor(1.5), torch.tensor([1, 2]), np.array([1, 2]), torch.tensor(True)],
    ids=["float tensor", "two elements", "two numpy elements", "bool tensor"],
)
def test_a_tensor_that_is_no_whole_number_is_refused(nonsense: object) -> None:
    with pytest.raises(InvalidSize):
        parse_size(nonsense)  # type: ignore[arg-type]


def test_a_refusal_of_a_number_carries_it() -> None:
    with pytest.raises(InvalidSize, match="negative") as caught:
        parse_size(-5)
    assert caught.value.requested == -5
    with pytest.raises(InvalidSize, match="unit") as caught:
        parse_size("200TiB")
    assert caught.value.requested == 200 * 2**40


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (-12, "-12 bytes"),
        (1024, "1.00 KiB"),
        (-(3 * 2**29), "-1.50 GiB"),
        (3 * 2**29, "1.50 GiB"),
        (2**40, "1.00 TiB"),
        (2**50, "1.00 PiB"),
        (2**63, "8192.00 PiB"),
    ],
)
def test_bytes_are_written_for_people(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@given(st.integers(2**10, 2**46))
def test_what_was_written_for_people_reads_back_within_half_a_percent(nbytes: int) -> None:
    assert parse_size(format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.005)


@given(st.integers(0, 2**50))
@example(2**20 - 1)
@example(2**40 - 1)
def test_the_number_written_stays_below_the_next_unit(nbytes: int) -> None:
    match = re.fullmatch(r"(\d+(?:\.\d\d)?) (bytes|[KMGTP]iB)", format_bytes(nbytes))
    assert match is not None
    assert float(match[1]) < 1024


@given(st.integers(0, 1023))
def test_a_few_bytes_written_for_people_read_back_exactly(nbytes: int) -> None:
    assert parse_size(format_bytes(nbytes)) == nbytes
