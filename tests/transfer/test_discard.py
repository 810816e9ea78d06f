"""Memory that is given up without its bytes, and made anew."""

from __future__ import annotations

import gc

import pytest
import torch

from pinferry import PinnedArena, TransferEngine
from pinferry.errors import AlreadyOffloaded, ArenaInUse, UnsupportedStorage
from tests.transfer.storage_bits import random_bits, storage_bits


def test_what_is_discarded_is_guarded_and_comes_back_without_room(
    engine: TransferEngine, torch_device: str
) -> None:
    scratch = torch.ones(100_000, device=torch_device)
    view = scratch[10:].view(-1, 10)
    before = engine.arena.stats().used_bytes
    engine.discard({"bucket": scratch})
    assert engine.arena.stats().used_bytes == before
    assert (engine.offloaded_names(), engine.offloaded_bytes) == (("bucket",), 400_000)
    with pytest.raises(RuntimeError, match="bucket is offloaded"):
        view.sum()
    ticket = engine.reload()
    assert (ticket.done(), ticket.nbytes) == (True, 0)
    assert engine.offloaded_names() == ()
    view.fill_(3)
    assert scratch[10:].sum() == 3 * (100_000 - 10)


@pytest.mark.gpu
def test_its_device_memory_comes_back(engine: TransferEngine) -> None:
    scratch = torch.ones(1 << 20, device="cuda")
    before = torch.cuda.memory_allocated()
    engine.discard([scratch])
    assert before - torch.cuda.memory_allocated() == scratch.untyped_storage().nbytes()
    engine.reload()
    assert torch.cuda.memory_allocated() == before


def test_both_kinds_come_back_by_one_call(engine: TransferEngine, torch_device: str) -> None:
    kept, scratch = (random_bits(torch.uint8, 5_000, torch_device, seed=i) for i in range(2))
    before = storage_bits(kept)
    engine.offload({"kept": kept})
    engine.discard({"scratch": scratch, "kept": kept})  # what is away stays, with its bytes
    engine.reload().synchronize()
    assert storage_bits(kept) == before
    scratch.zero_()
    assert scratch.sum() == 0


def test_a_deferred_reload_of_both_keeps_the_bytes(
    engine: TransferEngine, torch_device: str
) -> None:
    kept, scratch = (random_bits(torch.uint8, 5_000, torch_device, seed=i) for i in range(2))
    before = storage_bits(kept)
    engine.offload({"kept": kept})
    engine.discard({"scratch": scratch})
    engine.reload(defer=True).wait()
    scratch.zero_()
    assert storage_bits(kept) == before


def test_nothing_is_discarded_when_one_cannot_be(engine: TransferEngine, torch_device: str) -> None:
    good = torch.ones(10, device=torch_device)
    if torch_device == "cpu":
        bad = torch.from_numpy(torch.ones(10).numpy())
        with pytest.raises(UnsupportedStorage, match="bad"):
            engine.discard({"good": good, "bad": bad})
    with PinnedArena("1MiB", device=torch_device) as arena, TransferEngine(arena) as other:
        taken = torch.ones(10, device=torch_device)
        other.offload([taken])
        with pytest.raises(AlreadyOffloaded, match="taken"):
            engine.discard({"good": good, "taken": taken})
        other.reload()
    assert good.sum() == 10


def test_what_dies_while_discarded_is_forgotten(arena: PinnedArena, torch_device: str) -> None:
    engine = TransferEngine(arena)
    scratch = torch.ones(10, device=torch_device)
    engine.discard([scratch])
    with pytest.raises(ArenaInUse):
        engine.close()
    del scratch
    gc.collect()
    assert engine.offloaded_names() == ()
    engine.close()


def test_nothing_at_all_is_fine(engine: TransferEngine, torch_device: str) -> None:
    engine.discard([])
    engine.discard([torch.empty(0, device=torch_device)])
    assert engine.offloaded_names() == ()
