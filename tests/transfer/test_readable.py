"""States that are away and readable: an access works as ever, on the host copy."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from pinferry import Access, PinnedArena, TransferEngine
from pinferry.errors import InvalidArgument
from tests.transfer.storage_bits import DTYPES, random_bits, storage_bits

Use = Callable[[Any], Any]

READS: dict[str, Use] = {
    "sum": lambda x: x.sum(),
    "add": lambda x: x + 1,
    "matmul": lambda x: x @ x.T,
    "linear": lambda x: functional.linear(torch.ones(3, 16, device=x.device), x),
    "softmax": lambda x: functional.softmax(x, -1),
    "clone": lambda x: x.clone(),
    "row": lambda x: x[3] * 2,
    "strided": lambda x: x[1:7:2, ::3].contiguous(),
    "transposed": lambda x: x.t().contiguous(),
    "as integers": lambda x: x.view(torch.int32).sum(),
    "detached": lambda x: x.detach().flatten().cumsum(0),
    "fancy index": lambda x: x[torch.tensor([0, 7, 3], device=x.device)],
    "mask": lambda x: x[x > 60],
    "cat": lambda x: torch.cat([x, x]),
    "foreach": lambda x: torch._foreach_add([x, x], 1.0)[1],
    "vmap": torch.vmap(lambda row: row * 2),
    "cpu": lambda x: x.cpu(),
    "other dtype": lambda x: x.to(torch.float64),
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "storage clone": lambda x: torch.empty(0, device=x.device).set_(x.untyped_storage().clone()),
}
WRITES: dict[str, Use] = {
    "add_": lambda x: x.add_(1),
    "row fill_": lambda x: x[3].fill_(5),
    "set item": lambda x: x.__setitem__((2, 3), 9.0),
    "transposed mul_": lambda x: x.t()[4:9].mul_(3),
    "as integers": lambda x: x.view(torch.int32)[0].fill_(1),
    "copy_": lambda x: x.copy_(torch.full_like(x, 4)),
    "out=": lambda x: torch.mul(x, 2, out=x),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([1, 6], device=x.device), 8.0),
    "foreach": lambda x: torch._foreach_mul_([x[0], x[5]], 2.0),
    "zero_": lambda x: x.zero_(),
}


def make(device: str) -> torch.Tensor:
    return torch.arange(128.0, device=device).view(8, 16)


@pytest.mark.parametrize("use", READS)
def test_a_read_gives_what_it_gives_at_home(
    engine: TransferEngine, torch_device: str, use: str
) -> None:
    x = make(torch_device)
    expected = READS[use](x)
    engine.offload({"x": x}, access="readable")
    assert torch.equal(READS[use](x), expected)
    engine.reload()
    assert torch.equal(x, make(torch_device))


@pytest.mark.parametrize("use", WRITES)
def test_a_write_is_read_back_and_survives_the_reload(
    engine: TransferEngine, torch_device: str, use: str
) -> None:
    x, expected = make(torch_device), make(torch_device)
    WRITES[use](expected)
    engine.offload({"x": x}, access="readable")
    WRITES[use](x)
    assert torch.equal(x, expected)
    engine.reload()
    assert torch.equal(x, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_every_bit(
    engine: TransferEngine, torch_device: str, dtype: torch.dtype
) -> None:
    x = random_bits(dtype, 333, torch_device)
    before = storage_bits(x)
    engine.offload({"x": x}, access=Access.READABLE)
    assert storage_bits(x) == before
    engine.reload()
    assert storage_bits(x) == before


@pytest.mark.parametrize("nbytes", [1, 3, 511, 512, 513, 4097, 2**20 + 1, 3 * 2**20 + 7])
def test_every_size_is_read_to_its_last_byte(
    engine: TransferEngine, arena: PinnedArena, torch_device: str, nbytes: int
) -> None:
    x = random_bits(torch.uint8, nbytes, torch_device)
    before = storage_bits(x)
    ticket = engine.offload({"x": x}, access="readable")
    assert ticket.nbytes == nbytes
    assert arena.stats().used_bytes >= nbytes
    assert storage_bits(x) == before
    x[-1] ^= 255
    engine.reload()
    assert arena.stats().used_bytes == 0
    assert storage_bits(x)[:-1] == before[:-1]
    assert storage_bits(x)[-1] == before[-1] ^ 255


def test_what_is_saved_while_away_is_what_is_saved_at_home(
    engine: TransferEngine, torch_device: str
) -> None:
    model = torch.nn.Linear(7, 5, device=torch_device)

    def saved() -> bytes:
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        return file.getvalue()

    before = saved()
    engine.offload(model.state_dict(), access="readable")
    assert saved() == before
    loaded = torch.load(io.BytesIO(saved()))
    engine.reload()
    assert torch.equal(loaded["weight"], model.weight)
    assert torch.equal(loaded["bias"], model.bias)


def test_what_is_away_can_be_loaded_into(engine: TransferEngine, torch_device: str) -> None:
    model, other = (torch.nn.Linear(7, 5, device=torch_device) for _ in range(2))
    engine.offload(model.state_dict(), access="readable")
    model.load_state_dict(other.state_dict())
    engine.reload()
    assert torch.equal(model.weight, other.weight)
    assert torch.equal(model.bias, other.bias)


@pytest.mark.parametrize("where", ["forward", "backward", "both"])
def test_gradients_go_through_what_is_away(
    engine: TransferEngine, torch_device: str, where: str
) -> None:
    weight, control = (make(torch_device).requires_grad_() for _ in range(2))
    x = torch.arange(16.0, device=torch_device).requires_grad_()
    expected = torch.autograd.grad((control @ x).square().sum(), (control, x))
    if where != "backward":
        engine.offload({"weight": weight}, access="readable")
    loss = (weight @ x).square().sum()
    if where == "forward":
        engine.reload()
    elif where == "backward":
        engine.offload({"weight": weight}, access="readable")
    found = torch.autograd.grad(loss, (weight, x))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_optimizer_may_step_on_what_is_away(engine: TransferEngine, torch_device: str) -> None:
    weights = [torch.nn.Parameter(make(torch_device)) for _ in range(2)]
    optimizers = [torch.optim.AdamW([each], lr=0.1, foreach=False) for each in weights]
    for step in range(3):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = torch.full_like(weight, step + 1.0)
            if weight is weights[0] and step == 1:
                state = optimizer.state[weight]
                engine.offload({"weight": weight, "exp_avg": state["exp_avg"]}, access="readable")
            optimizer.step()
    engine.reload()
    assert torch.equal(*weights)


@pytest.mark.parametrize("access", ["read", "", "READABLE", None, 1, b"readable", ["raise"]])
def test_an_access_that_does_not_exist_is_refused_and_nothing_moves(
    engine: TransferEngine, arena: PinnedArena, torch_device: str, access: object
) -> None:
    x = make(torch_device)
    with pytest.raises(InvalidArgument, match="'raise', 'readable'"):
        engine.offload({"x": x}, access=access)  # type: ignore[arg-type]
    assert arena.stats().used_bytes == 0
    plan = engine.plan({"x": x})
    with pytest.raises(InvalidArgument, match="'raise', 'readable'"):
        plan.offload(access=access)  # type: ignore[arg-type]
    assert not plan.offloaded
    assert torch.equal(x, make(torch_device))
    plan.close()
