"""Streaming changes no bit of any optimizer's work, and leaves nothing on the device."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch
from torch import optim

from pinferry import StreamingOptimizer
from tests.loop.runs import WINDOW, Run, same

if TYPE_CHECKING:
    from pinferry import PinnedArena
    from tests.loop.runs import Make

OPTIMIZERS: dict[str, Make] = {
    "adam": partial(optim.Adam, lr=1e-2, weight_decay=0.1),
    "adam, foreach": partial(optim.Adam, lr=1e-2, foreach=True),
    "adam, fused": partial(optim.Adam, lr=1e-2, fused=True),
    "adam, one by one": partial(optim.Adam, lr=1e-2, foreach=False),
    "adamw": partial(optim.AdamW, lr=1e-2),
    "amsgrad": partial(optim.AdamW, lr=1e-2, amsgrad=True),
    "sgd": partial(optim.SGD, lr=1e-2),
    "momentum": partial(optim.SGD, lr=1e-2, momentum=0.9, nesterov=True),
    "adagrad": partial(optim.Adagrad, lr=1e-2),
    "adadelta": partial(optim.Adadelta, lr=1e-2),
    "adafactor": partial(optim.Adafactor, lr=1e-2),
    "adamax": partial(optim.Adamax, lr=1e-2),
    "asgd": partial(optim.ASGD, lr=1e-2),
    "nadam": partial(optim.NAdam, lr=1e-2),
    "radam": partial(optim.RAdam, lr=1e-2),
    "rmsprop": partial(optim.RMSprop, lr=1e-2, momentum=0.5, centered=True),
    "rprop": partial(optim.Rprop, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_streams_is_equal_to_the_bit(
    name: str, device: str, arena: PinnedArena
) -> None:
    resident, streamed = Run(device), Run(device)
    plain = OPTIMIZERS[name](resident.groups())
    optimizer = StreamingOptimizer(OPTIMIZERS[name](streamed.groups()), arena, window=WINDOW)
    assert streamed.train(optimizer) == resident.train(plain)
    assert same(streamed.weights(), resident.weights())
    assert optimizer.resident_bytes == 0
    assert same(optimizer.state_dict(), plain.state_dict())
    optimizer.close()
    assert same(optimizer._inner.state_dict(), plain.state_dict())
    assert streamed.train(optimizer._inner) == resident.train(plain)
    assert arena.stats().used_bytes == 0


def test_an_optimizer_that_has_stepped_already_goes_on(device: str, arena: PinnedArena) -> None:
    resident, streamed = Run(device), Run(device)
    plain, inner = (optim.AdamW(run.groups(), lr=1e-2) for run in (resident, streamed))
    assert streamed.train(inner) == resident.train(plain)
    with StreamingOptimizer(inner, arena, window=WINDOW) as optimizer:
        assert optimizer.resident_bytes == 0
        assert streamed.train(optimizer) == resident.train(plain)


def test_a_parameter_without_a_gradient_is_left_alone(device: str, arena: PinnedArena) -> None:
    resident, streamed = Run(device), Run(device)
    plain = optim.AdamW(resident.groups(), lr=1e-2)
    with StreamingOptimizer(
        optim.AdamW(streamed.groups(), lr=1e-2), arena, window=WINDOW
    ) as optimizer:
        for run in (resident, streamed):
            for parameter in run.model[2].parameters():
                parameter.requires_grad_(False)
        assert streamed.train(optimizer) == resident.train(plain)
        for run in (resident, streamed):
            for parameter in run.model[2].parameters():
                parameter.requires_grad_(True)
        assert streamed.train(optimizer) == resident.train(plain)
        assert same(optimizer.state_dict(), plain.state_dict())


class Mixed(Run):
    """Trains bf16 weights through master weights by hand, as mixed precision does."""

    def __init__(self, device: str) -> None:
        super().__init__(device, torch.bfloat16)
        self.masters = [
            torch.nn.Parameter(each.detach().float()) for each in self.model.parameters()
        ]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        for master, weight in zip(self.masters, self.model.parameters(), strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()
        optimizer.step()
        for master, weight in zip(self.masters, self.model.parameters(), strict=True):
            weight.data.copy_(master)
            weight.grad = None


def test_master_weights_are_those_of_mixed_precision_by_hand(
    device: str, arena: PinnedArena
) -> None:
    by_hand, streamed = Mixed(device), Run(device, torch.bfloat16)
    plain = optim.AdamW(by_hand.masters, lr=1e-2)
    optimizer = StreamingOptimizer(
        optim.AdamW(streamed.model.parameters(), lr=1e-2),
        arena,
        window=2 * WINDOW,
        master_weights=True,
    )
    for _ in range(5):
        by_hand.backward()
        by_hand.step(plain)
        by_hand.steps += 1
    streamed.train(optimizer, 5)
    assert same(streamed.weights(), by_hand.weights())
    saved = optimizer.state_dict()
    assert same(list(saved.pop("master_weights").values()), [m.detach() for m in by_hand.masters])
    assert same(saved, plain.state_dict())
    assert optimizer.resident_bytes == 0
    optimizer.close()
    stepped_on = optimizer.param_groups[0]["params"]
    assert same([each.detach() for each in stepped_on], [m.detach() for m in by_hand.masters])


def test_an_arena_is_made_that_holds_it_all(device: str) -> None:
    run = Run(device)
    optimizer = StreamingOptimizer(optim.AdamW(run.groups(), lr=1e-2))
    made = optimizer.arena
    capacity = made.capacity_bytes
    run.train(optimizer)
    assert made.capacity_bytes == capacity
    optimizer.close()
    optimizer.close()
    assert made.closed


def test_no_more_is_here_at_once_than_the_window(device: str, arena: PinnedArena) -> None:
    run = Run(device, layers=20)
    optimizer = StreamingOptimizer(optim.AdamW(run.groups(), lr=1e-2), arena, window=WINDOW)
    here: list[int] = []

    def note(*_: object) -> None:
        here.append(optimizer.resident_bytes)

    run.train(optimizer, 1)
    optimizer._inner.register_step_pre_hook(note)
    run.train(optimizer, 2)
    assert len(here) > 2 * 8
    assert 0 < max(here) <= WINDOW
