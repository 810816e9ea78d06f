"""Alternate training and generating, with the optimizer's memory free while generating.

Run it with ``python examples/train_and_generate.py``; it picks a GPU where there is one.
"""

from __future__ import annotations

import torch
from torch import nn

from pinferry import PinnedArena, StateOffloader, default_device


def train(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> float:
    """Take one step and return the loss."""
    inputs = torch.randn(64, 512, device=device)
    loss: torch.Tensor = (model(inputs) - inputs).pow(2).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main() -> None:
    """Train, offload, generate, reload."""
    device = default_device()
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Weights, gradients and two moments of 2.1 million parameters take 34 MB.
    with PinnedArena("40MB", device=device) as arena:
        offloader = StateOffloader(model, optimizer, arena=arena)
        for cycle in range(3):
            loss = train(model, optimizer, device)
            with offloader.offloaded("optim_states"), torch.no_grad():
                away = offloader.engine.offloaded_bytes
                model(torch.randn(1, 512, device=device))  # the weights are here
            print(f"cycle {cycle}: loss {loss:.4f}, {away / 1e6:.1f} MB away while generating")


if __name__ == "__main__":
    main()
