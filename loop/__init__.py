"""Offload inside the training loop: optimizer state and activations, on the device when needed."""

from __future__ import annotations

from pinferry.loop.activations import OffloadedActivations, offload_activations
from pinferry.loop.streaming import StreamingOptimizer

__all__ = ["OffloadedActivations", "StreamingOptimizer", "offload_activations"]
