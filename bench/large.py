"""How near the engine comes to the link with a few large tensors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pinferry.bench.results import Case
from pinferry.bench.timing import Timing, synchronize, time_once, time_repeated
from pinferry.pool import PinnedArena
from pinferry.states.memory import give_back_cached, read_memory
from pinferry.transfer import TransferEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["measure_large"]

_TENSORS = 5
_ALIGNMENT = 2 * 2**20  # whole segments of PyTorch's allocator, so that every byte can come back


@dataclass(frozen=True, slots=True)
class _Cycles:
    """Times of offloading and reloading, and what an offload freed."""

    first_s: float
    submit: Timing
    offload: Timing
    reload: Timing
    reclaimed: Case


def measure_large(device: torch.device, nbytes: int, repeats: int) -> Iterator[tuple[str, Case]]:
    """Compare offload and reload of five tensors with raw copies of the same bytes.

    Both sides are timed by the wall, from an idle device until all copies have ended. The reload
    makes its device memory from PyTorch's cache, as a training loop does. Bytes are compared.
    """
    size = max(nbytes // _TENSORS // _ALIGNMENT, 1) * _ALIGNMENT
    total = size * _TENSORS
    tensors = [
        torch.empty(size, dtype=torch.uint8, device=device).random_() for _ in range(_TENSORS)
    ]
    ours = _run_cycles(tensors, repeats)
    raw_out, raw_in = _time_raw_copies(tensors, repeats)
    out_gb_s, in_gb_s = raw_out.rate_gb_s(total), raw_in.rate_gb_s(total)
    what = f"{_TENSORS} raw copies between the device and pinned memory, {total} bytes"
    offload_gb_s = ours.offload.rate_gb_s(total)
    yield "offload_large_first", Case(total / ours.first_s / 1e9, out_gb_s, "GB/s", what)
    spread = ours.offload.rate_spread(total)
    yield "offload_large", Case(offload_gb_s, out_gb_s, "GB/s", what, spread)
    spread = ours.reload.rate_spread(total)
    yield "reload_large", Case(ours.reload.rate_gb_s(total), in_gb_s, "GB/s", what, spread)
    yield "reclaimed_bytes", ours.reclaimed
    micros = Timing(tuple(seconds * 1e6 for seconds in ours.submit.seconds))
    limit = "1 ms, the most that an offload may hold up the host"
    spread = min(micros.seconds), max(micros.seconds)
    yield "submit_us", Case(micros.median, 1000.0, "us", limit, spread)
    pageable = time_repeated(lambda: [tensor.to("cpu", copy=True) for tensor in tensors], device, 2)
    what = "tensor.to('cpu') of the same tensors, into pageable memory"
    yield "offload_vs_pageable", Case(offload_gb_s, pageable.rate_gb_s(total), "GB/s", what)


def _run_cycles(tensors: list[torch.Tensor], repeats: int) -> _Cycles:
    device = tensors[0].device
    total = sum(tensor.nbytes for tensor in tensors)
    copies = [tensor.clone() for tensor in tensors]
    submits: list[float] = []
    offloads: list[float] = []
    reloads: list[float] = []
    with PinnedArena(total, device=device) as arena, TransferEngine(arena) as engine:
        # The very first use of the engine, its events and the arena.
        first_s = time_once(lambda: engine.offload(tensors).synchronize(), device)
        engine.reload()
        for _ in range(repeats):
            synchronize(device)
            start = time.perf_counter()
            ticket = engine.offload(tensors)
            submits.append(time.perf_counter() - start)
            ticket.synchronize()
            offloads.append(time.perf_counter() - start)
            reloads.append(time_once(lambda: engine.reload().synchronize(), device))
        for tensor, copy in zip(tensors, copies, strict=True):
            if not torch.equal(tensor, copy):
                raise AssertionError("the bytes that came back are not those that went")
        del copies
        reclaimed = _measure_reclaimed(engine, tensors)
    return _Cycles(
        first_s, Timing(tuple(submits)), Timing(tuple(offloads)), Timing(tuple(reloads)), reclaimed
    )


def _measure_reclaimed(engine: TransferEngine, tensors: list[torch.Tensor]) -> Case:
    """Compare what an offload frees with what it moved, by NVML where there is one."""
    total = sum(tensor.nbytes for tensor in tensors)
    give_back_cached(engine.device)
    before = read_memory(engine.device)
    engine.offload(tensors).synchronize()
    give_back_cached(engine.device)
    after = read_memory(engine.device)
    engine.reload().synchronize()
    if engine.device.kind == "cpu":
        what = "bytes offloaded, by resident memory"
        return Case(before.rss_bytes - after.rss_bytes, total, "bytes", what)
    if before.nvml_bytes is None or after.nvml_bytes is None:
        fell = (before.allocated_bytes or 0) - (after.allocated_bytes or 0)
        return Case(fell, total, "bytes", "bytes offloaded, by PyTorch's allocator: no NVML here")
    return Case(before.nvml_bytes - after.nvml_bytes, total, "bytes", "bytes offloaded, by NVML")


def _time_raw_copies(tensors: list[torch.Tensor], repeats: int) -> tuple[Timing, Timing]:
    """Time the copies that nothing can beat: the same bytes, to pinned memory and back."""
    device = tensors[0].device
    pinned = [
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device.type == "cuda")
        for tensor in tensors
    ]

    def out() -> None:
        for host, tensor in zip(pinned, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)

    def back() -> None:
        for host, tensor in zip(pinned, tensors, strict=True):
            tensor.copy_(host, non_blocking=True)

    return time_repeated(out, device, repeats), time_repeated(back, device, repeats)
