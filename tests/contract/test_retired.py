"""A host range is dealt out again only when no copy touches it any more."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry.errors import ArenaExhausted
from tests.workbench import LATE, MIB, SOON, content, random_bytes, write

if TYPE_CHECKING:
    from tests.workbench import Workbench

N = 4096
OLD, NEW = b"\x01" * N, b"\x07" * N


def test_the_range_of_a_dropped_block_stays_out_of_use_until_its_copy_is_done(
    workbench: Workbench,
) -> None:
    arena, producer = workbench.arena(2 * MIB), workbench.stream()
    memory = workbench.memory(bytes(2 * MIB))
    block = arena.allocate(2 * MIB, 0.0)
    producer.hold()
    ticket = workbench.offload(block, memory, producer)
    del block
    stats = arena.stats()
    assert (stats.retired_bytes, stats.used_bytes, stats.free_bytes) == (2 * MIB, 0, 0)
    assert arena.try_allocate(1) is None
    with pytest.raises(ArenaExhausted) as caught:
        arena.allocate(512, SOON)
    assert caught.value.fields == {
        "requested": 512,
        "free": 0,
        "largest_free": 0,
        "in_flight": 2 * MIB,
    }
    producer.release()
    assert ticket.synchronize(LATE)
    assert arena.try_allocate(2 * MIB) is not None
    assert arena.stats().retired_bytes == 0


def test_the_range_of_a_block_that_a_reload_reads_is_kept_too(workbench: Workbench) -> None:
    arena, gate = workbench.arena(2 * MIB), workbench.stream()
    memory = workbench.memory(OLD)
    block = arena.allocate(N, 0.0)
    write(block, NEW)
    gate.hold()
    ticket = workbench.reload(block, memory, gate)
    del block
    assert arena.stats().retired_bytes == N
    rest = arena.allocate(2 * MIB - N, 0.0)
    assert arena.try_allocate(512) is None
    gate.release()
    assert ticket.synchronize(LATE)
    assert workbench.read(memory) == NEW
    assert arena.stats().used_bytes == rest.nbytes


def test_an_allocation_waits_for_a_range_in_flight(workbench: Workbench) -> None:
    arena, producer = workbench.arena(2 * MIB), workbench.stream()
    memory = workbench.memory(OLD)
    [[block], [rest]] = arena.allocate_extents([N, 2 * MIB - N], 0.0)
    producer.hold()
    workbench.offload(block, memory, producer)
    del block
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(arena.allocate, N, None)
        with pytest.raises(FutureTimeoutError):
            waiting.result(SOON)
        producer.release()
        assert waiting.result(LATE).nbytes == N
    assert rest.nbytes == 2 * MIB - N


def test_extents_wait_for_ranges_in_flight_too(workbench: Workbench) -> None:
    arena, producer = workbench.arena(), workbench.stream()
    memory = workbench.memory(bytes(2 * MIB))
    block = arena.allocate(2 * MIB, 0.0)
    producer.hold()
    workbench.offload(block, memory, producer)
    del block
    with pytest.raises(ArenaExhausted):
        arena.allocate_extents([8 * MIB], SOON)
    producer.release()
    [extents] = arena.allocate_extents([8 * MIB], LATE)
    assert sum(extent.nbytes for extent in extents) == 8 * MIB


def test_what_could_never_fit_is_refused_without_waiting_for_copies(workbench: Workbench) -> None:
    arena, producer = workbench.arena(2 * MIB), workbench.stream()
    memory = workbench.memory(OLD)
    block = arena.allocate(N, 0.0)
    producer.hold()
    workbench.offload(block, memory, producer)
    del block
    start = time.monotonic()
    with pytest.raises(ArenaExhausted):
        arena.allocate(3 * MIB, 2.0)
    assert time.monotonic() - start < 1.0


def test_one_held_copy_does_not_keep_other_ranges_from_coming_back(workbench: Workbench) -> None:
    arena, gate = workbench.arena(2 * MIB), workbench.stream()
    memory, target = workbench.memory(OLD), workbench.memory(OLD)
    held = arena.allocate(N, 0.0)
    gate.hold()
    workbench.reload(held, target, gate)
    del held
    for _ in range(5):
        block = arena.allocate(MIB, 0.0)
        ticket = workbench.offload(arena.allocate(N, 0.0), memory)
        del block
        assert ticket.synchronize(LATE)
        assert arena.stats().retired_bytes == N
    gate.release()
    assert arena.allocate(2 * MIB, LATE).nbytes == 2 * MIB


def test_a_range_comes_back_only_after_the_last_of_several_copies(workbench: Workbench) -> None:
    arena, gate = workbench.arena(2 * MIB), workbench.stream()
    memory, target = workbench.memory(NEW), workbench.memory(OLD)
    block = arena.allocate(N, 0.0)
    out = workbench.offload(block, memory)
    gate.hold()
    back = workbench.reload(block, target, gate)
    del block
    assert out.synchronize(LATE)
    assert arena.stats().retired_bytes == N
    gate.release()
    assert back.synchronize(LATE)
    assert arena.stats().retired_bytes == 0
    assert workbench.read(target) == NEW


def test_dropping_ticket_block_and_pieces_right_after_submission_is_safe(
    workbench: Workbench,
) -> None:
    data = random_bytes(2 * MIB)
    arena, gate, memory = workbench.arena(2 * MIB), workbench.stream(), workbench.memory(OLD * 512)
    block = arena.allocate(2 * MIB, 0.0)
    write(block, data)
    gate.hold()
    workbench.reload(block, memory, gate)
    del block
    gc.collect()
    assert arena.try_allocate(1) is None
    gate.release()
    again = arena.allocate(2 * MIB, LATE)
    write(again, bytes(2 * MIB))
    assert workbench.read(memory) == data


def test_a_view_keeps_its_block_in_use(workbench: Workbench) -> None:
    arena = workbench.arena(2 * MIB)
    view = memoryview(arena.allocate(N, 0.0))
    gc.collect()
    assert arena.stats().used_bytes == N
    view.release()
    assert arena.stats().used_bytes == 0


def test_blocks_and_views_outlive_their_arena(workbench: Workbench) -> None:
    memory = workbench.memory(NEW)
    block = _native.Arena(
        device=workbench.device,
        nbytes=N,
        chunk_nbytes=2 * MIB,
        numa_node=None,
        huge_pages=False,
        threads=1,
    ).allocate(N, 0.0)
    gc.collect()
    assert workbench.offload(block, memory).synchronize(LATE)
    view = memoryview(block)
    del block
    gc.collect()
    assert bytes(view) == NEW


def test_a_closed_arena_still_takes_back_what_is_in_flight(workbench: Workbench) -> None:
    arena, producer = workbench.arena(2 * MIB), workbench.stream()
    memory, block = workbench.memory(NEW), arena.allocate(N, 0.0)
    producer.hold()
    ticket = workbench.offload(block, memory, producer)
    arena.close()
    assert content(block) != NEW
    producer.release()
    assert ticket.synchronize(LATE)
    assert content(block) == NEW
    assert arena.stats().capacity_bytes == 2 * MIB
    del block
    assert arena.stats().capacity_bytes == 0
