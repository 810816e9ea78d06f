"""Small storages of a plan, as slices of one slab from the first reload on."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from pinferry import PinnedArena, TransferEngine, _native
from pinferry.errors import DeviceOutOfMemory, InvalidArgument
from tests.transfer.storage_bits import random_bits, storage_bits
from tests.workbench import LATE, SOON

SIZES = (1, 512, 513, 4096, 100, 7777)


def make_states(device: str) -> dict[str, torch.Tensor]:
    return {f"s{i}": random_bits(torch.uint8, size, device, seed=i) for i, size in enumerate(SIZES)}


def bits(states: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: storage_bits(x) for name, x in states.items()}


def offsets(states: dict[str, torch.Tensor]) -> list[int]:
    addresses = [x.data_ptr() for x in states.values()]
    return [address - addresses[0] for address in addresses]


def side_by_side(sizes: tuple[int, ...]) -> list[int]:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + -(-size // 512) * 512)
    return ends[:-1]


def test_storages_lie_side_by_side_after_the_first_reload_and_move_as_one_range(
    engine: TransferEngine, torch_device: str
) -> None:
    states = make_states(torch_device)
    before = bits(states)
    with engine.plan(states, compact=True) as plan:
        assert plan.offload().nbytes == sum(SIZES)
        plan.reload()
        assert offsets(states) == side_by_side(SIZES)
        assert bits(states) == before
        whole = side_by_side((*SIZES, 0))[-1]
        for cycle in range(5):
            states["s3"].fill_(cycle)
            before = bits(states)
            assert plan.offload().nbytes == whole
            assert plan.reload().nbytes == whole
            assert bits(states) == before
            assert offsets(states) == side_by_side(SIZES)


def test_every_slice_begins_as_a_block_of_the_allocator_would(
    engine: TransferEngine, torch_device: str
) -> None:
    states = make_states(torch_device)
    with engine.plan(states, compact=True) as plan:
        plan.offload()
        plan.reload()
        assert {offset % 512 for offset in offsets(states)} == {0}


def test_only_what_is_named_and_small_shares_a_slab(
    torch_device: str,
) -> None:
    states = make_states(torch_device)
    states["large"] = torch.zeros(17 * 2**20, dtype=torch.uint8, device=torch_device)
    before = bits(states)
    names = ["s1", "s2", "s4", "large"]
    with (
        PinnedArena("32MiB", device=torch_device) as arena,
        TransferEngine(arena) as engine,
        engine.plan(states, compact=names) as plan,
    ):
        plan.offload()
        plan.reload()
        named = {name: states[name] for name in ("s1", "s2", "s4")}
        assert offsets(named) == side_by_side((512, 513, 100))
        plan.offload()
        assert plan.reload().nbytes == sum(SIZES) - 512 - 513 - 100 + 2048 + 17 * 2**20
    assert bits(states) == before


@pytest.mark.parametrize("compact", [["s1", "nobody"], "s1", 3, None], ids=str)
def test_what_is_to_be_compacted_is_named(
    engine: TransferEngine, arena: PinnedArena, torch_device: str, compact: object
) -> None:
    with pytest.raises(InvalidArgument, match="compact"):
        engine.plan(make_states(torch_device), compact=compact)  # type: ignore[arg-type]
    assert arena.stats().used_bytes == 0


def test_slices_that_die_leave_the_others_alone(engine: TransferEngine, torch_device: str) -> None:
    states = make_states(torch_device)
    plan = engine.plan(states, compact=True)
    plan.offload()
    plan.reload()
    for gone in ("s0", "s3", "s5", "s1"):  # at the front, amid, at the end
        del states[gone]
        gc.collect()
        before = bits(states)
        plan.offload()
        assert plan.names() == tuple(states)
        plan.reload()
        assert bits(states) == before


def test_slices_that_die_while_away_leave_the_others_alone(
    engine: TransferEngine, torch_device: str
) -> None:
    states = make_states(torch_device)
    plan = engine.plan(states, compact=True)
    before = bits(states)
    for gone in ("s0", "s4"):
        plan.offload()
        del states[gone], before[gone]
        gc.collect()
        plan.reload()
        assert bits(states) == before


def test_a_slice_that_was_resized_gets_room_in_the_next_slab(
    engine: TransferEngine, torch_device: str
) -> None:
    states = make_states(torch_device)
    with engine.plan(states, compact=True) as plan:
        plan.offload()
        plan.reload()
        states["s2"].untyped_storage().resize_(6000)
        states["s2"] = states["s2"].new_empty(0).set_(states["s2"].untyped_storage())
        states["s2"].fill_(9)
        before = bits(states)
        plan.offload()
        plan.reload()
        assert bits(states) == before
        assert offsets(states) == side_by_side((1, 512, 6000, 4096, 100, 7777))


def test_the_engine_moves_a_slice_alone(engine: TransferEngine, torch_device: str) -> None:
    states = make_states(torch_device)
    before = bits(states)
    with engine.plan(states, compact=True) as plan:
        plan.offload()
        plan.reload()
        engine.offload({"s2": states["s2"]})
        with pytest.raises(RuntimeError, match="s2 is offloaded"):
            states["s2"].sum()
        engine.reload()
        assert bits(states) == before
        plan.offload()  # no longer one range
        plan.reload()
        assert bits(states) == before
        assert offsets(states) == side_by_side(SIZES)


def test_a_deferred_reload_hands_slices_out_when_it_is_waited_for(
    engine: TransferEngine, torch_device: str
) -> None:
    states = make_states(torch_device)
    before = bits(states)
    plan = engine.plan(states, compact=True)
    plan.offload()
    ticket = plan.reload(defer=True)
    with pytest.raises(RuntimeError, match="s1 is being reloaded"):
        states["s1"].sum()
    ticket.wait()
    assert bits(states) == before
    assert offsets(states) == side_by_side(SIZES)


class NoSlabs:
    """A group for whose slabs the device has no room."""

    def __init__(self, group: object) -> None:
        self._group = group

    def __getattr__(self, name: str) -> object:
        return getattr(self._group, name)

    def allocate(self, stream_id: int | None, *, slabs: bool) -> object:
        if slabs:
            raise DeviceOutOfMemory("no room", requested=1)
        return self._group.allocate(stream_id, slabs=False)  # type: ignore[attr-defined]


def test_where_there_is_no_room_for_a_slab_each_storage_gets_its_own(
    engine: TransferEngine, torch_device: str
) -> None:
    states = make_states(torch_device)
    before = bits(states)
    plan = engine.plan(states, compact=True)
    plan.offload()
    assert plan._cargo is not None
    plan._cargo.group = NoSlabs(plan._cargo.group)  # type: ignore[assignment]
    assert plan.reload().nbytes == sum(SIZES)
    assert bits(states) == before
    assert offsets(states) != side_by_side(SIZES)


def test_a_smaller_plan_does_not_take_the_slab_of_a_larger_one_for_its_own(
    engine: TransferEngine, torch_device: str
) -> None:
    states = make_states(torch_device)
    before = bits(states)
    front = {name: states[name] for name in ("s0", "s1")}
    with engine.plan(states, compact=True) as plan, engine.plan(front, compact=True) as part:
        plan.offload()
        plan.reload()
        part.offload()
        part.reload()
        plan.offload()
        plan.reload()
        part.offload()
        part.reload()
    assert bits(states) == before


@pytest.mark.gpu
@pytest.mark.parametrize("torch_device", ["cuda:0"], indirect=True)
def test_a_slab_goes_back_with_its_last_slice(engine: TransferEngine, torch_device: str) -> None:
    gc.collect()
    base = torch.cuda.memory_allocated()
    states = make_states(torch_device)
    plan = engine.plan(states, compact=True)
    plan.offload().synchronize(LATE)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == base
    plan.reload()
    slab = torch.cuda.memory_allocated() - base
    assert slab == side_by_side((*SIZES, 0))[-1]
    for name in list(states)[:-1]:
        del states[name]
    gc.collect()
    assert torch.cuda.memory_allocated() - base == slab
    states.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() == base


@pytest.mark.gpu
@pytest.mark.parametrize("torch_device", ["cuda:0"], indirect=True)
def test_a_slab_that_dies_outside_an_offload_waits_for_whoever_reads_a_slice(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    states = make_states(torch_device)
    plan = engine.plan(states, compact=True)
    plan.offload()
    plan.reload()
    plan.close()
    seen = torch.zeros(4096, dtype=torch.uint8, device=torch_device)
    before = storage_bits(states["s3"])
    torch.cuda.synchronize()
    stream.hold()
    stream.copy(seen.data_ptr(), states["s3"].data_ptr(), 4096)
    killer = threading.Thread(target=states.clear)
    killer.start()
    killer.join(SOON)
    waited = killer.is_alive()
    stream.release()
    killer.join(LATE)
    stream.synchronize()
    assert waited
    assert storage_bits(seen) == before
