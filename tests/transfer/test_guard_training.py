"""The guard inside training: autograd, optimizers, compiled functions, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.transfer.storage_bits import storage_bits

if TYPE_CHECKING:
    from pinferry import TransferEngine

Optimizer = torch.optim.Optimizer

STEPS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "adamw, one by one": (torch.optim.AdamW, {"foreach": False}),
    "adamw, foreach": (torch.optim.AdamW, {"foreach": True}),
    "adamw, fused": (torch.optim.AdamW, {"fused": True}),
    "sgd, foreach": (torch.optim.SGD, {"foreach": True, "momentum": 0.9, "lr": 0.1}),
    "sgd, fused": (torch.optim.SGD, {"fused": True, "momentum": 0.9, "lr": 0.1}),
}


def trained(device: str, step: str) -> tuple[nn.Linear, Optimizer]:
    torch.manual_seed(0)
    layer = nn.Linear(16, 16, device=device)
    kind, options = STEPS[step]
    optimizer = kind(layer.parameters(), **options)
    backward(layer)
    optimizer.step()
    return layer, optimizer


def backward(layer: nn.Module) -> None:
    device = next(layer.parameters()).device
    torch.autograd.backward(layer(torch.ones(4, 16, device=device)).square().sum())


def moments(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{index}.{key}": value
        for index, state in enumerate(optimizer.state.values())
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and value.ndim
    }


@pytest.mark.parametrize("step", STEPS)
def test_a_step_with_offloaded_moments_is_refused(
    engine: TransferEngine, torch_device: str, step: str
) -> None:
    layer, optimizer = trained(torch_device, step)
    engine.offload(moments(optimizer))
    backward(layer)
    with pytest.raises(RuntimeError, match="is offloaded to pinned host memory") as caught:
        optimizer.step()
    assert str(caught.value).splitlines()[0].split()[0] in engine.offloaded_names()


@pytest.mark.parametrize("step", STEPS)
def test_training_across_an_offload_is_equal_to_the_bit(
    engine: TransferEngine, torch_device: str, step: str
) -> None:
    layer, optimizer = trained(torch_device, step)
    twin, twin_optimizer = trained(torch_device, step)
    keys = [id(key) for key in optimizer.state]
    for _ in range(3):
        for net, stepper in ((layer, optimizer), (twin, twin_optimizer)):
            if net is layer:
                engine.offload({**moments(optimizer), **dict(layer.named_parameters())})
                engine.reload()
            backward(net)
            stepper.step()
            stepper.zero_grad()
    assert [id(key) for key in optimizer.state] == keys
    for ours, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        assert storage_bits(ours) == storage_bits(theirs)
    for name, moment in moments(twin_optimizer).items():
        assert storage_bits(moments(optimizer)[name]) == storage_bits(moment)


def test_backward_through_an_offloaded_saved_tensor_is_refused(
    engine: TransferEngine, torch_device: str
) -> None:
    weight = torch.full((4,), 3.0, device=torch_device, requires_grad=True)
    loss = (weight * weight).sum()
    engine.offload({"weight": weight})
    with pytest.raises(RuntimeError, match=r"\Aweight is offloaded"):
        torch.autograd.backward(loss)
    engine.reload()
    torch.autograd.backward((weight * weight).sum())
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0] * 4


def test_backward_after_a_reload_sees_the_saved_values(
    engine: TransferEngine, torch_device: str
) -> None:
    weight = torch.full((4,), 3.0, device=torch_device, requires_grad=True)
    loss = (weight * weight).sum()
    engine.offload(weight)
    engine.reload()
    torch.autograd.backward(
        loss
    )  # an offload is no in-place change: the version counter must not move
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0] * 4


def test_a_module_and_an_optimizer_describe_themselves_while_away(
    engine: TransferEngine, torch_device: str
) -> None:
    layer, optimizer = trained(torch_device, "adamw, foreach")
    engine.offload({**moments(optimizer), **dict(layer.named_parameters())})
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert layer.state_dict()["weight"].shape == (16, 16)
    state = optimizer.state_dict()["state"]
    assert state[0]["exp_avg"].shape == (16, 16)
    assert "Linear" in repr(layer)
    with pytest.raises(RuntimeError, match=r"\A(weight|bias) is offloaded"):
        layer(torch.ones(1, 16, device=torch_device))
    with pytest.raises(RuntimeError, match=r"(weight|bias) is offloaded"):
        layer.load_state_dict(trained(torch_device, "adamw, foreach")[0].state_dict())
    kept = layer.state_dict()["weight"]
    engine.reload()
    assert torch.equal(kept, layer.weight)


def test_a_gradient_that_is_away_cannot_be_accumulated_into(
    engine: TransferEngine, torch_device: str
) -> None:
    layer, _ = trained(torch_device, "adamw, foreach")
    assert layer.weight.grad is not None
    engine.offload({"weight.grad": layer.weight.grad})
    with pytest.raises(RuntimeError, match=r"\Aweight\.grad is offloaded"):
        backward(layer)
    with pytest.raises(RuntimeError, match=r"\Aweight\.grad is offloaded"):
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler's own imports
def test_a_compiled_function_is_refused_by_name(engine: TransferEngine, torch_device: str) -> None:
    @torch.compile
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin() + 1

    x = torch.arange(64.0, device=torch_device)
    expected = compiled(x)
    engine.offload({"compiled input": x})
    with pytest.raises(RuntimeError) as caught:
        compiled(x)
    assert str(caught.value).startswith("compiled input is offloaded to pinned host memory")
    engine.reload()
    assert torch.equal(compiled(x), expected)
