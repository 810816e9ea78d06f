"""While a storage is away, whatever touches its bytes says so by name."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.transfer.storage_bits import random_bits, storage_bits

if TYPE_CHECKING:
    from pinferry import TransferEngine

# Any: PyTorch leaves many of these calls without types.
Access = Callable[[Any], object]

ACCESSES: dict[str, Access] = {
    "sum": lambda x: x.sum(),
    "add": lambda x: x + 1,
    "in-place add": lambda x: x.add_(1),
    "zero_": lambda x: x.zero_(),
    "copy from": lambda x: torch.zeros_like(x).copy_(x),
    "copy to": lambda x: x.copy_(torch.zeros_like(x)),
    "index": lambda x: x[0, 0].item(),
    "set item": lambda x: x.__setitem__((0, 0), 1.0),
    "fancy index": lambda x: x[torch.tensor([0, 1], device=x.device)],
    "mask": lambda x: x[x > 0],
    "matmul": lambda x: x @ x.T,
    "clone": lambda x: x.clone(),
    "contiguous of a transpose": lambda x: x.T.contiguous(),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([torch.zeros_like(x), x]),
    "linear": lambda x: functional.linear(torch.ones(3, 16, device=x.device), x),
    "layer_norm": lambda x: functional.layer_norm(x, (16,)),
    "softmax": lambda x: functional.softmax(x, -1),
    "foreach add": lambda x: torch._foreach_add([torch.zeros_like(x), x], 1.0),
    "foreach mul_": lambda x: torch._foreach_mul_([x], 2.0),
    "foreach norm": lambda x: torch._foreach_norm([x]),
    "other dtype": lambda x: x.to(torch.float64),
    "tolist": lambda x: x.tolist(),
    "repr": repr,
    "format": lambda x: f"{x[0, 0]:.1f}",
    "print": lambda x: print(x, file=io.StringIO()),
    "iterate": lambda x: [float(row[0]) for row in x],
    "bool": lambda x: bool(x[0, 0]),
    "equal": lambda x: torch.equal(x, torch.zeros_like(x)),
    "allclose": lambda x: torch.allclose(x, torch.zeros_like(x)),
    "any": lambda x: x.any(),
    "unique": lambda x: x.unique(),
    "nonzero": lambda x: x.nonzero(),
    "to sparse": lambda x: x.to_sparse(),
    "data": lambda x: x.data.sum(),
    "detach": lambda x: x.detach().sum(),
    "vmap": torch.vmap(lambda row: row * 2),
    "out=": lambda x: torch.add(torch.zeros_like(x), 1, out=x),
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "save": lambda x: torch.save({"x": x}, io.BytesIO()),
    "save, old format": lambda x: torch.save(x, io.BytesIO(), _use_new_zipfile_serialization=False),
    "data_ptr": lambda x: x.data_ptr(),
    "storage data_ptr": lambda x: x.untyped_storage().data_ptr(),
    "storage clone": lambda x: x.untyped_storage().clone(),
    "storage copy_": lambda x: x.untyped_storage().copy_(torch.zeros(128).untyped_storage()),
    "storage item": lambda x: x.untyped_storage()[0],
    "storage tolist": lambda x: x.untyped_storage().tolist(),
    "set_ of another tensor": lambda x: torch.empty(0, device=x.device).set_(x.untyped_storage()),
    "dlpack": lambda x: x.__dlpack__(),
}
CPU_ACCESSES: dict[str, Access] = {
    "numpy": lambda x: x.numpy(),
    "numpy force": lambda x: x.numpy(force=True),
    "asarray": np.asarray,
    "numpy from dlpack": np.from_dlpack,
    "memoryview": lambda x: memoryview(x.numpy()),
    "share_memory_": lambda x: x.share_memory_(),
    "apply_": lambda x: x.apply_(lambda value: value),
    "storage fill_": lambda x: x.untyped_storage().fill_(1),
    "storage grow": lambda x: x.untyped_storage().resize_(4096),
    "storage shrink": lambda x: x.untyped_storage().resize_(0),
    "tensor grow": lambda x: x.resize_(64, 64),
}
GPU_ACCESSES: dict[str, Access] = {
    "cpu": lambda x: x.cpu(),
    "cpu numpy": lambda x: x.cpu().numpy(),
    "cpu, non-blocking": lambda x: x.to("cpu", non_blocking=True),
    "storage cpu": lambda x: x.untyped_storage().cpu(),
    "cuda array interface": lambda x: x.__cuda_array_interface__,
}
ALIASES: dict[str, Access] = {
    "itself": lambda x: x,
    "narrow": lambda x: x.narrow(0, 2, 3),
    "view": lambda x: x.view(-1),
    "slice": lambda x: x[1:3, ::2],
    "one element": lambda x: x[3, 5],
    "transpose": lambda x: x.t(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "other dtype": lambda x: x.view(torch.int32),
    "complex": lambda x: torch.view_as_complex(x.view(-1, 2)),
    "expand": lambda x: x[0].expand(4, -1),
    "as_strided": lambda x: x.as_strided((3, 3), (16, 1), 5),
    "unbind": lambda x: x.unbind()[2],
    "split": lambda x: x.split(4)[1],
    "parameter": torch.nn.Parameter,
}


def assert_refused(access: Access, x: torch.Tensor, name: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        access(x)
    first = str(caught.value).splitlines()[0]
    assert first == f"{name} is offloaded to pinned host memory; call reload() first"


def make(device: str) -> torch.Tensor:
    return random_bits(torch.float32, 128, device).view(8, 16)


@pytest.mark.parametrize("kind", ACCESSES)
def test_an_access_is_refused_by_name_and_changes_nothing(
    engine: TransferEngine, torch_device: str, kind: str
) -> None:
    x = make(torch_device)
    before = storage_bits(x)
    engine.offload({"decoder.weight": x})
    assert_refused(ACCESSES[kind], x, "decoder.weight")
    engine.reload()
    assert storage_bits(x) == before


@pytest.mark.parametrize("kind", CPU_ACCESSES)
@pytest.mark.parametrize("torch_device", ["cpu"], indirect=True)
def test_an_access_that_only_the_cpu_has_is_refused(
    engine: TransferEngine, torch_device: str, kind: str
) -> None:
    x = make(torch_device)
    before = storage_bits(x)
    engine.offload({"buffer": x})
    assert_refused(CPU_ACCESSES[kind], x, "buffer")
    engine.reload()
    assert storage_bits(x) == before


@pytest.mark.gpu
@pytest.mark.parametrize("kind", GPU_ACCESSES)
@pytest.mark.parametrize("torch_device", ["cuda:0"], indirect=True)
def test_an_access_that_only_the_gpu_has_is_refused(
    engine: TransferEngine, torch_device: str, kind: str
) -> None:
    x = make(torch_device)
    before = storage_bits(x)
    engine.offload({"buffer": x})
    assert_refused(GPU_ACCESSES[kind], x, "buffer")
    engine.reload()
    assert storage_bits(x) == before


@pytest.mark.parametrize("made", ["before", "while away"])
@pytest.mark.parametrize("kind", ALIASES)
def test_an_alias_is_refused_by_name_and_sees_the_bytes_after_the_reload(
    engine: TransferEngine, torch_device: str, kind: str, made: str
) -> None:
    x = torch.arange(128.0, device=torch_device).view(8, 16)
    expected = ALIASES[kind](x.clone())
    alias = ALIASES[kind](x) if made == "before" else None
    engine.offload({"w": x})
    if alias is None:
        alias = ALIASES[kind](x)
    assert isinstance(alias, torch.Tensor)
    assert isinstance(expected, torch.Tensor)
    assert_refused(lambda each: each.clone(), alias, "w")
    engine.reload()
    assert torch.equal(alias.data, expected.data)
    x.add_(1)
    assert not torch.equal(alias.data, expected.data), "the alias lost its storage"
