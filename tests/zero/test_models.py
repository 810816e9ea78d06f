"""Optimizers, adapters, and engines that train nothing."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pinferry import Category
from pinferry.deepspeed import attach
from pinferry.errors import StateOffloaded
from tests.zero.engines import WRAPPERS, engine_of
from tests.zero.model import WIDTH, Toy, batch, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinferry import PinnedArena

STEPS = 6
SHARDED = ("bf16_optimizer", "zero1", "zero2", "zero3")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda groups, lr: torch.optim.SGD(groups, lr=lr, momentum=0.9),
    "nadam": torch.optim.NAdam,
    "amsgrad": lambda groups, lr: torch.optim.AdamW(groups, lr=lr, amsgrad=True),
    "rprop": torch.optim.Rprop,
}


class Adapted(nn.Module):
    """A frozen model with low-rank adapters beside two of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Toy().requires_grad_(False)
        self.a = nn.Parameter(torch.linspace(-0.1, 0.1, WIDTH * 3).view(3, WIDTH))
        self.b = nn.Parameter(torch.linspace(-0.1, 0.1, WIDTH * 3).view(WIDTH, 3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        base = self.base
        hidden = base.embedding(tokens)
        hidden = hidden + nn.functional.linear(nn.functional.linear(hidden, self.a), self.b)
        hidden = base.norm(hidden + base.frozen(hidden))
        return nn.functional.cross_entropy(
            base.head(hidden).flatten(0, 1).float(), tokens.flatten()
        )


@pytest.fixture
def eager() -> Iterator[None]:
    """Compile nothing: Muon's kernels take minutes on a CPU."""
    with torch.compiler.set_stance("force_eager"):
        yield


def cycled(engine: Any, arena: PinnedArena) -> tuple[list[float], set[Category]]:
    """Train with everything away between any two parts of a step."""
    moved: set[Category] = set()
    with attach(engine, arena) as offloader:

        def cycle(moment: str, step: int) -> None:
            engine.offload_states()
            moved.update(offloader.offloaded_states())
            assert not offloader.resident()
            engine.reload_states()

        return train(engine, STEPS, cycle), moved


@pytest.mark.parametrize("kind", SHARDED)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer(name: str, kind: str, arena: PinnedArena, device: str) -> None:
    with engine_of(kind, client=OPTIMIZERS[name]) as engine:
        expected = train(engine, STEPS)
    with engine_of(kind, client=OPTIMIZERS[name]) as engine:
        losses, moved = cycled(engine, arena)
    assert losses == expected
    assert (Category.OPTIM_STATES in moved) is (name != "sgd")


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.usefixtures("eager")
def test_muon(stage: int, arena: PinnedArena, device: str) -> None:
    muon: dict[str, Any] = {
        "optimizer": {"type": "Muon", "params": {"lr": 1e-2}},
        "zero_optimization": {"reduce_scatter": stage != 3},
    }

    def model() -> nn.Module:
        made = Toy()
        for parameter in made.parameters():
            parameter.use_muon = parameter.ndim == 2  # type: ignore[attr-defined]
        return made

    def make() -> Any:
        torch.manual_seed(3)
        return engine_of(f"zero{stage}", model=model(), client=None, **muon)

    with make() as engine:
        expected = train(engine, STEPS)
    with make() as engine:
        losses, moved = cycled(engine, arena)
    assert losses == expected
    assert Category.OPTIM_STATES in moved


@pytest.mark.parametrize("kind", WRAPPERS)
def test_adapters_beside_frozen_weights(kind: str, arena: PinnedArena, device: str) -> None:
    def make() -> Any:
        torch.manual_seed(3)
        return engine_of(kind, model=Adapted())

    with make() as engine:
        expected = train(engine, STEPS)
    with make() as engine:
        losses, moved = cycled(engine, arena)
        with attach(engine, arena) as offloader:
            states = offloader.discover()
            frozen, trained = states.nbytes("frozen_params"), states.nbytes("lp_params")
            engine.offload_states(["frozen_params"])
            assert offloader.reclaim().by_category == {"frozen_params": frozen}
    assert losses == expected
    assert {Category.FROZEN_PARAMS, Category.LP_PARAMS, Category.BUFFERS} <= moved
    assert frozen > 10 * trained


@pytest.mark.parametrize("kind", ["plain", "zero3"])
def test_an_engine_that_only_infers(kind: str, arena: PinnedArena, device: str) -> None:
    with (
        engine_of(kind, client=None) as engine,
        attach(engine, arena) as offloader,
        torch.no_grad(),
    ):
        before = engine(batch(0, 0, device)).item()
        for _ in range(3):
            engine.offload_states()
            assert {Category.LP_PARAMS, Category.BUFFERS} == offloader.offloaded_states()
            assert not offloader.resident()
            with pytest.raises(StateOffloaded):
                engine(batch(0, 0, device))
            engine.reload_states()
            assert engine(batch(0, 0, device)).item() == before


@pytest.mark.parametrize("kind", WRAPPERS)
def test_nothing_of_weight_stays_that_no_category_names(
    kind: str, arena: PinnedArena, device: str
) -> None:
    """By Python's own list of tensors, which knows nothing of DeepSpeed."""
    gc.collect()
    others = {id(each) for each in gc.get_objects() if isinstance(each, torch.Tensor)}
    with engine_of(kind) as engine, attach(engine, arena) as offloader:
        train(engine, 2)
        engine.backward(engine(batch(2, 0, device)))
        found = {
            tensor.untyped_storage()._cdata: tensor
            for tensor in gc.get_objects()
            if isinstance(tensor, torch.Tensor)
            and id(tensor) not in others
            and tensor.device == torch.device(device)
            and tensor.untyped_storage().nbytes() > 8  # norms and flags of one element
        }
        known = {entry.storage._cdata for entry in offloader.discover()}
        unknown = [
            (tensor.dtype, tensor.shape) for key, tensor in found.items() if key not in known
        ]
        assert unknown == []
