"""Allocators that the arena is measured against, and how one is timed from Python."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from pinferry.bench.timing import Timing
from pinferry.pool import PinnedArena, PinnedBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Allocator",
    "Churn",
    "Held",
    "arena_allocator",
    "cuda_host_allocator",
    "cupy_pool_allocator",
    "time_allocator",
    "torch_allocator",
]

Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class Allocator(Generic[Held]):
    """What makes memory of so many bytes, and what frees it; None: the death of the object does."""

    what: str
    allocate: Callable[[int], Held]
    free: Callable[[Held], None] | None = None


@dataclass(frozen=True, slots=True)
class Churn:
    """What is asked of an allocator: `pairs` allocations and frees while `live` blocks are held."""

    live: int
    pairs: int
    sizes: Sequence[int]
    seed: int


def arena_allocator(arena: PinnedArena) -> Allocator[PinnedBlock]:
    """Return our own, as a user calls it."""
    return Allocator("PinnedArena.alloc and PinnedBlock.free", arena.alloc, PinnedBlock.free)


def torch_allocator(kind: str) -> Allocator[torch.Tensor]:
    """Return PyTorch's: its cache of pinned memory for ``"cuda"``, malloc for ``"cpu"``."""
    if kind == "cuda":
        return Allocator(
            "torch.empty(n, dtype=uint8, pin_memory=True) and del, in steady state",
            lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, pin_memory=True),
        )
    return Allocator(
        "torch.empty(n, dtype=uint8) and del: malloc, no pinned memory here",
        lambda nbytes: torch.empty(nbytes, dtype=torch.uint8),
    )


def cupy_pool_allocator() -> Allocator[object] | None:
    """Return CuPy's pool of pinned memory; None where CuPy cannot be imported."""
    try:
        from cupy import cuda
    except ImportError:
        return None
    return Allocator("CuPy's PinnedMemoryPool in steady state", cuda.PinnedMemoryPool().malloc)


def cuda_host_allocator() -> Allocator[int] | None:
    """Return the driver's own pinned allocation, called by way of CuPy; None without CuPy."""
    try:
        from cupy.cuda import runtime
    except ImportError:
        return None
    return Allocator(
        "cudaHostAlloc and cudaFreeHost", lambda n: int(runtime.hostAlloc(n, 0)), runtime.freeHost
    )


def time_allocator(allocator: Allocator[Held], churn: Churn) -> Timing:
    """Return the times of allocating a block and freeing a random older one.

    As `_native.time_allocations` does: sizes are drawn before the clock starts, and one full
    turn-over of the blocks comes first, which leaves a cache in its steady state.
    """
    chance = random.Random(churn.seed)  # noqa: S311 -- nothing secret
    allocate, free = allocator.allocate, allocator.free
    blocks = [allocate(chance.choice(churn.sizes)) for _ in range(churn.live)]
    nanoseconds = []
    for _ in range(churn.live + churn.pairs):
        size, index = chance.choice(churn.sizes), chance.randrange(churn.live)
        start = time.perf_counter_ns()
        newer = allocate(size)
        older, blocks[index] = blocks[index], newer
        if free is not None:
            free(older)
        del older
        nanoseconds.append(time.perf_counter_ns() - start)
    if free is not None:
        for block in blocks:
            free(block)
    return Timing(tuple(taken / 1e9 for taken in nanoseconds[churn.live :]))
