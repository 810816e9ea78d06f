"""The arena: pinned host memory, made once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pinferry import _native
from pinferry.errors import ArenaClosed, ArenaInUse, InvalidArgument, InvalidSize
from pinferry.pool.block import PinnedBlock
from pinferry.pool.device import numa_node_of, open_device
from pinferry.pool.host_memory import require_host_bytes
from pinferry.pool.sizes import format_bytes, parse_size
from pinferry.pool.stats import ArenaStats

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["PinnedArena"]

# Where the gain of another thread that touches pages ends, measured at 4 GiB on 16 cores.
_MOST_THREADS = 16
_PAGE = 2 * 2**20
_BACKENDS = {
    "auto": _native.Backend.AUTO,
    "registered": _native.Backend.REGISTERED,
    "driver": _native.Backend.DRIVER,
    "unpinned": _native.Backend.UNPINNED,
}


class PinnedArena:
    """Pinned host memory that is made once and never pinned again.

    Making it costs time (about 0.05 s/GiB on 16 cores with huge pages); taking a block from it
    costs microseconds. Any thread may use it.

    Parameters
    ----------
    capacity
        Bytes, or text such as ``"8GiB"``. Rounded down to 512 bytes.
    device
        ``"cuda:N"`` or ``"cpu"``: whose copies it serves. For a GPU the memory is pinned, and
        placed next to it; the CPU device needs no pinning.
    chunk
        Bytes that the driver pins in one call. No block crosses from one chunk into the next.
        Recent drivers refuse a call of 512 GiB or more.
    huge_pages
        Ask for transparent huge pages: halves the time to pin.
    numa_node
        Preferred NUMA node. Default: the GPU's own.
    threads
        Threads that touch the pages. Default: all that this process may use, at most 16.
    reserve_host
        Bytes of host memory to leave to others, or text.

    backend
        How the memory is made. ``"registered"``: pages, then pinned; ``"driver"``: the driver's own
        pinned allocation, 5 to 15 times slower to make, for where pinning pages is not permitted
        (confidential computing); ``"unpinned"``: plain pages, for the CPU device. ``"auto"`` takes
        the first that works; `PinnedArena.backend` and `backend_reason` say which and why.

    Raises
    ------
    InvalidSize
        If `capacity` or `chunk` makes no sense.
    InvalidArgument
        If the device does not have that backend.
    HostMemoryLimit
        If the host or the process's cgroup has less memory left. No page was touched.
    UnknownDevice, DriverUnavailable, DeviceNotFound
        If the device cannot be used.
    RegistrationFailed
        If the driver refuses. Everything was rolled back.

    Examples
    --------
    >>> with PinnedArena("1MiB", device="cpu") as arena:
    ...     with arena.alloc("64KiB") as block:
    ...         arena.stats().used_bytes
    65536
    """

    def __init__(
        self,
        capacity: int | str,
        *,
        device: object,
        chunk: int | str = "64GiB",
        huge_pages: bool = True,
        numa_node: int | None = None,
        threads: int | None = None,
        reserve_host: int | str = 0,
        backend: str = "auto",
    ) -> None:
        capacity_bytes = parse_size(capacity)
        chunk_bytes = parse_size(chunk)
        if capacity_bytes < 512:
            raise InvalidSize(
                f"an arena of {capacity_bytes} bytes holds nothing; ask for 512 bytes or more",
                requested=capacity_bytes,
            )
        if chunk_bytes < _PAGE or chunk_bytes % _PAGE:
            raise InvalidSize(
                f"a chunk is a multiple of 2 MiB (a huge page), and {chunk_bytes} bytes is not",
                requested=chunk_bytes,
            )
        if threads is not None and threads < 1:
            raise InvalidSize(f"threads={threads}: at least one thread must touch the pages")
        if backend not in _BACKENDS:
            raise InvalidArgument(
                f"{backend!r} is no backend; choose from {', '.join(map(repr, _BACKENDS))}"
            )
        opened = open_device(device)
        require_host_bytes(capacity_bytes, reserve=parse_size(reserve_host))
        self._native = _native.Arena(
            device=opened,
            nbytes=capacity_bytes,
            chunk_nbytes=chunk_bytes,
            numa_node=numa_node if numa_node is not None else numa_node_of(opened),
            huge_pages=huge_pages,
            threads=threads or min(len(os.sched_getaffinity(0)), _MOST_THREADS),
            backend=_BACKENDS[backend],
        )

    @property
    def native(self) -> _native.Arena:
        """The arena of the core, for the transfer engine."""
        return self._native

    @property
    def device(self) -> _native.Device:
        """The device whose copies it serves."""
        return self._native.device

    @property
    def capacity_bytes(self) -> int:
        """Bytes that can be dealt out."""
        return self._native.stats().capacity_bytes

    @property
    def backend(self) -> str:
        """How the memory was made: ``"registered"``, ``"driver"`` or ``"unpinned"``."""
        return self._native.backend

    @property
    def backend_reason(self) -> str:
        """Why that backend, and what the system granted."""
        return self._native.description

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.closed

    def alloc(self, nbytes: int | str, *, timeout: float | None = 0.0) -> PinnedBlock:
        """Return a contiguous block.

        Parameters
        ----------
        nbytes
            Bytes or text; 0 is allowed.
        timeout
            Seconds to wait for blocks that were freed while a copy still used them. None waits for
            as long as the copies take. The default does not wait. Blocks the host meanwhile.

        Raises
        ------
        ArenaExhausted
            If there is no free range of that size; it has ``requested``, ``free``, ``largest_free``
            and ``in_flight``.
        ArenaClosed
            If the arena was closed.
        """
        return PinnedBlock(self._native.allocate(parse_size(nbytes), timeout))

    def try_alloc(self, nbytes: int | str) -> PinnedBlock | None:
        """Return a contiguous block, or None if none is free now. Never waits."""
        native = self._native.try_allocate(parse_size(nbytes))
        return None if native is None else PinnedBlock(native)

    def alloc_extents(self, nbytes: int | str, *, timeout: float | None = 0.0) -> list[PinnedBlock]:
        """Return as few blocks as hold `nbytes` together.

        Succeeds whenever that many bytes are free in all, however scattered. Parameters and errors
        as for `alloc`.
        """
        [extents] = self._native.allocate_extents([parse_size(nbytes)], timeout)
        return [PinnedBlock(native) for native in extents]

    def stats(self) -> ArenaStats:
        """Return the counters of this moment."""
        return ArenaStats.of(self._native.stats())

    def close(self, *, force: bool = False) -> None:
        """Deal out nothing more, and give the memory back.

        Closing twice is harmless. To unpin memory the driver waits until the GPU has finished what
        it was given, by anyone: do not close amid work that this thread has yet to complete.

        Parameters
        ----------
        force
            Close although blocks live. They and their views stay valid; the memory goes back when
            the last of them is gone.

        Raises
        ------
        ArenaInUse
            If blocks live and `force` is False; the arena stays open.
        """
        if self._native.closed:
            return
        held = self._native.stats()
        if held.blocks and not force:
            raise ArenaInUse(
                f"the arena still holds {held.blocks} blocks with {format_bytes(held.used_bytes)}; "
                "reload or free them first, or close(force=True) to let them be the last",
                blocks=held.blocks,
                used=held.used_bytes,
            )
        self._native.close()

    def __enter__(self) -> Self:
        """Return the arena."""
        if self._native.closed:
            raise ArenaClosed("this arena is closed; make a new one")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the arena.

        While an error passes through, blocks that live do not hide it: the arena then closes by
        force.
        """
        self.close(force=kind is not None)

    def __repr__(self) -> str:
        """Say what it holds."""
        stats = self._native.stats()
        return (
            f"<PinnedArena {format_bytes(stats.capacity_bytes)} for {self.device.kind}:"
            f"{self.device.index}, {self.backend}, {format_bytes(stats.used_bytes)} used"
            f"{', closed' if self.closed else ''}>"
        )
