"""What it costs to take a block from the arena and to give one back."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch

from pinferry import _native
from pinferry.bench.allocators import (
    Allocator,
    Churn,
    Held,
    arena_allocator,
    cuda_host_allocator,
    cupy_pool_allocator,
    time_allocator,
    torch_allocator,
)
from pinferry.bench.results import Case
from pinferry.bench.timing import Timing
from pinferry.pool import PinnedArena, open_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["LIVE", "arena_bytes", "block_sizes", "measure_alloc_free"]

LIVE = {"1k": 1_000, "10k": 10_000, "100k": 100_000}
_SMALLEST, _LARGEST = 512, 16 * 2**10
_MOST_PINNED = 10_000  # blocks of PyTorch's: each of the first ones is a call of the driver
_DRIVER_LIVE = _DRIVER_PAIRS = 100  # the driver's own way takes up to milliseconds


def measure_alloc_free(
    device: str, repeats: int, *, live: Mapping[str, int] = LIVE, pairs: int = 20_000, seed: int = 0
) -> Iterator[tuple[str, Case]]:
    """Time one allocation and the freeing of a random older block, with many blocks alive.

    By the core's own clock for each count of `live`, and from Python for the smallest of them.
    """
    kind = open_device(device).kind
    sizes = block_sizes(seed)
    reference = torch_allocator(kind)
    theirs: dict[int, Timing] = {}
    with torch.cuda.device(torch.device(device) if kind == "cuda" else -1):
        for name, count in live.items():
            compared = count if kind == "cpu" else min(count, _MOST_PINNED)
            if compared not in theirs:
                theirs[compared] = time_allocator(reference, Churn(compared, pairs, sizes, seed))
            what = f"{reference.what}, {compared} live, from Python"
            runs = _run(device, Churn(count, pairs, sizes, seed), repeats, _time_native)
            yield from _cases(f"alloc_free_{name}", runs, theirs[compared], what)
        churn = Churn(min(live.values()), pairs, sizes, seed)
        runs = _run(device, churn, repeats, _time_python)
        what = f"{reference.what}, {churn.live} live, from Python"
        yield from _cases("alloc_free_python", runs, theirs[churn.live], what)
        if kind == "cuda":
            yield from _measure_rates(statistics.median(run.median for run in runs), churn)


def block_sizes(seed: int, count: int = 4096) -> list[int]:
    """Return sizes of small storages: every factor of two from 512 B to 16 KiB as often."""
    chance = random.Random(seed)  # noqa: S311 -- nothing secret
    low, high = math.log2(_SMALLEST), math.log2(_LARGEST)
    return [round(2 ** chance.uniform(low, high)) for _ in range(count)]


def arena_bytes(live: int, sizes: Sequence[int]) -> int:
    """Return the capacity in which `live` random blocks find room at any time: a quarter is free.

    The constant is for few blocks, whose sum may lie far from the mean.
    """
    mean = statistics.mean(-(-size // _SMALLEST) * _SMALLEST for size in sizes)
    return round(1.25 * live * mean) + 64 * _LARGEST


def _run(
    device: str, churn: Churn, repeats: int, run: Callable[[PinnedArena, Churn], Timing]
) -> list[Timing]:
    with PinnedArena(arena_bytes(churn.live, churn.sizes), device=device) as arena:
        return [run(arena, replace(churn, seed=churn.seed + i)) for i in range(repeats)]


def _time_native(arena: PinnedArena, churn: Churn) -> Timing:
    taken = _native.time_allocations(arena.native, **asdict(churn))
    return Timing(tuple(nanoseconds / 1e9 for nanoseconds in taken))


def _time_python(arena: PinnedArena, churn: Churn) -> Timing:
    return time_allocator(arena_allocator(arena), churn)


def _cases(
    key: str, runs: Sequence[Timing], theirs: Timing, what: str
) -> Iterator[tuple[str, Case]]:
    medians = [run.median * 1e6 for run in runs]
    worst = [run.p99 * 1e6 for run in runs]
    for suffix, ours, reference in (
        ("us", medians, theirs.median * 1e6),
        ("p99_us", worst, theirs.p99 * 1e6),
    ):
        spread = min(ours), max(ours)
        yield f"{key}_{suffix}", Case(statistics.median(ours), reference, "us", what, spread)


def _measure_rates(ours_s: float, churn: Churn) -> Iterator[tuple[str, Case]]:
    """Compare from Python with what CuPy offers, as rates: their ratio is the speed-up."""
    pool = cupy_pool_allocator()
    if pool is not None:
        yield "alloc_free_vs_cupy", _rate(ours_s, pool, churn)
    driver = cuda_host_allocator()
    if driver is not None:
        few = replace(churn, live=_DRIVER_LIVE, pairs=_DRIVER_PAIRS)
        yield "alloc_free_vs_cudahostalloc", _rate(ours_s, driver, few)


def _rate(ours_s: float, allocator: Allocator[Held], churn: Churn) -> Case:
    theirs = time_allocator(allocator, churn)
    what = f"{allocator.what}, {churn.live} live; both from Python"
    return Case(1 / ours_s, 1 / theirs.median, "ops/s", what)
