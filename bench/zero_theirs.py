"""DeepSpeed's own offload and reload of an engine, in its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pinferry.bench.timing import time_once
from pinferry.bench.zero_cycles import time_cycles
from pinferry.bench.zero_task import Measured

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

__all__ = ["measure_theirs"]


def measure_theirs(engine: DeepSpeedEngine, device: torch.device, repeats: int) -> Measured:
    """Time the methods that DeepSpeed comes with, with their defaults: all states, pinned.

    Its pinned memory is PyTorch's, whose allocator tells how much it has locked: blocks in use and
    blocks kept for the next time, in the sizes that it asked the driver for.
    """
    before = _locked_by_pytorch()
    first_s = time_once(engine.offload_states, device)
    engine.reload_states()
    offload_s, reload_s = time_cycles(engine.offload_states, engine.reload_states, device, repeats)
    after = _locked_by_pytorch()
    locked = None if before is None or after is None else after - before
    return Measured(first_s=first_s, offload_s=offload_s, reload_s=reload_s, locked_bytes=locked)


def _locked_by_pytorch() -> int | None:
    """Return what PyTorch's allocator has pinned; None where it does not tell."""
    read = getattr(torch.cuda, "host_memory_stats", None)  # not in older releases
    if read is None or not torch.cuda.is_available():
        return None
    locked: int | None = read().get("allocated_bytes.current")
    return locked
