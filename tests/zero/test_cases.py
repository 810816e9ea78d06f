"""Faults of DeepSpeed's own offload, which must not be ours."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.deepspeed import attach
from pinferry.transfer import storage_key
from pinferry.transfer.parked import is_away
from tests.zero.engines import engine_of
from tests.zero.model import train

if TYPE_CHECKING:
    from pathlib import Path

    from pinferry import PinnedArena


@pytest.mark.parametrize("kind", ["zero1", "zero2"])
def test_no_view_of_a_moment_keeps_its_memory(kind: str, arena: PinnedArena, device: str) -> None:
    """DeepSpeed 0.19.8: fragments of the first group keep old Adam storages, with stale values."""
    with engine_of(kind) as engine, attach(engine, arena):
        train(engine, 2)
        fragments = [
            fragment
            for parameter in engine.module.parameters()
            for fragment in (getattr(parameter, "_hp_mapping", None),)
            if fragment is not None and fragment.optim_fragment
        ]
        views = [view for each in fragments for view in each.optim_fragment.values()]
        assert views
        before = [view.clone() for view in views]
        engine.offload_states(["optim_states"])
        assert all(is_away(view.untyped_storage()) for view in views)
        engine.reload_states()
        assert all(map(torch.equal, views, before))
        state = engine.optimizer.optimizer.state
        held = {storage_key(t.untyped_storage()) for each in state.values() for t in each.values()}
        assert all(storage_key(view.untyped_storage()) in held for view in views)


def test_a_frozen_parameter_stops_nothing(arena: PinnedArena, device: str) -> None:
    """DeepSpeed 0.19.8, stage 3: an offload of weights fails half-way and corrupts them."""
    with engine_of("zero3") as engine:
        expected = train(engine, 4)
    with engine_of("zero3") as engine, attach(engine, arena):
        losses = train(engine, 2)
        engine.offload_states(["lp_params"])
        engine.reload_states()
        assert losses + train(engine, 2, first=2) == expected


@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3"])
def test_the_newest_bytes_come_back_whichever_memory_they_went_to(
    kind: str, arena: PinnedArena, device: str
) -> None:
    """DeepSpeed 0.19.8, stage 3: pinned, trained, unpinned: old master weights came back."""
    with engine_of(kind) as engine:
        expected = train(engine, 5)
    with engine_of(kind) as engine, attach(engine, arena):
        losses = []
        for step, pin_memory in enumerate([True, False, True, False, True]):
            losses += train(engine, 1, first=step)
            engine.offload_states(pin_memory=pin_memory)
            engine.reload_states()
        assert losses == expected


def test_stage_3_offloads_what_is_no_fused_adam(arena: PinnedArena, device: str) -> None:
    """DeepSpeed 0.19.8 asserts its FusedAdam."""
    with engine_of("zero3", client=torch.optim.RMSprop) as engine, attach(engine, arena) as ours:
        train(engine, 1)
        engine.offload_states(["optim_states", "hp_params"])
        assert ours.offloaded_states() == {"optim_states", "hp_params"}
        engine.reload_states()
        train(engine, 1)


def test_a_checkpoint_holds_no_buffers_of_an_offload(
    arena: PinnedArena, device: str, tmp_path: Path
) -> None:
    """DeepSpeed 0.19.8, stage 3: ``exp_avg_offload_buffer`` and its like were saved."""
    with engine_of("zero3") as engine, attach(engine, arena):
        train(engine, 1)
        keys = [set(state) for state in engine.optimizer.optimizer.state.values()]
        engine.offload_states()
        engine.reload_states()
        assert [set(state) for state in engine.optimizer.optimizer.state.values()] == keys
        engine.save_checkpoint(str(tmp_path), tag="one")
    for path in tmp_path.rglob("*.pt"):
        assert "offload_buffer" not in str(torch.load(path, weights_only=False))


def test_cycles_leave_nothing_behind(arena: PinnedArena, device: str) -> None:
    with engine_of("zero2") as engine, attach(engine, arena):
        train(engine, 1)

        def tensors() -> int:
            gc.collect()
            return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

        engine.offload_states()
        engine.reload_states()
        before = tensors()
        for _ in range(50):
            engine.offload_states()
            engine.reload_states()
        assert tensors() == before
        assert arena.stats().used_bytes == 0
