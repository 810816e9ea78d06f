"""What a ticket says before, while and after its copies run."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import WrongDevice
from tests.workbench import LATE, SOON

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.workbench import Workbench

N = 4096


@pytest.mark.parametrize("direction", [Direction.TO_HOST, Direction.TO_DEVICE])
def test_a_ticket_is_done_when_its_copies_are(workbench: Workbench, direction: Direction) -> None:
    memory, gate = workbench.memory(bytes(N)), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    gate.hold()
    ticket = workbench.submit(direction, block, memory.address, [gate])
    assert not ticket.done()
    assert not ticket.synchronize(0.0)
    assert not ticket.synchronize(-1.0)
    assert not ticket.synchronize(SOON)
    assert ticket.elapsed_ms is None
    gate.release()
    assert ticket.synchronize(None)
    assert ticket.done()
    assert ticket.synchronize(0.0)
    elapsed_ms = ticket.elapsed_ms
    assert isinstance(elapsed_ms, float)
    assert 0.0 <= elapsed_ms < 1000.0
    assert ticket.elapsed_ms == elapsed_ms


def test_elapsed_time_leaves_out_the_wait_for_the_producer(workbench: Workbench) -> None:
    memory, gate = workbench.memory(bytes(N)), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    gate.hold()
    ticket = workbench.offload(block, memory, gate)
    assert not ticket.synchronize(0.5)
    gate.release()
    assert ticket.synchronize(LATE)
    elapsed_ms = ticket.elapsed_ms
    assert elapsed_ms is not None
    assert elapsed_ms < 400.0


@pytest.mark.parametrize("direction", [Direction.TO_HOST, Direction.TO_DEVICE])
def test_the_span_of_copies_counts_from_a_mark(workbench: Workbench, direction: Direction) -> None:
    memory, gate, clock = workbench.memory(bytes(N)), workbench.stream(), workbench.stream()
    [[first], [second]] = workbench.arena().allocate_extents([N, N], 0.0)
    base = _native.mark(workbench.device, clock.handle)
    assert base.synchronize(LATE)
    gate.hold()
    began = time.perf_counter()
    held = workbench.submit(direction, first, memory.address, [gate])
    after = workbench.submit(direction, second, memory.address)
    assert held.span_ms(base) is None
    assert not held.synchronize(SOON)
    held_ms = (time.perf_counter() - began) * 1e3
    gate.release()
    assert after.synchronize(LATE)
    until_ms = (time.perf_counter() - began) * 1e3
    spans = [ticket.span_ms(base) for ticket in (held, after)]
    assert None not in spans
    (start, end), (next_start, next_end) = (span for span in spans if span is not None)
    assert held_ms <= start <= end <= next_start <= next_end
    assert next_end - start <= until_ms
    assert end - start == pytest.approx(held.elapsed_ms, abs=1e-3)


def test_a_mark_comes_when_its_stream_has_run(workbench: Workbench) -> None:
    memory, gate = workbench.memory(bytes(N)), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    gate.hold()
    base = _native.mark(workbench.device, gate.handle)
    ticket = workbench.offload(block, memory)
    assert ticket.synchronize(LATE)
    assert not base.synchronize(0.0)
    assert ticket.span_ms(base) is None
    gate.release()
    assert base.synchronize(LATE)
    start, end = ticket.span_ms(base) or (1.0, 1.0)
    assert start <= end <= 0.0  # the copies were first


def test_a_mark_of_another_device_is_refused(
    workbench: Workbench, make_device: Callable[[], _native.Device]
) -> None:
    memory = workbench.memory(bytes(N))
    ticket = workbench.offload(workbench.arena().allocate(N, 0.0), memory)
    assert ticket.synchronize(LATE)
    base = _native.mark(make_device(), 0)
    with pytest.raises(WrongDevice, match="mark of another device"):
        ticket.span_ms(base)
    assert _native.Ticket().span_ms(base) is None


def test_which_tickets_are_over(workbench: Workbench) -> None:
    memory, gate = workbench.memory(bytes(N)), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    gate.hold()
    held = workbench.offload(block, memory, gate)
    assert _native.over([_native.Ticket(), held]) == [True, False]
    gate.release()
    assert held.synchronize(LATE)
    assert _native.over([held, _native.Ticket()]) == [True, True]
    assert _native.over([]) == []


@pytest.mark.parametrize("direction", [Direction.TO_HOST, Direction.TO_DEVICE])
def test_an_empty_batch_is_done_at_once(workbench: Workbench, direction: Direction) -> None:
    gate, other = workbench.stream(), workbench.stream()
    gate.hold()
    ticket = workbench.submit(direction, [], 0, [gate])
    assert ticket.done()
    assert ticket.synchronize(None)
    assert ticket.elapsed_ms == 0.0
    assert ticket.nbytes == 0
    ticket.wait(other.handle)


def test_a_ticket_of_nothing_is_done() -> None:
    ticket = _native.Ticket()
    assert ticket.done()
    assert ticket.synchronize(0.0)
    assert ticket.nbytes == 0
    ticket.wait(0)


def test_a_host_that_waits_lets_other_threads_run(workbench: Workbench) -> None:
    memory, gate = workbench.memory(bytes(N)), workbench.stream()
    block = workbench.arena().allocate(N, 0.0)
    gate.hold()
    ticket = workbench.offload(block, memory, gate)
    opener = threading.Timer(SOON, gate.release)
    opener.start()
    assert ticket.synchronize(None)
    opener.join()


def test_copies_of_one_direction_end_in_the_order_of_submission(workbench: Workbench) -> None:
    memory, gate = workbench.memory(bytes(N)), workbench.stream()
    [[first], [second]] = workbench.arena().allocate_extents([N, N], 0.0)
    gate.hold()
    before = workbench.offload(first, memory, gate)
    after = workbench.offload(second, memory)
    assert not after.synchronize(SOON)
    gate.release()
    assert after.synchronize(LATE)
    assert before.done()


def test_a_held_direction_does_not_hold_the_other(workbench: Workbench) -> None:
    memory, target, gate = (
        workbench.memory(bytes(N)),
        workbench.memory(bytes(N)),
        workbench.stream(),
    )
    [[first], [second]] = workbench.arena().allocate_extents([N, N], 0.0)
    gate.hold()
    held = workbench.offload(first, memory, gate)
    assert workbench.reload(second, target).synchronize(LATE)
    assert not held.done()
