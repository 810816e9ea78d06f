"""A child made by fork uses nothing of its parent's and frees nothing of it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import mmap
import os
import signal
import threading
import traceback
import warnings
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import ForkedProcess
from pinferry.pool import PinnedArena, PinnedBlock
from pinferry.transfer import Ticket
from tests.workbench import LATE, MIB, content

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fake_driver import FakeDriver

pytestmark = pytest.mark.parametrize("make_device", ["host", "fake"], indirect=True)


def status_of_child(body: Callable[[], None]) -> int:
    """Run `body` in a child; return its exit code, or minus the signal that ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads run; that is the point
        pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # only a hang takes so long; a full collection may take seconds
        try:
            body()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Flight:
    """An offload in flight, held by a latch, and everything that it needs."""

    def __init__(self, device: _native.Device) -> None:
        self.device = device
        self.arena = self.make_arena()
        self.block = self.arena.allocate(512, 0.0)
        self.memory = device.allocate(512)
        self.stream = device.create_stream()
        self.stream.hold()
        self.stream.fill(self.memory.address, 7, 512)
        self.ticket = self.submit()

    def make_arena(self) -> _native.Arena:
        return _native.Arena(
            device=self.device,
            nbytes=4 * MIB,
            chunk_nbytes=2 * MIB,
            numa_node=None,
            huge_pages=False,
            threads=1,
        )

    def submit(self) -> _native.Ticket:
        return _native.submit(
            device=self.device,
            direction=Direction.TO_HOST,
            pieces=[_native.Piece(self.block, self.memory.address)],
            streams=[self.stream.handle],
        )

    def land(self) -> None:
        """Let the copy run and check that the parent's world is whole."""
        self.stream.release()
        assert self.ticket.synchronize(LATE)
        assert content(self.block) == b"\x07" * 512
        assert self.arena.allocate(2 * MIB, 0.0).nbytes == 2 * MIB
        assert self.submit().synchronize(LATE)


def test_the_memory_of_a_block_cannot_be_reached_in_a_child(
    make_device: Callable[[], _native.Device],
) -> None:
    flight = Flight(make_device())

    def body() -> None:
        with pytest.raises(BufferError) as caught:
            memoryview(flight.block)
        assert isinstance(caught.value.__cause__, ForkedProcess)

    status = status_of_child(body)
    flight.land()
    assert status == 0


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda flight: flight.arena.allocate(1, 0.0), id="allocate"),
        pytest.param(lambda flight: flight.arena.allocate(1, None), id="allocate-wait"),
        pytest.param(lambda flight: flight.arena.try_allocate(1), id="try_allocate"),
        pytest.param(lambda flight: flight.arena.allocate_extents([1], 0.0), id="extents"),
        pytest.param(lambda flight: flight.make_arena(), id="arena"),
        pytest.param(lambda flight: flight.submit(), id="submit"),
        pytest.param(
            lambda flight: _native.submit(
                device=flight.device, direction=Direction.TO_HOST, pieces=[], streams=[]
            ),
            id="submit-nothing",
        ),
        pytest.param(lambda flight: flight.ticket.wait(flight.stream.handle), id="wait"),
        pytest.param(lambda flight: flight.ticket.synchronize(0.1), id="poll"),
        pytest.param(lambda flight: flight.ticket.synchronize(None), id="synchronize"),
        pytest.param(lambda flight: flight.device.create_stream(), id="create_stream"),
        pytest.param(lambda flight: flight.stream.synchronize(), id="stream-synchronize"),
        pytest.param(
            lambda flight: flight.stream.fill(flight.memory.address, 1, 1), id="stream-fill"
        ),
        pytest.param(
            lambda flight: flight.stream.copy(flight.memory.address, flight.memory.address, 1),
            id="stream-copy",
        ),
        pytest.param(lambda flight: flight.block.address, id="address"),
        pytest.param(lambda flight: PinnedBlock(flight.block).numpy(), id="numpy"),
    ],
)
def test_use_in_a_child_is_refused(
    make_device: Callable[[], _native.Device], use: Callable[[Flight], object]
) -> None:
    flight = Flight(make_device())

    def body() -> None:
        with pytest.raises(ForkedProcess, match="parent process"):
            use(flight)

    status = status_of_child(body)
    flight.land()
    assert status == 0


def test_a_child_may_ask_questions(make_device: Callable[[], _native.Device]) -> None:
    flight = Flight(make_device())

    def body() -> None:
        assert not flight.ticket.done()
        assert flight.ticket.elapsed_ms is None
        with pytest.raises(ForkedProcess):
            flight.arena.stats()
        flight.stream.release()
        flight.arena.close()
        assert flight.arena.closed

    status = status_of_child(body)
    flight.land()
    assert status == 0


@pytest.mark.parametrize(
    "order",
    [
        ["ticket", "block", "arena", "memory", "stream", "device"],
        ["device", "stream", "memory", "arena", "block", "ticket"],
        ["stream", "ticket", "arena", "block", "device", "memory"],
    ],
    ids="-".join,
)
def test_objects_that_die_in_a_child_free_nothing_of_the_parent(
    make_device: Callable[[], _native.Device],
    order: list[str],
    request: pytest.FixtureRequest,
) -> None:
    fake: FakeDriver | None = None
    if "fake" in request.node.callspec.params["make_device"]:
        fake = request.getfixturevalue("fake_gpu")
    flight = Flight(make_device())

    def body() -> None:
        before = fake.live() if fake else {}
        for name in order:
            delattr(flight, name)
            gc.collect()
        assert (fake.live() if fake else {}) == before

    status = status_of_child(body)
    flight.land()
    assert status == 0


def test_idle_objects_die_in_a_child_too(make_device: Callable[[], _native.Device]) -> None:
    flight = Flight(make_device())
    flight.land()

    def body() -> None:
        for name in ("device", "stream", "memory", "arena", "block", "ticket"):
            delattr(flight, name)
            gc.collect()

    assert status_of_child(body) == 0
    flight.land()


def test_a_child_can_work_with_a_device_of_its_own(
    make_device: Callable[[], _native.Device],
) -> None:
    flight = Flight(make_device())

    def body() -> None:
        own = Flight(make_device())
        own.land()

    status = status_of_child(body)
    flight.land()
    assert status == 0


def test_a_child_unmaps_nothing_where_the_memory_of_a_dead_arena_was(
    make_device: Callable[[], _native.Device],
) -> None:
    """The arena dies in the parent under a copy that has ended by the time of the fork."""
    flight = Flight(make_device())
    address, size = flight.block.address, 4 * MIB
    del flight.block, flight.arena
    gc.collect()
    flight.stream.release()
    assert flight.ticket.synchronize(LATE)

    def body() -> None:
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        # The mapping was not inherited, so the child may have something of its own there.
        fixed_private_anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
        access = mmap.PROT_READ | mmap.PROT_WRITE
        found = libc.mmap(
            ctypes.c_void_p(address),
            ctypes.c_size_t(size),
            access,
            fixed_private_anonymous,
            -1,
            ctypes.c_long(0),
        )
        assert found == address
        for name in ("device", "memory", "stream", "ticket"):
            delattr(flight, name)
            gc.collect()
        ctypes.memset(address, 1, size)

    assert status_of_child(body) == 0


def test_a_child_s_own_threads_and_arenas_are_safe_from_those_it_inherited(
    make_device: Callable[[], _native.Device],
) -> None:
    flight = Flight(make_device())

    def body() -> None:
        threads = [threading.Thread(target=int) for _ in range(4)]
        for thread in threads:
            thread.start()
        own = PinnedArena("1MiB", device="cpu")
        own.alloc(512).numpy()[:] = 1
        flight.__dict__.clear()
        gc.collect()
        own.close()
        for thread in threads:
            thread.join()

    status = status_of_child(body)
    flight.land()
    assert status == 0


def test_a_child_calls_no_callback_of_its_parent_s(
    make_device: Callable[[], _native.Device],
) -> None:
    flight = Flight(make_device())
    ticket = Ticket(flight.ticket, flight.device)
    calls: SimpleQueue[int] = SimpleQueue()
    ticket.add_done_callback(lambda _: calls.put(os.getpid()))

    def body() -> None:
        with pytest.raises(ForkedProcess, match="parent process"):
            ticket.add_done_callback(print)
        with pytest.raises(ForkedProcess, match="parent process"):
            asyncio.run(asyncio.wait_for(ticket, LATE))
        # The child's own copies end after the parent's would have been seen to.
        own = Flight(make_device())
        own_ended: SimpleQueue[int] = SimpleQueue()
        own_ticket = Ticket(own.ticket, own.device)
        own_ticket.add_done_callback(lambda _: own_ended.put(os.getpid()))
        own.land()
        assert own_ended.get(timeout=3) == os.getpid()
        assert calls.empty()

    status = status_of_child(body)
    flight.land()
    assert calls.get(timeout=LATE) == os.getpid()
    assert status == 0


def test_nothing_asked_of_an_arena_hangs_a_child(make_device: Callable[[], _native.Device]) -> None:
    arena = PinnedArena("4MiB", device=make_device(), chunk="2MiB", max_capacity="8MiB")
    block, over = arena.alloc(512), threading.Event()
    arena.regions()  # imports: Python has a lock for that, which a fork amid an import leaves taken

    def keep_busy() -> None:
        while not over.is_set():
            arena.regions()

    def body() -> None:
        assert "parent" in repr(arena)
        assert not arena.closed
        asks: list[Callable[[], object]] = [
            arena.stats,
            arena.regions,
            arena.to_dict,
            arena.describe,
            arena.trim,
            arena.wait_ready,
            lambda: arena.alloc(1),
            lambda: arena.try_alloc(1),
            lambda: arena.alloc_extents(1),
            lambda: arena.capacity_bytes,
            lambda: arena.backend_reason,
            block.numpy,
            block.memoryview,
        ]
        for ask in asks:
            with pytest.raises(ForkedProcess):
                ask()
        block.free()
        arena.close()
        arena.close(force=True)

    threads = [threading.Thread(target=keep_busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert [status_of_child(body) for _ in range(8)] == [0] * 8
    finally:
        over.set()
        for thread in threads:
            thread.join()
    block.free()
    arena.close()
