"""Activations that were in host memory give the gradients that they would have given."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pinferry import PinnedArena, TransferEngine, offload_activations
from pinferry.errors import EngineClosed, InvalidArgument, InvalidSize, StateOffloaded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry.loop import OffloadedActivations

WIDTH = 64


@pytest.fixture
def engine(arena: PinnedArena) -> Iterator[TransferEngine]:
    with TransferEngine(arena) as engine:
        yield engine


@pytest.fixture(params=[0, 40_000, "1GiB"], ids=["one by one", "some ahead", "all ahead"])
def activations(request: pytest.FixtureRequest, engine: TransferEngine) -> OffloadedActivations:
    return offload_activations(engine, min_bytes=256, ahead=request.param)


class Block(nn.Module):
    """What a transformer saves: views of one product, softmax, normalization, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
        mixed: torch.Tensor = x + self.drop(nn.functional.gelu(self.out(weights @ value)))
        return mixed


def model_on(device: str) -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(*[Block() for _ in range(3)]).to(device)


def inputs_on(device: str) -> torch.Tensor:
    return torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(3)).to(device)


def gradients(model: nn.Module, run: Any) -> list[torch.Tensor]:
    torch.manual_seed(4)
    model.zero_grad()
    torch.autograd.backward(run())
    return [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


def test_gradients_are_equal_to_the_bit_step_after_step(
    device: str, arena: PinnedArena, activations: OffloadedActivations
) -> None:
    model, inputs = model_on(device), inputs_on(device)
    expected = gradients(model, lambda: model(inputs).pow(2).mean())

    def run() -> torch.Tensor:
        with activations:
            loss: torch.Tensor = model(inputs).pow(2).mean()
        return loss

    for _ in range(3):
        assert all(map(torch.equal, gradients(model, run), expected))
        assert arena.stats().used_bytes == 0
    assert activations.offloaded_bytes > 3 * 50_000
    assert activations.left_bytes == 0


def test_backward_may_come_within_the_block_too(
    device: str, activations: OffloadedActivations
) -> None:
    model, inputs = model_on(device), inputs_on(device)
    expected = gradients(model, lambda: model(inputs).pow(2).mean())
    with activations:
        assert all(
            map(torch.equal, gradients(model, lambda: model(inputs).pow(2).mean()), expected)
        )


def test_what_is_saved_twice_is_copied_once(
    device: str, arena: PinnedArena, activations: OffloadedActivations
) -> None:
    x = torch.randn(64, WIDTH, device=device, requires_grad=True)
    with activations:
        hidden = x.exp()  # saved
        parts = [hidden * hidden[0], hidden.view(-1).square(), hidden[3:5].exp(), hidden.t().sin()]
        loss = sum(part.sum() for part in parts)
    # The exponent of two rows is another tensor.
    assert activations.offloaded_bytes == hidden.nbytes + 2 * WIDTH * 4
    assert isinstance(loss, torch.Tensor)
    torch.autograd.backward(loss)
    ours = x.grad
    x.grad = None
    hidden = x.exp()
    parts = [hidden * hidden[0], hidden.view(-1).square(), hidden[3:5].exp(), hidden.t().sin()]
    torch.autograd.backward(sum(part.sum() for part in parts))  # type: ignore[arg-type]
    assert ours is not None
    assert x.grad is not None
    assert torch.equal(ours, x.grad)


def test_parameters_and_leaves_stay(device: str, activations: OffloadedActivations) -> None:
    layer = nn.Linear(WIDTH, WIDTH, bias=False).to(device)
    leaf = torch.randn(WIDTH, WIDTH, device=device, requires_grad=True)
    with activations:
        layer(leaf)
        layer.weight.t() @ leaf
    assert activations.offloaded_bytes == 0


def test_small_tensors_stay(device: str, engine: TransferEngine) -> None:
    x = torch.randn(8, device=device, requires_grad=True)
    with offload_activations(engine, min_bytes=33) as activations:
        x.exp()
    assert activations.offloaded_bytes == 0
    with offload_activations(engine, min_bytes=32) as activations:
        x.exp()
    assert activations.offloaded_bytes == 32


def test_a_full_arena_leaves_the_rest_on_the_device(device: str) -> None:
    model, inputs = model_on(device), inputs_on(device)
    expected = gradients(model, lambda: model(inputs).pow(2).mean())
    with PinnedArena("32KiB", device=device) as small, TransferEngine(small) as engine:
        activations = offload_activations(engine, min_bytes=256)

        def run() -> torch.Tensor:
            with activations:
                loss: torch.Tensor = model(inputs).pow(2).mean()
            return loss

        assert all(map(torch.equal, gradients(model, run), expected))
        assert activations.left_bytes > 0
        assert activations.offloaded_bytes > 0


def test_a_change_in_place_is_an_error_or_harmless(
    device: str, activations: OffloadedActivations
) -> None:
    """Autograd's own check does not see what hooks have taken."""
    x = torch.linspace(0.1, 1.0, 4096, device=device, requires_grad=True)
    with activations:
        hidden = x.exp()
        loss = hidden.sum()
        hidden.mul_(2.0)
    saved = next(iter(activations._alive.values()))
    if saved.source is None and not saved.spoiled:  # the copy had ended before
        torch.autograd.backward(loss)
        assert x.grad is not None
        assert torch.equal(x.grad, x.detach().exp())
        return
    with pytest.raises(StateOffloaded, match="changed in place"):
        torch.autograd.backward(loss)


def test_a_graph_that_is_kept_gives_the_same_again(
    device: str, arena: PinnedArena, activations: OffloadedActivations
) -> None:
    model, inputs = model_on(device).eval(), inputs_on(device)
    with activations:
        loss = model(inputs).pow(2).mean()
    torch.autograd.backward(loss, retain_graph=True)
    first = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    model.zero_grad()
    torch.autograd.backward(loss)
    again = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert all(map(torch.equal, first, again))
    del loss
    gc.collect()
    assert arena.stats().used_bytes == 0


def test_gradients_of_gradients(device: str, activations: OffloadedActivations) -> None:
    def second(context: Any) -> torch.Tensor:
        x = torch.linspace(0.1, 1.0, 1024, device=device, requires_grad=True)
        with context:
            loss = (x.exp() * x.sin()).sum()
            (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (result,) = torch.autograd.grad(first.square().sum(), x)
        return result

    plain = second(torch.enable_grad())
    assert torch.equal(second(activations), plain)


def test_a_graph_without_a_backward_gives_everything_back(
    device: str, arena: PinnedArena, activations: OffloadedActivations
) -> None:
    model, inputs = model_on(device), inputs_on(device)
    with activations:
        model(inputs)
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
    assert arena.stats().used_bytes == 0


def test_checkpointed_blocks_save_only_their_inputs(
    device: str, activations: OffloadedActivations
) -> None:
    model, inputs = model_on(device), inputs_on(device).requires_grad_()

    def run(context: Any) -> Any:
        def forward() -> torch.Tensor:
            with context:
                hidden = inputs
                for block in model:
                    hidden = checkpoint(block, hidden * 1.0, use_reentrant=False)
                loss: torch.Tensor = hidden.pow(2).mean()
            return loss

        return forward

    expected = gradients(model, run(torch.enable_grad()))
    assert all(map(torch.equal, gradients(model, run(activations)), expected))


@pytest.mark.filterwarnings("default")
def test_a_compiled_model_has_the_same_gradients(
    device: str, activations: OffloadedActivations
) -> None:
    model, inputs = model_on(device).eval(), inputs_on(device)
    compiled = torch.compile(model, backend="aot_eager")
    expected = gradients(model, lambda: compiled(inputs).pow(2).mean())

    def run() -> torch.Tensor:
        with activations:
            loss: torch.Tensor = compiled(inputs).pow(2).mean()
        return loss

    assert all(map(torch.equal, gradients(model, run), expected))
    assert activations.offloaded_bytes > 0


def test_bad_arguments(arena: PinnedArena, engine: TransferEngine) -> None:
    with pytest.raises(InvalidArgument, match="PinnedArena is no TransferEngine"):
        offload_activations(arena)  # type: ignore[arg-type]
    with pytest.raises(InvalidSize):
        offload_activations(engine, min_bytes=-1)
    with pytest.raises(InvalidSize):
        offload_activations(engine, ahead="far")
    engine.close()
    with pytest.raises(EngineClosed):
        offload_activations(engine)


@pytest.mark.gpu
def test_the_peak_falls_by_the_activations(engine: TransferEngine) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(16)])
    model.to("cuda:0")
    inputs = torch.randn(256, 512, device="cuda:0")

    def peak(context: Any) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with context:
            loss = model(inputs).sum()
        after = torch.cuda.max_memory_allocated() - before
        torch.autograd.backward(loss)
        model.zero_grad()
        return after

    peak(torch.enable_grad())
    resident = peak(torch.enable_grad())
    offloaded = peak(offload_activations(engine, min_bytes=1024, ahead=600_000))
    assert offloaded < resident / 4
