"""Small training runs, and everything in them bit by bit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from typing_extensions import Self

Point = Literal["start", "forward", "backward", "update", "cleared"]
Hook = Callable[[Point], None]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Net(nn.Module):
    """Odd sizes, tied weights, a frozen layer, and buffers that are saved and that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 7, bias=False)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.hidden = nn.Linear(7, 31)
        self.out = nn.Linear(31, 7)
        self.last = nn.Linear(7, 7, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("seen", torch.zeros(7))
        self.register_buffer("inv_freq", torch.rand(3), persistent=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.first(batch))
        with torch.no_grad():
            self.get_buffer("seen").mul_(0.9).add_(x.mean(0), alpha=0.1)
        x = x + self.out(functional.gelu(self.hidden(x)))
        result: torch.Tensor = self.last(x) * self.get_buffer("inv_freq").sum()
        return result


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


class Training:
    """One run; two with the same arguments give the same bits."""

    def __init__(self, device: str, make_optimizer: MakeOptimizer = adamw) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model: nn.Module = Net().to(device)
        self.optimizer = make_optimizer([p for p in self.model.parameters() if p.requires_grad])
        self.steps = 0

    def loss(self) -> torch.Tensor:
        batch = torch.randn(5, 7, generator=torch.Generator().manual_seed(self.steps))
        dtype = next(self.model.parameters()).dtype
        result: torch.Tensor = self.model(batch.to(self.device, dtype)).float().square().mean()
        return result

    def backward(self) -> None:
        torch.autograd.backward(self.loss())

    def update(self) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(self._closure)  # type: ignore[no-untyped-call]
        else:
            self.optimizer.step()

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, hook: Hook = lambda point: None) -> None:
        """Train one step; `hook` is called between its parts."""
        hook("start")
        loss = self.loss()
        hook("forward")
        torch.autograd.backward(loss)
        hook("backward")
        self.update()
        hook("update")
        self.clear()
        hook("cleared")
        self.steps += 1

    def until_gradients(self, steps: int = 2) -> Self:
        """Train some steps and stop with the gradients of one more, so that all state is there."""
        for _ in range(steps):
            self.step()
        self.backward()
        return self

    def tensors(self) -> dict[str, torch.Tensor]:
        """Find every tensor of state, by another way than the code under test."""
        found: dict[str, torch.Tensor] = dict(self.model.named_parameters())
        found |= dict(self.model.named_buffers())
        found |= {f"{n}.grad": p.grad for n, p in found.items() if p.grad is not None}
        for group in self.optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                found[f"params.{index}"] = parameter
                if parameter.grad is not None:
                    found[f"params.{index}.grad"] = parameter.grad
        for index, state in enumerate(self.optimizer.state.values()):
            found |= dict(_nested(f"state.{index}", state))
        return found

    def bits(self) -> dict[str, torch.Tensor]:
        return {name: bits_of(tensor) for name, tensor in self.tensors().items()}

    def _closure(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss()
        torch.autograd.backward(loss)
        return loss.item()


class MasterTraining(Training):
    """A model in bfloat16 with master weights in float32, half of its gradients in one buffer."""

    def __init__(self, device: str, make_optimizer: MakeOptimizer = adamw) -> None:
        super().__init__(device, make_optimizer)
        self.model.to(torch.bfloat16)
        self.low = [p for p in self.model.parameters() if p.requires_grad]
        self.high = [nn.Parameter(p.detach().float().clone()) for p in self.low]
        self.optimizer = make_optimizer(self.high)
        self.flat = self.low[1:]
        self.buffer = torch.zeros(
            sum(p.numel() for p in self.flat), dtype=torch.bfloat16, device=device
        )
        self.clear()

    def update(self) -> None:
        for low, high in zip(self.low, self.high, strict=True):
            assert low.grad is not None
            high.grad = low.grad.float()
        super().update()
        with torch.no_grad():
            for low, high in zip(self.low, self.high, strict=True):
                low.copy_(high)

    def clear(self) -> None:
        super().clear()
        for parameter in self.low:
            parameter.grad = None
        self.buffer.zero_()
        start = 0
        for parameter in self.flat:
            part = self.buffer[start : start + parameter.numel()]
            parameter.grad = part.view_as(parameter)
            start += parameter.numel()


def _nested(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _nested(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _nested(f"{name}.{index}", inner)


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Copy the bytes of the whole storage behind `tensor`."""
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return raw.set_(tensor.untyped_storage()).cpu().clone()


def assert_same_bits(
    actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    assert actual.keys() == expected.keys()
    different = [name for name in actual if not torch.equal(actual[name], expected[name])]
    assert not different


def allocated_bytes(device: str) -> int:
    """Count what is allocated: exactly on CUDA; on the CPU all that the C library has dealt out."""
    if device != "cpu":
        return torch.cuda.memory_allocated(device)
    return _mallinfo2().total()


_MALLINFO2 = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO2.split()]

    def total(self) -> int:
        mapped: int = self.hblkhd
        used: int = self.uordblks
        return mapped + used


def _mallinfo2() -> _Mallinfo2:
    query = ctypes.CDLL(None).mallinfo2
    query.restype = _Mallinfo2
    result: _Mallinfo2 = query()
    return result
