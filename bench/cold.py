"""A reload into memory that the device must make first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from pinferry.bench.results import Case
from pinferry.bench.timing import Timing, synchronize, time_once, time_repeated
from pinferry.pool import PinnedArena
from pinferry.transfer import TransferEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["measure_cold"]

_TENSORS = 5
_MOST_MICROSECONDS = 60.0


def measure_cold(device: torch.device, nbytes: int, repeats: int) -> Iterator[tuple[str, Case]]:
    """Time reloads right after PyTorch's cache was emptied, and the host's part of an offload."""
    size = nbytes // _TENSORS
    total = size * _TENSORS
    tensors = {
        f"state[{i}]": torch.empty(size, dtype=torch.uint8, device=device).random_()
        for i in range(_TENSORS)
    }
    submits: list[float] = []
    reloads: list[float] = []
    with (
        PinnedArena(total + 2**20, device=device) as arena,
        TransferEngine(arena) as engine,
        engine.plan(tensors) as plan,
    ):
        sums = [int(x[:4096].sum()) for x in tensors.values()]
        for _ in range(repeats + 1):
            synchronize(device)
            start = time.perf_counter()
            ticket = plan.offload()
            submits.append((time.perf_counter() - start) * 1e6)
            ticket.synchronize()
            synchronize(device)
            if device.type == "cuda":
                torch.cuda.empty_cache()
            reloads.append(time_once(plan.reload, device))
        if sums != [int(x[:4096].sum()) for x in tensors.values()]:
            raise AssertionError("the bytes that came back are not those that went")
        first = tensors["state[0]"]
        pinned = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        raw = time_repeated(lambda: first.copy_(pinned, non_blocking=True), device, repeats)
        submit_raw = _time_raw_submits(list(tensors.values()), pinned, device, repeats)
    cold = Timing(tuple(reloads[1:]))
    what = f"raw copies into memory that is there, {size} bytes each"
    yield (
        "cold_reload",
        Case(cold.rate_gb_s(total), raw.rate_gb_s(size), "GB/s", what, cold.rate_spread(total)),
    )
    submit = Timing(tuple(submits[1:]))
    spread = min(submit.seconds), max(submit.seconds)
    limit = "60 us, the most that a planned offload of five storages may hold up the host"
    yield (
        f"submit_planned_{_TENSORS}_us",
        Case(submit.median, _MOST_MICROSECONDS, "us", limit, spread),
    )
    spread = min(submit_raw.seconds), max(submit_raw.seconds)
    what = "what the plan's offload takes of the host's time"
    yield f"submit_raw_{_TENSORS}_us", Case(submit_raw.median, submit.median, "us", what, spread)


def _time_raw_submits(
    tensors: list[torch.Tensor], pinned: torch.Tensor, device: torch.device, repeats: int
) -> Timing:
    """Return the host's microseconds of queueing PyTorch's own copies of the same tensors."""
    times: list[float] = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        for tensor in tensors:
            pinned.copy_(tensor, non_blocking=True)
        times.append((time.perf_counter() - start) * 1e6)
    synchronize(device)
    return Timing(tuple(times))
