"""Thousands of tiny copies in one batch of the core, far apart on both sides."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import torch

from pinferry import _native
from pinferry._native import Direction
from pinferry.bench.results import Case
from pinferry.bench.timing import Timing, time_repeated
from pinferry.pool import PinnedArena

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry.pool import PinnedBlock

__all__ = ["measure_many_copies"]

_COPIES = 8192
_SIZES = {"512b": 512, "4k": 4096}


def measure_many_copies(
    device: torch.device, repeats: int, *, copies: int = _COPIES
) -> Iterator[tuple[str, Case]]:
    """Compare batches of tiny copies with one raw copy of as many bytes.

    Between any two there is a gap on both sides, so that none can be joined with the next.
    """
    for name, size in _SIZES.items():
        total = size * copies
        raw = _time_raw(total, device, repeats)
        with (
            PinnedArena(2 * total + 2**20, device=device) as arena,
            arena.alloc(2 * total) as block,
        ):
            memory = torch.zeros(2 * total, dtype=torch.uint8, device=device)
            for suffix, direction in (("out", Direction.TO_HOST), ("in", Direction.TO_DEVICE)):
                ours = _time_batch(
                    arena, block, memory, direction=direction, size=size, repeats=repeats
                )
                rate = ours.rate_gb_s(total)
                what = f"one raw copy of {total} bytes; ours are {copies} apart"
                spread = ours.rate_spread(total)
                case = Case(rate, raw[suffix].rate_gb_s(total), "GB/s", what, spread)
                yield f"copies_{name}_{suffix}", case


def _time_batch(
    arena: PinnedArena,
    block: PinnedBlock,
    memory: torch.Tensor,
    *,
    direction: Direction,
    size: int,
    repeats: int,
) -> Timing:
    """Time copies of every other `size` bytes between `memory` and the block."""
    copies = memory.numel() // (2 * size)
    offsets = [2 * size * i for i in range(copies)]
    listed = _native.CopyList([([block.native], offsets, [size] * copies)])
    addresses = struct.pack(f"{copies}N", *(memory.data_ptr() + offset for offset in offsets))

    def submit() -> None:
        _native.submit_list(
            device=arena.device,
            direction=direction,
            copies=listed,
            addresses=addresses,
            streams=[],
        ).synchronize(None)

    source, target = memory, block.tensor()
    if direction == Direction.TO_DEVICE:
        source, target = target, source
    source.random_()
    expected = source.cpu().view(copies, 2, size)[:, 0].clone()
    if memory.is_cuda:
        torch.cuda.synchronize(memory.device)
    timing = time_repeated(submit, memory.device, repeats)
    if not torch.equal(target.cpu().view(copies, 2, size)[:, 0], expected):
        raise AssertionError("the bytes that arrived are not those that went")
    return timing


def _time_raw(nbytes: int, device: torch.device, repeats: int) -> dict[str, Timing]:
    there = torch.empty(nbytes, dtype=torch.uint8, device=device)
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return {
        "out": time_repeated(lambda: pinned.copy_(there, non_blocking=True), device, repeats),
        "in": time_repeated(lambda: there.copy_(pinned, non_blocking=True), device, repeats),
    }
