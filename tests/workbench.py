"""A device under test, and what a test does with it: memory with known bytes, streams, batches."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pinferry import _native
from pinferry._native import Direction

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 2**20

# Long enough for a small copy that nothing holds back, so that one that should be held is caught.
SOON = 0.05
# Longer than anything may take that is not held.
LATE = 10.0


def random_bytes(nbytes: int, seed: int = 0) -> bytes:
    """Return bytes in which a shift, a swap or a gap shows."""
    return random.Random(seed).randbytes(nbytes)


def content(blocks: _native.Block | Sequence[_native.Block]) -> bytes:
    """Return the bytes of one block, or of several in turn."""
    parts = [blocks] if isinstance(blocks, _native.Block) else blocks
    return b"".join(bytes(memoryview(part)) for part in parts)


def write(block: _native.Block, data: bytes) -> None:
    """Put `data` into a block from the host."""
    memoryview(block)[:] = data


def retire_a_block(
    arena: _native.Arena, nbytes: int
) -> tuple[_native.Stream, _native.Ticket, _native.DeviceMemory]:
    """Drop a block amid a copy into it from the memory, which waits for the held stream."""
    device = arena.device
    memory, stream = device.allocate(nbytes), device.create_stream()
    stream.hold()
    ticket = _native.submit(
        device=device,
        direction=Direction.TO_HOST,
        pieces=[_native.Piece(arena.allocate(nbytes, 0.0), memory.address)],
        streams=[stream.handle],
    )
    return stream, ticket, memory


class Workbench:
    """Runs tests on `device`. Contents of device memory go through `aside`.

    `aside` is the same memory under copy streams of its own, so that held ones do not matter. Make
    what a test needs before it holds a stream: a driver may wait for the device when it allocates.
    """

    def __init__(self, device: _native.Device, aside: _native.Device) -> None:
        self.device = device
        self._aside = aside
        self._streams: list[_native.Stream] = []
        self._tickets: list[_native.Ticket] = []
        self._kept: list[object] = []
        self._scratch = self._make_arena(aside, 12 * MIB, 12 * MIB)

    def _make_arena(self, device: _native.Device, nbytes: int, chunk_nbytes: int) -> _native.Arena:
        arena = _native.Arena(
            device=device,
            nbytes=nbytes,
            chunk_nbytes=chunk_nbytes,
            numa_node=None,
            huge_pages=False,
            threads=1,
        )
        self._kept.append(arena)
        return arena

    def arena(self, nbytes: int = 8 * MIB, chunk_nbytes: int = 2 * MIB) -> _native.Arena:
        """Make an arena of several chunks."""
        return self._make_arena(self.device, nbytes, chunk_nbytes)

    def stream(self) -> _native.Stream:
        """Make a stream; a latch that a test leaves set is opened after it."""
        stream = self.device.create_stream()
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        """Open every latch, and give memory back only when nothing uses it any more."""
        for stream in self._streams:
            stream.release()
        for stream in self._streams:
            stream.synchronize()
        for ticket in self._tickets:
            ticket.synchronize(LATE)
        self._tickets.clear()
        self._streams.clear()
        self._kept.clear()

    def memory(self, data: bytes) -> _native.DeviceMemory:
        """Allocate device memory that holds `data`."""
        memory = self.device.allocate(len(data))
        self._kept.append(memory)
        block = self._scratch.allocate(len(data), LATE)
        write(block, data)
        pieces = [_native.Piece(block, memory.address)]
        ticket = _native.submit(
            device=self._aside, direction=Direction.TO_DEVICE, pieces=pieces, streams=[]
        )
        assert ticket.synchronize(LATE)
        return memory

    def queue_read(
        self, memory: _native.DeviceMemory, streams: Sequence[_native.Stream] = ()
    ) -> tuple[_native.Block, _native.Ticket]:
        """Queue reading device memory behind `streams`."""
        block = self._scratch.allocate(memory.nbytes, LATE)
        ticket = _native.submit(
            device=self._aside,
            direction=Direction.TO_HOST,
            pieces=[_native.Piece(block, memory.address)],
            streams=[stream.handle for stream in streams],
        )
        self._tickets.append(ticket)
        return block, ticket

    def read(self, memory: _native.DeviceMemory) -> bytes:
        """Return what device memory holds now."""
        block, ticket = self.queue_read(memory)
        assert ticket.synchronize(LATE)
        return content(block)

    def submit(
        self,
        direction: Direction,
        blocks: _native.Block | Sequence[_native.Block],
        address: int,
        streams: Sequence[_native.Stream] = (),
        *,
        urgent: bool = False,
    ) -> _native.Ticket:
        """Queue copies between blocks and the device memory that begins at `address`."""
        pieces = []
        for block in [blocks] if isinstance(blocks, _native.Block) else blocks:
            pieces.append(_native.Piece(block, address))
            address += block.nbytes
        ticket = _native.submit(
            device=self.device,
            direction=direction,
            pieces=pieces,
            streams=[stream.handle for stream in streams],
            urgent=urgent,
        )
        self._tickets.append(ticket)
        return ticket

    def offload(
        self,
        blocks: _native.Block | Sequence[_native.Block],
        memory: _native.DeviceMemory,
        *streams: _native.Stream,
        urgent: bool = False,
    ) -> _native.Ticket:
        """Queue copying device memory into blocks, behind `streams`."""
        return self.submit(Direction.TO_HOST, blocks, memory.address, streams, urgent=urgent)

    def reload(
        self,
        blocks: _native.Block | Sequence[_native.Block],
        memory: _native.DeviceMemory,
        *streams: _native.Stream,
        urgent: bool = False,
    ) -> _native.Ticket:
        """Queue copying blocks into device memory, behind `streams`."""
        return self.submit(Direction.TO_DEVICE, blocks, memory.address, streams, urgent=urgent)
