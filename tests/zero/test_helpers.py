"""DeepSpeed's helpers give right values, or the error that names what is away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch

from pinferry.deepspeed import attach
from pinferry.errors import StateOffloaded
from tests.zero.engines import engine_of
from tests.zero.model import batch, train

if TYPE_CHECKING:
    from pinferry import PinnedArena

KINDS = ("bf16_optimizer", "zero1", "zero2", "zero3")

GETTERS: dict[str, tuple[str, ...]] = {
    "hp_params": ("safe_get_full_fp32_param",),
    "optim_states": ("safe_get_full_optimizer_state", "exp_avg"),
    "lp_grads": ("safe_get_full_grad",),
}


def values(engine: Any, category: str) -> list[torch.Tensor]:
    from deepspeed import utils

    name, *arguments = GETTERS[category]
    trained = [each for each in engine.module.parameters() if each.requires_grad]
    if category == "optim_states":
        trained = trained[:1]  # stages 1 and 2 know those of the first group alone
    return [getattr(utils, name)(parameter, *arguments).clone() for parameter in trained]


@pytest.mark.parametrize("category", GETTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_getters_are_right_after_a_reload_and_refuse_before(
    kind: str, category: str, arena: PinnedArena, device: str
) -> None:
    with engine_of(kind) as engine:
        train(engine, 2)
        engine.backward(engine(batch(2, 0, device)))
        before = values(engine, category)
        with attach(engine, arena):
            engine.offload_states(["lp_params", "buffers"])  # not needed for it
            assert all(map(torch.equal, values(engine, category), before))
            engine.offload_states()
            with pytest.raises(StateOffloaded, match=f"safe_get_full.* needs .*{category}"):
                values(engine, category)
            engine.reload_states()
            assert all(map(torch.equal, values(engine, category), before))
        assert all(map(torch.equal, values(engine, category), before))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_setter_sets_leaves_and_comes_back(
    kind: str, arena: PinnedArena, device: str
) -> None:
    from deepspeed import utils

    with engine_of(kind) as engine, attach(engine, arena):
        train(engine, 2)
        parameter = next(engine.module.parameters())
        value = torch.full_like(utils.safe_get_full_fp32_param(parameter), 0.25)
        engine.offload_states()
        with pytest.raises(StateOffloaded, match="safe_set_full_fp32_param needs hp_params"):
            utils.safe_set_full_fp32_param(parameter, value)
        engine.reload_states()
        utils.safe_set_full_fp32_param(parameter, value)
        engine.offload_states()
        engine.reload_states()
        assert torch.equal(utils.safe_get_full_fp32_param(parameter), value)


@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3"])
def test_an_update_of_many_gradients_is_refused_before_the_first(
    kind: str, arena: PinnedArena, device: str
) -> None:
    from deepspeed import utils

    with engine_of(kind) as engine, attach(engine, arena):
        engine.backward(engine(batch(0, 0, device)))
        before = values(engine, "lp_grads")
        trained = [each for each in engine.module.parameters() if each.requires_grad]
        engine.offload_states(["lp_grads"])
        with pytest.raises(StateOffloaded, match="safe_update_full_grad_vectorized needs lp_grads"):
            utils.safe_update_full_grad_vectorized(trained, lambda gradient, _: 2 * gradient)
        engine.reload_states()
        utils.safe_update_full_grad_vectorized(trained, lambda gradient, _: 2 * gradient)
        doubled = [2 * gradient for gradient in before]
        assert all(map(torch.equal, values(engine, "lp_grads"), doubled))


def test_a_getter_brings_back_what_it_needs_where_that_was_asked_for(
    arena: PinnedArena, device: str
) -> None:
    with engine_of("zero2") as engine, attach(engine, arena, on_access="reload") as offloader:
        train(engine, 2)
        before = values(engine, "optim_states")
        engine.offload_states()
        assert all(map(torch.equal, values(engine, "optim_states"), before))
        assert "lp_params" in offloader.offloaded_states()


def test_getters_of_other_engines_go_on(arena: PinnedArena, device: str) -> None:
    with engine_of("zero2") as other, engine_of("zero3") as engine, attach(engine, arena):
        train(other, 1)
        engine.offload_states()
        assert values(other, "hp_params")


def test_a_getter_does_not_go_through_all_parameters(arena: PinnedArena, device: str) -> None:
    from deepspeed import utils

    with engine_of("zero2") as other, engine_of("zero2") as engine, attach(engine, arena):
        train(other, 1)
        (parameter, *_) = engine.module.parameters()
        engine.offload_states()
        with patch.object(engine.module, "parameters", side_effect=AssertionError):
            assert values(other, "hp_params")
            with pytest.raises(StateOffloaded):
                utils.safe_get_full_fp32_param(parameter)


@pytest.mark.parametrize("kind", ["plain", "unfused", "fused", *KINDS])
def test_devices_are_told_as_they_are(kind: str, arena: PinnedArena, device: str) -> None:
    from deepspeed.runtime.zero import offload_states
    from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum

    here, host = {torch.device(device)}, {torch.device("cpu")}
    with engine_of(kind) as engine, attach(engine, arena) as offloader:
        train(engine, 1)
        there = set(offloader.discover().by_category())
        for category in OffloadStateTypeEnum:
            told = offload_states.get_state_devices(engine, category)
            assert told == (here if category.value in there else set())
        engine.offload_states()
        for category in OffloadStateTypeEnum:
            kept = category.value in there and category.value != "contiguous_grad_buffer"
            told = offload_states.get_state_devices(engine, category)
            assert told == (host if kept else set())
        engine.reload_states()
        assert offload_states.get_state_devices(engine, OffloadStateTypeEnum.hp_params) == (
            here if "hp_params" in there else set()
        )


def test_the_devices_of_a_parameter_of_stage_3(arena: PinnedArena, device: str) -> None:
    with engine_of("zero3") as engine, attach(engine, arena):
        train(engine, 1)
        parameters = {each.requires_grad: each for each in engine.module.parameters()}
        device_of = engine.optimizer.get_hp_param_device
        assert device_of(parameters[False]) is None
        engine.offload_states(["hp_params"])
        assert device_of(parameters[True]) == torch.device("cpu")
        assert device_of(parameters[True], "exp_avg") == torch.device(device)
