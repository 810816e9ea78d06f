"""The arena on its own: how fast it deals out, how tightly, and whether it leaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.bench.alloc_free import measure_alloc_free
from pinferry.bench.fragmentation import measure_fragmentation
from pinferry.bench.reopening import measure_reopening

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry.bench.results import Case

__all__ = ["measure_arena"]


def measure_arena(device: str, repeats: int) -> Iterator[tuple[str, Case]]:
    """Yield the cases of allocation, fragmentation and reopening.

    Each arena is as large as its case needs, 600 MiB at most. The process's memory is watched
    first, while it is not yet full of holes that the other cases left.
    """
    yield from measure_reopening(device)
    yield from measure_alloc_free(device, repeats)
    yield from measure_fragmentation()
