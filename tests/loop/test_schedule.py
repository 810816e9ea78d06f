"""State comes and goes by itself, and no bit of the training changes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn, optim

from pinferry import OffloadSchedule, PinnedArena
from pinferry.errors import InvalidArgument, UnknownCategory
from pinferry.loop.stalls import ScheduleReport
from pinferry.transfer.parked import is_away
from tests.loop.runs import Run, same

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pair(device: str) -> tuple[Run, Run]:
    return Run(device), Run(device)


@pytest.fixture
def both(pair: tuple[Run, Run]) -> list[optim.Optimizer]:
    return [optim.AdamW(run.groups(), lr=1e-2) for run in pair]


@pytest.fixture
def schedule(arena: PinnedArena) -> Iterator[OffloadSchedule]:
    with OffloadSchedule(arena) as schedule:
        yield schedule


def moments_away(optimizer: optim.Optimizer) -> set[bool]:
    return {
        is_away(state["exp_avg"].untyped_storage()) for state in optimizer.state.values() if state
    }


def test_state_is_away_in_the_forward_and_back_for_the_step(
    pair: tuple[Run, Run], both: list[optim.Optimizer], schedule: OffloadSchedule
) -> None:
    run, optimizer = pair[1], both[1]
    assert pair[0].train(both[0], 1) == run.train(optimizer, 1)
    schedule.attach(run.model, optimizer)
    seen = []
    run.model[3].register_forward_hook(lambda *_: seen.append(moments_away(optimizer)))
    optimizer.register_step_pre_hook(lambda *_: seen.append(moments_away(optimizer)))
    assert pair[0].train(both[0], 3) == run.train(optimizer, 3)
    assert seen == [{True}, {False}] * 3
    assert same(*(each.weights() for each in pair))
    report = schedule.report()
    assert report.steps == 3
    assert report.parked_bytes > 0
    assert "steps" in str(schedule)


def test_the_first_step_makes_state_that_leaves_from_then_on(
    pair: tuple[Run, Run], both: list[optim.Optimizer], schedule: OffloadSchedule
) -> None:
    schedule.attach(pair[1].model, both[1])
    assert pair[0].train(both[0], 4) == pair[1].train(both[1], 4)
    pair[1].loss()
    assert moments_away(both[1]) == {True}
    schedule.detach()
    assert moments_away(both[1]) == {False}
    assert same(both[0].state_dict(), both[1].state_dict())
    assert pair[0].train(both[0], 2) == pair[1].train(both[1], 2)


@pytest.mark.parametrize(
    "policy", ["optim_states", ["optim_states", "lp_grads"], "lp_grads"], ids=str
)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_gradients_accumulate(
    policy: Any,
    accumulate: int,
    pair: tuple[Run, Run],
    both: list[optim.Optimizer],
    schedule: OffloadSchedule,
) -> None:
    schedule.attach(pair[1].model, both[1], policy=policy, accumulate=accumulate)
    for _ in range(3):
        for run, optimizer in zip(pair, both, strict=True):
            for _ in range(3):
                run.backward()
                run.steps += 1
            nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    assert same(*(run.weights() for run in pair))


def test_state_comes_back_in_the_last_of_several_backwards_only(
    pair: tuple[Run, Run], both: list[optim.Optimizer], schedule: OffloadSchedule
) -> None:
    run, optimizer = pair[1], both[1]
    run.train(optimizer, 1)
    schedule.attach(run.model, optimizer, accumulate=2)
    run.backward()
    assert moments_away(optimizer) == {True}
    loss = run.loss()
    torch.autograd.backward(loss)
    assert schedule._coming is not None
    optimizer.step()
    assert moments_away(optimizer) == {False}


def test_evaluation_between_backward_and_step_costs_time_only(
    pair: tuple[Run, Run], both: list[optim.Optimizer], schedule: OffloadSchedule
) -> None:
    schedule.attach(pair[1].model, both[1], policy=["optim_states", "lp_grads"])
    for _ in range(3):
        for run, optimizer in zip(pair, both, strict=True):
            run.backward()
            with torch.no_grad():
                run.loss()
            optimizer.step()
            optimizer.zero_grad()
            run.steps += 1
    assert same(*(run.weights() for run in pair))
    with torch.no_grad():
        pair[1].loss()
    assert moments_away(both[1]) == {True}


def test_a_scaler_and_a_scheduler_work_as_ever(
    pair: tuple[Run, Run], both: list[optim.Optimizer], schedule: OffloadSchedule, device: str
) -> None:
    schedule.attach(pair[1].model, both[1])
    scalers = [torch.amp.GradScaler(device.partition(":")[0], init_scale=4.0) for _ in both]
    rates = [optim.lr_scheduler.StepLR(each, 1, gamma=0.7) for each in both]
    for number in range(4):
        for run, optimizer, scaler in zip(pair, both, scalers, strict=True):
            torch.autograd.backward(scaler.scale(run.loss()))
            if number == 1:
                next(run.model.parameters()).grad.fill_(torch.inf)  # type: ignore[union-attr]
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            run.steps += 1
        for rate in rates:
            rate.step()
        assert same(*(run.weights() for run in pair))


def test_a_checkpoint_that_is_loaded_is_parked_from_then_on(
    pair: tuple[Run, Run], both: list[optim.Optimizer], schedule: OffloadSchedule
) -> None:
    run, optimizer = pair[1], both[1]
    schedule.attach(run.model, optimizer)
    run.train(optimizer, 2)
    pair[0].train(both[0], 2)
    saved = copy.deepcopy(both[0].state_dict())
    run.loss()  # away
    optimizer.load_state_dict(saved)
    assert pair[0].train(both[0], 3) == run.train(optimizer, 3)
    run.loss()
    assert moments_away(optimizer) == {True}


def test_nothing_moves_while_it_is_paused(
    pair: tuple[Run, Run], both: list[optim.Optimizer], schedule: OffloadSchedule
) -> None:
    run, optimizer = pair[1], both[1]
    schedule.attach(run.model, optimizer)
    run.train(optimizer, 2)
    run.loss()
    with schedule.paused():
        assert moments_away(optimizer) == {False}
        optimizer.state_dict()["state"][0]["exp_avg"].sum()
        run.loss()
        assert moments_away(optimizer) == {False}
        run.train(optimizer, 1)
    run.loss()
    assert moments_away(optimizer) == {True}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_is_watched(
    in_place: bool, pair: tuple[Run, Run], both: list[optim.Optimizer], schedule: OffloadSchedule
) -> None:
    models: list[Any] = [run.model for run in pair]
    for model in models if in_place else ():
        model.compile(backend="eager")
    if not in_place:
        models = [torch.compile(model, backend="eager") for model in models]
    schedule.attach(models[1], both[1])
    losses: list[list[float]] = [[], []]
    for _ in range(4):
        for kept, run, model, optimizer in zip(losses, pair, models, both, strict=True):
            inputs = torch.full((5, 33), 0.1 * run.steps, device=run.device)
            loss = model(inputs).pow(2).mean()
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            kept.append(loss.item())
            run.steps += 1
    assert losses[0] == losses[1]
    assert schedule.report().parked_bytes > 0


class Wrapped(optim.Optimizer):
    """As Accelerate wraps optimizers."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.state, self.param_groups = optimizer.state, optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def test_a_wrapped_optimizer_is_watched_where_it_steps(
    pair: tuple[Run, Run], both: list[optim.Optimizer], schedule: OffloadSchedule
) -> None:
    schedule.attach(pair[1].model, Wrapped(both[1]))
    assert pair[0].train(both[0], 3) == pair[1].train(both[1], 3)
    assert schedule.report().steps == 3


def test_bad_arguments(
    pair: tuple[Run, Run], both: list[optim.Optimizer], arena: PinnedArena
) -> None:
    schedule = OffloadSchedule(arena)
    model, optimizer = pair[1].model, both[1]
    with pytest.raises(UnknownCategory, match="lp_params"):
        schedule.attach(model, optimizer, policy="lp_params")
    with pytest.raises(InvalidArgument, match="accumulate=0"):
        schedule.attach(model, optimizer, accumulate=0)
    with pytest.raises(InvalidArgument):
        schedule.attach(model, "adam")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="arena"):
        OffloadSchedule(None)  # type: ignore[arg-type]
    schedule.attach(model, optimizer)
    with pytest.raises(InvalidArgument, match="attached already"):
        schedule.attach(model, optimizer)
    schedule.detach()
    schedule.detach()
    assert not model._forward_pre_hooks


def test_advice_follows_the_figures() -> None:
    few = ScheduleReport(steps=1, stalled_ms=(), step_ms=None, parked_bytes=0)
    hidden = ScheduleReport(steps=9, stalled_ms=(0.1, 0.2), step_ms=100.0, parked_bytes=10)
    waits = ScheduleReport(steps=9, stalled_ms=(40.0, 60.0), step_ms=100.0, parked_bytes=10)
    assert "few steps" in few.advice
    assert "hidden" in hidden.advice
    assert "waits 50.0 ms of 100.0 ms" in waits.advice
