"""Fine-tune a model whose optimizer state has no room on the device.

On a GPU the process may use only so much memory that a third of the state fits beside weights and
gradients; so it streams through a window. On the CPU the same runs, and no memory is missing.

Run it with ``python examples/streamed_finetuning.py``; it picks a GPU where there is one.
"""

from __future__ import annotations

import torch
from torch import nn

from pinferry import StreamingOptimizer, default_device

WIDTH, LAYERS, STEPS = 1024, 16, 5


def allow_only(device: str, nbytes: int) -> None:
    """Have PyTorch refuse more than `nbytes` on a GPU."""
    if device != "cpu":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(nbytes / total, torch.device(device))


def main() -> None:
    """Train in bf16 with master weights and moments in host memory."""
    device = default_device()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers).to(device, torch.bfloat16)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    state = 6 * weights  # master weights and two moments, in fp32
    allow_only(device, 4 * weights + 256 * 2**20)

    inputs = torch.randn(32, WIDTH, device=device, dtype=torch.bfloat16)
    optimizer = StreamingOptimizer(
        torch.optim.AdamW(model.parameters(), lr=1e-4), window="128MiB", master_weights=True
    )
    with optimizer:
        for step in range(STEPS):
            loss = (model(inputs) - inputs).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step}: loss {loss.item():.6f}")
        print(
            f"{state / 1e6:.0f} MB of optimizer state in host memory, "
            f"{optimizer.resident_bytes / 1e6:.0f} MB on the device between steps"
        )
        if device != "cpu":  # close() brings the state back
            torch.cuda.set_per_process_memory_fraction(1.0)


if __name__ == "__main__":
    main()
