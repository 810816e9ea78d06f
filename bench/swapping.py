"""Two sets of storages that change places. GPUs only: the CPU has one memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from pinferry.bench.results import Case
from pinferry.bench.state_shapes import make_tensors
from pinferry.bench.timing import Timing, time_once, time_repeated
from pinferry.pool import PinnedArena
from pinferry.transfer import TransferEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["measure_swap"]

_TENSORS = 32
_SLACK = 2**30


def measure_swap(device: torch.device, nbytes: int, repeats: int) -> Iterator[tuple[str, Case]]:
    """Compare a swap of two thirds of `nbytes` each way with raw copies both ways at once."""
    if device.type != "cuda":
        return
    size = nbytes * 2 // 3 // _TENSORS // 512 * 512
    total = size * _TENSORS
    slack = min(_SLACK, total // 4)
    raw = _time_both_ways(total, device, repeats)
    first, second = (make_tensors([size] * _TENSORS, device) for _ in range(2))
    with (
        PinnedArena(2 * total + 2**20, device=device) as arena,
        TransferEngine(arena) as engine,
        engine.plan(first) as first_plan,
        engine.plan(second) as second_plan,
    ):
        out, into = first_plan, second_plan
        sums = [[int(x.sum()) for x in tensors.values()] for tensors in (first, second)]
        into.offload().synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        seconds: list[float] = []
        for _ in range(repeats + 1):
            swap = partial(engine.swap, out=out, into=into, slack=slack)
            seconds.append(time_once(swap, device))
            out, into = into, out
        extra = torch.cuda.max_memory_allocated(device) - before
        into.reload()
        if sums != [[int(x.sum()) for x in tensors.values()] for tensors in (first, second)]:
            raise AssertionError("the bytes that came back are not those that went")
    ours = Timing(tuple(seconds[1:]))
    what = f"raw copies of {total} bytes out and as many in, at once; both sides count both ways"
    rate = ours.rate_gb_s(2 * total)
    yield (
        "swap",
        Case(rate, raw.rate_gb_s(2 * total), "GB/s", what, ours.rate_spread(2 * total)),
    )
    yield "swap_extra_bytes", Case(extra, slack, "bytes", "the slack that it was given")


def _time_both_ways(nbytes: int, device: torch.device, repeats: int) -> Timing:
    source, target = (torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
    hosts = [torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    streams = [torch.cuda.Stream(device) for _ in range(2)]  # type: ignore[no-untyped-call]

    def copy() -> None:
        with torch.cuda.stream(streams[0]):
            hosts[0].copy_(source, non_blocking=True)
        with torch.cuda.stream(streams[1]):
            target.copy_(hosts[1], non_blocking=True)

    return time_repeated(copy, device, repeats)
