"""A schedule over a DeepSpeed engine, and over a model that is wrapped for several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import optim
from torch.nn.parallel import DistributedDataParallel

from pinferry import Category, OffloadSchedule
from pinferry.errors import InvalidArgument
from tests.loop.runs import Run, same
from tests.zero.engines import WRAPPERS, engine_of
from tests.zero.model import train

if TYPE_CHECKING:
    from pinferry import PinnedArena

STEPS = 8


@pytest.mark.parametrize("policy", [["optim_states", "hp_params"], None], ids=["optimizer", "all"])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_an_engine_trains_to_the_bit(
    kind: str, policy: list[str] | None, arena: PinnedArena, device: str
) -> None:
    with engine_of(kind, accumulation=2) as engine:
        expected = train(engine, STEPS)
    seen: list[set[Category]] = []
    with (
        engine_of(kind, accumulation=2) as engine,
        OffloadSchedule(arena).attach(engine, policy=policy, accumulate=2) as schedule,
    ):
        offloader = schedule._parking._offloader  # type: ignore[union-attr]

        def look(moment: str, step: int) -> None:
            if moment == "backward":  # that is, after the forward
                seen.append(set(offloader.offloaded_states()))

        assert train(engine, STEPS, look) == expected
        assert schedule.report().steps == STEPS // 2
        assert schedule.report().parked_bytes > 0
    assert {Category.OPTIM_STATES} <= seen[-1]
    assert not hasattr(engine, "_pinferry_offloader")


def test_a_model_wrapped_for_several_ranks(arena: PinnedArena, device: str) -> None:
    runs = Run(device), Run(device)
    both = [optim.AdamW(run.groups(), lr=1e-2) for run in runs]
    with OffloadSchedule(arena) as schedule:
        for run in runs:
            run.model = DistributedDataParallel(run.model)  # type: ignore[assignment]
        schedule.attach(runs[1].model, both[1], policy=["optim_states", "lp_grads"])
        assert runs[0].train(both[0], 4) == runs[1].train(both[1], 4)
        assert same(*(run.weights() for run in runs))
        assert schedule.report().parked_bytes > 0


def test_accelerate_prepares_what_a_schedule_watches(arena: PinnedArena, device: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    runs = Run(device), Run(device)
    both = [optim.AdamW(run.groups(), lr=1e-2) for run in runs]
    accelerator = accelerate.Accelerator(cpu=device == "cpu")
    runs[1].model, both[1] = accelerator.prepare(runs[1].model, both[1])
    with OffloadSchedule(arena).attach(runs[1].model, both[1]) as schedule:
        losses: list[list[float]] = [[], []]
        for _ in range(4):
            for kept, run, optimizer, backward in zip(
                losses, runs, both, (torch.autograd.backward, accelerator.backward), strict=True
            ):
                loss = run.loss()
                backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                kept.append(loss.item())
                run.steps += 1
        assert losses[0] == losses[1]
        assert schedule.report().steps == 4
        assert schedule.report().parked_bytes > 0


def test_an_optimizer_is_needed_but_for_an_engine(arena: PinnedArena, device: str) -> None:
    with pytest.raises(InvalidArgument, match="give the optimizer"):
        OffloadSchedule(arena).attach(Run(device).model)
