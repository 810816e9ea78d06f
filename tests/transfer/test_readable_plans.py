"""Plans whose storages are readable while they are away."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import DeviceOutOfMemory
from tests.transfer.storage_bits import random_bits, storage_bits

if TYPE_CHECKING:
    from pinferry import PinnedArena, TransferEngine

SIZES = (1, 512, 513, 4096, 100, 7777)

States = dict[str, torch.Tensor]
both_layouts = pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])


@pytest.fixture
def states(torch_device: str) -> States:
    return {
        f"s{i}": random_bits(torch.uint8, size, torch_device, seed=i)
        for i, size in enumerate(SIZES)
    }


def bits(states: States) -> dict[str, bytes]:
    return {name: storage_bits(x) for name, x in states.items()}


@both_layouts
@pytest.mark.parametrize("release", ["record_stream", "ordered", "synchronous"])
def test_cycles_read_and_write_what_is_away(
    engine: TransferEngine, arena: PinnedArena, states: States, compact: bool, release: str
) -> None:
    with engine.plan(states, compact=compact) as plan:
        held = arena.stats().used_bytes
        for cycle in range(4):
            before = bits(states)
            plan.offload(access="readable", release=release)
            assert plan.offloaded
            assert bits(states) == before
            states["s3"][cycle:].fill_(cycle)
            before = bits(states)
            plan.reload()
            assert not plan.offloaded
            assert bits(states) == before
            plan.offload()
            with pytest.raises(RuntimeError, match="s3 is offloaded"):
                states["s3"].sum()
            plan.reload()
            assert bits(states) == before
        assert arena.stats().used_bytes == held
    assert arena.stats().used_bytes == 0


def test_an_access_asked_for_while_away_changes_nothing(
    engine: TransferEngine, states: States
) -> None:
    with engine.plan(states) as plan:
        plan.offload()
        assert plan.offload(access="readable").nbytes == 0
        with pytest.raises(RuntimeError, match="s3 is offloaded"):
            states["s3"].sum()
        plan.reload()
        plan.offload(access="readable")
        assert plan.offload().nbytes == 0
        states["s3"].sum()
        plan.reload()


@both_layouts
def test_a_deferred_reload_guards_what_was_readable(
    engine: TransferEngine, states: States, compact: bool
) -> None:
    plan = engine.plan(states, compact=compact)
    for _ in range(3):
        before = bits(states)
        plan.offload(access="readable")
        states["s5"].zero_()
        before["s5"] = bytes(SIZES[5])
        ticket = plan.reload(defer=True)
        with pytest.raises(RuntimeError, match="s5 is being reloaded"):
            states["s5"].sum()
        ticket.wait()
        assert bits(states) == before
        states["s5"].fill_(3)
    plan.close()


def test_a_deferred_reload_of_an_engine_guards_what_was_readable(
    engine: TransferEngine, arena: PinnedArena, states: States
) -> None:
    before = bits(states)
    engine.offload(states, access="readable")
    ticket = engine.reload(defer=True)
    with pytest.raises(RuntimeError, match="s1 is being reloaded"):
        states["s1"].clone()
    ticket.synchronize()
    assert bits(states) == before
    del ticket
    gc.collect()
    assert arena.stats().used_bytes == 0


@both_layouts
@pytest.mark.parametrize("nbytes", [0, 400, 9000], ids=["emptied", "shrunk", "grown"])
@pytest.mark.parametrize("cycled", [False, True], ids=["first", "later"])
def test_what_is_resized_while_away_is_here_and_the_others_come_back(
    engine: TransferEngine, states: States, compact: bool, nbytes: int, cycled: bool
) -> None:
    plan = engine.plan(states, compact=compact)
    if cycled:
        plan.offload()
        plan.reload()
    before = bits(states)
    plan.offload(access="readable")
    states["s3"].untyped_storage().resize_(nbytes)
    kept = min(nbytes, SIZES[3])
    before["s3"] = before["s3"][:kept]
    assert plan.offloaded
    for _ in range(2):
        plan.reload()
        assert not plan.offloaded
        now = bits(states)
        assert len(now["s3"]) == nbytes
        now["s3"] = now["s3"][:kept]
        assert now == before
        plan.offload()
        assert plan.offloaded
    plan.reload()
    plan.close()
    assert engine.arena.stats().used_bytes == 0


@both_layouts
def test_a_plan_of_which_all_was_resized_is_here(
    engine: TransferEngine, arena: PinnedArena, torch_device: str, compact: bool
) -> None:
    x, y = (torch.arange(100.0, device=torch_device) for _ in range(2))
    plan = engine.plan([x, y], compact=compact)
    plan.offload(access="readable")
    for each in (x, y):
        each.resize_(200)
    assert not plan.offloaded
    assert plan.reload().nbytes == 0
    assert plan.offload().nbytes == 1600
    plan.reload()
    assert x[:100].tolist() == y[:100].tolist() == list(range(100))
    plan.close()
    assert arena.stats().used_bytes == 0


def test_a_reload_that_fails_beside_a_resized_storage_can_be_done_again(
    engine: TransferEngine, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = engine.plan(states, compact=True)
    before = bits(states)
    plan.offload(access="readable")
    states["s3"].untyped_storage().resize_(9000)

    def failing(*arguments: object, **options: object) -> object:
        raise DeviceOutOfMemory("no room", requested=1)

    monkeypatch.setattr("pinferry.transfer.mover.bring", failing)
    for _ in range(2):
        with pytest.raises(DeviceOutOfMemory):
            plan.reload()
        assert plan.offloaded
    monkeypatch.undo()
    del states["s0"], before["s0"]
    gc.collect()
    plan.reload()
    before["s3"] += storage_bits(states["s3"])[SIZES[3] :]
    assert bits(states) == before
    plan.close()


@both_layouts
@pytest.mark.parametrize("gone", ["s0", "s3", "s5"])
def test_what_dies_while_readable_leaves_the_others_alone(
    engine: TransferEngine, states: States, compact: bool, gone: str
) -> None:
    plan = engine.plan(states, compact=compact)
    plan.offload(access="readable")
    del states[gone]
    gc.collect()
    before = bits(states)
    plan.reload()
    assert bits(states) == before
    plan.offload(access="readable")
    assert bits(states) == before
    plan.reload()
    plan.close()


@pytest.mark.parametrize("others", [True, False], ids=["of-several", "alone"])
def test_what_left_with_an_engine_after_a_resize_is_not_taken_for_the_plan_s(
    engine: TransferEngine, states: States, others: bool
) -> None:
    """It was given memory of its own, so what the plan has of it is old."""
    if not others:
        states = {"s3": states["s3"]}
    x = states["s3"]
    with engine.plan(states) as plan:
        plan.offload(access="readable")
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(x.numel())
        x.fill_(7)
        before = bits(states)
        engine.offload({"s3": x})
        plan.reload()
        assert engine.offloaded_names() == ("s3",)
        engine.reload()
        assert bits(states) == before
        plan.offload()
        plan.reload()
        assert bits(states) == before
