"""What works while a storage is away, and what must be the same after it came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.transfer.storage_bits import DTYPES, random_bits, storage_bits

if TYPE_CHECKING:
    from pinferry import TransferEngine


def test_a_tensor_describes_itself_while_away(engine: TransferEngine, torch_device: str) -> None:
    x = torch.ones(4, 6, device=torch_device, requires_grad=True)
    view = x.detach()[1:, ::2]
    engine.offload(x)
    assert (x.shape, x.dtype, x.numel(), x.ndim) == ((4, 6), torch.float32, 24, 2)
    assert x.device == torch.device(torch_device)
    assert x.is_leaf
    assert x.requires_grad
    assert (x.stride(), x.is_contiguous(), x.element_size()) == ((6, 1), True, 4)
    assert (view.storage_offset(), view.stride()) == (6, (6, 2))
    assert x.untyped_storage().nbytes() == 96
    assert len(x) == 4
    assert x._is_view() is False
    assert torch.empty_like(x).shape == (4, 6)
    assert x.to("meta").shape == (4, 6)
    assert x.is_cuda == (torch_device != "cpu")
    assert hash(x) == hash(x)


def test_views_are_made_while_away(engine: TransferEngine, torch_device: str) -> None:
    x = torch.arange(24.0, device=torch_device)
    engine.offload(x)
    views = [
        x.view(4, 6),
        x.narrow(0, 5, 3),
        x[::3],
        x.view(4, 6).t(),
        x.reshape(2, 12),
        x.unsqueeze(0),
        x.expand(2, 24),
        x.chunk(5)[4],
        x.detach(),
    ]
    assert [tuple(view.shape) for view in views] == [
        (4, 6),
        (3,),
        (8,),
        (6, 4),
        (2, 12),
        (1, 24),
        (2, 24),
        (4,),
        (24,),
    ]
    engine.reload()
    fresh = torch.arange(24.0, device=torch_device)
    assert torch.equal(views[3], fresh.view(4, 6).t())
    assert torch.equal(views[7], fresh[20:])
    assert all(view.untyped_storage()._cdata == x.untyped_storage()._cdata for view in views)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("numel", [1, 7, 4096])
def test_every_bit_of_every_dtype_comes_back(
    engine: TransferEngine, torch_device: str, dtype: torch.dtype, numel: int
) -> None:
    x = random_bits(dtype, numel, torch_device, seed=numel)
    before = storage_bits(x)
    ticket = engine.offload(x)
    assert ticket.nbytes == engine.offloaded_bytes == numel * dtype.itemsize
    engine.reload()
    assert storage_bits(x) == before
    assert (x.dtype, x.shape) == (dtype, (numel,))


def test_identities_and_strides_are_those_of_before(
    engine: TransferEngine, torch_device: str
) -> None:
    base = torch.arange(60.0, device=torch_device).view(3, 4, 5)
    x = torch.nn.Parameter(base.permute(2, 0, 1))
    table = {x: "value"}
    before = (id(x), hash(x), x.untyped_storage()._cdata, x.stride(), x.storage_offset())
    version = x._version
    engine.offload(x)
    engine.reload()
    after = (id(x), hash(x), x.untyped_storage()._cdata, x.stride(), x.storage_offset())
    assert after == before
    assert x._version == version
    assert table[x] == "value"
    assert torch.equal(
        x.data, torch.arange(60.0, device=torch_device).view(3, 4, 5).permute(2, 0, 1)
    )


def test_a_view_of_a_part_moves_the_whole_storage(
    engine: TransferEngine, torch_device: str
) -> None:
    flat = random_bits(torch.float32, 1000, torch_device)
    before = storage_bits(flat)
    ticket = engine.offload({"part": flat[10:20]})
    assert ticket.nbytes == 4000
    with pytest.raises(RuntimeError, match=r"\Apart is offloaded"):
        flat[500:].sum()
    engine.reload({"any name": flat[900:]})
    assert storage_bits(flat) == before


def test_writes_after_a_reload_are_kept_by_the_next_offload(
    engine: TransferEngine, torch_device: str
) -> None:
    x = torch.zeros(1000, device=torch_device)
    for round_number in range(1, 6):
        x.add_(1)
        engine.offload(x)
        engine.reload()
        assert torch.equal(x, torch.full_like(x, round_number))
