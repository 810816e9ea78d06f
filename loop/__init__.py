"""Offload inside the training loop: optimizer state and activations, on the device when needed."""

from __future__ import annotations

from pinferry.loop.activations import OffloadedActivations, offload_activations
from pinferry.loop.schedule import OffloadSchedule
from pinferry.loop.stalls import ScheduleReport
from pinferry.loop.streaming import StreamingOptimizer

__all__ = [
    "OffloadSchedule",
    "OffloadedActivations",
    "ScheduleReport",
    "StreamingOptimizer",
    "offload_activations",
]
