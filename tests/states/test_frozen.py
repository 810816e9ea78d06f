"""Which parameters of a model are frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from pinferry import StateOffloader
from pinferry.errors import UnsupportedStorage
from tests.states.adapters import FROZEN, AdapterTraining

if TYPE_CHECKING:
    from pinferry import PinnedArena


def fixed(
    arena: PinnedArena, model: nn.Module | None, optimizer: torch.optim.Optimizer | None = None
) -> set[str]:
    """Return what a plan with the frozen parameters declared copies no second time."""
    offloader = StateOffloader(model, optimizer, arena=arena)
    with offloader.plan(immutable="frozen") as plan:
        return {
            member.name for place in plan._places for member in place.members if place.immutable
        }


def test_the_base_is_frozen_and_the_adapters_are_not(device: str, arena: PinnedArena) -> None:
    run = AdapterTraining(device)
    assert fixed(arena, run.model, run.optimizer) == FROZEN
    assert fixed(arena, run.model) == FROZEN
    assert fixed(arena, None, run.optimizer) == set()
    run.model.requires_grad_(True)
    assert fixed(arena, run.model) == set()
    run.model.requires_grad_(False)
    assert fixed(arena, run.model, run.optimizer) == FROZEN
    assert fixed(arena, run.model) == {f"model.{n}" for n, _ in run.model.named_parameters()}


def test_a_frozen_parameter_that_the_optimizer_steps_on_is_not_frozen(
    device: str, arena: PinnedArena
) -> None:
    model = nn.Linear(3, 3, device=device)
    model.weight.requires_grad_(False)
    model.bias.requires_grad_(False)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    assert fixed(arena, model, optimizer) == {"model.bias"}


@pytest.mark.parametrize("trained", ["first", "last", "none"])
def test_tied_weights_are_frozen_if_all_of_them_are(
    device: str, arena: PinnedArena, trained: str
) -> None:
    model = nn.Module()
    model.first = nn.Parameter(torch.ones(3, device=device), requires_grad=trained == "first")
    model.last = nn.Parameter(model.first.detach(), requires_grad=trained == "last")
    assert fixed(arena, model) == ({"model.first"} if trained == "none" else set())


def test_one_parameter_under_two_names_is_frozen_once(device: str, arena: PinnedArena) -> None:
    layer = nn.Linear(3, 3, device=device).requires_grad_(False)
    assert fixed(arena, nn.Sequential(layer, layer)) == {"model.0.weight", "model.0.bias"}


@pytest.mark.parametrize("shared_by", ["buffer", "parameter", "gradient", "state", "nothing"])
def test_a_storage_that_holds_anything_else_is_not_frozen(
    device: str, arena: PinnedArena, shared_by: str
) -> None:
    flat = torch.zeros(64, device=device)
    part = flat[32:40]
    model = nn.Module()
    model.frozen = nn.Parameter(flat[:8], requires_grad=False)
    model.other = nn.Parameter(torch.zeros(8, device=device))
    optimizer = torch.optim.SGD([model.other], lr=0.1, momentum=0.9)
    if shared_by == "buffer":
        model.register_buffer("seen", part)
    elif shared_by == "parameter":
        model.third = nn.Parameter(part)
    elif shared_by == "gradient":
        model.other.grad = part
    elif shared_by == "state":
        optimizer.state[model.other]["momentum_buffer"] = part
    frozen = {"model.frozen"} if shared_by == "nothing" else set()
    assert fixed(arena, model, optimizer) == frozen


def test_a_buffer_is_never_frozen(device: str, arena: PinnedArena) -> None:
    model = nn.BatchNorm1d(4, device=device).requires_grad_(False)
    assert fixed(arena, model) == {"model.weight", "model.bias"}


def test_a_lazy_parameter_is_left_out(device: str, arena: PinnedArena) -> None:
    frozen = nn.Linear(3, 3, device=device).requires_grad_(False)
    lazy = nn.LazyLinear(4, device=device)
    lazy.bias = UninitializedParameter(requires_grad=False)
    model = nn.Sequential(frozen, lazy)
    assert fixed(arena, model) == {"model.0.weight", "model.0.bias"}


def test_a_parameter_without_a_storage_stands_in_the_way_where_it_is_asked_for(
    device: str, arena: PinnedArena
) -> None:
    model = nn.Linear(3, 3, device=device).requires_grad_(False)
    model.sparse = nn.Parameter(torch.eye(3, device=device).to_sparse(), requires_grad=False)
    offloader = StateOffloader(model, arena=arena)
    with pytest.raises(UnsupportedStorage, match="sparse"):
        offloader.plan(immutable="frozen")
    with offloader.plan("buffers", immutable="frozen") as plan:
        assert plan.names() == ()
    assert arena.stats().used_bytes == 0
