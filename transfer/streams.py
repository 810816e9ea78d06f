"""Streams by handle."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pinferry._native import Direction
from pinferry.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinferry._native import Device

__all__ = [
    "copy_stream_id",
    "current_stream",
    "current_stream_id",
    "stream_handle",
    "stream_handles",
]


def stream_handle(stream: object) -> int:
    """Return the native handle of a stream.

    Parameters
    ----------
    stream
        A `torch.cuda.Stream`, a CuPy stream, a stream of `pinferry._native`, or a ``CUstream`` as
        an integer; 0 is CUDA's legacy default stream, or the calling thread on the CPU device.

    Raises
    ------
    InvalidArgument
        If it is none of those, or an integer that no handle can be.
    """
    attributes = (getattr(stream, name, None) for name in ("cuda_stream", "handle", "ptr"))
    for handle in (*attributes, stream):
        if isinstance(handle, int) and not isinstance(handle, bool):
            if 0 <= handle < 2**64:
                return handle
            break
    raise InvalidArgument(
        f"{stream!r} is no stream; give a torch.cuda.Stream, a CuPy stream or an integer handle"
    )


def current_stream(device: Device) -> int:
    """Return the handle of the stream that the caller's work on `device` is queued on.

    PyTorch's current stream where PyTorch is in use, else CUDA's legacy default stream. On the CPU
    device it is the calling thread, 0.
    """
    torch = sys.modules.get("torch")
    if device.kind != "cuda" or torch is None:
        return 0
    handle: int = torch.cuda.current_stream(device.index).cuda_stream
    return handle


def stream_handles(device: Device, streams: Iterable[object] | None) -> list[int]:
    """Return the handles of `streams`, by default of the caller's current one."""
    if streams is None:
        return [current_stream(device)]
    return [stream_handle(stream) for stream in streams]


def current_stream_id(device: Device) -> int | None:
    """Return how PyTorch's allocator knows the caller's stream; None where nothing is ordered."""
    if device.kind != "cuda":
        return None
    import torch

    stream_id: int = torch.cuda.current_stream(device.index).stream_id
    return stream_id


def copy_stream_id(device: Device, *, to_host: bool, urgent: bool) -> int | None:
    """Return how PyTorch's allocator knows a copy stream; None where nothing is ordered."""
    if device.kind != "cuda":
        return None
    import torch

    direction = Direction.TO_HOST if to_host else Direction.TO_DEVICE
    handle = device.copy_stream(direction, urgent=urgent)
    stream = torch.cuda.ExternalStream(handle, device.index)  # type: ignore[no-untyped-call]
    stream_id: int = stream.stream_id
    return stream_id
