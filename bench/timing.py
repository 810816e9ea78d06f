"""Timing what runs on a device."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Timing", "synchronize", "time_once", "time_repeated"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of several runs."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    @property
    def p99(self) -> float:
        """The shortest that 99 of 100 do not exceed."""
        return sorted(self.seconds)[math.ceil(0.99 * len(self.seconds)) - 1]

    def rate_gb_s(self, nbytes: int) -> float:
        """Return the median rate for `nbytes` a run."""
        return nbytes / self.median / 1e9

    def rate_spread(self, nbytes: int) -> tuple[float, float]:
        """Return the lowest and highest rate."""
        return nbytes / max(self.seconds) / 1e9, nbytes / min(self.seconds) / 1e9


def synchronize(device: torch.device) -> None:
    """Wait for all work on `device`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_once(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds from an idle device until `work` and all it queued has ended."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def time_repeated(work: Callable[[], object], device: torch.device, repeats: int) -> Timing:
    """Return the times of `repeats` runs after one to warm up."""
    work()
    return Timing(tuple(time_once(work, device) for _ in range(repeats)))
