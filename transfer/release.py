"""When device memory that was copied out may be dealt out again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.transfer.options import Release
from pinferry.transfer.streams import copy_stream_id, current_stream, current_stream_id

if TYPE_CHECKING:
    from pinferry import _native

__all__ = ["order_reuse"]


def order_reuse(
    device: _native.Device, ticket: _native.Ticket, release: Release, *, urgent: bool
) -> int | None:
    """Order what may follow the copies of `ticket`.

    Returns
    -------
    int or None
        The stream (``torch.Stream.stream_id``) that the allocator must be told of; None if none.
    """
    if release is Release.SYNCHRONOUS:
        ticket.synchronize(None)
        return None
    if release is Release.ORDERED:
        ticket.wait(current_stream(device))
        # Costs nothing for memory of that stream, and keeps memory of another one, which does not
        # wait, from being dealt out before it.
        return current_stream_id(device)
    return copy_stream_id(device, to_host=True, urgent=urgent)
