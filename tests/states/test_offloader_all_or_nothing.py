"""A call that fails has moved nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pinferry import PinnedArena, StateOffloader, TransferEngine, discover
from pinferry.errors import AlreadyOffloaded, ArenaClosed, ArenaExhausted, UnsupportedStorage
from tests.states.training import MasterTraining, Training, assert_same_bits, bits_of


def test_an_arena_that_is_too_small_is_refused_with_numbers(device: str) -> None:
    run = MasterTraining(device).until_gradients()
    before, addresses = run.bits(), [t.data_ptr() for t in run.tensors().values()]
    with PinnedArena("8KiB", device=device) as small:
        offloader = StateOffloader(run.model, run.optimizer, arena=small)
        with pytest.raises(ArenaExhausted, match="nothing was moved") as caught:
            offloader.offload()
        assert caught.value.requested == offloader.discover().nbytes()
        assert caught.value.free == 8192
        for category in offloader.discover().by_category():
            assert f"{category} " in str(caught.value)
        assert ". What was to move: " in str(caught.value)
        assert (small.stats().used_bytes, small.stats().blocks) == (0, 0)
    assert [t.data_ptr() for t in run.tensors().values()] == addresses
    assert_same_bits(run.bits(), before)


def test_what_was_away_before_the_failure_stays_away_and_comes_back(device: str) -> None:
    run = MasterTraining(device).until_gradients()
    before = run.bits()
    with PinnedArena("8KiB", device=device) as small:
        offloader = StateOffloader(run.model, run.optimizer, arena=small)
        offloader.offload("buffers")
        away = offloader.engine.offloaded_names()
        with pytest.raises(ArenaExhausted):
            offloader.offload()
        assert offloader.engine.offloaded_names() == away
        offloader.reload()
    assert_same_bits(run.bits(), before)


def test_the_smallest_arena_that_can_hold_the_state_does(device: str) -> None:
    run = MasterTraining(device).until_gradients()
    before = run.bits()
    found = discover(run.model, run.optimizer, device=device)
    needed = sum(-(-entry.nbytes // 512) * 512 for entry in found)
    with PinnedArena(needed, device=device) as exact:
        offloader = StateOffloader(run.model, run.optimizer, arena=exact)
        offloader.offload()
        assert exact.stats().free_bytes == 0
        offloader.reload()
    assert_same_bits(run.bits(), before)


def test_room_in_many_small_pieces_does(device: str) -> None:
    weight = torch.randn(1000, device=device)
    before = bits_of(weight)
    model = nn.Module()
    model.register_buffer("weight", weight)
    with PinnedArena("16KiB", device=device) as scattered:
        taken = [scattered.alloc(512) for _ in range(32)]
        for block in taken[::2]:
            block.free()
        assert scattered.stats().largest_free_bytes == 512
        offloader = StateOffloader(model, arena=scattered)
        offloader.offload()
        offloader.reload()
        for block in taken[1::2]:
            block.free()
    assert torch.equal(bits_of(weight), before)


def test_memory_that_cannot_be_made_again_is_refused_by_name_and_nothing_moves(
    device: str, arena: PinnedArena
) -> None:
    run = Training(device).until_gradients()
    foreign = (
        torch.from_numpy(np.zeros(5, np.float32))
        if device == "cpu"
        else torch.utils.dlpack.from_dlpack(torch.zeros(5, device=device))
    )
    run.model.register_buffer("foreign", foreign)
    before = run.bits()
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    with pytest.raises(UnsupportedStorage, match=r"model\.foreign cannot be offloaded"):
        offloader.offload()
    assert offloader.engine.offloaded_bytes == 0
    assert_same_bits(run.bits(), before)
    offloader.offload("optim_states")
    offloader.reload()
    assert_same_bits(run.bits(), before)


def test_weights_shared_with_other_processes_are_refused_by_name() -> None:
    model = nn.Linear(3, 3).share_memory()
    with PinnedArena("1MiB", device="cpu") as arena:
        offloader = StateOffloader(model, arena=arena)
        with pytest.raises(UnsupportedStorage, match=r"model\.weight cannot be offloaded"):
            offloader.offload()


def test_what_another_engine_took_is_refused_by_name(device: str, arena: PinnedArena) -> None:
    run = Training(device).until_gradients()
    before = run.bits()
    other = TransferEngine(arena)
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    other.offload({"weights": run.model.get_parameter("hidden.weight")})
    with pytest.raises(AlreadyOffloaded, match=r"model\.hidden\.weight is offloaded already"):
        offloader.offload()
    assert offloader.engine.offloaded_bytes == 0
    other.reload()
    assert_same_bits(run.bits(), before)


def test_a_sparse_gradient_is_refused_by_name_and_nothing_moves() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 3))
    model(torch.tensor([1, 3])).sum().backward()
    with PinnedArena("1MiB", device="cpu") as arena:
        offloader = StateOffloader(model, arena=arena)
        with pytest.raises(UnsupportedStorage, match=r"model\.0\.weight\.grad .*sparse"):
            offloader.offload()
        assert offloader.engine.offloaded_bytes == 0


def test_a_sparse_gradient_does_not_stop_the_reload_of_what_is_away() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    optimizer = torch.optim.SparseAdam(model.parameters())
    model(torch.tensor([1, 3])).sum().backward()
    optimizer.step()  # type: ignore[no-untyped-call]
    optimizer.zero_grad()
    with PinnedArena("1MiB", device="cpu") as arena:
        offloader = StateOffloader(model, optimizer, arena=arena)
        offloader.offload("optim_states")
        model(torch.tensor([0, 3])).sum().backward()
        offloader.reload("optim_states")
        optimizer.step()  # type: ignore[no-untyped-call]


def test_a_closed_arena_takes_nothing(device: str, arena: PinnedArena) -> None:
    run = Training(device).until_gradients()
    before = run.bits()
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    arena.close()
    with pytest.raises(ArenaClosed):
        offloader.offload()
    assert_same_bits(run.bits(), before)
    with pytest.raises(ArenaClosed):
        StateOffloader(run.model, arena=arena)
