"""Storages that several tensors share are found once, under all their names."""

from __future__ import annotations

import torch
from torch import nn

from pinferry import StateEntry, discover
from tests.states.training import Net, Training


def entry_of(name: str, *entries: StateEntry) -> StateEntry:
    [found] = [entry for entry in entries if name in (entry.name, *entry.aliases)]
    return found


def test_tied_weights_are_one_entry_with_the_other_name_as_an_alias() -> None:
    tied = entry_of("model.last.weight", *discover(Net()))
    assert (tied.name, tied.aliases) == ("model.first.weight", ("model.last.weight",))


def test_a_module_that_is_used_twice_is_found_once() -> None:
    layer = nn.Linear(3, 3)
    found = discover(nn.Sequential(layer, layer))
    assert found.names() == ("model.0.weight", "model.0.bias")
    assert entry_of("model.1.bias", *found).aliases == ("model.1.bias",)


def test_parameters_cut_from_one_flat_tensor_are_one_entry_of_its_whole_size() -> None:
    flat = torch.zeros(100)
    model = nn.Module()
    model.a = nn.Parameter(flat[:33].view(3, 11))
    model.b = nn.Parameter(flat.narrow(0, 40, 7))
    [entry] = discover(model)
    assert (entry.nbytes, entry.shape, entry.aliases) == (400, (3, 11), ("model.b",))


def test_a_buffer_that_views_a_parameter_goes_with_the_parameter() -> None:
    model = nn.Linear(4, 4)
    model.register_buffer("row", model.weight.detach()[1])
    found = discover(model)
    assert found.nbytes("buffers") == 0
    assert entry_of("model.row", *found).name == "model.weight"


def test_several_gradients_in_one_storage_are_a_contiguous_gradient_buffer(device: str) -> None:
    run = Training(device)
    parameters = [p for p in run.model.parameters() if p.requires_grad]
    flat = torch.zeros(sum(p.numel() for p in parameters), device=device)
    start = 0
    for parameter in parameters:
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    found = discover(run.model, run.optimizer)
    assert found.nbytes("lp_grads") == 0
    [entry] = found.only("contiguous_grad_buffer")
    assert entry.nbytes == flat.nbytes
    assert len(entry.aliases) == len(parameters) - 1


def test_one_gradient_in_a_larger_storage_is_a_gradient() -> None:
    model = nn.Linear(2, 2, bias=False)
    model.weight.grad = torch.zeros(64)[8:12].view(2, 2)
    [entry] = discover(model).only("lp_grads")
    assert entry.nbytes == 256


def test_the_gradient_of_tied_weights_is_no_contiguous_buffer(device: str) -> None:
    run = Training(device).until_gradients(0)
    found = discover(run.model, run.optimizer)
    assert found.nbytes("contiguous_grad_buffer") == 0


def test_optimizer_states_cut_from_one_tensor_are_one_entry() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    flat = torch.zeros(12)
    optimizer.state[model.weight]["momentum_buffer"] = flat[:9].view(3, 3)
    optimizer.state[model.bias]["momentum_buffer"] = flat[9:]
    [entry] = discover(model, optimizer).only("optim_states")
    assert entry.nbytes == 48
    assert entry.aliases == ("optimizer.state[1].momentum_buffer",)
