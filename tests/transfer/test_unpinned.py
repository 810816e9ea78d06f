"""Engines whose arena is not pinned: the same bits, and the same rules but for readable state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena, TransferEngine
from pinferry.errors import InvalidArgument
from tests.transfer.storage_bits import random_bits, storage_bits

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def unpinned(torch_device: str) -> Iterator[TransferEngine]:
    """Yield an engine whose arena has pages that no driver knows of."""
    with PinnedArena("8MiB", device=torch_device, backend="unpinned") as arena:
        yield TransferEngine(arena)


@pytest.mark.parametrize("sizes", [[3_000_001], [700] * 50, [0, 1, 512, 40_000, 2**20]], ids=str)
def test_every_bit_comes_back(
    unpinned: TransferEngine, torch_device: str, sizes: list[int]
) -> None:
    tensors = [random_bits(torch.uint8, size, torch_device, seed=i) for i, size in enumerate(sizes)]
    before = [storage_bits(tensor) for tensor in tensors]
    for _ in range(2):
        unpinned.offload(tensors)
        assert unpinned.offloaded_bytes == sum(sizes)
        assert unpinned.arena.stats().locked_bytes == 0
        unpinned.reload()
        assert [storage_bits(tensor) for tensor in tensors] == before


def test_a_compacted_plan_moves_there_too(unpinned: TransferEngine, torch_device: str) -> None:
    tensors = [random_bits(torch.uint8, 900, torch_device, seed=i) for i in range(40)]
    before = [storage_bits(tensor) for tensor in tensors]
    plan = unpinned.plan(tensors, compact=True)
    for _ in range(3):
        plan.offload()
        plan.reload()
        assert [storage_bits(tensor) for tensor in tensors] == before
    plan.close()


@pytest.mark.gpu
def test_no_readable_state_that_a_gpu_cannot_reach() -> None:
    with PinnedArena("1MiB", device="cuda:0", backend="unpinned") as unpinned:
        engine, state = TransferEngine(unpinned), random_bits(torch.uint8, 5000, "cuda:0")
        before, used = storage_bits(state), torch.cuda.memory_allocated()
        with pytest.raises(InvalidArgument, match="needs pinned memory"):
            engine.offload([state], access="readable")
        assert (engine.offloaded_bytes, unpinned.stats().used_bytes) == (0, 0)
        assert torch.cuda.memory_allocated() == used
        assert storage_bits(state) == before
