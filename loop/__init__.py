"""Offload inside the training loop: optimizer state that streams through a window of the device."""

from __future__ import annotations

from pinferry.loop.streaming import StreamingOptimizer

__all__ = ["StreamingOptimizer"]
