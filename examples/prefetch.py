"""Bring state back beside computation: a deferred reload, and the wait that makes it usable.

Run it with ``python examples/prefetch.py``; it picks a GPU where there is one.
"""

from __future__ import annotations

import torch

from pinferry import PinnedArena, TransferEngine, default_device


def main() -> None:
    """Offload a table, compute something else while it comes back, then use it."""
    device = default_device()
    table = torch.arange(1_000_000, dtype=torch.float32, device=device)
    other = torch.randn(512, 512, device=device)
    with PinnedArena("8MiB", device=device) as arena, TransferEngine(arena) as engine:
        engine.offload({"table": table})
        ticket = engine.reload(defer=True)  # the copy runs; the table stays guarded
        for _ in range(10):
            other = torch.tanh(other @ other / 512)
        ticket.wait()  # the current stream waits for the copy, and the guard is lifted
        print(f"sum of the table: {table.sum().item():.0f}, {ticket.nbytes} bytes came back")


if __name__ == "__main__":
    main()
