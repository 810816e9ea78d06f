"""Engines of pipelines, which train by a call of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pinferry.deepspeed import attach
from pinferry.errors import StateOffloaded
from tests.zero.engines import engine_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry import PinnedArena

STEPS = 4
KINDS = ("bf16_optimizer", "zero1")


def pipeline() -> nn.Module:
    """Return a pipeline of one stage."""
    from deepspeed.pipe import LayerSpec, PipelineModule

    torch.manual_seed(3)
    layers = [LayerSpec(nn.Linear, 8, 8), nn.ReLU(), LayerSpec(nn.Linear, 8, 8)]
    module: nn.Module = PipelineModule(layers, num_stages=1, loss_fn=nn.functional.mse_loss)
    return module


def batches(device: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return inputs and targets without end, the same each time."""
    generator = torch.Generator().manual_seed(1)
    while True:
        inputs, targets = torch.randn(2, 2, 8, generator=generator).bfloat16().to(device)
        yield inputs, targets


def engine_of_a_pipeline(kind: str) -> Any:
    return engine_of(kind, model=pipeline(), accumulation=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_refused_before_it_begins(kind: str, arena: PinnedArena, device: str) -> None:
    with engine_of_a_pipeline(kind) as engine:
        given = batches(device)
        expected = [engine.train_batch(given).item() for _ in range(STEPS)]
    with engine_of_a_pipeline(kind) as engine, attach(engine, arena) as offloader:
        given = batches(device)
        losses = [engine.train_batch(given).item()]
        for _ in range(STEPS - 1):
            for category in ("lp_params", "hp_params", "optim_states"):
                engine.offload_states([category])
                assert offloader.offloaded_states() == {category}
                with pytest.raises(StateOffloaded, match=f"train_batch needs {category}"):
                    engine.train_batch(given)
                engine.reload_states()
            engine.offload_states()
            assert not offloader.resident()
            engine.reload_states()
            losses.append(engine.train_batch(given).item())
        assert losses == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_brings_back_what_it_needs_where_that_was_asked_for(
    kind: str, arena: PinnedArena, device: str
) -> None:
    with engine_of_a_pipeline(kind) as engine:
        given = batches(device)
        expected = [engine.train_batch(given).item() for _ in range(STEPS)]
    with engine_of_a_pipeline(kind) as engine, attach(engine, arena, on_access="reload"):
        given = batches(device)
        losses = []
        for _ in range(STEPS):
            engine.offload_states()
            losses.append(engine.train_batch(given).item())
        assert losses == expected


def test_an_evaluation_needs_the_weights_alone(arena: PinnedArena, device: str) -> None:
    with engine_of_a_pipeline("zero1") as engine, attach(engine, arena):
        given = batches(device)
        engine.train_batch(given)
        engine.offload_states(["hp_params", "optim_states", "lp_grads"])
        engine.eval_batch(given)
        engine.offload_states(["lp_params"])
        with pytest.raises(StateOffloaded, match="eval_batch needs lp_params"):
            engine.eval_batch(given)
