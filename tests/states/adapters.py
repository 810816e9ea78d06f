"""A model with frozen layers and trainable adapters beside them, and its training."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.states.training import bits_of

__all__ = ["FROZEN", "Adapted", "AdapterTraining"]


class Adapted(nn.Module):
    """A frozen layer with a trainable path of low rank beside it."""

    def __init__(self, width: int = 31, rank: int = 3) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = functional.gelu(self.base(x) + self.up(self.down(x)))
        return result


FROZEN = {f"model.{i}.base.{name}" for i in (0, 1) for name in ("weight", "bias")}


class AdapterTraining:
    """Training of adapters; two runs with the same device give the same bits."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(Adapted(), Adapted()).to(device)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-2)
        self.batch = torch.randn(5, 31).to(device)
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        torch.autograd.backward(self.model(self.batch).square().mean())
        self.optimizer.step()

    def bits(self) -> dict[str, torch.Tensor]:
        found = {name: bits_of(p) for name, p in self.model.named_parameters()}
        for index, state in enumerate(self.optimizer.state.values()):
            found |= {f"{index}.{name}": bits_of(tensor) for name, tensor in state.items()}
        return found
