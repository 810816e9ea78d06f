"""Fixtures for tests of transfers: a device, an arena and an engine for it, a stream to hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinferry import PinnedArena, TransferEngine, _native

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def torch_device(request: pytest.FixtureRequest) -> str:
    """Name of the device that the tensors live on."""
    return str(request.param)


@pytest.fixture
def arena(torch_device: str) -> Iterator[PinnedArena]:
    """Yield an arena of 4 MiB."""
    made = PinnedArena("4MiB", device=torch_device)
    yield made
    made.close(force=True)


@pytest.fixture
def engine(arena: PinnedArena) -> Iterator[TransferEngine]:
    """Yield an engine, and bring back what a test left with it."""
    made = TransferEngine(arena)
    yield made
    if made.offloaded_bytes:
        made.reload()
    made.settle()


@pytest.fixture
def stream(arena: PinnedArena) -> Iterator[_native.Stream]:
    """Yield a stream that a test may hold and release."""
    made = arena.device.create_stream()
    yield made
    made.release()
    made.synchronize()
