"""Ranges for NVIDIA's profilers, by way of PyTorch."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from pinferry.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["nvtx_range", "require_nvtx"]


def require_nvtx() -> None:
    """Raise `InvalidArgument` where PyTorch cannot mark ranges."""
    if not torch.cuda.is_available():
        raise InvalidArgument(
            "nvtx=True needs a GPU and a PyTorch that is built for CUDA, and there is none here; "
            "leave it out, the trace is complete without it"
        )


@contextlib.contextmanager
def nvtx_range(text: str) -> Iterator[None]:
    """Mark what the calling thread does within as a range called `text`."""
    torch.cuda.nvtx.range_push(text)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
