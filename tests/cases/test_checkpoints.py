"""Checkpoints and failures around offloaded state."""

from __future__ import annotations

import io

import pytest
import torch

from pinferry import PinnedArena, StateOffloader
from pinferry.errors import ArenaExhausted
from tests.states.training import MasterTraining, Training, assert_same_bits


def checkpoint(run: Training) -> bytes:
    target = io.BytesIO()
    torch.save([run.model.state_dict(), run.optimizer.state_dict()], target)
    return target.getvalue()


def test_a_checkpoint_of_what_is_away_refuses_by_name_and_loses_nothing(
    device: str, arena: PinnedArena
) -> None:
    """slime#1888: a checkpoint while offloaded crashed."""
    run = Training(device).until_gradients()
    before = run.bits()
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    with offloader.offloaded():
        assert run.model.state_dict()["hidden.weight"].shape == (31, 7)
        with pytest.raises(RuntimeError, match=r"call reload\(\) first"):
            checkpoint(run)
    assert_same_bits(run.bits(), before)


def test_checkpoints_equal_those_of_a_run_without_offload(device: str, arena: PinnedArena) -> None:
    """DeepSpeed 0.19.8, ZeRO-3: checkpoints held the buffers of the offload."""
    control, run = Training(device), Training(device)
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    for _ in range(3):
        run.step()
        control.step()
        with offloader.offloaded():
            pass
        assert checkpoint(run) == checkpoint(control)


def test_a_failure_half_way_leaves_weights_intact_frozen_ones_too(device: str) -> None:
    """DeepSpeed 0.19.8, ZeRO-3: a frozen parameter failed an offload half-way."""
    control, run = (MasterTraining(device).until_gradients() for _ in range(2))
    with PinnedArena("16KiB", device=device) as small:
        offloader = StateOffloader(run.model, run.optimizer, arena=small)
        needed = offloader.discover().nbytes()
        with pytest.raises(ArenaExhausted) as caught:
            offloader.offload()
        assert caught.value.requested == needed
        assert offloader.offloaded_states() == frozenset()
        assert_same_bits(run.bits(), control.bits())
        offloader.offload("lp_params")
        offloader.reload()
    for each in (run, control):
        each.update()
        each.clear()
        each.step()
    assert_same_bits(run.bits(), control.bits())
