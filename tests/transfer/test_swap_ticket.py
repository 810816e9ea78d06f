"""What a swap gives back: waiting for all of its copies, in every way that a ticket offers."""

from __future__ import annotations

import asyncio
import logging
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import InvalidArgument, TransferTimeout
from pinferry.transfer import SwapTicket
from tests.workbench import LATE

if TYPE_CHECKING:
    from pinferry import TransferEngine, _native


@pytest.fixture
def held(engine: TransferEngine, stream: _native.Stream, torch_device: str) -> SwapTicket:
    """Return a ticket of three moves, of which the second and third wait for `stream`."""
    x, y, z = (torch.ones(8, device=torch_device) for _ in range(3))
    first = engine.offload([x])
    stream.hold()
    second, third = engine.offload([y], streams=[stream]), engine.offload([z], streams=[stream])
    return SwapTicket([first, second], [third])


def test_it_can_be_awaited_while_other_tasks_run(held: SwapTicket, stream: _native.Stream) -> None:
    async def release() -> None:
        stream.release()

    async def both() -> None:
        await asyncio.gather(wait(), release())

    async def wait() -> None:
        assert not held.done()
        await asyncio.wait_for(asyncio.ensure_future(until_here()), LATE)

    async def until_here() -> None:
        await held

    asyncio.run(both())
    assert held.done()


def test_a_callback_comes_once_when_the_last_copy_has_ended(
    held: SwapTicket, stream: _native.Stream
) -> None:
    calls: SimpleQueue[tuple[SwapTicket, bool]] = SimpleQueue()
    held.add_done_callback(lambda ticket: calls.put((ticket, ticket.done())))
    assert calls.empty()
    stream.release()
    assert calls.get(timeout=LATE) == (held, True)
    held.add_done_callback(lambda ticket: calls.put((ticket, True)))  # in this thread, at once
    assert calls.get_nowait() == (held, True)
    assert calls.empty()


def test_a_callback_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="pinferry"):
        SwapTicket([], []).add_done_callback(lambda _: 1 // 0)
    assert "callback of <SwapTicket 0 bytes out" in caplog.text


def test_a_timeout_is_of_all_copies_together(held: SwapTicket, stream: _native.Stream) -> None:
    for timeout in (0, -1.0):
        with pytest.raises(TransferTimeout):
            held.synchronize(timeout)
    stream.release()
    held.synchronize(LATE)


@pytest.mark.parametrize("timeout", ["x", [1], float("nan"), True])
def test_what_is_no_time_is_refused(timeout: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout="):
        SwapTicket([], []).synchronize(timeout)


def test_what_is_no_stream_or_callback_is_refused_though_nothing_moved() -> None:
    with pytest.raises(InvalidArgument, match="no stream"):
        SwapTicket([], []).wait("x")
    with pytest.raises(InvalidArgument, match="callback"):
        SwapTicket([], []).add_done_callback(None)  # type: ignore[arg-type]
