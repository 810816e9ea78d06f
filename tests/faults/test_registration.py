"""Memory that the driver refuses to register, and frees that fail."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import RegistrationFailed
from tests.workbench import LATE, MIB, content, random_bytes

if TYPE_CHECKING:
    from tests.fake_driver import FakeDriver
    from tests.workbench import Workbench

fake_only = pytest.mark.parametrize("make_device", ["fake"], indirect=True)


@fake_only
def test_where_registration_is_forbidden_the_driver_allocates_and_says_why(
    workbench: Workbench, fake_gpu: FakeDriver
) -> None:
    before = fake_gpu.live()
    fake_gpu.fail_call("cuMemHostRegister", 801)
    arena = workbench.arena(7 * MIB, 2 * MIB)
    fake_gpu.reset()
    assert arena.backend == "driver"
    assert "cuMemHostRegister" in arena.description
    assert "801" in arena.description
    assert fake_gpu.live() == {**before, "host": before["host"] + 4}
    assert arena.stats().locked_bytes == 7 * MIB
    data = random_bytes(7 * MIB)
    memory, target = workbench.memory(data), workbench.memory(bytes(7 * MIB))
    [extents] = arena.allocate_extents([7 * MIB], 0.0)
    assert [extent.nbytes for extent in extents].count(2 * MIB) == 3
    assert workbench.offload(extents, memory).synchronize(LATE)
    assert content(extents) == data
    assert workbench.reload(extents, target).synchronize(LATE)
    assert workbench.read(target) == data


@fake_only
@pytest.mark.parametrize("chunk", [1, 2, 3, 4])
def test_a_prohibition_at_any_chunk_unregisters_those_before(
    workbench: Workbench, fake_gpu: FakeDriver, chunk: int
) -> None:
    before = fake_gpu.live()
    fake_gpu.fail_nth(1 + chunk, 801)
    assert workbench.arena().backend == "driver"
    assert fake_gpu.live() == {**before, "host": before["host"] + 4}


@fake_only
@pytest.mark.parametrize("code", [1, 2, 201, 712, 999])
@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_any_other_refusal_is_an_error_and_rolled_back(
    workbench: Workbench, fake_gpu: FakeDriver, chunk: int, code: int
) -> None:
    fake_gpu.fail_nth(1 + chunk, code)
    before = fake_gpu.live()
    with pytest.raises(RegistrationFailed, match="cuMemHostRegister") as caught:
        workbench.arena()
    assert caught.value.code == code
    assert caught.value.requested == 8 * MIB
    assert fake_gpu.live() == before


@pytest.mark.parametrize(
    "call",
    [
        "cuMemHostUnregister",
        "cuMemFreeHost",
        "cuMemFree",
        "cuEventDestroy",
        "cuStreamDestroy",
        "cuDevicePrimaryCtxRelease",
        "cuCtxPopCurrent",
        "cuCtxPushCurrent",
        "cuStreamSynchronize",
        "cuEventQuery",
    ],
)
@pytest.mark.parametrize("backend", ["registered", "driver"])
def test_a_free_that_fails_neither_raises_nor_crashes(
    fake_gpu: FakeDriver, call: str, backend: str
) -> None:
    if backend == "driver":
        fake_gpu.fail_call("cuMemHostRegister", 801)
    device = _native.CudaDevice(0)
    arena = _native.Arena(
        device=device,
        nbytes=4 * MIB,
        chunk_nbytes=2 * MIB,
        numa_node=None,
        huge_pages=False,
        threads=1,
    )
    assert arena.backend == backend
    memory, stream = device.allocate(512), device.create_stream()
    block = arena.allocate(512, 0.0)
    ticket = _native.submit(
        device=device,
        direction=Direction.TO_HOST,
        pieces=[_native.Piece(block, memory.address)],
        streams=[stream.handle],
    )
    assert ticket.synchronize(LATE)
    fake_gpu.fail_call(call, 999)
    # An exception in a destructor would show as an unraisable one, which is an error here.
    del memory, stream, block, ticket
    arena.close()
    assert arena.stats().capacity_bytes == 0
    del arena, device
    gc.collect()
    fake_gpu.reset()
    fake_gpu.tolerate_leaks()
