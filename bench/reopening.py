"""Whether arenas that are opened and closed leave anything behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.bench.results import Case
from pinferry.pool import PinnedArena, open_device
from pinferry.states.memory import read_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["measure_reopening"]

_MIB = 2**20


def measure_reopening(
    device: object, *, arenas: int = 200, nbytes: int = 64 * _MIB, warm_up: int = 10
) -> Iterator[tuple[str, Case]]:
    """Open and close arenas one after the other, and see how much the process grows.

    Raises
    ------
    AssertionError
        If an arena on a GPU has less memory pinned than it deals out.
    """
    opened = open_device(device)
    before = 0
    for i in range(warm_up + arenas):
        if i == warm_up:
            before = read_memory(opened).rss_bytes
        with PinnedArena(nbytes, device=opened) as arena:
            stats = arena.stats()
            if opened.kind == "cuda" and stats.locked_bytes < stats.capacity_bytes:
                raise AssertionError(
                    f"arena {i} has {stats.locked_bytes} of {stats.capacity_bytes} bytes pinned"
                )
        del arena
    growth = read_memory(opened).rss_bytes - before
    what = f"one arena of {nbytes // _MIB} MiB; resident memory after {warm_up} to warm up"
    yield f"arenas_{arenas}_rss_growth_mib", Case(growth / _MIB, nbytes / _MIB, "MiB", what)
