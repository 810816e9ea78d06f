"""A plain training loop whose optimizer state is on the device only when a step needs it.

Run it with ``python examples/scheduled_loop.py``; it picks a GPU where there is one.
"""

from __future__ import annotations

import torch
from torch import nn

from pinferry import OffloadSchedule, PinnedArena, default_device

WIDTH, STEPS = 1024, 10


def main() -> None:
    """Train as ever, and print what it cost."""
    device = default_device()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(256, WIDTH, device=device)
    with (
        PinnedArena("64MiB", device=device) as arena,
        OffloadSchedule(arena).attach(model, optimizer) as schedule,
    ):
        for step in range(STEPS):
            loss = (model(inputs) - inputs).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step}: loss {loss.item():.6f}")
        print(schedule.report())


if __name__ == "__main__":
    main()
