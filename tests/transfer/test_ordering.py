"""Streams, tickets, threads: a copy sees what was queued before it, and all of it."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena, TransferEngine, _native
from pinferry.errors import TransferTimeout
from tests.transfer.storage_bits import random_bits, storage_bits
from tests.workbench import LATE, SOON

if TYPE_CHECKING:
    from collections.abc import Iterator

NBYTES = 64 * 1024


def sevens(device: str) -> torch.Tensor:
    return torch.full((NBYTES,), 7, dtype=torch.uint8, device=device)


def test_an_offload_takes_what_its_producer_has_queued(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x = torch.zeros(NBYTES, dtype=torch.uint8, device=torch_device)
    torch.zeros(1, device=torch_device).item()  # the zeros are there before the fill
    stream.hold()
    stream.fill(x.data_ptr(), 7, NBYTES)
    engine.offload(x, streams=[stream])
    stream.release()
    engine.reload()
    assert torch.equal(x, sevens(torch_device))


def test_a_consumer_sees_what_a_reload_brings(
    arena: PinnedArena, engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    consumer = arena.device.create_stream()
    target = torch.zeros(NBYTES, dtype=torch.uint8, device=torch_device)
    x = sevens(torch_device)
    torch.zeros(1, device=torch_device).item()
    stream.hold()
    engine.offload(x, streams=[stream])
    engine.reload(streams=[consumer])  # the caller itself does not wait
    consumer.copy(target.data_ptr(), x.data_ptr(), NBYTES)
    stream.release()
    consumer.synchronize()
    assert torch.equal(target, sevens(torch_device))


def test_memory_taken_from_a_storage_is_not_reused_before_the_copy_has_read_it(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x = sevens(torch_device)
    stream.hold()
    engine.offload(x, streams=[stream])
    others = [torch.zeros(NBYTES, dtype=torch.uint8, device=torch_device) for _ in range(50)]
    stream.release()
    engine.reload()
    assert torch.equal(x, sevens(torch_device))
    assert not any(other.any() for other in others)


@contextlib.contextmanager
def current(stream: _native.Stream, device: str) -> Iterator[None]:
    """Queue moves behind a stream as if it were the caller's current one; on a GPU it is."""
    with contextlib.ExitStack() as stack:
        if device == "cpu":
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for module in ("moves", "discarding"):
                patch.setattr(f"pinferry.transfer.{module}.current_stream", lambda _: stream.handle)
        else:
            theirs = torch.cuda.ExternalStream(stream.handle)  # type: ignore[no-untyped-call]
            stack.enter_context(torch.cuda.stream(theirs))
        yield


def test_an_offload_behind_another_stream_takes_what_a_reload_before_it_brings(
    arena: PinnedArena,
    engine: TransferEngine,
    stream: _native.Stream,
    torch_device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, aside = sevens(torch_device), arena.device.create_stream()
    engine.offload(x).synchronize()
    kept: list[object] = []  # on the CPU a fault would free the memory under the late copy
    monkeypatch.setattr(engine, "keep", lambda _, held: kept.append(held))
    with current(stream, torch_device):
        stream.hold()
        engine.reload()
        aside.fill(x.data_ptr(), 0, NBYTES)  # what is there before the copy
        aside.synchronize()
        engine.offload(x, streams=[aside])  # such as the one of another thread
    stream.release()
    engine.reload()
    assert torch.equal(x, sevens(torch_device))


@pytest.mark.parametrize("how", ["streams", "wait"])
def test_a_consumer_of_discarded_memory_comes_behind_who_had_it_before(
    arena: PinnedArena, engine: TransferEngine, stream: _native.Stream, torch_device: str, how: str
) -> None:
    consumer = arena.device.create_stream()
    scratch = sevens(torch_device)
    engine.discard(scratch)
    with current(stream, torch_device):
        stream.hold()
        if how == "streams":
            ticket = engine.reload(streams=[consumer])
        else:
            ticket = engine.reload(defer=True)
            ticket.wait(consumer)
    assert not _native.mark(arena.device, consumer.handle).synchronize(SOON)
    stream.release()
    ticket.synchronize(LATE)
    consumer.synchronize()


PROLOGUE = f"""
import contextlib, sys, torch
from pinferry import PinnedArena, TransferEngine, _native
from pinferry.errors import TransferTimeout
arena = PinnedArena("4MiB", device=sys.argv[1])
engine = TransferEngine(arena)
stream, consumer = arena.device.create_stream(), arena.device.create_stream()
def fresh(value):
    return torch.full(({NBYTES},), value, dtype=torch.uint8, device=sys.argv[1])
x = fresh(7)
"""


def run(program: str, device: str) -> None:
    """Run a program whose fault would destroy the heap of this process."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + program, device],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])


def test_memory_of_a_storage_that_died_is_not_reused_before_the_copy_has_written_it(
    torch_device: str,
) -> None:
    run(
        "stream.hold()\n"
        "engine.offload(x, streams=[stream])\n"
        "ticket = engine.reload(streams=[consumer])\n"
        "del x\n"
        "others = [fresh(0) for _ in range(50)]\n"
        "stream.release()\n"
        "ticket.synchronize(30.0)\n"
        "assert not any(other.any() for other in others), 'a late copy wrote elsewhere'\n",
        torch_device,
    )


def test_an_offload_right_after_a_reload_for_another_stream_takes_the_arrived_bytes(
    torch_device: str,
) -> None:
    run(
        "engine.offload(x).synchronize(30.0)\n"
        # No copy to the device begins before the stream is released.
        "scratch = arena.device.allocate(512)\n"
        "piece = _native.Piece(arena.alloc(512).native, scratch.address)\n"
        "stream.hold()\n"
        "_native.submit(device=arena.device, direction=_native.Direction.TO_DEVICE,\n"
        "               pieces=[piece], streams=[stream.handle])\n"
        "engine.reload(streams=[consumer])\n"
        "ticket = engine.offload(x)\n"
        "with contextlib.suppress(TransferTimeout):\n"
        "    ticket.synchronize(0.2)  # only a fault is done by now\n"
        "others = [fresh(0) for _ in range(50)]\n"
        "stream.release()\n"
        "engine.reload()\n"
        "assert torch.equal(x, fresh(7)), 'the bytes left before they had arrived'\n"
        "assert not any(other.any() for other in others), 'a late copy wrote elsewhere'\n",
        torch_device,
    )


def test_a_ticket_tells_how_far_it_is(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x = torch.ones(1000, device=torch_device)
    stream.hold()
    ticket = engine.offload(x, streams=[stream])
    assert not ticket.done()
    assert ticket.elapsed_ms is None
    assert ticket.nbytes == 4000
    assert "running" in repr(ticket)
    with pytest.raises(TransferTimeout, match="4000 bytes") as caught:
        ticket.synchronize(0.01)
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(TransferTimeout):
        ticket.synchronize(-1.0)
    stream.release()
    ticket.synchronize(30.0)
    assert ticket.done()
    assert "done" in repr(ticket)
    assert ticket.elapsed_ms is not None
    assert ticket.elapsed_ms >= 0.0
    ticket.wait(stream)
    ticket.wait()


def test_a_dropped_ticket_harms_nothing(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x = random_bits(torch.float32, 1000, torch_device)
    before = storage_bits(x)
    stream.hold()
    engine.offload(x, streams=[stream])
    gc.collect()
    stream.release()
    engine.reload()
    gc.collect()
    assert storage_bits(x) == before


@pytest.mark.parametrize("engines", ["one engine", "two engines", "plans"])
def test_two_threads_move_different_tensors_at_once(
    arena: PinnedArena, torch_device: str, engines: str
) -> None:
    shared = TransferEngine(arena)
    failures: list[BaseException] = []
    start = threading.Barrier(2)

    def play(number: int) -> None:
        try:
            engine = TransferEngine(arena) if engines == "two engines" else shared
            states = {f"t{number}.{i}": torch.zeros(999, device=torch_device) for i in range(20)}
            plan = engine.plan(states) if engines == "plans" else None
            start.wait(30.0)
            for turn in range(20):
                for index, x in enumerate(states.values()):
                    x.fill_(number * 1000 + turn * 30 + index)
                expected = {name: storage_bits(x) for name, x in states.items()}
                if plan is None:
                    engine.offload(states)
                    engine.reload(states)
                else:
                    plan.offload()
                    plan.reload()
                assert {name: storage_bits(x) for name, x in states.items()} == expected
            if plan is not None:
                plan.close()
        except BaseException as error:  # noqa: BLE001  -- shown by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=play, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert arena.stats().used_bytes == 0


def test_two_engines_on_one_arena_keep_apart(arena: PinnedArena, torch_device: str) -> None:
    first, second = TransferEngine(arena), TransferEngine(arena)
    a, b = (random_bits(torch.float32, 500, torch_device, seed=seed) for seed in (1, 2))
    bits = storage_bits(a), storage_bits(b)
    first.offload({"a": a})
    second.offload({"b": b})
    assert (first.offloaded_names(), second.offloaded_names()) == (("a",), ("b",))
    assert arena.stats().blocks == 2
    second.reload()
    assert storage_bits(b) == bits[1]
    with pytest.raises(RuntimeError, match=r"\Aa is offloaded"):
        a.sum()
    first.reload()
    assert (storage_bits(a), storage_bits(b)) == bits
