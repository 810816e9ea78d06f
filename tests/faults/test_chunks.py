"""Chunks that the driver refuses amid an arena's life."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry.errors import ArenaClosed, PinferryError, RegistrationFailed
from tests.workbench import LATE, MIB, retire_a_block

if TYPE_CHECKING:
    from tests.fake_driver import FakeDriver

codes = pytest.mark.parametrize("code", [2, 712, 999])


def make_arena(device: _native.Device, *, eager: bool = False) -> _native.Arena:
    """Make an arena of 2 MiB that grows to 8 MiB in chunks of 2 MiB."""
    return _native.Arena(
        device=device,
        nbytes=2 * MIB,
        max_nbytes=8 * MIB,
        chunk_nbytes=2 * MIB,
        numa_node=None,
        huge_pages=False,
        threads=1,
        eager=eager,
    )


@codes
@pytest.mark.parametrize("backend", ["registered", "driver"])
def test_a_chunk_is_made_whole_or_not_at_all(fake_gpu: FakeDriver, code: int, backend: str) -> None:
    if backend == "driver":
        fake_gpu.fail_call("cuMemHostRegister", 801)
    arena = make_arena(_native.CudaDevice(0))
    assert arena.backend == backend
    fake_gpu.reset()
    before, layout = fake_gpu.live(), arena.layout()
    for n in (1, 2):  # the context made current, the memory pinned
        fake_gpu.fail_nth(n, code)
        with pytest.raises(PinferryError):
            arena.make_chunk()
        fake_gpu.reset()
        assert (fake_gpu.live(), arena.layout()) == (before, layout)
    fake_gpu.fail_nth(3, code)
    assert arena.make_chunk()
    assert fake_gpu.calls() == 2
    fake_gpu.reset()
    assert arena.stats().locked_bytes == 4 * MIB


def test_a_failed_chunk_leaves_the_blocks_of_the_others_alone(fake_gpu: FakeDriver) -> None:
    arena = make_arena(_native.CudaDevice(0))
    block = arena.allocate(MIB, 0.0)
    memoryview(block)[:] = b"\7" * MIB
    fake_gpu.fail_call("cuMemHostRegister", 2)
    with pytest.raises(RegistrationFailed) as caught:
        arena.make_chunk()
    assert (caught.value.code, caught.value.requested) == (2, 2 * MIB)
    fake_gpu.reset()
    assert memoryview(block) == b"\7" * MIB
    assert arena.stats().failures == 0


@pytest.mark.parametrize("backend", ["registered", "driver"])
def test_trimming_unpins_and_growing_pins_again(fake_gpu: FakeDriver, backend: str) -> None:
    kind = {"registered": "registration", "driver": "host"}[backend]
    if backend == "driver":
        fake_gpu.fail_call("cuMemHostRegister", 801)
    before = fake_gpu.live()[kind]
    arena = make_arena(_native.CudaDevice(0))
    for _ in range(3):
        while arena.make_chunk():
            pass
        assert fake_gpu.live()[kind] - before == 4
        assert arena.trim(2 * MIB) == 6 * MIB
        assert fake_gpu.live()[kind] - before == 1
    fake_gpu.reset()


def test_a_chunk_is_not_trimmed_before_the_copies_in_it_have_ended(fake_gpu: FakeDriver) -> None:
    device = _native.CudaDevice(0)
    arena = make_arena(device)
    producer, ticket, _memory = retire_a_block(arena, 512)
    assert arena.stats().retired_bytes == 512
    assert arena.trim(0) == 0
    producer.release()
    assert ticket.synchronize(LATE)
    assert arena.trim(0) == 2 * MIB


def test_closing_amid_a_copy_gives_the_memory_back_after_it(fake_gpu: FakeDriver) -> None:
    device = _native.CudaDevice(0)
    before = fake_gpu.live()["registration"]
    arena = make_arena(device)
    producer, ticket, _memory = retire_a_block(arena, 512)
    arena.close()
    arena.close()
    assert fake_gpu.live()["registration"] - before == 1
    producer.release()
    assert ticket.synchronize(LATE)
    assert arena.stats().locked_bytes == 0
    assert fake_gpu.live()["registration"] == before
    with pytest.raises(ArenaClosed):
        arena.make_chunk()


def test_two_hundred_arenas_lose_no_registration(fake_gpu: FakeDriver) -> None:
    device = _native.CudaDevice(0)
    before = fake_gpu.live()
    for round_ in range(200):
        arena = make_arena(device, eager=round_ % 2 == 0)
        while arena.make_chunk():
            pass
        assert fake_gpu.live()["registration"] - before["registration"] == 4
        if round_ % 3:
            arena.close()
        del arena
        gc.collect()
        assert fake_gpu.live() == before


@pytest.mark.parametrize("call", ["cuMemHostUnregister", "cuCtxPushCurrent"])
def test_a_chunk_that_the_driver_does_not_give_up_is_never_used_again(
    fake_gpu: FakeDriver, call: str
) -> None:
    arena = make_arena(_native.CudaDevice(0), eager=True)
    fake_gpu.fail_call(call, 700)
    assert arena.trim(0) == 0
    fake_gpu.reset()
    assert arena.stats().capacity_bytes == 0
    while arena.make_chunk():
        pass
    assert arena.stats().capacity_bytes == 6 * MIB
    assert min(offset for kind, offset, _ in arena.layout() if kind == "free") == 2 * MIB
    arena.close()
    assert arena.stats().locked_bytes == 0
    fake_gpu.tolerate_leaks()


@pytest.mark.parametrize("how", ["drop the arena", "drop its last block"])
def test_memory_that_goes_while_a_stream_is_held_lets_other_threads_run(
    fake_gpu: FakeDriver, how: str
) -> None:
    device = _native.CudaDevice(0)
    arena, stream = make_arena(device), device.create_stream()
    block = arena.allocate(512, 0.0)
    if how == "drop its last block":
        arena.close()
    else:
        del block
    stream.hold()
    threading.Timer(0.1, stream.release).start()
    if how == "drop its last block":
        del block
    else:
        del arena
    assert fake_gpu.alive("blocked") == 0
    assert fake_gpu.alive("registration") == 0
