"""The kernel that copies many small ranges at once, compiled by CuPy at first use.

It is optional: without CuPy, or where it does not compile, a GPU copies small ranges by batched or
single calls. Why is remembered, and shown by ``pinferry doctor``.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import PinferryError
from pinferry.pool import format_bytes
from pinferry.pool.device import open_device
from pinferry.transfer.calibration import KERNEL_SOURCE, Tuning, measure_copies, tune

if TYPE_CHECKING:
    import cupy

__all__ = ["calibrate", "copies_status", "prepare_kernels"]

_NAME = "pinferry_gather"
_BLOCKS = 32  # until the device's own grid is known
# A warp has 4 KiB of loads under way, and about 110 KB hide the latency of a PCIe 5.0 link. Small
# blocks find room on a GPU that computes meanwhile.
_THREADS = 256

_log = logging.getLogger("pinferry")
_lock = threading.Lock()
# Why a device has no kernel; "" where it has one.
_reasons: WeakKeyDictionary[_native.Device, str] = WeakKeyDictionary()
# The kernel of each GPU, by its index. The core launches it by its handle, so it must stay loaded
# for as long as the process runs; it holds its module, whatever CuPy does with its own caches.
_functions: dict[int, cupy.cuda.Function] = {}


def prepare_kernels(device: _native.Device) -> None:
    """Let a GPU copy small ranges by a kernel, as fast as it was measured to; once for each device.

    Blocks for a second or so when CuPy compiles the kernel for the first time, and for less when
    the copies are measured for the first time. Raises nothing: without a kernel the device works
    on, and `copies_status` says why there is none.
    """
    if not isinstance(device, _native.CudaDevice):
        return
    with _lock:
        if device in _reasons:
            return
        reason = _use_kernel(device)
        _reasons[device] = reason
        if reason:
            _log.info("small tensors on cuda:%d move without a kernel: %s", device.index, reason)
        else:
            tune(device)


def calibrate(gpu: object) -> dict[str, Tuning]:
    """Measure how a GPU copies best, use it from now on, and keep it in the user's cache folder.

    It is measured by itself when a GPU is first used, once for each version of driver and pinferry.
    Call it where that moment was a bad one, because the GPU was busy, or after hardware was moved.
    Blocks for some tenths of a second. Best called while the GPU has nothing else to do: only what
    was measured on an idle one is kept for later processes. Meanwhile it takes 18 MiB of the GPU's
    memory and 16 MiB of pinned memory.

    Parameters
    ----------
    gpu
        ``"cuda:0"``, or a `torch.device`.

    Returns
    -------
    dict[str, Tuning]
        For ``"to_host"`` and ``"to_device"``: below which size ranges go by the kernel, in how many
        blocks, and in which pieces large ones go.

    Raises
    ------
    InvalidArgument
        If the device copies without a kernel: there is nothing to choose.
    DeviceOutOfMemory, RegistrationFailed, HostMemoryLimit, DriverCallFailed, TransferTimeout
        If it cannot be measured. The device is left as it was.
    """
    device = open_device(gpu)
    prepare_kernels(device)
    return measure_copies(device)


def copies_status(gpu: object) -> tuple[str, str]:
    """Return ``"ok"`` or ``"warning"``, and how a GPU, or its name, copies small tensors."""
    device = open_device(gpu)
    prepare_kernels(device)
    reason = _reasons.get(device, "")
    if reason or not isinstance(device, _native.CudaDevice):
        return "warning", f"{device.copy_tier}: {reason}"
    ways = [
        f"{way} {blocks} blocks below {format_bytes(threshold)}, pieces of {format_bytes(piece)}"
        for way, (threshold, blocks, piece) in (
            ("out", device.copy_tuning(Direction.TO_HOST)),
            ("in", device.copy_tuning(Direction.TO_DEVICE)),
        )
    ]
    return "ok", f"{device.copy_tier}: {'; '.join(ways)}"


def _use_kernel(device: _native.CudaDevice) -> str:
    """Compile the kernel and hand it to the device; return why that failed, or ``""``."""
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name == "cupy":
            return "CuPy is not installed"
        return f"CuPy cannot be imported: {error}"
    except Exception as error:  # noqa: BLE001 -- a library of CUDA that is missing, or anything
        return f"CuPy cannot be imported: {error}"
    try:
        with cupy.cuda.Device(device.index):
            if device.index not in _functions:
                source = KERNEL_SOURCE.read_text(encoding="utf-8")
                module = cupy.RawModule(code=source, options=("-std=c++17",), backend="nvrtc")
                _functions[device.index] = module.get_function(_NAME).kernel
            handle = int(_functions[device.index].ptr)
    except Exception as error:  # noqa: BLE001 -- CuPy, NVRTC and the driver have errors of their own
        return f"compilation failed: {error}"
    try:
        device.use_kernel(handle, blocks=_BLOCKS, threads=_THREADS)
    except PinferryError as error:
        return str(error)
    return ""
