"""What discovery finds, and what it calls it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pinferry import Category, StateSet, discover
from pinferry.errors import InvalidArgument
from pinferry.states.categories import KNOWN_TO_PYTORCH
from tests.states.training import MasterTraining, Net, Training, adamw


def by_category(found: StateSet) -> dict[str, set[str]]:
    return {
        category.value: {entry.name for entry in found if entry.category is category}
        for category in KNOWN_TO_PYTORCH
    }


def test_a_run_with_master_weights_has_state_of_all_six_categories(device: str) -> None:
    run = MasterTraining(device).until_gradients()
    found = by_category(discover(run.model, run.optimizer))
    low = ["first.weight", "hidden.weight", "hidden.bias", "out.weight", "out.bias"]
    assert found == {
        "lp_params": {f"model.{n}" for n in [*low, "frozen.weight", "frozen.bias"]},
        "buffers": {"model.seen", "model.inv_freq"},
        "lp_grads": {"model.first.weight.grad"},
        "contiguous_grad_buffer": {"model.hidden.weight.grad"},
        "hp_params": {f"optimizer.params[{i}]" for i in range(5)},
        "optim_states": {
            f"optimizer.state[{i}].{kind}"
            for i in range(5)
            for kind in ("step", "exp_avg", "exp_avg_sq")
        },
    }


def test_each_entry_says_the_size_type_shape_and_device_of_its_storage(device: str) -> None:
    run = MasterTraining(device).until_gradients()
    found = {entry.name: entry for entry in discover(run.model, run.optimizer)}
    weight = found["model.hidden.weight"]
    assert (weight.nbytes, weight.dtype, weight.shape) == (31 * 7 * 2, torch.bfloat16, (31, 7))
    assert weight.device == torch.device(device)
    assert weight.storage._cdata == run.low[1].untyped_storage()._cdata
    assert found["model.hidden.weight.grad"].nbytes == run.buffer.nbytes
    assert found["optimizer.params[1]"].dtype is torch.float32


def test_the_bytes_of_the_categories_add_up_to_those_of_all_storages(device: str) -> None:
    run = MasterTraining(device).until_gradients()
    found = discover(run.model, run.optimizer)
    storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in run.tensors().values()}
    assert len(found) == len(storages)
    assert found.nbytes() == sum(storage.nbytes() for storage in storages.values())
    assert found.nbytes() == sum(found.nbytes(category) for category in KNOWN_TO_PYTORCH)


def test_gradients_that_are_none_are_not_there(device: str) -> None:
    run = Training(device)
    run.step()
    assert discover(run.model, run.optimizer).nbytes("lp_grads") == 0
    run.backward()
    names = discover(run.model, run.optimizer).only("lp_grads").names()
    assert len(names) == 5
    assert not any("frozen" in name for name in names)


def test_a_frozen_parameter_is_a_parameter() -> None:
    model = Net().requires_grad_(False)
    assert "model.frozen.weight" in discover(model).only(Category.LP_PARAMS).names()


def test_buffers_that_checkpoints_leave_out_are_found() -> None:
    model = Net()
    assert "inv_freq" not in model.state_dict()
    assert "model.inv_freq" in discover(model).only("buffers").names()


def test_a_module_alone_has_parameters_and_buffers_only() -> None:
    assert {entry.category.value for entry in discover(Net())} == {"lp_params", "buffers"}


def test_an_optimizer_alone_steps_on_parameters_not_on_master_weights(device: str) -> None:
    run = Training(device).until_gradients()
    found = discover(optimizer=run.optimizer)
    assert {entry.category.value for entry in found} == {"lp_params", "lp_grads", "optim_states"}
    assert len(found.only("lp_params")) == 5


def test_master_weights_that_share_memory_with_the_model_are_no_state_of_their_own() -> None:
    model = nn.Linear(3, 3)
    optimizer = adamw([nn.Parameter(model.weight.detach())])
    found = discover(model, optimizer)
    assert found.nbytes("hp_params") == 0
    [weight] = [entry for entry in found if entry.name == "model.weight"]
    assert weight.aliases == ("optimizer.params[0]",)


def test_looking_through_nothing_is_an_invalid_argument() -> None:
    with pytest.raises(InvalidArgument, match="model, an optimizer"):
        discover()


def test_discovery_keeps_nothing_alive_and_changes_nothing(device: str) -> None:
    run = Training(device).until_gradients()
    before = {name: (t.data_ptr(), t._version) for name, t in run.tensors().items()}
    discover(run.model, run.optimizer)
    after = {name: (t.data_ptr(), t._version) for name, t in run.tensors().items()}
    assert before == after
