"""A small model with what ZeRO has to tell apart, and a loop that trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VOCABULARY, WIDTH = 37, 24


class Toy(nn.Module):
    """Tied weights, a frozen layer, sizes that divide by nothing, buffers of both kinds."""

    scale: torch.Tensor
    inv_freq: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 51)
        self.down = nn.Linear(51, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))
        self.register_buffer("inv_freq", torch.linspace(1.0, 0.1, WIDTH), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens) * self.scale
        hidden = hidden + torch.relu(self.frozen(hidden)) * self.inv_freq
        hidden = self.norm(hidden + self.down(torch.relu(self.up(hidden))))
        targets = tokens.roll(-1, dims=1)
        return nn.functional.cross_entropy(
            self.head(hidden).flatten(0, 1).float(), targets.flatten()
        )


def batch(step: int, rank: int, device: str) -> torch.Tensor:
    """Return the tokens of a step, each rank its own."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(0, VOCABULARY, (2, 9), generator=generator).to(device)


def nothing(moment: str, step: int) -> None:
    """Do nothing between the parts of a step."""


def train(
    engine: Any,
    steps: int,
    between: Callable[[str, int], None] = nothing,
    *,
    first: int = 0,
) -> list[float]:
    """Train and return the loss of each micro-step, exactly.

    `between` is called before each forward, backward and step, with that name, and after the step.
    """
    losses = []
    for step in range(first, first + steps):
        between("forward", step)
        loss = engine(batch(step, engine.global_rank, engine.device))
        between("backward", step)
        engine.backward(loss)
        between("step", step)
        engine.step()
        between("end", step)
        losses.append(loss.item())
    return losses
