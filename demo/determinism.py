"""What is set in PyTorch while the runs go on: above all, what makes them agree to the bit."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.utils import deterministic

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["deterministic_algorithms", "threads_for"]


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Let PyTorch use deterministic algorithms only, and restore its settings afterwards.

    cuBLAS reads ``CUBLAS_WORKSPACE_CONFIG`` when it is first used: enter this before anything
    runs on a GPU. The variable stays set.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    # A property that the module gets at run time, unknown to type checkers.
    fill = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory that it did not write, and filling it costs a pass over all of it.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


@contextmanager
def threads_for(parameters: int) -> Iterator[None]:
    """Let PyTorch use one CPU thread per 2e6 parameters, and restore their number afterwards.

    Smaller matrices gain next to nothing from a second thread. Where another process wants its
    core, they lose a lot: generating with 1e6 parameters took 0.6 s with one thread, 21 s with two.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, max(1, parameters // 2_000_000)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
