"""How much memory is in use, by every count there is."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pinferry.states.nvml import read_device_memory

if TYPE_CHECKING:
    from pinferry._native import Device

__all__ = ["MemoryReading", "give_back_cached", "read_memory"]


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory in use at one moment, in bytes. None: that count does not exist here.

    Attributes
    ----------
    allocated_bytes, reserved_bytes
        Of PyTorch's CUDA allocator in this process: held by tensors, and taken from the device.
    nvml_bytes
        Of the whole device, all processes together.
    rss_bytes
        Resident memory of this process.
    """

    allocated_bytes: int | None
    reserved_bytes: int | None
    nvml_bytes: int | None
    rss_bytes: int


def read_memory(device: Device) -> MemoryReading:
    """Read every count for `device`. Takes some ten microseconds and waits for nothing."""
    rss_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if device.kind != "cuda":
        return MemoryReading(None, None, None, rss_bytes)
    stats = torch.cuda.memory_stats_as_nested_dict(device.index)
    nvml = read_device_memory(device.uuid, device.pci_bus_id)
    return MemoryReading(
        allocated_bytes=_current(stats, "allocated_bytes"),
        reserved_bytes=_current(stats, "reserved_bytes"),
        nvml_bytes=None if nvml is None else nvml.used_bytes,
        rss_bytes=rss_bytes,
    )


def _current(stats: dict[str, dict[str, dict[str, int]]], name: str) -> int:
    # Before the first allocation there are no counters at all.
    return stats.get(name, {}).get("all", {}).get("current", 0)


def give_back_cached(device: Device) -> None:
    """Give what the allocator keeps for reuse back to the device, or to the system. Blocks."""
    if device.kind == "cuda":
        torch.cuda.empty_cache()
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc only; elsewhere freed memory goes back as the C library pleases
        trim(0)
