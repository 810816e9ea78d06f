"""The copy that nothing can beat."""

from __future__ import annotations

import torch

from pinferry.bench.timing import Timing, time_repeated

__all__ = ["time_raw"]


def time_raw(nbytes: int, device: torch.device, repeats: int) -> tuple[Timing, Timing]:
    """Time one raw copy between `device` and pinned memory, out and back."""
    there = torch.empty(nbytes, dtype=torch.uint8, device=device).random_()
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return (
        time_repeated(lambda: pinned.copy_(there, non_blocking=True), device, repeats),
        time_repeated(lambda: there.copy_(pinned, non_blocking=True), device, repeats),
    )
