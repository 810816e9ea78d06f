"""The two moves: a batch of storages to its blocks, and back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from pinferry import _native
from pinferry._native import Direction
from pinferry.transfer.bridge import load_bridge
from pinferry.transfer.streams import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinferry._torch import FreshMemory, ReleasedMemory
    from pinferry.transfer.parked import ParkedStorage

__all__ = ["bring", "send"]


def send(
    device: _native.Device,
    parked: Sequence[ParkedStorage],
    streams: list[int],
    after: list[_native.Ticket],
) -> tuple[_native.Ticket, ReleasedMemory]:
    """Copy storages to their blocks, behind `streams` and `after`, and take their memory away.

    On CUDA the memory returned may be dropped at once: PyTorch's allocator orders its reuse behind
    the copy. On the CPU it must be held until the ticket is done. All storages or none; does not
    block.
    """
    pieces = [piece for each in parked for piece in each.pieces(each.handle.address)]
    ticket = _native.submit(
        device=device, direction=Direction.TO_HOST, pieces=pieces, streams=streams, after=after
    )
    try:
        released: ReleasedMemory = load_bridge().release(
            [each.handle for each in parked],
            [each.offloaded_message for each in parked],
            [each.room() for each in parked],
            _stream_id(device, Direction.TO_HOST),
        )
    except BaseException:
        # Nothing was taken. The blocks are about to be freed, so the copies must be over.
        ticket.synchronize(None)
        raise
    return ticket, released


def bring(
    device: _native.Device,
    parked: Sequence[ParkedStorage],
    *,
    consumers: list[int] | None,
) -> tuple[_native.Ticket, FreshMemory]:
    """Make device memory on PyTorch's current stream and copy the blocks to it.

    The copy waits for what the current stream did so far, since that may still use the memory, and
    each of `consumers` for the copy (default: the current stream; none: nobody yet). The storages
    stay as they are until the memory is installed, which cannot fail. Blocks only on the CPU
    device, where the calling thread is the current stream.
    """
    here = current_stream(device)
    waiting = [here] if consumers is None else consumers
    # If the current stream does not wait, only the allocator can hold the memory back from it.
    stream_id = None if here in waiting else _stream_id(device, Direction.TO_DEVICE)
    with torch.cuda.device(device.index) if device.kind == "cuda" else contextlib.nullcontext():
        fresh: FreshMemory = load_bridge().allocate([each.handle for each in parked], stream_id)
    pieces = [
        piece
        for each, address in zip(parked, fresh.addresses, strict=True)
        for piece in each.pieces(address)
    ]
    ticket = _native.submit(
        device=device, direction=Direction.TO_DEVICE, pieces=pieces, streams=[here]
    )
    try:
        for stream in waiting:
            ticket.wait(stream)
    except BaseException:
        ticket.synchronize(None)  # the memory is about to be freed
        raise
    return ticket, fresh


def _stream_id(device: _native.Device, direction: Direction) -> int | None:
    """Return how PyTorch's allocator knows a copy stream; None where nothing is stream-ordered."""
    if device.kind != "cuda":
        return None
    handle = device.copy_stream(direction)
    stream = torch.cuda.ExternalStream(handle, device.index)  # type: ignore[no-untyped-call]
    stream_id: int = stream.stream_id
    return stream_id
