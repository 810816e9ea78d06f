"""A batch that fails while part of it is queued behind a held stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest

from pinferry.errors import DriverCallFailed
from tests.workbench import LATE, MIB, SOON, content, write

if TYPE_CHECKING:
    from pinferry import _native
    from tests.fake_driver import FakeDriver
    from tests.workbench import Workbench

# Blocks begin at multiples of 512, so that these are no neighbours and each is a copy of its own.
N, COUNT = 500, 6


def fail_call(
    n: int, bench: Workbench, arena: _native.Arena, fake_gpu: FakeDriver
) -> tuple[BaseException | None, bool]:
    """Fail the n-th call of a held batch of copies; return the error, and whether it waited."""
    producer, memory = bench.stream(), bench.memory(b"\x01" * COUNT * N)
    blocks = [block for [block] in arena.allocate_extents([N] * COUNT, 0.0)]
    producer.hold()
    producer.fill(memory.address, 7, COUNT * N)
    fake_gpu.reset()
    fake_gpu.fail_nth(n)
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(bench.offload, blocks, memory, producer)
        waited = not wait([batch], SOON).done
        fake_gpu.reset()
        producer.release()
        failure = batch.exception(LATE)
    if failure is None:
        assert batch.result().synchronize(LATE)
        assert content(blocks) == b"\x07" * COUNT * N
    else:
        failure.__traceback__ = None  # it would keep the blocks
        # No copy of the failed batch may land on what is written now.
        for block in blocks:
            write(block, b"\x55" * N)
        producer.synchronize()
        assert bench.read(memory) == b"\x07" * COUNT * N
        assert content(blocks) == b"\x55" * COUNT * N
    return failure, waited


# Of the producer, before the first copy and behind the last; and the fork and the end of a kernel.
EVENTS = {"plain": 3, "batch": 3, "kernel": 5}
COPIES = {
    "plain": {"cuMemcpyDtoHAsync": COUNT},
    "batch": {"cuMemcpyBatchAsync": 1},
    "kernel": {"cuLaunchKernel": 1},
}


@pytest.mark.parametrize("tiered", ["fake-plain", "fake-batch", "fake-kernel"], indirect=True)
def test_a_batch_that_fails_returns_only_when_none_of_its_copies_runs(
    tiered: Workbench, fake_gpu: FakeDriver
) -> None:
    tier = tiered.device.copy_tier
    arena = tiered.arena(2 * MIB)
    failed: dict[str, int] = {}
    for n in range(1, 100):
        failure, waited = fail_call(n, tiered, arena, fake_gpu)
        assert arena.stats().free_bytes == 2 * MIB
        if failure is None:
            assert not waited
            break
        assert isinstance(failure, DriverCallFailed)
        call = str(failure).split()[0]
        failed[call] = failed.get(call, 0) + 1
        # Whatever fails, the copy stream waits for the producer by then.
        if call in COPIES[tier]:
            assert waited
    assert failed["cuEventRecord"] == EVENTS[tier]
    assert {call: failed[call] for call in COPIES[tier]} == COPIES[tier]
