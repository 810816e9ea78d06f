"""State comes back as the same objects with the same bits, and training goes on as before."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from pinferry import Category, PinnedArena, StateOffloader
from pinferry.states.categories import KNOWN_TO_PYTORCH
from tests.states.training import (
    MakeOptimizer,
    MasterTraining,
    Net,
    Training,
    assert_same_bits,
    bits_of,
)


def test_two_groups_of_odd_sizes_come_back_in_their_order(device: str, arena: PinnedArena) -> None:
    """DeepSpeed#7050: with two parameter groups, reloaded weights were permuted."""
    weights = [nn.Parameter(torch.randn(n, device=device)) for n in (1, 513, 7, 1024, 3, 129)]
    optimizer = optim.AdamW(weights[::2])
    optimizer.add_param_group({"params": weights[1::2], "lr": 0.5})
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    before = [bits_of(weight) for weight in weights]
    moments = [bits_of(optimizer.state[weight]["exp_avg"]) for weight in weights]
    offloader = StateOffloader(optimizer=optimizer, arena=arena)
    for _ in range(3):
        offloader.offload()
        offloader.reload()
    for weight, bits, moment in zip(weights, before, moments, strict=True):
        assert torch.equal(bits_of(weight), bits)
        assert torch.equal(bits_of(optimizer.state[weight]["exp_avg"]), moment)


def test_offload_reload_and_train_ten_times_over(device: str, arena: PinnedArena) -> None:
    """DeepSpeed#6011: the second offload after a step failed."""
    control, run = MasterTraining(device), MasterTraining(device)
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    for _ in range(10):
        offloader.offload()
        offloader.reload()
        run.step()
        control.step()
    assert_same_bits(run.bits(), control.bits())


def test_a_model_without_an_optimizer_moves(device: str, arena: PinnedArena) -> None:
    """DeepSpeed#7211, #6595: a model without an optimizer raised AttributeError."""
    torch.manual_seed(0)
    model = Net().to(device).eval()
    batch = torch.randn(3, 7, device=device)
    with torch.inference_mode():
        model.get_buffer("seen").zero_()
        before = model(batch)
    offloader = StateOffloader(model, arena=arena)
    with offloader.offloaded():
        assert offloader.resident() == frozenset()
    with torch.inference_mode():
        assert torch.equal(model(batch), before)


@pytest.mark.parametrize("category", [None, *KNOWN_TO_PYTORCH])
def test_a_reload_of_what_was_never_offloaded_takes_no_memory(
    device: str, arena: PinnedArena, category: Category | None
) -> None:
    """ms-swift#10109: a reload of what was never offloaded ran out of memory."""
    run = MasterTraining(device).until_gradients()
    addresses = {name: t.data_ptr() for name, t in run.tensors().items()}
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    assert offloader.reload(category).nbytes == 0
    assert offloader.reload(category).nbytes == 0
    assert {name: t.data_ptr() for name, t in run.tensors().items()} == addresses


def test_every_tensor_is_on_the_device_it_was_on(device: str, arena: PinnedArena) -> None:
    """UniRL#441, pytorch#80809: CPU ``step`` counters came back on the GPU."""
    run = Training(device).until_gradients()
    steps = {name: (t.device, t.data_ptr()) for name, t in run.tensors().items() if "step" in name}
    devices = {name: t.device for name, t in run.tensors().items()}
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    with offloader.offloaded():
        assert {name: t.device for name, t in run.tensors().items()} == devices
        if device != "cpu":
            after = {n: (t.device, t.data_ptr()) for n, t in run.tensors().items() if n in steps}
            assert after == steps
    assert {name: t.device for name, t in run.tensors().items()} == devices


def test_an_offload_before_the_first_step_makes_no_optimizer_state(
    device: str, arena: PinnedArena
) -> None:
    """verl#299: an offload before the first step made bogus optimizer state."""
    control, run = Training(device), Training(device)
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    with offloader.offloaded():
        assert len(run.optimizer.state) == 0
    assert len(run.optimizer.state) == 0
    assert run.optimizer.state_dict() == control.optimizer.state_dict()
    run.step()
    control.step()
    assert_same_bits(run.bits(), control.bits())


def test_what_comes_back_is_what_went_last(device: str, arena: PinnedArena) -> None:
    """DeepSpeed 0.19.8, ZeRO-3: an offload after training brought back old master weights."""
    run = MasterTraining(device).until_gradients()
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    seen = []
    for non_blocking in (False, True, False):
        with offloader.offloaded():
            pass
        run.step()
        run.backward()
        before = run.bits()
        offloader.offload(non_blocking=non_blocking)
        offloader.reload(non_blocking=non_blocking)
        assert_same_bits(run.bits(), before)
        seen.append(before["params.0"])
    assert not torch.equal(seen[0], seen[1])


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adadelta": optim.Adadelta,
    "adagrad": optim.Adagrad,
    "adamax": optim.Adamax,
    "asgd": optim.ASGD,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "rmsprop": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": optim.Rprop,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_will_do(device: str, arena: PinnedArena, name: str) -> None:
    """DeepSpeed 0.19.8, ZeRO-3: asserts one kind of Adam."""
    control, run = Training(device, OPTIMIZERS[name]), Training(device, OPTIMIZERS[name])
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    for _ in range(3):
        control.step()
        run.step()
        with offloader.offloaded():
            assert offloader.resident() == frozenset()
    assert_same_bits(run.bits(), control.bits())


def test_weights_that_a_library_keeps_flat_still_work(device: str, arena: PinnedArena) -> None:
    """DeepSpeed#7421: recurrent layers keep all weights in one storage, on CUDA for cuDNN."""
    torch.manual_seed(0)
    model = nn.LSTM(5, 7, num_layers=2).to(device)
    batch = torch.randn(3, 2, 5, device=device)
    before = model(batch)[0].detach().clone()
    offloader = StateOffloader(model, arena=arena)
    with offloader.offloaded():
        pass
    assert torch.equal(model(batch)[0], before)
