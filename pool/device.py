"""Devices by name."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from weakref import WeakValueDictionary

from pinferry import _native
from pinferry._native import Device
from pinferry.errors import UnknownDevice

__all__ = ["Device", "default_device", "numa_node_of", "open_device"]

_CUDA = re.compile(r"cuda(?::(\d{1,6}))?")
_opened: WeakValueDictionary[str, Device] = WeakValueDictionary()
# GPUs stay open for good: PyTorch's allocator remembers the copy streams that have used a tensor's
# memory, and records events on them when the tensor dies, which may be after every arena.
_gpus: dict[str, Device] = {}
_lock = threading.Lock()


def _forget_parents_devices() -> None:
    global _lock  # noqa: PLW0603 -- a thread of the parent may have held it
    _lock = threading.Lock()
    _opened.clear()
    _gpus.clear()


os.register_at_fork(after_in_child=_forget_parents_devices)


def default_device() -> str:
    """Return ``"cuda:0"`` where the driver sees a GPU, else ``"cpu"``.

    Nothing calls this for you: a device is always named, so no fallback is silent.
    """
    return "cuda:0" if _native.device_count() > 0 else "cpu"


def open_device(device: object) -> Device:
    """Return the device called `device`.

    Parameters
    ----------
    device
        ``"cpu"``, ``"cuda"`` (the first GPU), ``"cuda:N"``, a `torch.device`, or a device that is
        open already. A GPU has one object per process: one pair of copy streams.

    Raises
    ------
    UnknownDevice
        If the name is none of these.
    DriverUnavailable
        If there is no CUDA driver.
    DeviceNotFound
        If there is no such GPU.
    """
    if isinstance(device, Device):
        return device
    name = str(device)
    match = _CUDA.fullmatch(name)
    if name != "cpu" and not match:
        raise UnknownDevice(f"{name!r} is no device; write 'cpu' or 'cuda:N'")
    index = int(match[1] or 0) if match else 0
    key = f"cuda:{index}" if match else "cpu"
    with _lock:
        opened = _opened.get(key)
        if opened is None:
            opened = _native.CudaDevice(index) if match else _native.HostDevice()
            _opened[key] = opened
            if match:
                _gpus[key] = opened
        return opened


def numa_node_of(device: Device, root: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Return the NUMA node next to `device`, or None where the system does not say."""
    if not device.pci_bus_id:
        return None
    # The driver writes the bus id in upper case and may write an 8-digit domain; Linux does
    # neither.
    domain, _, rest = device.pci_bus_id.lower().partition(":")
    try:
        node = int((root / f"{domain[-4:]:0>4}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
