"""Storages that die, change or are replaced while they are away; engines that are forgotten."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch

from pinferry import PinnedArena, TransferEngine, _native
from pinferry.errors import NotOffloaded, StorageChanged, TransferError
from tests.transfer.storage_bits import random_bits, storage_bits


def test_a_storage_that_died_while_away_gives_its_blocks_back(
    engine: TransferEngine, torch_device: str
) -> None:
    dying, staying = (torch.ones(2**18, device=torch_device) for _ in range(2))
    engine.offload({"dying": dying, "staying": staying}).synchronize()
    del dying
    assert engine.offloaded_names() == ("staying",)
    assert engine.offloaded_bytes == engine.arena.stats().used_bytes == 2**20
    engine.reload()
    assert staying.sum() == 2**18


def test_blocks_of_the_dead_make_room_for_the_next_offload(
    engine: TransferEngine, torch_device: str
) -> None:
    x = torch.zeros(0, device=torch_device)
    for value in range(4):
        x = torch.full((3 * 2**18,), float(value), device=torch_device)
        engine.offload(x)  # 3 of 4 MiB: only one fits
    engine.reload()
    assert x[0] == 3


def test_a_view_keeps_an_offloaded_storage_alive(engine: TransferEngine, torch_device: str) -> None:
    x = torch.arange(100.0, device=torch_device)
    view = x[10:13]
    engine.offload({"x": x})
    del x
    gc.collect()
    assert engine.offloaded_names() == ("x",)
    engine.reload()
    assert view.tolist() == [10, 11, 12]


def test_a_new_storage_at_a_dead_one_s_address_is_another_one(
    engine: TransferEngine, torch_device: str
) -> None:
    addresses: set[int] = set()
    reused = 0
    for value in range(300):
        x = torch.full((64,), float(value), device=torch_device)
        key = x.untyped_storage()._cdata
        reused += key in addresses
        addresses.add(key)
        assert not engine.is_offloaded(x.untyped_storage())
        assert x[0] == value
        if value % 3 == 0:
            engine.offload({f"x{value}": x})
            assert engine.offloaded_names() == (f"x{value}",)
        del x
    assert engine.offloaded_bytes == 0
    assert engine.arena.stats().used_bytes == 0
    assert reused, "the test never saw an address twice"


@pytest.mark.parametrize("torch_device", ["cpu"], indirect=True)
def test_a_storage_resized_while_away_is_refused_and_can_be_sized_back(
    engine: TransferEngine, torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The CPU refuses to resize what is guarded, so the size is changed under the guard.
    x, other = torch.ones(8), torch.full((8,), 2.0)
    engine.offload({"x": x, "other": other})
    [parked, _] = engine._away.copy().values()
    monkeypatch.setattr(parked, "nbytes", 16)
    with pytest.raises(StorageChanged, match=r"\Ax was resized from 16 to 32 bytes"):
        engine.reload()
    assert engine.offloaded_names() == ("x", "other")
    monkeypatch.undo()
    engine.reload()
    assert [x.sum().item(), other.sum().item()] == [8, 16]


@pytest.mark.gpu
@pytest.mark.parametrize("torch_device", ["cuda:0"], indirect=True)
def test_a_gpu_storage_emptied_while_away_is_refused(
    engine: TransferEngine, torch_device: str
) -> None:
    x, other = torch.ones(8, device=torch_device), torch.ones(8, device=torch_device)
    engine.offload({"x": x, "other": other})
    try:
        x.untyped_storage().resize_(0)
    except RuntimeError as error:
        assert "x is offloaded" in str(error)  # noqa: PT017  -- refusing is as good
        engine.reload()
        assert x.sum() == 8
        return
    with pytest.raises(TransferError, match=r"\Ax was "):
        engine.reload()
    engine.reload({"other": other})
    assert other.sum() == 8
    del x
    assert engine.offloaded_names() == ()


def test_data_rebound_while_away_leaves_the_new_data_alone(
    engine: TransferEngine, torch_device: str
) -> None:
    parameter = torch.nn.Parameter(torch.ones(8, device=torch_device))
    engine.offload({"p": parameter})
    parameter.data = torch.full((8,), 5.0, device=torch_device)
    assert parameter.sum() == 40
    assert engine.offloaded_names() == ()
    assert engine.reload().nbytes == 0
    with pytest.raises(NotOffloaded):
        engine.reload({"p": parameter})
    engine.offload({"p": parameter})
    engine.reload()
    assert parameter.sum() == 40


def test_the_old_data_comes_back_if_somebody_kept_it(
    engine: TransferEngine, torch_device: str
) -> None:
    parameter = torch.nn.Parameter(torch.ones(8, device=torch_device))
    old = parameter.data
    engine.offload({"p": parameter})
    parameter.data = torch.zeros(8, device=torch_device)
    engine.reload()
    assert [old.sum().item(), parameter.sum().item()] == [8, 0]


def test_swapping_tensors_while_away_is_no_matter(
    engine: TransferEngine, torch_device: str
) -> None:
    a, b = torch.ones(8, device=torch_device), torch.full((8,), 2.0, device=torch_device)
    engine.offload({"a": a})
    torch.utils.swap_tensors(a, b)  # type: ignore[no-untyped-call]
    assert a.sum() == 16
    with pytest.raises(RuntimeError, match=r"\Aa is offloaded"):
        b.sum()
    engine.reload({"b": b})
    assert b.sum() == 8


def test_a_forgotten_engine_keeps_what_is_away(arena: PinnedArena, torch_device: str) -> None:
    engine = TransferEngine(arena)
    x = random_bits(torch.float32, 1000, torch_device)
    before = storage_bits(x)
    engine.offload({"x": x})
    kept = weakref.ref(engine)
    del engine
    gc.collect()
    found = kept()
    assert found is not None
    assert found.offloaded_names() == ("x",)
    found.reload()
    assert storage_bits(x) == before
    del found
    gc.collect()
    assert kept() is None


def test_a_forgotten_engine_keeps_what_is_arriving(arena: PinnedArena, torch_device: str) -> None:
    engine = TransferEngine(arena)
    x = random_bits(torch.float32, 1000, torch_device)
    engine.offload({"x": x})
    engine.reload(defer=True).native.synchronize(None)  # the copy has ended; nobody waited
    kept = weakref.ref(engine)
    del engine
    gc.collect()
    found = kept()
    assert found is not None, "nobody can bring x back any more: its bytes are lost"
    found.settle()


def test_a_forgotten_engine_goes_once_all_it_held_is_dead(
    arena: PinnedArena, torch_device: str
) -> None:
    engine = TransferEngine(arena)
    x = torch.ones(8, device=torch_device)
    engine.offload(x)
    kept = weakref.ref(engine)
    del x, engine
    TransferEngine(arena).offload(torch.ones(8, device=torch_device))
    gc.collect()
    assert kept() is None, "its arena can never be given back"


def test_a_block_still_being_written_is_retired_not_free(
    arena: PinnedArena, engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x = torch.ones(3 * 2**18, device=torch_device)
    stream.hold()
    ticket = engine.offload(x, streams=[stream])
    del x
    assert engine.offloaded_bytes == 0
    assert arena.stats().retired_bytes == 3 * 2**20
    assert arena.try_alloc("2MiB") is None
    stream.release()
    ticket.synchronize(30.0)
    assert arena.stats().retired_bytes == 0
    assert arena.alloc("4MiB").nbytes == 4 * 2**20


@pytest.mark.gpu
def test_a_tensor_may_outlive_the_streams_that_its_memory_was_copied_on() -> None:
    """PyTorch's allocator records an event on each of them when the tensor dies."""
    program = """
import gc, torch
from pinferry import PinnedArena, TransferEngine
x = torch.ones(1 << 20, device="cuda:0")
with PinnedArena("4MiB", device="cuda:0") as arena, TransferEngine(arena) as engine:
    engine.offload(x)
    engine.reload(defer=True).wait()
del arena, engine
gc.collect()
del x
torch.cuda.synchronize()
assert torch.ones(1 << 20, device="cuda:0").sum().item() == 1 << 20
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_nobody_holds_goes_at_once_and_not_with_the_garbage_collector(
    torch_device: str,
) -> None:
    def use() -> list[weakref.ref[object]]:
        arena = PinnedArena("1MiB", device=torch_device)
        engine = TransferEngine(arena)
        x = torch.ones(1000, device=torch_device)
        engine.offload(x)
        engine.reload(defer=True).wait()
        plan = engine.plan({"x": x})
        plan.offload()
        plan.reload()
        return [weakref.ref(arena), weakref.ref(engine), weakref.ref(plan)]

    gc.disable()
    try:
        assert [ref() for ref in use()] == [None] * 3
    finally:
        gc.enable()
