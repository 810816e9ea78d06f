"""The two moves: a batch of storages to its blocks, and back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import DeviceOutOfMemory
from pinferry.transfer.options import Access
from pinferry.transfer.release import order_reuse
from pinferry.transfer.streams import copy_stream_id, current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinferry._torch import FreshMemory, ReleasedMemory, ResidentStorages
    from pinferry.transfer.cargo import Cargo
    from pinferry.transfer.options import OffloadOptions
    from pinferry.transfer.parked import HostCopy

__all__ = ["bring", "send"]


def send(
    device: _native.Device,
    cargo: Cargo,
    held: ResidentStorages,
    *,
    owners: Sequence[HostCopy],
    streams: list[int],
    after: list[_native.Ticket],
    skip: Sequence[int],
    options: OffloadOptions,
) -> tuple[_native.Ticket, ReleasedMemory]:
    """Copy storages to their blocks, behind `streams` and `after`, and take their memory away.

    Each storage holds its owner (one each, or one for all) while it is away. Those of the places in
    `skip` are not copied. Readable ones are pointed at their blocks, and the current stream waits
    for the copy.

    On CUDA the memory returned may be dropped at once: `release` orders its reuse behind the copy.
    On the CPU it must be held until the ticket is done. All storages or none; blocks the host for a
    synchronous release alone, and on the CPU device for readable ones.
    """
    readable = options.access is Access.READABLE
    readable_at = cargo.host_addresses(device) if readable else None
    ticket = _native.submit_list(
        device=device,
        direction=Direction.TO_HOST,
        copies=cargo.copies(packed=held.packed),
        addresses=held.addresses,
        streams=streams,
        after=after,
        skip=skip,
        urgent=options.urgent,
    )
    try:
        if readable:
            ticket.wait(current_stream(device))
        stream_id = order_reuse(device, ticket, options.release, urgent=options.urgent)
        released = held.release(owners, stream_id, readable_at)
    except BaseException:
        # Nothing was taken. The blocks are about to be freed, so the copies must be over.
        ticket.synchronize(None)
        raise
    return ticket, released


def bring(
    device: _native.Device, cargo: Cargo, *, consumers: list[int] | None, urgent: bool
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
    stream_id = None
    if here not in waiting:
        stream_id = copy_stream_id(device, to_host=False, urgent=urgent)
    fresh = _allocate(device, cargo, stream_id)
    ticket = _native.submit_list(
        device=device,
        direction=Direction.TO_DEVICE,
        copies=cargo.copies(packed=fresh.packed),
        addresses=fresh.addresses,
        streams=[here],
        urgent=urgent,
    )
    try:
        for stream in waiting:
            ticket.wait(stream)
    except BaseException:
        ticket.synchronize(None)  # the memory is about to be freed
        raise
    return ticket, fresh


def _allocate(device: _native.Device, cargo: Cargo, stream_id: int | None) -> FreshMemory:
    """Return memory for the storages: slabs for those that share one, where there is room."""
    with torch.cuda.device(device.index) if device.kind == "cuda" else contextlib.nullcontext():
        if cargo.has_slabs:
            # A slab is one piece of memory; where there is none so large, many may be found.
            with contextlib.suppress(DeviceOutOfMemory):
                return cargo.group.allocate(stream_id, slabs=True)
        return cargo.group.allocate(stream_id, slabs=False)
