"""The room of what is away and readable: whose it is, and when it comes back."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena, TransferEngine
from pinferry.errors import AlreadyOffloaded, ArenaInUse, NotOffloaded
from tests.transfer.storage_bits import random_bits, storage_bits

if TYPE_CHECKING:
    from collections.abc import Callable

NUMEL = 1000


def make(device: str) -> torch.Tensor:
    return torch.arange(float(NUMEL), device=device)


def used(arena: PinnedArena) -> int:
    gc.collect()
    return arena.stats().used_bytes


def test_an_engine_says_what_is_away_though_it_is_readable(
    engine: TransferEngine, arena: PinnedArena, torch_device: str
) -> None:
    x, y = make(torch_device), make(torch_device)
    at_home = x.data_ptr()
    engine.offload({"x": x}, access="readable")
    engine.offload({"y": y})
    assert engine.offloaded_names() == ("x", "y")
    assert engine.offloaded_bytes == 8 * NUMEL
    assert engine.is_offloaded(x.untyped_storage())
    assert x.data_ptr() != at_home
    assert engine.offload({"x": x}).nbytes == 0
    assert x.sum() == y.numel() * (y.numel() - 1) / 2
    with pytest.raises(ArenaInUse, match="x"):
        engine.close()
    engine.reload({"x": x})
    assert engine.offloaded_names() == ("y",)
    assert not engine.is_offloaded(x.untyped_storage())
    engine.reload()
    assert used(arena) == 0


@pytest.mark.parametrize("by", ["engine", "plan"])
def test_another_engine_refuses_what_is_away(
    arena: PinnedArena, engine: TransferEngine, torch_device: str, by: str
) -> None:
    x = make(torch_device)
    plan = engine.plan({"x": x})
    if by == "plan":
        plan.offload(access="readable")
    else:
        engine.offload({"x": x}, access="readable")
    with TransferEngine(arena) as other:
        with pytest.raises(AlreadyOffloaded, match="x is offloaded already"):
            other.offload({"x": x})
        with pytest.raises(AlreadyOffloaded, match="x is offloaded already"):
            other.plan({"x": x})
        with pytest.raises(NotOffloaded):
            other.reload({"x": x})
    (plan if by == "plan" else engine).reload()
    assert torch.equal(x, make(torch_device))
    plan.close()


def test_the_room_comes_back_when_the_storage_dies(
    engine: TransferEngine, arena: PinnedArena, torch_device: str
) -> None:
    x = make(torch_device)
    view = x[5:]
    engine.offload({"x": x}, access="readable")
    del x
    assert used(arena) > 0
    assert view[0] == 5
    del view
    assert used(arena) == 0
    assert engine.offloaded_names() == ()
    assert engine.reload().nbytes == 0


def test_the_room_comes_back_when_the_storage_dies_in_another_thread(
    engine: TransferEngine, arena: PinnedArena, torch_device: str
) -> None:
    held = [make(torch_device) for _ in range(20)]
    engine.offload(held, access="readable")
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert used(arena) == 0
    assert engine.offloaded_bytes == 0


def test_what_the_graph_of_a_backward_holds_keeps_its_room(
    engine: TransferEngine, arena: PinnedArena, torch_device: str
) -> None:
    x = make(torch_device)
    engine.offload({"x": x}, access="readable")
    factor = torch.ones(NUMEL, device=torch_device, requires_grad=True)
    loss = (factor * x).sum()
    del x
    assert used(arena) > 0
    torch.autograd.backward(loss)
    assert factor.grad is not None
    assert torch.equal(factor.grad, make(torch_device))
    del loss
    assert used(arena) == 0


def set_of_another(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.set_(torch.full((4,), 7.0, device=x.device))  # type: ignore[call-overload]
    return x


def other_data(x: torch.Tensor) -> torch.Tensor:
    x.data = torch.full((4,), 7.0, device=x.device)
    return x


@pytest.mark.parametrize("give", [set_of_another, other_data])
def test_the_room_comes_back_when_the_tensor_is_given_other_memory(
    engine: TransferEngine,
    arena: PinnedArena,
    torch_device: str,
    give: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = make(torch_device)
    engine.offload({"x": x}, access="readable")
    give(x)
    assert used(arena) == 0
    assert engine.offloaded_names() == ()
    assert engine.reload().nbytes == 0
    assert x.tolist() == [7, 7, 7, 7]


RESIZES: dict[str, Callable[[torch.Tensor], object]] = {
    "tensor grows": lambda x: x.resize_(2 * NUMEL),
    "storage grows": lambda x: x.untyped_storage().resize_(8 * NUMEL),
    "storage shrinks": lambda x: x.untyped_storage().resize_(400),
    "storage of nothing": lambda x: x.untyped_storage().resize_(0),
}


@pytest.mark.parametrize("kind", RESIZES)
def test_what_is_resized_is_here_again(
    engine: TransferEngine, arena: PinnedArena, torch_device: str, kind: str
) -> None:
    x = make(torch_device)
    engine.offload({"x": x}, access="readable")
    RESIZES[kind](x)
    assert used(arena) == 0
    assert not engine.is_offloaded(x.untyped_storage())
    assert engine.reload().nbytes == 0
    size = min(x.untyped_storage().nbytes(), 4 * NUMEL)
    if size:
        with pytest.raises(NotOffloaded):
            engine.reload({"x": x})
    expected = storage_bits(make(torch_device))[:size]
    assert storage_bits(x)[:size] == expected
    engine.offload({"x": x})
    engine.reload()
    assert storage_bits(x)[:size] == expected


@pytest.mark.parametrize("torch_device", ["cpu"], indirect=True)
def test_what_moves_to_shared_memory_is_here_again(
    engine: TransferEngine, arena: PinnedArena, torch_device: str
) -> None:
    x = make(torch_device)
    engine.offload({"x": x}, access="readable")
    x.share_memory_()  # type: ignore[no-untyped-call]
    assert used(arena) == 0
    assert not engine.is_offloaded(x.untyped_storage())
    assert torch.equal(x, make(torch_device))


def test_an_arena_that_closes_by_force_leaves_what_is_readable(torch_device: str) -> None:
    arena = PinnedArena("1MiB", device=torch_device)
    engine = TransferEngine(arena)
    x = random_bits(torch.uint8, 5000, torch_device)
    before = storage_bits(x)
    engine.offload({"x": x}, access="readable")
    arena.close(force=True)
    assert storage_bits(x) == before
    engine.reload()
    assert storage_bits(x) == before
