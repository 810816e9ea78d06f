"""A model that is trained by an optimizer, streamed or resident, and compared to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., torch.optim.Optimizer]

SIDE = 33
#: Bytes in which a few layers of the model have room.
WINDOW = 80_000


class Run:
    """A deterministic training run."""

    def __init__(self, device: str, dtype: torch.dtype = torch.float32, layers: int = 8) -> None:
        torch.manual_seed(1)
        self.device, self.dtype, self.steps = device, dtype, 0
        made = [nn.Linear(SIDE, SIDE) for _ in range(layers)]
        self.model = nn.Sequential(*made).to(device, dtype)

    def groups(self) -> list[dict[str, Any]]:
        """Return two groups of uneven sizes and different options."""
        parameters = list(self.model.parameters())
        return [{"params": parameters[:3], "lr": 3e-2}, {"params": parameters[3:]}]

    def loss(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.steps)
        inputs = torch.randn(5, SIDE, generator=generator).to(self.device, self.dtype)
        loss: torch.Tensor = self.model(inputs).float().pow(2).mean()
        return loss

    def backward(self) -> None:
        torch.autograd.backward(self.loss())

    def train(self, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = self.loss()
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            self.steps += 1
        return losses

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def same(one: Any, other: Any) -> bool:
    """Return whether two nested values are equal to the bit, wherever their tensors are."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
