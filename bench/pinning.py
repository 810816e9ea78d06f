"""What it costs to make the arena, and how much it locks."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from pinferry.bench.results import Case
from pinferry.pool import PinnedArena, open_device
from pinferry.states.memory import read_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["measure_pinning"]

_GIB = 2**30


def measure_pinning(device: str, nbytes: int, repeats: int) -> Iterator[tuple[str, Case]]:
    """Time making an arena against the driver's own pinned allocation, in turn.

    In turn, because the first use of memory by a virtual machine may cost more than later ones.
    """
    opened = open_device(device)
    ours: list[float] = []
    theirs: list[float] = []
    locked = nbytes
    for _ in range(min(repeats, 3)):  # the driver's own way takes seconds
        before = read_memory(opened).rss_bytes
        start = time.perf_counter()
        with PinnedArena(nbytes, device=opened) as arena:
            ours.append((time.perf_counter() - start) / (nbytes / _GIB))
            # Resident counts what the pages really take; locked what the driver pinned of them.
            grown = read_memory(opened).rss_bytes - before
            locked = max(grown, arena.stats().locked_bytes)
        del arena
        if opened.kind == "cuda":
            theirs.append(_driver_seconds(opened, nbytes))
    if theirs:
        yield (
            "pin_s_per_gib",
            Case(
                statistics.median(ours),
                statistics.median(theirs),
                "s/GiB",
                "cuMemHostAlloc (what cudaHostAlloc calls) of the same size",
                (min(ours), max(ours)),
            ),
        )
    yield "locked_bytes", Case(locked, nbytes, "bytes", "bytes asked for")


def _driver_seconds(device: object, nbytes: int) -> float:
    start = time.perf_counter()
    with PinnedArena(nbytes, device=device, backend="driver"):
        return (time.perf_counter() - start) / (nbytes / _GIB)
