"""When device memory that was copied out may be dealt out again."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pinferry.errors import InvalidArgument
from pinferry.transfer.streams import copy_stream_id, current_stream, current_stream_id

if TYPE_CHECKING:
    from pinferry import _native

__all__ = ["Release", "order_reuse", "parse_release"]


class Release(str, Enum):
    """What holds the memory of an offload back until its copy has read it."""

    #: PyTorch's allocator is told that the copy stream uses the memory (``record_stream``). Nothing
    #: waits; the allocator keeps an event for each block until it has passed.
    RECORD_STREAM = "record_stream"
    #: The current stream waits for the copy, so that its later work may have the memory at once.
    ORDERED = "ordered"
    #: The host waits for the copy.
    SYNCHRONOUS = "synchronous"

    def __str__(self) -> str:
        """Return what a caller would type."""
        return self.value


def parse_release(release: Release | str) -> Release:
    """Return the policy of that name, or raise `InvalidArgument` with those there are."""
    try:
        return Release(release)
    except ValueError:
        names = ", ".join(repr(each.value) for each in Release)
        raise InvalidArgument(f"release={release!r}: there is {names}") from None


def order_reuse(device: _native.Device, ticket: _native.Ticket, release: Release) -> int | None:
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
    return copy_stream_id(device, to_host=True)
