"""A device to train on, and an arena for it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def forget_cached_memory(device: str) -> None:
    """See that PyTorch deals out what is asked for, not a larger piece left from before."""
    if device != "cpu":
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture
def arena(device: str) -> Iterator[PinnedArena]:
    forget_cached_memory(device)
    made = PinnedArena("8MiB", device=device, huge_pages=False, threads=1)
    yield made
    made.close(force=True)
