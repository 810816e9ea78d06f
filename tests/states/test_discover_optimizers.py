"""Every optimizer's state is found, however it is kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, cast

import pytest
import torch
from torch import nn, optim

from pinferry import PinnedArena, TransferEngine, discover
from tests.states.training import MakeOptimizer, Training

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda p: optim.SGD(p, lr=0.01),
    "sgd_momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    "adam_amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "adamw_foreach": lambda p: optim.AdamW(p, foreach=True),
    "adamw_fused": lambda p: optim.AdamW(p, fused=True),
    "adagrad": optim.Adagrad,
    "adafactor": optim.Adafactor,
    "rmsprop": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "lbfgs": lambda p: optim.LBFGS(p, max_iter=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_tensor_of_the_optimizer_is_found(device: str, name: str) -> None:
    run = Training(device, OPTIMIZERS[name]).until_gradients()
    found = discover(run.model, run.optimizer)
    storages = {t.untyped_storage()._cdata for t in run.tensors().values()}
    assert {entry.storage._cdata for entry in found} == storages
    assert bool(found.only("optim_states")) == (name != "sgd")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_names_are_unique(device: str, name: str) -> None:
    run = Training(device, OPTIMIZERS[name]).until_gradients()
    names = discover(run.model, run.optimizer).names()
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_has_not_stepped_is_left_as_it_was(device: str, name: str) -> None:
    run = Training(device, OPTIMIZERS[name])
    states = len(run.optimizer.state)
    discover(run.model, run.optimizer)
    assert len(run.optimizer.state) == states


def keep(state: object) -> tuple[nn.Linear, optim.Optimizer]:
    model = nn.Linear(2, 2, bias=False)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight] = state
    return model, optimizer


NESTED: dict[str, Callable[[torch.Tensor], object]] = {
    "optimizer.state[0].a.b": lambda t: {"a": {"b": t}},
    "optimizer.state[0].a[1][0]": lambda t: {"a": [None, (t, "text")]},
    "optimizer.state[0].a[7]": lambda t: {"a": OrderedDict({7: t})},
    "optimizer.state[0]": lambda t: t,
}


@pytest.mark.parametrize("name", NESTED)
def test_tensors_in_containers_are_named_by_the_way_to_them(name: str) -> None:
    found = discover(*keep(NESTED[name](torch.zeros(5))))
    assert found.only("optim_states").names() == (name,)


def test_what_is_no_tensor_is_ignored() -> None:
    found = discover(*keep({"step": 3, "name": "x", "none": None, "list": [1, 2.0], "set": {1}}))
    assert not found.only("optim_states")


def test_state_under_a_key_that_is_no_parameter_is_named_after_the_key() -> None:
    model, optimizer = keep({})
    cast("dict[object, object]", optimizer.state)["shared"] = {"scale": torch.ones(1)}
    assert "optimizer.state[shared].scale" in discover(model, optimizer).names()


def test_a_tensor_that_is_a_key_lends_nothing_of_its_contents_to_names() -> None:
    model, optimizer = keep({})
    stranger = nn.Parameter(torch.full((1,), 2.5))
    kept = {model.weight: torch.ones(4), stranger: [torch.ones(4)]}
    optimizer.state[model.weight] = {"shadow": kept, "own": {(1, stranger): torch.ones(4)}}
    names = (
        "optimizer.state[0].shadow[0]",
        "optimizer.state[0].shadow[Parameter at 1][0]",
        "optimizer.state[0].own[tuple at 0]",
    )
    assert discover(model, optimizer).only("optim_states").names() == names
    with PinnedArena("1MiB", device="cpu") as arena, TransferEngine(arena) as engine:
        engine.offload([model.weight, stranger])  # no key can be looked into now
        assert discover(model, optimizer).only("optim_states").names() == names
        engine.reload()


def test_parameters_of_all_groups_are_numbered_through() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    w0, b0, w1, b1 = model.parameters()
    optimizer = optim.SGD([b1, w0], lr=0.1, momentum=0.9)
    optimizer.add_param_group({"params": [b0, w1], "lr": 0.5})
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = {entry.name: entry.shape for entry in discover(model, optimizer).only("optim_states")}
    assert found == {
        "optimizer.state[0].momentum_buffer": (2,),
        "optimizer.state[1].momentum_buffer": (3, 2),
        "optimizer.state[2].momentum_buffer": (3,),
        "optimizer.state[3].momentum_buffer": (2, 3),
    }


def test_states_of_parameters_that_left_the_groups_have_names_of_their_own() -> None:
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["params"] = [nn.Parameter(torch.zeros(1))]
    names = discover(model, optimizer).only("optim_states").names()
    assert len(names) == len(set(names)) == 2


def test_a_key_that_equals_an_index_does_not_hide_the_state_of_that_parameter() -> None:
    model, optimizer = keep({"a": torch.zeros(1)})
    cast("dict[object, object]", optimizer.state)[0] = {"a": torch.zeros(1)}
    names = discover(model, optimizer).only("optim_states").names()
    assert len(names) == len(set(names)) == 2
