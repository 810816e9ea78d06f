"""What is offloaded leaves the device, whatever else refers to it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pinferry import PinnedArena, ReclaimReport, StateOffloader
from pinferry.states.memory import MemoryReading
from tests.states.fixtures import forget_cached_memory
from tests.states.training import allocated_bytes, bits_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDE = 512
LAYER_BYTES = SIDE * SIDE * 4  # 1 MiB
#: What the C library and Python take meanwhile; nothing on CUDA, where the count is exact.
SLACK_BYTES = {"cpu": 2**17, "cuda:0": 0}


@pytest.fixture
def arena(device: str) -> Iterator[PinnedArena]:
    forget_cached_memory(device)
    made = PinnedArena("16MiB", device=device, threads=1)
    yield made
    made.close(force=True)


def fall_of(offloader: StateOffloader, device: str, *categories: str) -> int:
    """Return by how much the device's memory falls while `categories` are away."""
    gc.collect()  # what earlier tests left is no fall
    before = allocated_bytes(device)
    ticket = offloader.offload(categories or None)
    ticket.synchronize()
    assert ticket.done()  # on the CPU the memory is let go of when the end of the copy is seen
    fell = before - allocated_bytes(device)
    offloader.reload()
    assert abs(allocated_bytes(device) - before) <= SLACK_BYTES[device]
    return fell


def test_views_of_every_kind_do_not_hold_the_memory(device: str, arena: PinnedArena) -> None:
    """DeepSpeed#7421: tensors moved, memory did not fall, since views held the storage."""
    flat = torch.randn(2 * SIDE * SIDE, device=device)
    model = nn.Module()
    model.first = nn.Parameter(flat[: SIDE * SIDE].view(SIDE, SIDE))
    model.second = nn.Parameter(flat.narrow(0, SIDE * SIDE, SIDE * SIDE))
    held = [
        flat,
        flat[3:5],
        flat.view(-1, 2).t(),
        model.first.detach(),
        flat.as_strided((2,), (7,)),
    ]
    before = [view.clone() for view in held]
    offloader = StateOffloader(model, arena=arena)
    assert abs(fall_of(offloader, device) - 2 * LAYER_BYTES) <= SLACK_BYTES[device]
    assert all(torch.equal(view, copy) for view, copy in zip(held, before, strict=True))
    held[1].fill_(42.0)
    assert model.first[0, 3] == 42.0


def test_buffers_move_those_that_are_not_saved_too(device: str, arena: PinnedArena) -> None:
    """DeepSpeed#7421: rotary ``inv_freq`` buffers stayed on the GPU."""
    model = nn.Module()
    model.register_buffer("cos", torch.randn(SIDE, SIDE, device=device))
    model.register_buffer("inv_freq", torch.randn(SIDE, SIDE, device=device), persistent=False)
    offloader = StateOffloader(model, arena=arena)
    fell = fall_of(offloader, device, "buffers")
    assert abs(fell - 2 * LAYER_BYTES) <= SLACK_BYTES[device]


def test_frozen_weights_move(device: str, arena: PinnedArena) -> None:
    """verl#5412: parameters that LoRA froze were not offloaded."""
    base = nn.Linear(SIDE, SIDE, bias=False, device=device).requires_grad_(False)
    adapter = nn.Linear(SIDE, 4, bias=False, device=device)
    model = nn.Sequential(base, adapter)
    optimizer = torch.optim.AdamW(adapter.parameters())
    offloader = StateOffloader(model, optimizer, arena=arena)
    fell = fall_of(offloader, device, "lp_params")
    assert abs(fell - LAYER_BYTES - SIDE * 16) <= SLACK_BYTES[device]
    with (
        offloader.offloaded("lp_params"),
        pytest.raises(RuntimeError, match=r"model\.0\.weight is offloaded"),
    ):
        model(torch.ones(1, SIDE, device=device))
    assert not base.weight.requires_grad


def test_tied_weights_move_once_and_stay_tied(device: str, arena: PinnedArena) -> None:
    """cache-dit#1111, sglang#36509: tied weights were copied twice, and untied."""
    first, last = (nn.Linear(SIDE, SIDE, bias=False, device=device) for _ in range(2))
    last.weight = first.weight
    model = nn.Sequential(first, last)
    before = bits_of(first.weight)
    offloader = StateOffloader(model, arena=arena)
    assert offloader.offload().nbytes == LAYER_BYTES
    assert arena.stats().used_bytes == LAYER_BYTES
    offloader.reload()
    assert first.weight is last.weight
    assert torch.equal(bits_of(last.weight), before)


def test_a_tensor_that_autograd_saved_does_not_hold_the_memory(
    device: str, arena: PinnedArena
) -> None:
    """DeepSpeed#7421: a graph refers to the weights by views of its own."""
    model = nn.Linear(SIDE, SIDE, bias=False, device=device)
    offloader = StateOffloader(model, arena=arena)
    batch = torch.ones(1, SIDE, device=device, requires_grad=True)
    loss = model(batch).sum()
    assert abs(fall_of(offloader, device) - LAYER_BYTES) <= SLACK_BYTES[device]
    loss.backward()
    assert batch.grad is not None
    assert torch.equal(batch.grad, torch.ones(1, SIDE, device=device) @ model.weight)


def test_a_report_without_nvml_says_so_and_fails_nothing() -> None:
    """vllm-omni#6243, nvitop#208: missing NVML fields made reports fail."""
    before, after = MemoryReading(9, 9, None, 9), MemoryReading(2, 2, None, 9)
    report = ReclaimReport("cuda:0", 7, {"lp_params": 7}, before, after, {}, ())
    report.verify()
    assert report.nvml_bytes is None
    assert report.to_dict()["nvml_bytes"] is None
    assert "None" not in str(report)
