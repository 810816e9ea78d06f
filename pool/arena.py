"""The arena: pinned host memory, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry import _native
from pinferry.errors import ArenaClosed, ArenaInUse, NotCopyable
from pinferry.pool.block import PinnedBlock
from pinferry.pool.cupy import CupyAllocator
from pinferry.pool.device import numa_node_of, open_device
from pinferry.pool.host_memory import require_host_bytes
from pinferry.pool.options import ArenaOptions, check_alignment, check_timeout
from pinferry.pool.sizes import format_bytes, parse_size
from pinferry.pool.stats import ArenaStats
from pinferry.pool.supply import ChunkSupply

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import NoReturn

    from rich.console import Console
    from typing_extensions import Self

    from pinferry.pool.map import Region

__all__ = ["PinnedArena"]

_ALIGNMENT = 512  # of every block


class PinnedArena:
    """Pinned host memory that is made once and never pinned again.

    Making it costs time (about 0.05 s/GiB on 16 cores with huge pages); taking a block from it
    costs microseconds. Any thread may use it. Its memory comes in chunks: the capacity at once,
    more on demand where `max_capacity` allows it, and `trim` gives chunks back that nobody uses.

    Parameters
    ----------
    capacity
        Bytes, or text such as ``"8GiB"``. Rounded down to 512 bytes.
    device
        ``"cuda:N"`` or ``"cpu"``: whose copies it serves. For a GPU the memory is pinned, and
        placed next to it; the CPU device needs no pinning.
    max_capacity
        Bytes that the arena may grow to, one chunk at a time, when a block finds no room. Default:
        `capacity`. Address space is taken for all of it, memory is not.
    eager
        False returns once the first chunk is there, and makes the others in the background; blocks
        are dealt out as chunks become ready. `wait_ready` waits for all of them.
    chunk
        Bytes that the driver pins in one call, and the step of growth. No block crosses from one
        chunk into the next. Default: 1 GiB where the arena grows or is made in the background, else
        64 GiB. Recent drivers refuse a call of 512 GiB or more.
    huge_pages
        Ask for transparent huge pages: halves the time to pin.
    numa_node
        Preferred NUMA node. Default: the GPU's own.
    threads
        Threads that touch the pages. Default: all that this process may use, at most 16.
    reserve_host
        Bytes of host memory to leave to others, or text. Growth, too, leaves them.
    backend
        How the memory is made. ``"registered"``: pages, then pinned; ``"driver"``: the driver's own
        pinned allocation, 5 to 15 times slower to make, for where pinning pages is not permitted
        (confidential computing); ``"unpinned"``: plain pages, which the CPU device takes; for a
        GPU, copies are then several times slower and block the host. ``"auto"`` takes the first
        that works, and pins wherever there is a GPU; `PinnedArena.backend` and `backend_reason`
        say which and why.

    Raises
    ------
    InvalidSize
        If `capacity`, `max_capacity` or `chunk` makes no sense.
    InvalidArgument
        If the device does not have that backend, or another option makes no sense.
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
        max_capacity: int | str | None = None,
        eager: bool = True,
        chunk: int | str | None = None,
        huge_pages: bool = True,
        numa_node: int | None = None,
        threads: int | None = None,
        reserve_host: int | str = 0,
        backend: str = "auto",
    ) -> None:
        options = ArenaOptions.parse(
            capacity,
            max_capacity=max_capacity,
            eager=eager,
            chunk=chunk,
            huge_pages=huge_pages,
            numa_node=numa_node,
            threads=threads,
            reserve_host=reserve_host,
            backend=backend,
        )
        opened = open_device(device)
        require_host_bytes(options.capacity_bytes, reserve=options.reserve_bytes)
        self._native = _native.Arena(
            device=opened,
            nbytes=options.capacity_bytes,
            chunk_nbytes=options.chunk_bytes,
            numa_node=numa_node_of(opened) if options.numa_node is None else options.numa_node,
            huge_pages=options.huge_pages,
            threads=options.threads,
            backend=options.backend,
            max_nbytes=options.max_capacity_bytes,
            eager=eager,
        )
        self._supply = ChunkSupply(
            self._native,
            initial_bytes=options.capacity_bytes,
            reserve_bytes=options.reserve_bytes,
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
        """Bytes that can be dealt out: those of the chunks that are there."""
        return self._native.stats().capacity_bytes

    @property
    def max_capacity_bytes(self) -> int:
        """Bytes that the arena may grow to."""
        return self._native.stats().max_capacity_bytes

    @property
    def backend(self) -> str:
        """How the memory was made: ``"registered"``, ``"driver"`` or ``"unpinned"``."""
        return self._native.backend

    @property
    def backend_reason(self) -> str:
        """Why that backend, and what the system granted."""
        return self._native.description

    @property
    def cupy_allocator(self) -> CupyAllocator:
        """Pinned allocator for CuPy: ``cupy.cuda.set_pinned_memory_allocator(it)``.

        CuPy holds it, and with it the arena, until another one is set. Memory of an arena for the
        CPU device is not pinned: copies are right, but may block the host.
        """
        return CupyAllocator(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.closed

    def alloc(
        self, nbytes: int | str, *, timeout: float | None = 0.0, alignment: int = _ALIGNMENT
    ) -> PinnedBlock:
        """Return a contiguous block.

        Where none is free, chunks are waited for that are being made, and made that may follow:
        that blocks the host for as long as pinning them takes.

        Parameters
        ----------
        nbytes
            Bytes or text; 0 is allowed.
        timeout
            Seconds to wait for blocks that were freed while a copy still used them. None waits for
            as long as the copies take. The default does not wait for them. Blocks the host
            meanwhile; Ctrl-C ends it.
        alignment
            Bytes that the address is a multiple of: a power of two up to 4096, which direct
            input and output to disks asks for. Never less than 512.

        Raises
        ------
        InvalidArgument
            If `alignment` is none.
        ArenaExhausted
            If there is no free range of that size; it has ``requested``, ``free``, ``largest_free``
            and ``in_flight``. Its cause says why the arena cannot grow, if it was tried.
        ArenaClosed
            If the arena was closed.
        """
        size = parse_size(nbytes)
        if timeout != 0:
            check_timeout(timeout)
        if alignment is not _ALIGNMENT:  # the default needs no check
            check_alignment(alignment)
        block = PinnedBlock.try_allocate(self._native, size, alignment)
        if block is not None:
            return block
        return self._supply.serve(
            [size],
            contiguous=True,
            patient=timeout != 0,
            attempt=lambda: PinnedBlock.try_allocate(self._native, size, alignment),
            wait=lambda: PinnedBlock(self._native.allocate(size, timeout, alignment)),
        )

    def try_alloc(self, nbytes: int | str) -> PinnedBlock | None:
        """Return a contiguous block, or None if none is free now. Never waits, never grows."""
        return PinnedBlock.try_allocate(self._native, parse_size(nbytes), _ALIGNMENT)

    def alloc_extents(self, nbytes: int | str, *, timeout: float | None = 0.0) -> list[PinnedBlock]:
        """Return as few blocks as hold `nbytes` together.

        Succeeds whenever that many bytes are free in all, however scattered. Parameters and errors
        as for `alloc`.
        """
        [extents] = self.deal([parse_size(nbytes)], timeout=timeout)
        return [PinnedBlock(native) for native in extents]

    def deal(
        self, sizes: Sequence[int], *, timeout: float | None = 0.0
    ) -> list[list[_native.Block]]:
        """Return extents of the core for each of `sizes`, all or none: for the transfer engine.

        Otherwise as `alloc_extents`.
        """
        if timeout != 0:
            check_timeout(timeout)
        dealt = self._native.try_allocate_extents(sizes)
        if dealt is None:
            dealt = self._supply.serve(
                sizes,
                contiguous=False,
                patient=timeout != 0,
                attempt=lambda: self._native.try_allocate_extents(sizes),
                wait=lambda: self._native.allocate_extents(sizes, timeout),
            )
        return dealt

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until the chunks that are made in the background are there.

        Parameters
        ----------
        timeout
            Seconds; None waits for as long as it takes.

        Returns
        -------
        bool
            False if it takes longer.

        Raises
        ------
        HostMemoryLimit, RegistrationFailed
            If one could not be made. The arena goes on with those that are there.
        ArenaClosed
            If the arena was closed.
        """
        check_timeout(timeout)
        done = self._supply.wait(timeout)
        if self._native.closed:
            raise ArenaClosed("this arena was closed before all of it was made")
        return done

    def trim(self, keep: int | str = 0) -> int:
        """Give back chunks in which no byte is used; return how many bytes went.

        Lowers resident and locked memory. Pinning them again costs what it cost before, and happens
        when a block finds no room. The last chunks go first. The driver waits until the GPU has
        finished what it was given, by anyone: so does this.

        Parameters
        ----------
        keep
            Capacity to keep at least, bytes or text.
        """
        keep_bytes = parse_size(keep)
        self._supply.wait_idle()
        return self._native.trim(keep_bytes)

    def stats(self) -> ArenaStats:
        """Return the counters of this moment."""
        return ArenaStats.of(self._native.stats())

    def to_dict(self) -> dict[str, int | float | str]:
        """Return the counters, and what the arena is, for a dashboard."""
        return {
            **self.stats().to_dict(),
            "backend": self.backend,
            "backend_reason": self.backend_reason,
            "device": f"{self.device.kind}:{self.device.index}",
            "closed": self.closed,
        }

    def describe(self, console: Console | None = None) -> None:
        """Print a map of the arena, on the standard output unless `console` is another one."""
        from pinferry.pool.map import describe

        describe(self, self.regions(), console)

    def regions(self) -> list[Region]:
        """Return what lies where, by offset: used, free, retired, absent or being made."""
        from pinferry.pool.map import Region

        return [Region(*part) for part in self._native.layout()]

    def close(self, *, force: bool = False) -> None:
        """Deal out nothing more, and give the memory back.

        Closing twice is harmless. Memory that a copy still uses goes back after it. To unpin memory
        the driver waits until the GPU has finished what it was given, by anyone: do not close amid
        work that this thread has yet to complete.

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
        if self._native.closed or not self._supply.here:
            return  # a child of fork has nothing to give back
        if not self._native.close(bool(force)):
            held = self._native.stats()
            raise ArenaInUse(
                f"the arena still holds {held.blocks} blocks with {format_bytes(held.used_bytes)}; "
                "reload or free them first, or close(force=True) to let them be the last",
                blocks=held.blocks,
                used=held.used_bytes,
            )
        self._supply.stop()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: there would be two owners of one memory."""
        raise NotCopyable("an arena is neither copied nor pickled; make another one")

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
        if not self._supply.here:
            return "<PinnedArena of the parent process>"
        stats = self._native.stats()
        return (
            f"<PinnedArena {format_bytes(stats.capacity_bytes)} for {self.device.kind}:"
            f"{self.device.index}, {self.backend}, {format_bytes(stats.used_bytes)} used"
            f"{', closed' if self.closed else ''}>"
        )
