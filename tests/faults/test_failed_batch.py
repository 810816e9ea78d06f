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

N = 512


def fail_call(
    n: int, workbench: Workbench, arena: _native.Arena, fake_gpu: FakeDriver
) -> tuple[BaseException | None, bool]:
    """Fail the n-th call of a held batch of two copies; return the error, and whether it waited."""
    producer, memory = workbench.stream(), workbench.memory(b"\x01" * 2 * N)
    blocks = [block for [block] in arena.allocate_extents([N, N], 0.0)]
    producer.hold()
    producer.fill(memory.address, 7, 2 * N)
    fake_gpu.reset()
    fake_gpu.fail_nth(n)
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(workbench.offload, blocks, memory, producer)
        waited = not wait([batch], SOON).done
        fake_gpu.reset()
        producer.release()
        failure = batch.exception(LATE)
    if failure is None:
        assert batch.result().synchronize(LATE)
        assert content(blocks) == b"\x07" * 2 * N
    else:
        failure.__traceback__ = None  # it would keep the blocks
        # No copy of the failed batch may land on what is written now.
        for block in blocks:
            write(block, b"\x55" * N)
        producer.synchronize()
        assert workbench.read(memory) == b"\x07" * 2 * N
        assert content(blocks) == b"\x55" * 2 * N
    return failure, waited


@pytest.mark.parametrize("make_device", ["fake"], indirect=True)
def test_a_batch_that_fails_returns_only_when_none_of_its_copies_runs(
    workbench: Workbench, fake_gpu: FakeDriver
) -> None:
    arena = workbench.arena(2 * MIB)
    failed = {"cuMemcpyDtoHAsync": 0, "cuEventRecord": 0}
    for n in range(1, 100):
        failure, waited = fail_call(n, workbench, arena, fake_gpu)
        assert arena.stats().free_bytes == 2 * MIB
        if failure is None:
            assert not waited
            break
        assert isinstance(failure, DriverCallFailed)
        call = str(failure).split()[0]
        failed[call] = failed.get(call, 0) + 1
        if call == "cuMemcpyDtoHAsync":
            assert waited
    # One of the producer, one before the first copy and one behind the last.
    assert failed["cuEventRecord"] == 3
    assert failed["cuMemcpyDtoHAsync"] == 2
