"""Bad input, and failures amid a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn, optim

from pinferry import PinnedArena, StreamingOptimizer
from pinferry.errors import (
    ArenaExhausted,
    DeviceOutOfMemory,
    InvalidArgument,
    StepInterrupted,
    WrongDevice,
)
from pinferry.transfer import TransferPlan
from tests.loop.runs import WINDOW, Run, same

if TYPE_CHECKING:
    from collections.abc import Callable


class Own(optim.SGD):
    """An optimizer of somebody's own."""


REFUSED: dict[str, tuple[Callable[[list[Any]], Any], dict[str, Any], str]] = {
    "lbfgs": (optim.LBFGS, {}, "LBFGS looks at all parameters at once"),
    "sparse": (optim.SparseAdam, {}, "SparseAdam"),
    "own": (Own, {}, "per_parameter=True"),
    "no optimizer": (nn.ParameterList, {}, "ParameterList is no torch.optim.Optimizer"),
    "differentiable": (lambda p: optim.SGD(p, differentiable=True), {}, "differentiable"),
    "window": (optim.AdamW, {"window": "1KiB"}, r"give at least \d+ bytes"),
    "text": (optim.AdamW, {"window": "wide"}, "wide"),
    "flag": (optim.AdamW, {"master_weights": 1}, "master_weights"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_streamed_is_refused(name: str, device: str, arena: PinnedArena) -> None:
    make, options, says = REFUSED[name]
    optimizer = make(list(Run(device).model.parameters()))
    with pytest.raises(InvalidArgument, match=says):
        StreamingOptimizer(optimizer, arena, **options)
    assert arena.stats().used_bytes == 0


def test_somebody_s_own_is_taken_at_their_word(device: str, arena: PinnedArena) -> None:
    run = Run(device)
    with StreamingOptimizer(
        Own(run.groups(), lr=1e-2, momentum=0.5), arena, per_parameter=True
    ) as optimizer:
        run.train(optimizer)


@pytest.mark.parametrize("device", ["cpu"])
def test_parameters_elsewhere_are_refused(device: str, arena: PinnedArena) -> None:
    there = nn.Parameter(torch.ones(3, device="meta"))
    with pytest.raises(WrongDevice, match="this arena serves cpu"):
        StreamingOptimizer(optim.SGD([there]), arena)
    with pytest.raises(WrongDevice, match=r"params\[1\] on meta"):
        StreamingOptimizer(optim.SGD([nn.Parameter(torch.ones(3)), there]), arena)
    run = Run(device)
    optimizer = StreamingOptimizer(optim.AdamW(run.groups()), arena, window=WINDOW)
    large = nn.Parameter(torch.ones(WINDOW))
    for parameter, error in ((there, WrongDevice), (large, InvalidArgument)):
        with pytest.raises(error):
            optimizer.add_param_group({"params": [parameter]})
    assert len(optimizer.param_groups) == 2
    run.train(optimizer)


def test_a_sparse_gradient_is_refused_before_anything(device: str, arena: PinnedArena) -> None:
    model = nn.Sequential(nn.Linear(9, 9), nn.Embedding(9, 9, sparse=True)).to(device)
    optimizer = StreamingOptimizer(optim.SGD(model.parameters(), lr=0.1, momentum=0.9), arena)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model[1](torch.tensor([1], device=device)).sum().backward()
    model[0](torch.ones(9, device=device)).sum().backward()
    with pytest.raises(InvalidArgument, match=r"params\[2\] has a sparse gradient"):
        optimizer.step()
    assert same([parameter.detach() for parameter in model.parameters()], before)


def test_an_arena_that_is_full_says_so_after_the_update(device: str) -> None:
    resident, streamed = Run(device), Run(device)
    plain = optim.AdamW(resident.groups(), lr=1e-2)
    with PinnedArena("32KiB", device=device) as small:
        optimizer = StreamingOptimizer(
            optim.AdamW(streamed.groups(), lr=1e-2), small, window=WINDOW
        )
        for _ in range(2):
            for run in (resident, streamed):
                run.backward()
                run.steps += 1
            plain.step()
            with pytest.raises(ArenaExhausted):
                optimizer.step()
            for each in (plain, optimizer):
                each.zero_grad()
            assert same(streamed.weights(), resident.weights())
        assert optimizer.resident_bytes > 0
        assert same(optimizer.state_dict(), plain.state_dict())
        optimizer.close()
        assert streamed.train(optimizer._inner) == resident.train(plain)


class Failing(optim.AdamW):
    """Fails at its n-th call, before or after it has updated."""

    calls, at, after = 0, 0, False

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if self.calls == self.at and not self.after:
            raise ArithmeticError("overflow")
        super().step(closure)
        if self.calls == self.at:
            raise ArithmeticError("overflow")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("failing_piece", [1, 2, 3])
def test_a_failure_amid_the_pieces_says_what_is_updated(
    failing_piece: int, after: bool, device: str, arena: PinnedArena
) -> None:
    resident, streamed = Run(device), Run(device)
    plain = optim.AdamW(resident.groups(), lr=1e-2)
    inner = Failing(streamed.groups(), lr=1e-2)
    optimizer = StreamingOptimizer(inner, arena, window=WINDOW, per_parameter=True)
    assert streamed.train(optimizer, 2) == resident.train(plain, 2)
    pieces = inner.calls // 2
    assert pieces >= 3
    inner.at, inner.after = inner.calls + failing_piece, after
    before = streamed.weights()
    for run in (resident, streamed):
        run.backward()
    plain.step()
    with pytest.raises(StepInterrupted, match="overflow") as caught:
        optimizer.step()
    updated, doubtful = caught.value.updated, caught.value.doubtful
    assert isinstance(updated, int)
    assert isinstance(doubtful, int)
    assert doubtful > 0
    assert (updated > 0) is (failing_piece > 1)
    now, expected = streamed.weights(), resident.weights()
    assert same(now[:updated], expected[:updated])
    assert same(now[updated + doubtful :], before[updated + doubtful :])
    assert optimizer.resident_bytes == 0
    # What was not updated is updated by the next step with the same gradients.
    done = updated + (doubtful if after else 0)
    for parameter in list(streamed.model.parameters())[:done]:
        parameter.grad = None
    optimizer.step()
    assert same(streamed.weights(), expected)


def test_a_device_without_memory_leaves_everything_as_it_was(
    device: str, arena: PinnedArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(device)
    optimizer = StreamingOptimizer(optim.AdamW(run.groups(), lr=1e-2), arena, window=WINDOW)
    run.train(optimizer, 1)
    before, state = run.weights(), optimizer.state_dict()
    run.backward()

    def refuse(self: TransferPlan, **options: object) -> None:
        raise DeviceOutOfMemory("full", requested=1)

    with monkeypatch.context() as patched:
        patched.setattr(TransferPlan, "reload", refuse)
        with pytest.raises(DeviceOutOfMemory):
            optimizer.step()
    assert same(run.weights(), before)
    assert same(optimizer.state_dict(), state)
    optimizer.step()


def test_an_interrupt_amid_a_step_loses_nothing(device: str, arena: PinnedArena) -> None:
    class Interrupted(Failing):
        def step(self, closure: Any = None) -> Any:
            try:
                return super().step(closure)
            except ArithmeticError:
                raise KeyboardInterrupt from None

    run = Run(device)
    inner = Interrupted(run.groups(), lr=1e-2)
    optimizer = StreamingOptimizer(inner, arena, window=WINDOW, per_parameter=True)
    run.train(optimizer, 1)
    inner.at = inner.calls + 2
    run.backward()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert optimizer.resident_bytes == 0
    run.train(optimizer, 2)
