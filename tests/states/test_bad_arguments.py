"""What holds no state, and what is no option, is refused before anything moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn, optim

from pinferry import PinnedArena, StateOffloader, TransferEngine, discover
from pinferry.errors import InvalidArgument, UnknownDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = nn.Linear(2, 2)
SGD = optim.SGD(MODEL.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("model", "optimizer", "wanted"),
    [
        (5, None, "a model is"),
        ("x", None, "a model is"),
        (SGD, None, "a model is"),
        (optim.SGD, None, "the class SGD"),
        (nn.Linear, None, "the class Linear"),
        (MODEL, MODEL, "an optimizer is"),
        (MODEL, 5, "an optimizer is"),
        (None, optim.SGD, "an optimizer is"),
        (None, list(MODEL.parameters()), "an optimizer is"),
    ],
)
def test_what_holds_no_state_is_refused(
    model: nn.Module, optimizer: optim.Optimizer, wanted: str
) -> None:
    with PinnedArena("1MiB", device="cpu") as arena:
        with pytest.raises(InvalidArgument, match=wanted):
            StateOffloader(model, optimizer, arena=arena)
        with pytest.raises(InvalidArgument, match=wanted):
            discover(model, optimizer)


class WrappedModel:
    """What frameworks put around a module, without being one."""

    def parameters(self) -> Iterator[nn.Parameter]:
        return MODEL.parameters()

    def named_parameters(
        self, prefix: str, *, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        return MODEL.named_parameters(prefix, remove_duplicate=remove_duplicate)

    def named_buffers(
        self, prefix: str, *, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        return MODEL.named_buffers(prefix, remove_duplicate=remove_duplicate)


class WrappedOptimizer:
    param_groups = SGD.param_groups
    state = SGD.state


def test_what_has_parameters_or_groups_holds_state_whatever_it_is() -> None:
    model: Any = WrappedModel()
    optimizer: Any = WrappedOptimizer()
    with PinnedArena("1MiB", device="cpu") as arena:
        offloader = StateOffloader(model, optimizer, arena=arena)
        assert offloader.discover().names() == ("model.weight", "model.bias")
        offloader.offload()
        offloader.reload()


def test_an_offloader_wants_an_arena_or_an_engine() -> None:
    with PinnedArena("1MiB", device="cpu") as arena:
        for given in (5, "x", arena):
            with pytest.raises(InvalidArgument, match="TransferEngine"):
                StateOffloader(MODEL, engine=given)  # type: ignore[arg-type]
        with TransferEngine(arena) as engine:
            for other in (5, "x", engine):
                with pytest.raises(InvalidArgument, match="PinnedArena"):
                    StateOffloader(MODEL, arena=other)  # type: ignore[arg-type]
            assert StateOffloader(MODEL, engine=engine).engine is engine


@pytest.mark.parametrize("non_blocking", ["x", 1, None])
def test_a_move_blocks_or_not(non_blocking: bool) -> None:
    with PinnedArena("1MiB", device="cpu") as arena:
        offloader = StateOffloader(MODEL, arena=arena)
        with pytest.raises(InvalidArgument, match="non_blocking="):
            offloader.offload(non_blocking=non_blocking)
        assert not offloader.offloaded_states()
        offloader.offload()
        with pytest.raises(InvalidArgument, match="non_blocking="):
            offloader.reload(non_blocking=non_blocking)
        assert offloader.offloaded_states()
        offloader.reload()


@pytest.mark.parametrize("device", ["x", "", 5.5, "cuda:x"])
def test_state_is_sought_on_a_device_that_there_is(device: object) -> None:
    with pytest.raises(UnknownDevice):
        discover(MODEL, device=device)
