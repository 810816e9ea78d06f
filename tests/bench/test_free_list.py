"""The free list of the core, as Python sees it."""

from __future__ import annotations

import pytest

from pinferry import _native
from pinferry.errors import InvalidArgument, InvalidSize


def free_list(capacity: int = 8192, chunk: int = 4096) -> _native.FreeList:
    return _native.FreeList(capacity=capacity, chunk=chunk, alignment=512)


def test_all_is_free_at_first() -> None:
    made = free_list(8192 + 100)
    assert (made.capacity_bytes, made.free_bytes) == (8192, 8192)
    assert (made.largest_free_bytes, made.free_ranges) == (4096, 2)


def test_a_range_has_an_offset_and_the_rounded_size() -> None:
    made = free_list()
    assert made.allocate(513) == (0, 1024)
    assert made.free_bytes == 8192 - 1024


def test_what_fits_nowhere_is_none() -> None:
    made = free_list()
    assert made.allocate(4097) is None
    assert made.free_bytes == 8192


def test_the_largest_range_serves_what_fits_nowhere() -> None:
    made = free_list()
    assert made.allocate(512) == (0, 512)
    assert made.allocate_largest(5000) == (4096, 4096)
    assert made.allocate_largest(5000) == (512, 3584)
    assert made.allocate_largest(512) is None


def test_what_is_given_back_is_joined_with_its_neighbours() -> None:
    made = free_list(4096)
    ranges = [made.allocate(1024) for _ in range(4)]
    assert (made.free_bytes, made.free_ranges) == (0, 0)
    for taken in ranges:
        assert taken is not None
        made.release(*taken)
    assert (made.free_ranges, made.largest_free_bytes) == (1, 4096)


@pytest.mark.parametrize(
    ("offset", "size"), [(512, 512), (0, 1024), (8192, 512), (0, 2**63)], ids=str
)
def test_what_was_not_taken_cannot_be_given_back(offset: int, size: int) -> None:
    made = free_list()
    assert made.allocate(512) == (0, 512)
    with pytest.raises(InvalidArgument, match=f"{size} bytes at {offset} cannot be given back"):
        made.release(offset, size)
    assert made.free_bytes == 8192 - 512


@pytest.mark.parametrize(("chunk", "alignment"), [(0, 512), (4096, 0), (4096, 3), (1000, 512)])
def test_sizes_that_make_no_sense_are_refused(chunk: int, alignment: int) -> None:
    with pytest.raises(InvalidSize):
        _native.FreeList(capacity=8192, chunk=chunk, alignment=alignment)


def test_a_negative_size_is_no_size() -> None:
    with pytest.raises(TypeError):
        free_list().allocate(-1)
