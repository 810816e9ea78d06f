"""Fixtures for tests of the arena: a device name, and an arena for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from pinferry import PinnedArena

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile("usual", max_examples=200, deadline=None)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def torch_device(request: pytest.FixtureRequest) -> str:
    """Name of the device whose copies the arena serves."""
    return str(request.param)


@pytest.fixture
def arena(torch_device: str) -> Iterator[PinnedArena]:
    """Yield an arena of 1 MiB. What a test leaves in it is let go of by force."""
    made = PinnedArena("1MiB", device=torch_device)
    yield made
    made.close(force=True)
