"""Arenas that grow when a block finds no room."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading

import pytest
import torch

from pinferry import PinnedArena, TransferEngine
from pinferry.errors import ArenaExhausted, HostMemoryLimit, InvalidSize, PinferryError
from pinferry.pool import supply
from pinferry.pool.host_memory import require_host_bytes
from tests.workbench import retire_a_block

MIB = 2**20


def growing(torch_device: str, **options: object) -> PinnedArena:
    return PinnedArena(
        "2MiB",
        device=torch_device,
        **{"max_capacity": "8MiB", "chunk": "2MiB", **options},  # type: ignore[arg-type]
    )


def test_an_arena_grows_by_a_chunk_when_a_block_finds_no_room(torch_device: str) -> None:
    with growing(torch_device) as arena:
        first, second = arena.alloc("2MiB"), arena.alloc("1MiB")
        assert arena.capacity_bytes == 4 * MIB
        assert arena.max_capacity_bytes == 8 * MIB
        second.numpy()[:] = 7
        first.numpy()[:] = 3
        assert (second.numpy() == 7).all()
        first.free()
        second.free()


def test_it_grows_for_extents_as_far_as_they_need(torch_device: str) -> None:
    with growing(torch_device) as arena:
        extents = arena.alloc_extents(5 * MIB)
        assert [extent.nbytes for extent in extents].count(2 * MIB) == 2
        assert arena.capacity_bytes == 6 * MIB
        del extents
        assert arena.stats().failures == 0


def test_it_grows_to_its_limit_and_no_further(torch_device: str) -> None:
    with growing(torch_device) as arena:
        held = arena.alloc_extents("8MiB")
        with pytest.raises(ArenaExhausted, match="Reload or free what it holds") as caught:
            arena.alloc(1)
        assert (caught.value.requested, caught.value.free) == (1, 0)
        assert arena.capacity_bytes == 8 * MIB
        del held


def test_a_request_that_no_growth_would_serve_makes_no_chunk(torch_device: str) -> None:
    with growing(torch_device) as arena:
        with pytest.raises(ArenaExhausted, match=r"No block is larger than a chunk, 2\.00 MiB"):
            arena.alloc(2 * MIB + 1)
        with pytest.raises(ArenaExhausted):
            arena.alloc_extents(8 * MIB + 1)
        assert arena.capacity_bytes == 2 * MIB


def test_try_alloc_takes_what_is_there_and_does_not_grow(torch_device: str) -> None:
    with growing(torch_device) as arena, arena.alloc("2MiB"):
        assert arena.try_alloc(1) is None
        assert arena.capacity_bytes == 2 * MIB


def test_an_engine_finds_room_in_an_arena_that_grows(torch_device: str) -> None:
    with growing(torch_device) as arena, TransferEngine(arena) as engine:
        x = torch.arange(5 * MIB // 4, dtype=torch.int32, device=torch_device)
        engine.offload({"x": x})
        assert arena.capacity_bytes == 6 * MIB
        engine.reload()
        assert (x.cpu() == torch.arange(5 * MIB // 4)).all()


def test_growth_that_the_host_has_no_memory_for_says_so_and_loses_nothing(
    torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def refuse(requested: int, reserve: int = 0) -> None:
        asked.append((requested, reserve))
        raise HostMemoryLimit("the host has 5 bytes left", requested=requested, available=5)

    with growing(torch_device, reserve_host="1MiB") as arena:
        block = arena.alloc("2MiB")
        monkeypatch.setattr(supply, "require_host_bytes", refuse)
        with pytest.raises(ArenaExhausted, match="could not grow: the host has 5 bytes") as caught:
            arena.alloc(1)
        assert isinstance(caught.value.__cause__, HostMemoryLimit)
        assert asked == [(2 * MIB, MIB)]
        assert arena.stats().failures == 1
        monkeypatch.undo()
        arena.alloc(1).free()  # asked again, and this time there is memory
        block.free()


@pytest.mark.parametrize("most", ["1MiB", -1, 2**63])
def test_a_limit_that_makes_no_sense_is_refused(most: int | str) -> None:
    with pytest.raises(InvalidSize):
        PinnedArena("2MiB", device="cpu", max_capacity=most)


def test_threads_that_want_room_at_once_all_find_it(torch_device: str) -> None:
    with growing(torch_device, max_capacity="32MiB") as arena:
        start, held = threading.Barrier(8), []

        def take() -> None:
            start.wait()
            held.append(arena.alloc("2MiB"))

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({block.offset for block in held}) == 8
        assert 16 * MIB <= arena.capacity_bytes <= 32 * MIB
        held.clear()


def test_a_failed_growth_keeps_nothing_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(requested: int, reserve: int = 0) -> None:
        raise HostMemoryLimit("none left")

    def ask() -> None:
        held = arena.alloc("2MiB")
        with contextlib.suppress(ArenaExhausted):
            arena.alloc(1)
        assert held.nbytes == 2 * MIB

    monkeypatch.setattr(supply, "require_host_bytes", refuse)
    with growing("cpu") as arena:
        ask()
        gc.collect()
        assert arena.stats().blocks == 0
        assert arena.wait_ready(0)  # nothing failed in the background


def test_an_old_failure_is_not_told_of_a_request_that_growth_would_not_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(requested: int, reserve: int = 0) -> None:
        raise HostMemoryLimit("none left")

    monkeypatch.setattr(supply, "require_host_bytes", refuse)
    with growing("cpu") as arena, arena.alloc("2MiB"):
        with pytest.raises(ArenaExhausted, match="could not grow"):
            arena.alloc(1)
        with pytest.raises(ArenaExhausted, match=r"Make the arena larger$"):
            arena.alloc("64MiB")


def test_a_signal_handler_may_close_the_arena_amid_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = growing("cpu")
    first = arena.alloc("2MiB")

    def close_amid(requested: int, reserve: int = 0) -> None:
        require_host_bytes(requested, reserve=reserve)
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: arena.close(force=True))
    try:
        monkeypatch.setattr(supply, "require_host_bytes", close_amid)
        with pytest.raises(PinferryError):
            arena.alloc(1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    first.free()
    assert arena.stats().capacity_bytes == 0


def test_growth_does_not_count_on_what_is_in_flight_unless_the_request_waits(
    torch_device: str,
) -> None:
    with growing(torch_device, max_capacity="4MiB") as arena:
        stream, ticket, _memory = retire_a_block(arena.native, MIB)
        with pytest.raises(ArenaExhausted):
            arena.alloc_extents("4MiB")
        assert arena.capacity_bytes == 2 * MIB
        threading.Timer(0.05, stream.release).start()
        assert sum(each.nbytes for each in arena.alloc_extents("4MiB", timeout=30)) == 4 * MIB
        assert ticket.synchronize(30.0)


def test_waiting_where_it_cannot_help_is_refused_at_once(torch_device: str) -> None:
    with PinnedArena("4MiB", device=torch_device, chunk="4MiB") as arena:
        stream, ticket, _memory = retire_a_block(arena.native, MIB)
        blocks = [arena.alloc("1MiB") for _ in range(3)]
        blocks[1].free()
        with pytest.raises(ArenaExhausted):  # 2 MiB are free or in flight, and never side by side
            arena.alloc("2MiB", timeout=None)
        stream.release()
        assert ticket.synchronize(30.0)
        blocks[0].free()
        blocks[2].free()


def test_ctrl_c_ends_a_wait(torch_device: str) -> None:
    with PinnedArena("1MiB", device=torch_device) as arena:
        stream, ticket, _memory = retire_a_block(arena.native, MIB)
        interrupt = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            arena.alloc("1MiB", timeout=None)
        stream.release()
        assert ticket.synchronize(30.0)
