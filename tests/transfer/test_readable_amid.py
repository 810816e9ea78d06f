"""What fails or dies amid a move of states that are readable while away."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import StorageChanged

if TYPE_CHECKING:
    from pinferry import PinnedArena, TransferEngine
    from pinferry.transfer import TransferPlan

NUMEL = 1000

Offload = Callable[["TransferEngine", "TransferPlan", torch.Tensor], object]


def failing(*arguments: object, **options: object) -> object:
    raise MemoryError("amid")


OFFLOADS: dict[str, Offload] = {
    "engine": lambda engine, plan, x: engine.offload({"x": x}, access="readable"),
    "plan": lambda engine, plan, x: plan.offload(access="readable"),
}


@pytest.mark.parametrize("step", ["moves.order_reuse", "moves.current_stream", "mover.send"])
@pytest.mark.parametrize("by", OFFLOADS)
def test_an_offload_that_fails_leaves_everything_at_home(
    engine: TransferEngine,
    torch_device: str,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    by: str,
) -> None:
    x = torch.ones(NUMEL, device=torch_device)
    at_home = x.data_ptr()
    with engine.plan({"x": x}) as plan:
        used = engine.arena.stats().used_bytes
        with monkeypatch.context() as patch:
            patch.setattr(f"pinferry.transfer.{step}", failing)
            with pytest.raises(MemoryError):
                OFFLOADS[by](engine, plan, x)
        assert x.data_ptr() == at_home
        assert not plan.offloaded
        assert engine.offloaded_names() == ()
        assert engine.arena.stats().used_bytes == used
        plan.offload(access="readable")
        plan.reload()
        assert x.sum() == NUMEL


@pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])
def test_what_dies_in_another_thread_amid_a_reload_harms_nobody_else(
    engine: TransferEngine, arena: PinnedArena, torch_device: str, compact: bool
) -> None:
    for _ in range(50):
        tensors = [torch.ones(NUMEL, device=torch_device) for _ in range(8)]
        plan = engine.plan(tensors, compact=compact)
        plan.offload(access="readable")
        other = threading.Thread(target=tensors.__delitem__, args=(slice(5, None),))
        other.start()
        with contextlib.suppress(StorageChanged):  # just then: all the others stay as they were
            plan.reload()
        other.join()
        for _ in range(2):
            plan.reload()
            assert all(bool((x == 1).all()) for x in tensors)
            plan.offload()
        plan.reload()
        plan.close()
    assert arena.stats().used_bytes == 0
