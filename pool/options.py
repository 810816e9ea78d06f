"""What an arena was asked for, checked and in bytes."""

from __future__ import annotations

import contextlib
import operator
import os
from dataclasses import dataclass
from numbers import Real
from typing import SupportsIndex

from pinferry import _native
from pinferry.errors import InvalidArgument, InvalidSize
from pinferry.pool.sizes import parse_size

__all__ = ["ArenaOptions", "check_alignment", "check_flag", "check_timeout"]

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


def check_timeout(timeout: object, *, least: float = 0.0) -> None:
    """Raise `InvalidArgument` unless it is None or a number of seconds from `least`."""
    if timeout is None:
        return
    if isinstance(timeout, Real) and not isinstance(timeout, bool):
        with contextlib.suppress(OverflowError):
            if float(timeout) >= least:
                return
    raise InvalidArgument(
        f"timeout={timeout!r}: give seconds, 0 or more, or None to wait for as long as it takes"
    )


def _check_count(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        with contextlib.suppress(TypeError):  # a tensor of several elements
            if least <= operator.index(value) <= most:
                return operator.index(value)
    raise InvalidArgument(f"{name}={value!r}: give a whole number from {least} to {most}")


def check_flag(name: str, value: object) -> bool:
    """Return `value`, or raise `InvalidArgument` unless it is True or False."""
    if isinstance(value, bool):
        return value
    raise InvalidArgument(f"{name}={value!r}: give True or False")


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
    huge_pages, numa_node
        Wishes of the pages; None leaves the node to the device.
    threads
        Threads that touch pages.
    backend
        How memory is made.
    """

    capacity_bytes: int
    max_capacity_bytes: int
    chunk_bytes: int
    reserve_bytes: int
    huge_pages: bool
    numa_node: int | None
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
        huge_pages: bool,
        numa_node: int | None,
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
            If something else makes none.
        """
        capacity_bytes = parse_size(capacity) // 512 * 512
        if capacity_bytes < 512:
            raise InvalidSize(
                f"an arena of {capacity} holds nothing; ask for 512 bytes or more",
                requested=capacity_bytes,
            )
        most = capacity_bytes if max_capacity is None else parse_size(max_capacity)
        if most < capacity_bytes:
            raise InvalidSize(
                f"max_capacity is {most} bytes and capacity {capacity_bytes}: an arena cannot grow "
                "to less than it begins with",
                requested=most,
            )
        eager = check_flag("eager", eager)
        if chunk is None:
            chunk = "1GiB" if max_capacity is not None or not eager else "64GiB"
        chunk_bytes = parse_size(chunk)
        if chunk_bytes < _HUGE_PAGE or chunk_bytes % _HUGE_PAGE:
            raise InvalidSize(
                f"a chunk is a multiple of 2 MiB (a huge page), and {chunk_bytes} bytes is not",
                requested=chunk_bytes,
            )
        chosen = next((value for name, value in _BACKENDS.items() if name == backend), None)
        if chosen is None:
            raise InvalidArgument(
                f"{backend!r} is no backend; choose from {', '.join(map(repr, _BACKENDS))}"
            )
        return cls(
            capacity_bytes=capacity_bytes,
            max_capacity_bytes=most,
            chunk_bytes=chunk_bytes,
            reserve_bytes=parse_size(reserve_host),
            huge_pages=check_flag("huge_pages", huge_pages),
            numa_node=None if numa_node is None else _check_count("numa_node", numa_node, 0, 1023),
            threads=(
                min(len(os.sched_getaffinity(0)), _MOST_THREADS)
                if threads is None
                else _check_count("threads", threads, 1, 1024)
            ),
            backend=chosen,
        )
