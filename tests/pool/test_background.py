"""Arenas whose memory is made in the background."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from pinferry import PinnedArena
from pinferry.errors import ArenaError, ArenaExhausted, HostMemoryLimit
from pinferry.pool import supply

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20


class Gate:
    """Lets the background make chunks one by one, and may refuse."""

    def __init__(self) -> None:
        self._allowed = threading.Semaphore(0)
        self.refused_from = 1000
        self.asked = 0

    def open(self, chunks: int = 1000) -> None:
        self._allowed.release(chunks)

    def __call__(self, requested: int, reserve: int = 0) -> None:
        assert self._allowed.acquire(timeout=30.0)
        self.asked += 1
        if self.asked >= self.refused_from:
            raise HostMemoryLimit("none left", requested=requested, available=0)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    monkeypatch.setattr(supply, "require_host_bytes", made)
    return made


@pytest.fixture
def fill(torch_device: str) -> Callable[[], PinnedArena]:
    return lambda: PinnedArena("8MiB", device=torch_device, chunk="2MiB", eager=False)


def fillers() -> int:
    return sum(thread.name == "pinferry-arena" for thread in threading.enumerate())


def test_the_first_chunk_can_be_used_while_the_others_are_made(
    fill: Callable[[], PinnedArena], gate: Gate
) -> None:
    with fill() as arena:
        assert arena.capacity_bytes == 2 * MIB
        block = arena.alloc("2MiB")
        assert not arena.wait_ready(0.01)
        gate.open()
        assert arena.wait_ready(30.0)
        assert arena.capacity_bytes == 8 * MIB
        block.free()


def test_a_block_that_finds_no_room_waits_for_the_chunk_that_brings_it(
    fill: Callable[[], PinnedArena], gate: Gate
) -> None:
    with fill() as arena:
        taken: list[int] = []

        def take() -> None:
            taken.extend(extent.nbytes for extent in arena.alloc_extents("6MiB"))

        thread = threading.Thread(target=take)
        thread.start()
        gate.open(1)
        thread.join(0.1)
        assert thread.is_alive()
        gate.open()
        thread.join(30.0)
        assert sum(taken) == 6 * MIB


def test_try_alloc_does_not_wait_for_a_chunk(fill: Callable[[], PinnedArena], gate: Gate) -> None:
    with fill() as arena, arena.alloc("2MiB"):
        assert arena.try_alloc(1) is None
        gate.open()


def test_a_chunk_that_cannot_be_made_is_told_to_whoever_waits_or_needs_it(
    fill: Callable[[], PinnedArena], gate: Gate
) -> None:
    gate.refused_from = 2
    gate.open()
    with fill() as arena:
        with pytest.raises(HostMemoryLimit, match="none left"):
            arena.wait_ready()
        assert arena.capacity_bytes == 4 * MIB
        held = arena.alloc_extents("4MiB")
        with pytest.raises(ArenaExhausted, match="could not grow: none left"):
            arena.alloc(1)
        gate.refused_from = 1000
        assert arena.alloc("2MiB").nbytes == 2 * MIB
        del held


def test_closing_ends_the_making(fill: Callable[[], PinnedArena], gate: Gate) -> None:
    before = fillers()
    arena = fill()
    assert fillers() == before + 1
    gate.open(1)
    closing = threading.Thread(target=arena.close)
    closing.start()
    gate.open(1)  # for a chunk that may be at hand
    closing.join(30.0)
    assert arena.closed
    assert arena.stats().capacity_bytes == 0
    assert gate.asked <= 2


def test_an_arena_that_is_dropped_meanwhile_goes(
    fill: Callable[[], PinnedArena], gate: Gate
) -> None:
    arena = fill()
    native = weakref.ref(arena.native)
    del arena
    gate.open()
    for thread in threading.enumerate():
        if thread.name == "pinferry-arena":
            thread.join(30.0)
    assert native() is None


def test_an_interpreter_that_ends_meanwhile_ends_well() -> None:
    code = (
        "from pinferry import PinnedArena\n"
        "arena = PinnedArena('512MiB', device='cpu', chunk='2MiB', eager=False, threads=1)\n"
        "print(arena.capacity_bytes >= 2**21)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "True", "")


def test_an_error_that_nobody_expected_is_told_to_whoever_waits(
    fill: Callable[[], PinnedArena], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(requested: int, reserve: int = 0) -> None:
        raise MemoryError("no memory for the bookkeeping")

    monkeypatch.setattr(supply, "require_host_bytes", fail)
    with fill() as arena:
        with pytest.raises(ArenaError, match=r"in the background: MemoryError"):
            arena.wait_ready(30.0)
        arena.alloc("2MiB").free()
