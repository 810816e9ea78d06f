"""A run that offloads at any moment trains to the same bits as one that never does."""

from __future__ import annotations

import pytest
from torch import optim

from pinferry import PinnedArena, StateOffloader
from tests.states.training import (
    MakeOptimizer,
    MasterTraining,
    Point,
    Training,
    adamw,
    assert_same_bits,
)

POINTS: tuple[Point, ...] = ("start", "forward", "backward", "update", "cleared")
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda p: optim.SGD(p, lr=0.01),
    "sgd_momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw_foreach": lambda p: optim.AdamW(p, foreach=True),
    "adamw_fused": lambda p: optim.AdamW(p, fused=True),
    "adafactor": optim.Adafactor,
    "lbfgs": lambda p: optim.LBFGS(p, max_iter=3),
}


def train_both(
    kind: type[Training],
    device: str,
    arena: PinnedArena,
    *,
    points: tuple[Point, ...],
    make_optimizer: MakeOptimizer = adamw,
    steps: int = 4,
) -> None:
    control, run = kind(device, make_optimizer), kind(device, make_optimizer)
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)

    def there_and_back(point: Point) -> None:
        if point in points:
            offloader.offload()
            offloader.reload()

    for _ in range(steps):
        control.step()
        run.step(there_and_back)
        assert_same_bits(run.bits(), control.bits())
    assert arena.stats().used_bytes == 0


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", [Training, MasterTraining])
def test_at_one_point_of_each_step(
    device: str, arena: PinnedArena, kind: type[Training], point: Point
) -> None:
    train_both(kind, device, arena, points=(point,))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_at_every_point_of_each_step_with_any_optimizer(
    device: str, arena: PinnedArena, name: str
) -> None:
    train_both(Training, device, arena, points=POINTS, make_optimizer=OPTIMIZERS[name])


def test_optimizer_state_stays_away_until_the_optimizer_steps(
    device: str, arena: PinnedArena
) -> None:
    control, run = Training(device), Training(device)
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)

    def only_where_needed(point: Point) -> None:
        if point == "backward":
            offloader.reload("optim_states")
        elif point == "update":
            offloader.offload("optim_states")

    for _ in range(4):
        control.step()
        run.step(only_where_needed)
    offloader.reload()
    assert_same_bits(run.bits(), control.bits())


def test_gradients_accumulate_over_an_offload_between_two_micro_batches(
    device: str, arena: PinnedArena
) -> None:
    control, run = Training(device), Training(device)
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    for each in (control, run):
        each.backward()
    offloader.offload("lp_grads")
    offloader.reload("lp_grads")
    for each in (control, run):
        each.backward()
    assert_same_bits(run.bits(), control.bits())


def test_a_step_with_offloaded_state_fails_and_loses_nothing(
    device: str, arena: PinnedArena
) -> None:
    control, run = (Training(device).until_gradients() for _ in range(2))
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    offloader.offload("lp_params")
    with pytest.raises(RuntimeError, match=r"model\.\S+ is offloaded .* call reload\(\) first"):
        run.loss()
    offloader.reload()
    assert_same_bits(run.bits(), control.bits())


@pytest.mark.parametrize("name", ["adamw_foreach", "adafactor", "lbfgs", "sgd_momentum"])
def test_an_optimizer_that_has_not_stepped_stays_without_state(
    device: str, arena: PinnedArena, name: str
) -> None:
    run = Training(device, OPTIMIZERS[name])
    run.backward()
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    offloader.offload()
    assert len(run.optimizer.state) == 0
    offloader.reload()
    assert len(run.optimizer.state) == 0
