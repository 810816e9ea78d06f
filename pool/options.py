"""What an arena was asked for, checked and in bytes."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pinferry import _native
from pinferry.errors import InvalidArgument, InvalidSize
from pinferry.pool.sizes import parse_size

__all__ = ["ArenaOptions", "check_alignment"]

# Where the gain of another thread that touches pages ends, measured at 4 GiB on 16 cores.
_MOST_THREADS = 16
_PAGE = 4096  # what every backend aligns a chunk to, at least
_HUGE_PAGE = 2 * 2**20
_BACKENDS = {
    "auto": _native.Backend.AUTO,
    "registered": _native.Backend.REGISTERED,
    "driver": _native.Backend.DRIVER,
    "unpinned": _native.Backend.UNPINNED,
}


def check_alignment(alignment: int) -> None:
    """Raise `InvalidArgument` unless it is a power of two from 1 to 4096 bytes."""
    if type(alignment) is int and 0 < alignment <= _PAGE and alignment & (alignment - 1) == 0:
        return
    raise InvalidArgument(
        f"alignment={alignment!r}: an alignment is a power of two up to {_PAGE} bytes"
    )


@dataclass(frozen=True, slots=True)
class ArenaOptions:
    """The options of `pinferry.pool.PinnedArena`; see there.

    Attributes
    ----------
    capacity_bytes, max_capacity_bytes
        What is made at first, and what the arena may grow to.
    chunk_bytes
        One registration with the driver.
    reserve_bytes
        Host memory to leave to others.
    threads
        Threads that touch pages.
    backend
        How memory is made.
    """

    capacity_bytes: int
    max_capacity_bytes: int
    chunk_bytes: int
    reserve_bytes: int
    threads: int
    backend: _native.Backend

    @classmethod
    def parse(
        cls,
        capacity: int | str,
        *,
        max_capacity: int | str | None,
        eager: bool,
        chunk: int | str | None,
        threads: int | None,
        reserve_host: int | str,
        backend: str,
    ) -> ArenaOptions:
        """Check what a person asked for.

        Raises
        ------
        InvalidSize
            If a size makes no sense.
        InvalidArgument
            If the backend has no such name.
        """
        capacity_bytes = parse_size(capacity)
        if capacity_bytes < 512:
            raise InvalidSize(
                f"an arena of {capacity_bytes} bytes holds nothing; ask for 512 bytes or more",
                requested=capacity_bytes,
            )
        most = capacity_bytes if max_capacity is None else parse_size(max_capacity)
        if most < capacity_bytes:
            raise InvalidSize(
                f"max_capacity is {most} bytes and capacity {capacity_bytes}: an arena cannot grow "
                "to less than it begins with",
                requested=most,
            )
        if chunk is None:
            chunk = "1GiB" if max_capacity is not None or not eager else "64GiB"
        chunk_bytes = parse_size(chunk)
        if chunk_bytes < _HUGE_PAGE or chunk_bytes % _HUGE_PAGE:
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
        return cls(
            capacity_bytes=capacity_bytes,
            max_capacity_bytes=most,
            chunk_bytes=chunk_bytes,
            reserve_bytes=parse_size(reserve_host),
            threads=threads or min(len(os.sched_getaffinity(0)), _MOST_THREADS),
            backend=_BACKENDS[backend],
        )
