"""Sizes and kinds of tensors at the edges."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from pinferry import PinnedArena, StateOffloader
from tests.states.training import bits_of

SIZES = [0, 1, 2, 127, 128, 129, 511, 513, 2**16 + 1]
DTYPES = [
    torch.bool,
    torch.int8,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("size", SIZES)
def test_shards_of_any_size_move(device: str, arena: PinnedArena, size: int) -> None:
    """DeepSpeed#8279: shards of no element and of one failed."""
    model = nn.Module()
    model.shard = nn.Parameter(torch.randn(size, device=device))
    before = bits_of(model.shard)
    offloader = StateOffloader(model, arena=arena)
    assert offloader.offload().nbytes == 4 * size
    offloader.reload()
    assert torch.equal(bits_of(model.shard), before)
    assert model.shard.shape == (size,)


def test_shards_without_elements_go_along_with_others(device: str, arena: PinnedArena) -> None:
    """DeepSpeed#8279: a group with a shard of no element failed as a whole."""
    model = nn.Module()
    model.a = nn.Parameter(torch.randn(3, device=device))
    model.none = nn.Parameter(torch.empty(0, 5, device=device))
    model.also_none = nn.Parameter(torch.empty(4, 0, device=device))
    model.one = nn.Parameter(torch.randn((), device=device))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    before = [bits_of(p) for p in model.parameters()]
    offloader = StateOffloader(model, optimizer, arena=arena)
    with offloader.offloaded():
        assert offloader.resident() == frozenset()
    assert all(torch.equal(bits_of(p), b) for p, b in zip(model.parameters(), before, strict=True))
    optimizer.step()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_of_any_type_come_back(device: str, arena: PinnedArena, dtype: torch.dtype) -> None:
    """DeepSpeed#8279: what is no float32 was copied as if it were."""
    raw = torch.randint(0, 2, (1024,), dtype=torch.uint8, device=device)
    model = nn.Module()
    model.register_buffer("values", raw.view(dtype))
    before = bits_of(raw)
    offloader = StateOffloader(model, arena=arena)
    with offloader.offloaded():
        pass
    assert torch.equal(bits_of(model.get_buffer("values")), before)


def test_strides_and_memory_formats_stay(device: str, arena: PinnedArena) -> None:
    """DeepSpeed#8279: what is not contiguous came back in another order."""
    model = nn.Module()
    image = torch.randn(2, 3, 5, 7, device=device).to(memory_format=torch.channels_last)
    model.register_buffer("image", image)
    model.register_buffer("turned", torch.randn(9, 4, device=device).t())
    model.register_buffer("spread", torch.randn(1, 6, device=device).expand(5, 6))
    before = {name: (b.clone(), b.stride()) for name, b in model.named_buffers()}
    offloader = StateOffloader(model, arena=arena)
    with offloader.offloaded():
        pass
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name][0])
        assert buffer.stride() == before[name][1]


def test_the_inner_tensors_of_a_wrapper_move(device: str, arena: PinnedArena) -> None:
    """diffusers#14433: quantized tensors are wrappers, whose own storage holds nothing."""
    model = nn.Module()
    inner = torch.randn(300, device=device), torch.randn(300, device=device)
    wrapper = TwoTensor(*inner)  # type: ignore[no-untyped-call]
    model.weight = nn.Parameter(wrapper, requires_grad=False)
    before = [bits_of(each) for each in inner]
    offloader = StateOffloader(model, arena=arena)
    assert offloader.offload().nbytes == 2400
    with pytest.raises(RuntimeError, match=r"model\.weight\.[ab] is offloaded"):
        model.weight.clone()
    offloader.reload()
    assert all(torch.equal(bits_of(t), b) for t, b in zip(inner, before, strict=True))
    model.weight.clone()
