"""State that is replaced between calls is found anew; what it replaced is let go."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pinferry import Category, PinnedArena, StateOffloader
from pinferry.transfer.bridge import load_bridge
from tests.states.training import MasterTraining, Training, assert_same_bits

if TYPE_CHECKING:
    from pinferry._torch import StorageHandle


@pytest.fixture
def run(device: str) -> Training:
    return Training(device).until_gradients()


@pytest.fixture
def offloader(run: Training, arena: PinnedArena) -> StateOffloader:
    return StateOffloader(run.model, run.optimizer, arena=arena)


def test_a_loaded_optimizer_state_is_what_moves(run: Training, offloader: StateOffloader) -> None:
    saved = copy.deepcopy(run.optimizer.state_dict())
    offloader.offload()
    offloader.reload()
    run.update()
    run.optimizer.load_state_dict(saved)
    before = run.bits()
    offloader.offload("optim_states")
    assert offloader.offloaded_states() == {Category.OPTIM_STATES}
    offloader.reload("optim_states")
    assert_same_bits(run.bits(), before)


def test_an_optimizer_state_loaded_while_the_old_one_is_away_replaces_it(
    run: Training, offloader: StateOffloader, arena: PinnedArena
) -> None:
    saved, expected = copy.deepcopy(run.optimizer.state_dict()), run.bits()
    offloader.offload("optim_states")
    run.optimizer.load_state_dict(saved)
    assert offloader.offloaded_states() == frozenset()
    assert_same_bits(run.bits(), expected)
    assert offloader.engine.offloaded_bytes == 0
    assert arena.stats().used_bytes == 0


def test_weights_assigned_while_the_old_ones_are_away_replace_them(
    run: Training, offloader: StateOffloader
) -> None:
    saved = {name: t.clone() for name, t in run.model.state_dict().items()}
    offloader.offload("lp_params")
    run.model.load_state_dict(saved, assign=True)
    # The optimizer still steps on the old ones, which are no longer the model's; they went as its
    # parameters and come back as that.
    assert offloader.offloaded_states() == {Category.LP_PARAMS}
    assert offloader.engine.offloaded_bytes == sum(
        p.untyped_storage().nbytes() for p in run.optimizer.param_groups[0]["params"]
    )
    offloader.reload()
    assert torch.equal(run.model.state_dict()["hidden.weight"], saved["hidden.weight"])


def test_weights_copied_into_what_is_away_raise_the_error_that_names_it(
    run: Training, offloader: StateOffloader
) -> None:
    saved, before = {n: t.clone() for n, t in run.model.state_dict().items()}, run.bits()
    offloader.offload("lp_params")
    with pytest.raises(RuntimeError, match=r"model\.hidden\.weight is offloaded"):
        run.model.load_state_dict(saved)
    offloader.reload()
    assert_same_bits(run.bits(), before)


def test_a_parameter_given_new_data_while_away_keeps_the_new_data(
    run: Training, offloader: StateOffloader
) -> None:
    weight = run.model.get_parameter("hidden.weight")
    offloader.offload("lp_params")
    weight.data = torch.full_like(weight, 3.0, device=run.device)
    offloader.reload()
    assert torch.equal(weight, torch.full_like(weight, 3.0))
    assert offloader.engine.offloaded_bytes == 0
    offloader.offload()
    offloader.reload()
    assert torch.equal(weight, torch.full_like(weight, 3.0))


def test_gradients_dropped_while_away_leave_room_in_the_arena(
    run: Training, offloader: StateOffloader, arena: PinnedArena
) -> None:
    offloader.offload("lp_grads")
    run.clear()
    assert offloader.offloaded_states() == frozenset()
    assert offloader.engine.offloaded_bytes == 0
    assert arena.stats().used_bytes == 0


def test_gradients_dropped_after_a_reload_are_freed(
    run: Training, offloader: StateOffloader
) -> None:
    handles = storages_of_gradients(run)
    offloader.offload()
    offloader.reload()
    run.clear()
    assert not any(handle.alive for handle in handles)


def test_a_model_dropped_while_away_is_freed_with_its_room(device: str, arena: PinnedArena) -> None:
    model = nn.Linear(9, 9).to(device)
    offloader = StateOffloader(model, arena=arena)
    engine = offloader.engine
    offloader.offload()
    del model, offloader
    assert engine.offloaded_bytes == 0
    assert arena.stats().used_bytes == 0


def test_a_parameter_added_between_calls_moves_with_the_next(
    run: Training, offloader: StateOffloader
) -> None:
    offloader.offload("lp_params")
    offloader.reload()
    run.model.register_parameter("late", nn.Parameter(torch.ones(3, device=run.device)))
    offloader.offload("lp_params")
    assert "model.late" in offloader.engine.offloaded_names()
    offloader.reload()
    assert torch.equal(run.model.get_parameter("late"), torch.ones(3, device=run.device))


def test_a_parameter_added_to_the_optimizer_while_state_is_away_trains(
    run: Training, offloader: StateOffloader
) -> None:
    late = nn.Parameter(torch.ones(3, device=run.device))
    with offloader.offloaded("optim_states"):
        run.optimizer.add_param_group({"params": [late]})
    late.grad = torch.ones_like(late)
    run.update()
    assert not torch.equal(late, torch.ones_like(late))


def test_a_gradient_buffer_that_lost_a_view_while_away_comes_back_by_its_category(
    device: str, arena: PinnedArena
) -> None:
    run = MasterTraining(device)
    run.until_gradients()
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    offloader.offload("contiguous_grad_buffer")
    for parameter in run.flat[1:]:
        parameter.grad = None
    offloader.reload("contiguous_grad_buffer")
    assert run.buffer.sum().isfinite()


def test_states_of_parameters_that_left_the_groups_all_move(
    run: Training, offloader: StateOffloader
) -> None:
    run.optimizer.param_groups[0]["params"] = [nn.Parameter(torch.ones(1, device=run.device))]
    moved = offloader.discover().nbytes("optim_states")
    assert offloader.offload("optim_states").nbytes == moved
    assert Category.OPTIM_STATES not in offloader.resident()
    offloader.reload()


def storages_of_gradients(run: Training) -> list[StorageHandle]:
    handle = load_bridge().StorageHandle
    return [
        handle(p.grad.untyped_storage()._cdata)
        for p in run.model.parameters()
        if p.grad is not None
    ]
