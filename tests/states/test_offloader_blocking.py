"""Whether calls return before their copies have ended. The copy stream is held by a latch."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena, StateOffloader
from tests.states.training import Training, assert_same_bits
from tests.workbench import LATE, SOON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry._native import Stream


@pytest.fixture
def run(device: str) -> Training:
    return Training(device).until_gradients()


@pytest.fixture
def offloader(run: Training, arena: PinnedArena) -> StateOffloader:
    return StateOffloader(run.model, run.optimizer, arena=arena)


@pytest.fixture
def latch(device: str, arena: PinnedArena, offloader: StateOffloader) -> Iterator[Stream]:
    """Hold the way out behind the offload of something else."""
    other = torch.ones(64, device=device)
    producer = arena.device.create_stream()
    producer.hold()
    offloader.engine.offload({"other": other}, streams=[producer])
    yield producer
    producer.release()
    offloader.engine.reload().synchronize(LATE)


def test_a_call_that_does_not_block_returns_before_the_copy(
    run: Training, offloader: StateOffloader, latch: Stream
) -> None:
    before = run.bits()
    ticket = offloader.offload()
    assert not ticket.done()
    latch.release()
    ticket.synchronize(LATE)
    offloader.reload(non_blocking=False)
    assert_same_bits(run.bits(), before)


def test_a_call_that_blocks_returns_after_the_copy(
    run: Training, offloader: StateOffloader, latch: Stream
) -> None:
    before = run.bits()
    thread = threading.Thread(target=lambda: offloader.offload(non_blocking=False))
    thread.start()
    thread.join(SOON)
    assert thread.is_alive()
    latch.release()
    thread.join(LATE)
    assert not thread.is_alive()
    offloader.reload()
    assert_same_bits(run.bits(), before)
