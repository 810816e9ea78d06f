"""Arenas that are not pinned, on every device: slower on a GPU, and as right."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Backend
from tests.tiers import make_tiered
from tests.workbench import LATE, MIB, SOON, Workbench, content, random_bytes, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fake_driver import FakeDriver


@pytest.fixture(autouse=True)
def _unpinned_copies_are_meant(request: pytest.FixtureRequest) -> Iterator[None]:
    fake: FakeDriver | None = None
    if "fake_gpu" in request.fixturenames or request.node.callspec.params["make_device"] == "fake":
        fake = request.getfixturevalue("fake_gpu")
    yield
    if fake is not None:
        fake.tolerate("pageable")


def make_unpinned(device: _native.Device) -> _native.Arena:
    return _native.Arena(
        device=device,
        nbytes=8 * MIB,
        chunk_nbytes=2 * MIB,
        numa_node=None,
        huge_pages=False,
        threads=1,
        backend=Backend.UNPINNED,
    )


def test_nothing_is_locked(workbench: Workbench) -> None:
    arena = make_unpinned(workbench.device)
    assert arena.backend == "unpinned"
    assert arena.stats().locked_bytes == 0


@pytest.mark.parametrize("nbytes", [1, 4096, 3 * MIB + 5])
def test_bytes_come_and_go(workbench: Workbench, nbytes: int) -> None:
    arena, data = make_unpinned(workbench.device), random_bytes(nbytes)
    [blocks] = arena.allocate_extents([nbytes], 0.0)
    memory = workbench.memory(data)
    assert workbench.offload(blocks, memory).synchronize(LATE)
    assert content(blocks) == data
    other = workbench.memory(bytes(nbytes))
    assert workbench.reload(blocks, other).synchronize(LATE)
    assert workbench.read(other) == data


def test_copies_wait_for_the_streams_they_are_given(workbench: Workbench) -> None:
    arena, data = make_unpinned(workbench.device), random_bytes(9000)
    block, memory, held = arena.allocate(9000, 0.0), workbench.memory(data), workbench.stream()
    write(block, bytes(9000))
    held.hold()
    with ThreadPoolExecutor(1) as pool:  # a driver blocks the host until the bytes are there
        submitted = pool.submit(workbench.offload, block, memory, held)
        assert not any(each.result().done() for each in wait([submitted], SOON).done)
        assert content(block) == bytes(9000)
        held.release()
        assert submitted.result(LATE).synchronize(LATE)
    assert content(block) == data


def test_many_small_ranges_are_copied_one_by_one(fake_gpu: FakeDriver) -> None:
    device = make_tiered("fake", "kernel", fake_gpu)
    bench = Workbench(device, _native.CudaDevice(0))
    arena, data = make_unpinned(device), [random_bytes(700, i) for i in range(20)]
    blocks = [block for [block] in arena.allocate_extents([700] * 20, 0.0)]
    memory = bench.memory(b"".join(data))
    fake_gpu.reset()
    pieces = [
        _native.Piece(block, memory.address + (19 - i) * 700) for i, block in enumerate(blocks)
    ]
    ticket = _native.submit(
        device=device, direction=_native.Direction.TO_HOST, pieces=pieces, streams=[]
    )
    assert ticket.synchronize(LATE)
    assert [content(block) for block in blocks] == data[::-1]
    assert fake_gpu.calls("cuLaunchKernel") == fake_gpu.calls("cuMemcpyBatchAsync") == 0
    assert fake_gpu.alive("pageable") == len(blocks)
    bench.close()
