"""Checksums of memory: what they see, and that they are the same however they are asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinferry.transfer.checksum import checksums, memory_at

# Words that are summed at once.
PART = 2**20

small = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def tensor(data: bytes, device: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone().to(device)


def one(x: torch.Tensor) -> int:
    [found] = checksums([x]).tolist()
    return int(found)


def random_bytes(nbytes: int, device: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (nbytes,), dtype=torch.uint8, generator=generator).to(device)


@small
@given(data=st.binary(min_size=1, max_size=300))
def test_equal_bytes_have_equal_sums_and_stay_as_they_are(torch_device: str, data: bytes) -> None:
    x = tensor(data, torch_device)
    assert one(x) == one(tensor(data, torch_device)) == one(x)
    assert bytes(x.tolist()) == data


@small
@given(data=st.binary(min_size=1, max_size=300), seed=st.integers(0), change=st.integers(1, 255))
def test_a_change_of_any_byte_is_seen(
    torch_device: str, data: bytes, seed: int, change: int
) -> None:
    x = tensor(data, torch_device)
    before = one(x)
    x[seed % len(data)] ^= change
    assert one(x) != before


@small
@given(data=st.binary(min_size=4, max_size=300), seed=st.integers(0), word=st.binary(min_size=4))
def test_a_change_of_any_word_is_seen(
    torch_device: str, data: bytes, seed: int, word: bytes
) -> None:
    at = seed % (len(data) // 4) * 4
    changed = data[:at] + word[:4] + data[at + 4 :]
    same = one(tensor(changed, torch_device)) == one(tensor(data, torch_device))
    assert same == (changed == data)


@small
@given(
    words=st.lists(st.binary(min_size=4, max_size=4), min_size=2, max_size=40),
    places=st.tuples(st.integers(0), st.integers(0)),
)
def test_words_that_changed_places_are_seen(
    torch_device: str, words: list[bytes], places: tuple[int, int]
) -> None:
    first, second = (place % len(words) for place in places)
    swapped = list(words)
    swapped[first], swapped[second] = words[second], words[first]
    same = one(tensor(b"".join(swapped), torch_device)) == one(
        tensor(b"".join(words), torch_device)
    )
    assert same == (swapped == words)


@small
@given(parts=st.lists(st.binary(min_size=1, max_size=70), min_size=1, max_size=12))
def test_a_sum_does_not_depend_on_what_else_is_summed(
    torch_device: str, parts: list[bytes]
) -> None:
    tensors = [tensor(part, torch_device) for part in parts]
    together = checksums(tensors)
    assert together.dtype == torch.int64
    assert str(together.device) == torch_device
    assert together.tolist() == [one(x) for x in tensors]
    assert checksums(tensors[::-1]).tolist() == together.tolist()[::-1]


EDGES = [4 * words + odd for words in (PART - 1, PART, PART + 1, 2 * PART) for odd in (0, 1, 3)]


@pytest.mark.parametrize("nbytes", EDGES)
def test_a_change_is_seen_wherever_a_part_begins_or_ends(torch_device: str, nbytes: int) -> None:
    x = random_bytes(nbytes, torch_device)
    before = one(x)
    for index in {0, 3, nbytes // 2, 4 * PART - 1, 4 * PART, 4 * PART + 3, nbytes - 1}:
        if index >= nbytes:
            continue
        x[index] ^= 128
        assert one(x) != before, index
        x[index] ^= 128
    assert one(x) == before


def test_parts_that_changed_places_are_seen(torch_device: str) -> None:
    x = random_bytes(8 * PART, torch_device)
    swapped = torch.cat([x[4 * PART :], x[: 4 * PART]])
    assert one(swapped) != one(x)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 255])
def test_memory_of_one_value_has_another_sum_for_another_value(
    torch_device: str, value: int
) -> None:
    sums = checksums(
        [
            torch.full((1001,), each, dtype=torch.uint8, device=torch_device)
            for each in (value, (value + 1) % 256)
        ]
    )
    assert sums[0] != sums[1]


@pytest.mark.gpu
@pytest.mark.parametrize("nbytes", [1, 6, 4096, 4 * PART + 5])
def test_a_gpu_finds_what_the_cpu_does(nbytes: int) -> None:
    assert one(random_bytes(nbytes, "cpu")) == one(random_bytes(nbytes, "cuda:0"))


def test_memory_is_seen_where_it_is(torch_device: str) -> None:
    x = random_bytes(1000, torch_device)
    seen = memory_at(x.device, x.data_ptr(), 1000)
    assert (seen.data_ptr(), seen.device, seen.dtype) == (x.data_ptr(), x.device, torch.uint8)
    assert torch.equal(seen, x)
    x[999] ^= 1
    assert torch.equal(seen, x)


def test_what_tracks_gradients_elsewhere_does_not_disturb(torch_device: str) -> None:
    x = random_bytes(5000, torch_device)
    expected = one(x)
    with torch.inference_mode():
        assert one(x) == expected
    with torch.no_grad():
        assert one(x) == expected
    assert not checksums([x]).requires_grad
