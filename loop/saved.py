"""A range of an activation's storage, kept in the arena until the graph lets go of it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import PinferryError
from pinferry.transfer.in_flight import IN_FLIGHT
from pinferry.transfer.streams import current_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Packed", "Saved"]


class Saved:
    """Bytes ``[start, start + nbytes)`` of a storage, on their way to the arena or there.

    Parameters
    ----------
    device
        Whose copies.
    number
        Its place in the order of saving.
    source
        Shares the storage; is let go of once nobody can write there before the copy has read it.
    start
        Bytes from the beginning of the storage to the beginning of the range.
    blocks
        Room in the arena.
    """

    __slots__ = (
        "__weakref__",
        "_back",
        "_blocks",
        "_buffer",
        "_device",
        "_origin",
        "_out",
        "_stream",
        "_taken",
        "_version",
        "nbytes",
        "number",
        "packed",
        "source",
        "spoiled",
        "start",
        "version",
    )

    def __init__(
        self,
        device: _native.Device,
        number: int,
        source: torch.Tensor,
        start: int,
        blocks: Sequence[_native.Block],
    ) -> None:
        self.number = number
        self.start = start
        self.nbytes = sum(block.nbytes for block in blocks)
        self.source: torch.Tensor | None = source
        self._origin = StorageWeakRef(source.untyped_storage())  # type: ignore[no-untyped-call]
        self.version = source._version  # noqa: SLF001
        self.spoiled = False
        self.packed = 0  # how often it was saved
        self._taken = 0  # how often it was asked for since it came back
        self._device = device
        self._blocks = blocks
        self._buffer: torch.Tensor | None = None
        self._back: _native.Ticket | None = None
        self._stream = current_stream(device)
        address = source.untyped_storage().data_ptr() + start
        self._out = self._submit(Direction.TO_HOST, address, [])

    @property
    def out(self) -> _native.Ticket:
        """The copy to the arena."""
        return self._out

    def gone(self) -> bool:
        """Return whether the storage is, so that its address may be another's by now."""
        expired: bool = self._origin.expired()  # type: ignore[no-untyped-call]
        return expired

    @property
    def here(self) -> bool:
        """Whether its bytes are on the device, or on their way."""
        return self.source is not None or self._buffer is not None

    def let_go(self) -> None:
        """Give the storage up: the copy has read it, or the current stream waits for that."""
        if self.source is not None:
            self.spoiled = self.source._version != self.version  # noqa: SLF001
            self.source = None

    def fetch(self) -> None:
        """Begin to bring it back, behind what the current stream has queued."""
        if self.here:
            return
        self._stream = current_stream(self._device)
        where = "cpu" if self._device.kind == "cpu" else f"cuda:{self._device.index}"
        self._buffer = torch.empty(self.nbytes, dtype=torch.uint8, device=where)
        self._back = self._submit(Direction.TO_DEVICE, self._buffer.data_ptr(), [self._out])
        self._taken = 0

    def take(self) -> torch.UntypedStorage:
        """Return its storage, for the current stream, and forget it when all have asked."""
        if self.source is not None:
            return self.source.untyped_storage()
        self.fetch()
        buffer, back = self._buffer, self._back
        if buffer is None or back is None:
            raise AssertionError("what was fetched is here")
        back.wait(current_stream(self._device))
        self._taken += 1
        if self._taken >= self.packed:
            self._buffer = self._back = None
        return buffer.untyped_storage()

    @property
    def offset(self) -> int:
        """Where the range begins in what `take` returns."""
        return self.start if self.source is not None else 0

    def _submit(
        self, direction: Direction, address: int, after: Sequence[_native.Ticket]
    ) -> _native.Ticket:
        pieces = []
        for block in self._blocks:
            pieces.append(_native.Piece(block, address))
            address += block.nbytes
        return _native.submit(
            device=self._device,
            direction=direction,
            pieces=pieces,
            streams=[self._stream],
            after=after,
        )

    def __del__(self) -> None:
        """See that memory which a copy still uses is not dealt out before its end."""
        if sys.is_finalizing():
            return
        held = ((getattr(self, "source", None), self._out), (self._buffer, self._back))
        with contextlib.suppress(PinferryError):
            for tensor, ticket in held:
                if tensor is not None and ticket is not None and not ticket.done():
                    if self._device.kind == "cpu":
                        IN_FLIGHT.hold(ticket, tensor)
                    else:
                        ticket.wait(self._stream)


class Packed:
    """A tensor in a `Saved`: what the graph holds in its place."""

    __slots__ = ("dtype", "offset", "saved", "size", "stride")

    def __init__(self, saved: Saved, tensor: torch.Tensor) -> None:
        self.saved = saved
        self.dtype = tensor.dtype
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset() * tensor.element_size() - saved.start

    def unpack(self) -> torch.Tensor:
        """Return the tensor again."""
        offset = self.saved.offset + self.offset
        storage = self.saved.take()
        made = torch.empty(0, dtype=self.dtype, device=storage.device)
        return made.set_(storage, offset // made.element_size(), self.size, self.stride)
