"""What the device is called by its maker."""

from __future__ import annotations

from pathlib import Path

import torch

__all__ = ["device_name"]


def device_name(device: str) -> str:
    """Return the GPU's or the processor's name."""
    if device != "cpu":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "CPU")
