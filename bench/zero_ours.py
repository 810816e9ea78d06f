"""Our offload and reload of an engine, in its process."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import torch

from pinferry.bench.timing import synchronize, time_once
from pinferry.bench.zero_cycles import time_cycles
from pinferry.bench.zero_task import Measured
from pinferry.deepspeed import DeepSpeedOffloader, attach
from pinferry.states.memory import MemoryReading, give_back_cached, read_memory
from pinferry.transfer import storage_key
from pinferry.transfer.checksum import checksums

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

__all__ = ["measure_ours"]


def measure_ours(
    engine: DeepSpeedEngine, device: torch.device, repeats: int, growth_cycles: int
) -> Measured:
    """Time the same methods of an engine that is attached, with an arena of its own.

    Raises
    ------
    AssertionError
        If a storage comes back with other bytes than it left with.
    """
    synchronize(device)
    start = time.perf_counter()
    offloader = attach(engine)
    attach_s = time.perf_counter() - start

    def emptied() -> None:
        engine.offload_states()
        _empty_cache(device)

    with offloader:
        sums = _checksums(offloader)
        first_s = time_once(engine.offload_states, device)
        emptied_first_s = first_s + time_once(lambda: _empty_cache(device), device)
        away = offloader.engine.offloaded()
        kept = {key: parked.nbytes for key, parked in away.items() if parked.kept}
        engine.reload_states()
        emptied_s = time_cycles(emptied, engine.reload_states, device, repeats)
        warm_s = time_cycles(engine.offload_states, engine.reload_states, device, repeats)
        stats = offloader.arena.stats()
        device_growth, rss_growth = _watch_growth(offloader, engine, growth_cycles)
        back = _checksums(offloader)
        if not kept or any(back.get(key) != sums.get(key) for key in kept):
            raise AssertionError("the bytes that came back are not those that went")
    return Measured(
        state_bytes=sum(kept.values()),
        locked_bytes=stats.locked_bytes if device.type == "cuda" else stats.capacity_bytes,
        attach_s=attach_s,
        first_s=first_s,
        offload_s=warm_s[0],
        reload_s=warm_s[1],
        emptied_first_s=emptied_first_s,
        emptied_offload_s=emptied_s[0],
        emptied_reload_s=emptied_s[1],
        device_growth_bytes=device_growth,
        rss_growth_bytes=rss_growth,
    )


def _watch_growth(
    offloader: DeepSpeedOffloader, engine: DeepSpeedEngine, cycles: int
) -> tuple[int | None, int | None]:
    """Return how much more device memory and resident memory is in use after so many cycles."""
    if not cycles:
        return None, None
    device = offloader.arena.device

    def read() -> MemoryReading:
        gc.collect()
        give_back_cached(device)
        return read_memory(device)

    before = read()
    for _ in range(cycles):
        engine.offload_states()
        engine.reload_states()
    after = read()
    grown = None
    if before.allocated_bytes is not None and after.allocated_bytes is not None:
        grown = after.allocated_bytes - before.allocated_bytes
    return grown, after.rss_bytes - before.rss_bytes


def _checksums(offloader: DeepSpeedOffloader) -> dict[int, int]:
    """Return a checksum of each storage of parameters, master weights, moments and the rest."""
    storages = [entry.storage for entry in offloader.discover()]
    views = [
        torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        for storage in storages
    ]
    return dict(zip(map(storage_key, storages), checksums(views).tolist(), strict=True))


def _empty_cache(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
