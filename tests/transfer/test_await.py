"""Tickets in asyncio programs."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import Ticket, _native
from pinferry.errors import DriverCallFailed
from tests.transfer.storage_bits import random_bits, storage_bits
from tests.workbench import LATE, MIB, retire_a_block

if TYPE_CHECKING:
    from pinferry import TransferEngine
    from tests.fake_driver import FakeDriver


async def wait_for(ticket: Ticket) -> str:
    await ticket
    return "here"


def test_other_tasks_run_until_the_copies_have_ended(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x = random_bits(torch.float32, 5000, torch_device)
    before = storage_bits(x)
    steps: list[str] = []

    async def release() -> None:
        steps.append("release")
        rescue.cancel()
        stream.release()

    async def move() -> None:
        await ticket
        steps.append("here")

    async def both() -> None:
        await asyncio.gather(move(), release())

    for _ in range(2):  # an event loop each
        stream.hold()
        engine.offload({"x": x}, streams=[stream])
        ticket = engine.reload(defer=True)
        # An await that blocked the loop would never let the other task run.
        rescue = threading.Timer(LATE, stream.release)
        rescue.start()
        asyncio.run(both())
        assert storage_bits(x) == before
    assert steps == ["release", "here"] * 2


def test_a_deferred_reload_arrives_in_the_thread_of_the_event_loop() -> None:
    arena = make_arena(_native.HostDevice())
    stream, native, _memory = retire_a_block(arena, 512)
    arrived: list[int] = []
    ticket = Ticket(native, arena.device, on_wait=lambda: arrived.append(threading.get_ident()))

    async def both() -> None:
        waiting = asyncio.create_task(wait_for(ticket))
        await asyncio.sleep(0)
        assert arrived == []
        stream.release()
        assert await waiting == "here"

    asyncio.run(both())
    assert arrived == [threading.get_ident()]


def test_a_cancelled_task_harms_neither_the_copies_nor_the_other_waiters(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x = torch.ones(1000, device=torch_device)
    stream.hold()
    engine.offload({"x": x}, streams=[stream])
    ticket = engine.reload(defer=True)

    async def three() -> list[object]:
        tasks = [asyncio.create_task(wait_for(ticket)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        stream.release()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    first, second, third = asyncio.run(three())
    assert (first, third) == ("here", "here")
    assert isinstance(second, asyncio.CancelledError)
    assert x.sum() == 1000


def test_a_wait_that_was_given_up_can_be_made_again(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x = torch.ones(1000, device=torch_device)
    stream.hold()
    ticket = engine.offload({"x": x}, streams=[stream])

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ticket, 0.001)

    asyncio.run(give_up())
    assert not ticket.done()
    stream.release()
    asyncio.run(wait_for(ticket))
    assert ticket.done()


def test_nothing_watches_for_a_task_that_was_cancelled(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    stream.hold()
    ticket = engine.offload({"x": torch.ones(1000, device=torch_device)}, streams=[stream])

    async def give_up() -> threading.Thread:
        task = asyncio.create_task(wait_for(ticket))
        await asyncio.sleep(0)
        [thread] = [each for each in threading.enumerate() if each.name == "pinferry-watcher"]
        task.cancel()
        return thread

    thread = asyncio.run(give_up())
    thread.join(LATE)
    assert not thread.is_alive()
    assert not ticket.done()


def test_a_loop_that_closed_meanwhile_is_left_alone(
    stream: _native.Stream,
    engine: TransferEngine,
    torch_device: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream.hold()
    ticket = engine.offload({"x": torch.ones(8, device=torch_device)}, streams=[stream])
    loop = asyncio.new_event_loop()
    waiting = wait_for(ticket)

    async def start() -> None:
        waiting.send(None)

    loop.run_until_complete(start())
    loop.close()
    ended = threading.Event()
    ticket.add_done_callback(lambda _: ended.set())
    stream.release()
    assert ended.wait(LATE)
    assert caplog.records == []
    waiting.close()


def test_a_ticket_that_is_done_does_not_give_control_back() -> None:
    waiting = wait_for(Ticket(_native.Ticket(), _native.HostDevice()))
    with pytest.raises(StopIteration, match="here"):
        waiting.send(None)


def test_a_device_that_fails_ends_the_wait_with_its_error(fake_gpu: FakeDriver) -> None:
    arena = make_arena(_native.CudaDevice(0))
    stream, native, _memory = retire_a_block(arena, 512)
    ticket = Ticket(native, arena.device)

    async def fail() -> None:
        task = asyncio.create_task(wait_for(ticket))
        await asyncio.sleep(0)
        fake_gpu.fail_call("cuEventQuery", 700)
        with pytest.raises(DriverCallFailed):
            await asyncio.wait_for(task, LATE)

    asyncio.run(fail())
    fake_gpu.fail_call("cuEventQuery", 0)
    stream.release()
    ticket.synchronize(LATE)


def make_arena(device: _native.Device) -> _native.Arena:
    return _native.Arena(
        device=device,
        nbytes=MIB,
        chunk_nbytes=MIB,
        numa_node=None,
        huge_pages=False,
        threads=1,
    )
