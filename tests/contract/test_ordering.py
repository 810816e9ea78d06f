"""The four edges between streams, copies and the host, held apart by latches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workbench import LATE, SOON, content, random_bytes, write

if TYPE_CHECKING:
    from tests.workbench import Workbench

N = 4096
OLD, NEW, OTHER = b"\x01" * N, b"\x07" * N, random_bytes(N, 1)


def test_an_offload_waits_for_the_stream_that_writes_the_memory(workbench: Workbench) -> None:
    memory, producer = workbench.memory(OLD), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    producer.hold()
    producer.fill(memory.address, 7, N)
    ticket = workbench.offload(block, memory, producer)
    assert not ticket.synchronize(SOON)
    producer.release()
    assert ticket.synchronize(LATE)
    assert content(block) == NEW


@pytest.mark.parametrize("last", [0, 1])
def test_an_offload_waits_for_every_stream_that_is_named(workbench: Workbench, last: int) -> None:
    memory = workbench.memory(OLD)
    streams = [workbench.stream(), workbench.stream()]
    block = workbench.arena().allocate(N, 0.0)
    for i, stream in enumerate(streams):
        stream.hold()
        stream.fill(memory.address + i * N // 2, 7, N // 2)
    ticket = workbench.offload(block, memory, *streams, streams[0])
    streams[1 - last].release()
    assert not ticket.synchronize(SOON)
    streams[last].release()
    assert ticket.synchronize(LATE)
    assert content(block) == NEW


def test_an_offload_does_not_wait_for_a_stream_that_is_not_named(workbench: Workbench) -> None:
    memory, stranger = workbench.memory(OLD), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    stranger.hold()
    assert workbench.offload(block, memory).synchronize(LATE)
    assert content(block) == OLD


def test_a_reload_waits_for_earlier_readers_of_the_memory_it_overwrites(
    workbench: Workbench,
) -> None:
    memory, seen, reader = workbench.memory(OLD), workbench.memory(OTHER), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    write(block, NEW)
    reader.hold()
    reader.copy(seen.address, memory.address, N)
    ticket = workbench.reload(block, memory, reader)
    assert not ticket.synchronize(SOON)
    assert workbench.read(memory) == OLD
    reader.release()
    assert ticket.synchronize(LATE)
    assert workbench.read(seen) == OLD
    assert workbench.read(memory) == NEW


def test_a_consumer_that_waits_for_the_ticket_reads_the_new_bytes(workbench: Workbench) -> None:
    memory, seen = workbench.memory(OLD), workbench.memory(OTHER)
    gate, consumer = workbench.stream(), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    write(block, NEW)
    gate.hold()
    ticket = workbench.reload(block, memory, gate)
    ticket.wait(consumer.handle)
    consumer.copy(seen.address, memory.address, N)
    result, read = workbench.queue_read(seen, [consumer])
    assert not read.synchronize(SOON)
    gate.release()
    assert read.synchronize(LATE)
    assert content(result) == NEW


def test_a_stream_that_does_not_wait_for_the_ticket_runs_on(workbench: Workbench) -> None:
    memory, seen = workbench.memory(OLD), workbench.memory(OTHER)
    gate, bystander = workbench.stream(), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    write(block, NEW)
    gate.hold()
    ticket = workbench.reload(block, memory, gate)
    bystander.copy(seen.address, memory.address, N)
    bystander.synchronize()
    assert not ticket.done()
    assert workbench.read(seen) == OLD


def test_work_queued_after_the_submission_does_not_hold_it(workbench: Workbench) -> None:
    memory, producer = workbench.memory(OLD), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    ticket = workbench.offload(block, memory, producer)
    producer.hold()
    assert ticket.synchronize(LATE)


def test_a_reload_right_behind_the_offload_of_its_block_reads_the_final_bytes(
    workbench: Workbench,
) -> None:
    memory, target, producer = workbench.memory(OLD), workbench.memory(OTHER), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    write(block, OTHER)
    producer.hold()
    producer.fill(memory.address, 7, N)
    workbench.offload(block, memory, producer)
    back = workbench.reload(block, target)
    assert not back.synchronize(SOON)
    producer.release()
    assert back.synchronize(LATE)
    assert workbench.read(target) == NEW


def test_an_offload_waits_for_the_reload_that_still_reads_its_block(workbench: Workbench) -> None:
    source, target, gate = workbench.memory(NEW), workbench.memory(OLD), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    write(block, OTHER)
    gate.hold()
    first = workbench.reload(block, target, gate)
    second = workbench.offload(block, source)
    assert not second.synchronize(SOON)
    assert content(block) == OTHER
    gate.release()
    assert second.synchronize(LATE)
    assert first.done()
    assert workbench.read(target) == OTHER
    assert content(block) == NEW


def test_every_block_of_a_batch_is_waited_for(workbench: Workbench) -> None:
    """Only the last block of the reload was touched before."""
    memory, target = workbench.memory(OLD), workbench.memory(OTHER * 2)
    producer = workbench.stream()
    [[first], [last]] = workbench.arena().allocate_extents([N, N], 0.0)
    write(first, OTHER)
    producer.hold()
    producer.fill(memory.address, 7, N)
    workbench.offload(last, memory, producer)
    back = workbench.reload([first, last], target)
    assert not back.synchronize(SOON)
    producer.release()
    assert back.synchronize(LATE)
    assert workbench.read(target) == OTHER + NEW
