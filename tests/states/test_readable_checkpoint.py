"""Checkpoints of state that is away and readable."""

from __future__ import annotations

import copy
import io

import pytest
import torch

from pinferry import PinnedArena, StateOffloader
from pinferry.errors import InvalidArgument
from tests.states.training import MasterTraining, Training, assert_same_bits, bits_of


def checkpoint(run: Training) -> bytes:
    target = io.BytesIO()
    torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, target)
    return target.getvalue()


@pytest.fixture(params=[Training, MasterTraining])
def run(request: pytest.FixtureRequest, device: str) -> Training:
    made: Training = request.param(device).until_gradients()
    return made


@pytest.fixture
def offloader(run: Training, arena: PinnedArena) -> StateOffloader:
    return StateOffloader(run.model, run.optimizer, arena=arena)


@pytest.mark.parametrize("include", [None, "lp_params", "optim_states", ["buffers", "lp_grads"]])
def test_a_checkpoint_taken_while_away_is_the_one_taken_before(
    run: Training, offloader: StateOffloader, include: str | list[str] | None
) -> None:
    before, bits = checkpoint(run), run.bits()
    offloader.offload(include, access="readable")
    assert offloader.offloaded_states()
    assert checkpoint(run) == before
    assert_same_bits(run.bits(), bits)
    offloader.reload()
    assert not offloader.offloaded_states()
    assert_same_bits(run.bits(), bits)
    assert checkpoint(run) == before


@pytest.mark.parametrize("by", ["offload", "plan"])
def test_training_goes_on_to_the_bit_after_checkpoints_taken_while_away(
    device: str, arena: PinnedArena, by: str
) -> None:
    run, control = (Training(device).until_gradients() for _ in range(2))
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    plan = offloader.plan() if by == "plan" else None
    for _ in range(3):
        if plan is not None:
            plan.offload(access="readable")
        else:
            offloader.offload(access="readable")
        saved = checkpoint(run)
        if plan is not None:
            plan.reload()
            plan.close()
        else:
            offloader.reload()
        assert saved == checkpoint(control)
        for each in (run, control):
            each.step()
            each.backward()
        plan = offloader.plan() if by == "plan" else None
    assert_same_bits(run.bits(), control.bits())
    if plan is not None:
        plan.close()


def test_a_model_can_be_copied_and_run_while_away(run: Training, offloader: StateOffloader) -> None:
    batch = torch.ones(5, 7, device=run.device, dtype=next(run.model.parameters()).dtype)
    expected = copy.deepcopy(run.model)(batch)
    offloader.offload(access="readable")
    twin = copy.deepcopy(run.model)
    assert torch.equal(run.model(batch), expected)
    offloader.reload()
    assert torch.equal(twin(batch), expected)
    assert torch.equal(twin.get_buffer("seen"), run.model.get_buffer("seen"))


def test_a_state_loaded_while_away_is_there_after_the_reload(
    device: str, arena: PinnedArena
) -> None:
    run, other = (Training(device).until_gradients(steps) for steps in (1, 3))
    expected = {name: bits_of(each) for name, each in other.model.state_dict().items()}
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    offloader.offload("lp_params", access="readable")
    run.model.load_state_dict(other.model.state_dict())
    offloader.reload()
    assert_same_bits(
        {name: bits_of(each) for name, each in run.model.state_dict().items()}, expected
    )


def test_what_left_otherwise_keeps_its_access(run: Training, offloader: StateOffloader) -> None:
    before = run.bits()
    offloader.offload("optim_states")
    offloader.offload(access="readable")
    run.model.state_dict()["first.weight"].sum()
    with pytest.raises(RuntimeError, match=r"optimizer\.state.* is offloaded"):
        checkpoint(run)
    offloader.reload()
    assert_same_bits(run.bits(), before)


@pytest.mark.parametrize("access", ["read", None, "", 1], ids=repr)
def test_an_access_that_does_not_exist_is_refused_and_nothing_moves(
    run: Training, offloader: StateOffloader, access: object
) -> None:
    with pytest.raises(InvalidArgument, match="'raise', 'readable'"):
        offloader.offload(access=access)  # type: ignore[arg-type]
    assert not offloader.offloaded_states()
    checkpoint(run)
