"""A world of one rank for DeepSpeed, which is started once in a process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena
from tests.zero.engines import start

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let DeepSpeed warn: it is full of what newer releases of PyTorch deprecate."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make this process the only rank."""
    start(tmp_path_factory.mktemp("world") / "rendezvous")
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, world: None) -> str:
    """Return where engines are: DeepSpeed knows one kind of device in a process."""
    name: str = request.param
    if name == "cpu" and torch.cuda.is_available():
        pytest.skip("DeepSpeed runs on the GPU in this process")
    return name


@pytest.fixture
def arena(device: str) -> Iterator[PinnedArena]:
    """Return an arena that is larger than any of the engines."""
    with PinnedArena("16MiB", device=device) as arena:
        yield arena
