"""Callbacks of tickets: when they come, where, and what happens when they fail."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena, Ticket, _native
from pinferry.errors import DriverCallFailed
from pinferry.transfer.watcher import WATCHER, Watcher
from tests.workbench import LATE, retire_a_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry import TransferEngine
    from tests.fake_driver import FakeDriver

MIB = 2**20


def watchers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "pinferry-watcher"]


@pytest.fixture
def other(arena: PinnedArena) -> Iterator[_native.Stream]:
    """Yield a second stream to hold."""
    made = arena.device.create_stream()
    yield made
    made.release()
    made.synchronize()


@pytest.fixture
def x(torch_device: str) -> torch.Tensor:
    return torch.ones(1000, device=torch_device)


@pytest.fixture
def held(engine: TransferEngine, stream: _native.Stream, x: torch.Tensor) -> Ticket:
    """Return the ticket of an offload that waits for `stream`."""
    stream.hold()
    return engine.offload({"x": x}, streams=[stream])


def test_a_callback_comes_with_the_ticket_when_the_copies_have_ended(
    held: Ticket, stream: _native.Stream
) -> None:
    calls: SimpleQueue[tuple[Ticket, bool, threading.Thread]] = SimpleQueue()
    held.add_done_callback(lambda t: calls.put((t, t.done(), threading.current_thread())))
    stream.release()
    ticket, done, thread = calls.get(timeout=LATE)
    assert ticket is held
    assert done
    assert thread is not threading.current_thread()
    assert thread.daemon


def test_a_callback_does_not_come_before_its_own_copies_have_ended(
    held: Ticket, stream: _native.Stream
) -> None:
    calls: SimpleQueue[str] = SimpleQueue()
    held.add_done_callback(lambda _: calls.put("held"))
    elsewhere = PinnedArena("1MiB", device="cpu")
    gate, native, _memory = retire_a_block(elsewhere.native, 512)
    Ticket(native, elsewhere.device).add_done_callback(lambda _: calls.put("later"))
    gate.release()
    assert calls.get(timeout=LATE) == "later"
    stream.release()
    assert calls.get(timeout=LATE) == "held"


def test_a_callback_on_a_ticket_that_is_done_comes_at_once_in_the_caller_s_thread(
    engine: TransferEngine, x: torch.Tensor
) -> None:
    ticket = engine.offload({"x": x})
    ticket.synchronize(LATE)
    threads: list[threading.Thread] = []
    ticket.add_done_callback(lambda _: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_callbacks_come_in_order_whatever_the_others_raise(
    held: Ticket, stream: _native.Stream, caplog: pytest.LogCaptureFixture
) -> None:
    calls: SimpleQueue[int] = SimpleQueue()

    def fail(_: Ticket) -> None:
        calls.put(1)
        raise SystemExit("a fault of the callback")

    held.add_done_callback(lambda _: calls.put(0))
    held.add_done_callback(fail)
    held.add_done_callback(lambda _: calls.put(2))
    with caplog.at_level(logging.ERROR, "pinferry"):
        stream.release()
        assert [calls.get(timeout=LATE) for _ in range(3)] == [0, 1, 2]
    [record] = caplog.records
    assert record.name == "pinferry"
    assert "a fault of the callback" in str(record.exc_info)


def test_what_a_callback_raises_at_once_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Ticket) -> None:
        raise ZeroDivisionError("a fault of the callback")

    Ticket(_native.Ticket(), _native.HostDevice()).add_done_callback(fail)
    [record] = caplog.records
    assert (record.name, record.levelname) == ("pinferry", "ERROR")
    assert "a fault of the callback" in str(record.exc_info)


def test_a_callback_may_register_another(held: Ticket, stream: _native.Stream) -> None:
    calls: SimpleQueue[str] = SimpleQueue()
    held.add_done_callback(lambda t: t.add_done_callback(lambda _: calls.put("inner")))
    stream.release()
    assert calls.get(timeout=LATE) == "inner"


def test_a_callback_does_not_count_as_waiting(
    engine: TransferEngine, held: Ticket, stream: _native.Stream, x: torch.Tensor
) -> None:
    ended = threading.Event()
    ticket = engine.reload(defer=True)
    ticket.add_done_callback(lambda _: ended.set())
    stream.release()
    assert ended.wait(LATE)
    with pytest.raises(RuntimeError, match=r"call wait\(\) on its ticket first"):
        x.sum()
    ticket.wait()
    assert x.sum() == 1000


def test_the_thread_ends_when_there_is_nothing_to_watch_and_comes_back(
    engine: TransferEngine, stream: _native.Stream, x: torch.Tensor
) -> None:
    for _ in range(3):
        stream.hold()
        ended = threading.Event()
        ticket = engine.offload({"x": x}, streams=[stream])
        ticket.add_done_callback(lambda _, ended=ended: ended.set())  # type: ignore[misc]
        [thread] = watchers()
        stream.release()
        assert ended.wait(LATE)
        thread.join(LATE)
        assert not thread.is_alive()
        engine.reload()


def test_the_pauses_between_two_looks_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = PinnedArena("1MiB", device="cpu")
    gate, native, _memory = retire_a_block(arena.native, 512)
    pauses: list[float | None] = []

    class Recording(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            if len(pauses) == 9:
                gate.release()
            super().wait(timeout)
            return False

    watcher, told = Watcher(), SimpleQueue[object]()
    monkeypatch.setattr(watcher, "_changed", Recording())
    watcher.watch(native, told.put)
    assert told.get(timeout=LATE) is None
    expected = [50e-6 * 2**n for n in range(6)] + [2e-3] * 3
    assert pauses[:9] == pytest.approx(expected)


def test_a_thread_that_cannot_be_started_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arena = PinnedArena("1MiB", device="cpu")
    gate, native, _memory = retire_a_block(arena.native, 512)
    watcher, told = Watcher(), SimpleQueue[object]()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            watcher.watch(native, told.put)
    later: SimpleQueue[object] = SimpleQueue()
    watcher.watch(native, later.put)
    gate.release()
    assert later.get(timeout=LATE) is None
    assert told.empty()


def test_all_tickets_share_one_thread(
    engine: TransferEngine, held: Ticket, stream: _native.Stream, other: _native.Stream
) -> None:
    calls: SimpleQueue[int] = SimpleQueue()
    y = torch.ones(8, device=engine.device.kind)
    other.hold()
    second = engine.offload({"y": y}, streams=[other])
    for ticket in (held, second):
        ticket.add_done_callback(lambda _: calls.put(threading.get_ident()))
    assert len(watchers()) == 1
    stream.release()
    other.release()
    assert calls.get(timeout=LATE) == calls.get(timeout=LATE)


def test_a_failed_device_drops_its_callbacks_and_says_so(
    fake_gpu: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    arena = _native.Arena(
        device=_native.CudaDevice(0),
        nbytes=MIB,
        chunk_nbytes=MIB,
        numa_node=None,
        huge_pages=False,
        threads=1,
    )
    stream, native, _memory = retire_a_block(arena, 512)
    told: SimpleQueue[object] = SimpleQueue()
    ticket = Ticket(native, arena.device)
    ticket.add_done_callback(told.put)
    WATCHER.watch(native, told.put)
    fake_gpu.fail_call("cuEventQuery", 700)
    assert isinstance(told.get(timeout=LATE), DriverCallFailed)
    assert told.empty()
    assert "its copies failed" in caplog.text
    with pytest.raises(DriverCallFailed):
        ticket.add_done_callback(told.put)
    fake_gpu.fail_call("cuEventQuery", 0)
    stream.release()
    ticket.synchronize(LATE)
