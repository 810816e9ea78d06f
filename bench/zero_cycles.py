"""Cycles of an offload and a reload, timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.bench.timing import time_once

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["time_cycles"]


def time_cycles(
    offload: Callable[[], object], reload: Callable[[], object], device: torch.device, repeats: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds of the offloads, and those of the reloads."""
    pairs = [(time_once(offload, device), time_once(reload, device)) for _ in range(repeats)]
    return tuple(out for out, _ in pairs), tuple(back for _, back in pairs)
