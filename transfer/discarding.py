"""Giving device memory up without keeping its bytes, and making it anew."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from pinferry import _native
from pinferry.errors import StorageChanged
from pinferry.transfer.bridge import load_bridge
from pinferry.transfer.streams import current_stream, stream_handles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinferry._torch import FreshMemory, ReleasedMemory, StorageGroup
    from pinferry.transfer.options import ReloadOptions
    from pinferry.transfer.parked import ParkedStorage

__all__ = ["give_up", "make_anew"]


def give_up(parked: Sequence[ParkedStorage]) -> ReleasedMemory:
    """Take the memory of storages away, all of them or, with `StorageChanged`, none.

    It may be dropped once no copy runs into it that no stream orders.
    """
    rooms = [each.room() for each in parked]
    held = _group(parked).hold()
    if held is None:
        raise StorageChanged(
            "a storage was freed, resized or offloaded by another thread while it was being "
            "discarded; nothing was"
        )
    return held.release(rooms, None)


def make_anew(
    device: _native.Device, parked: Sequence[ParkedStorage], options: ReloadOptions
) -> tuple[_native.Ticket, FreshMemory]:
    """Return memory for storages that were given up, to be installed; see `bring`.

    What the current stream did so far may still use it. So other streams wait for that: those of
    `options`, and any that will wait for the ticket of a deferred reload.
    """
    others = [] if options.streams is None else stream_handles(device, options.streams)
    with torch.cuda.device(device.index) if device.kind == "cuda" else contextlib.nullcontext():
        fresh = _group(parked).allocate(None, slabs=False)
    if options.streams is None and not options.defer:
        return _native.Ticket(), fresh
    ticket = _native.Ticket(_native.mark(device, current_stream(device)))
    for stream in [] if options.defer else others:
        ticket.wait(stream)
    return ticket, fresh


def _group(parked: Sequence[ParkedStorage]) -> StorageGroup:
    group: StorageGroup = load_bridge().StorageGroup(
        [each.handle for each in parked],
        [each.name for each in parked],
        [each.nbytes for each in parked],
        [],
    )
    return group
