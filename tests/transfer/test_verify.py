"""An engine that verifies refuses what did not come back as it left, and says which and where."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import TransferEngine, Verify
from pinferry.errors import ArenaExhausted, ChecksumMismatch
from pinferry.transfer.checksum import memory_at
from pinferry.transfer.moves import bring
from tests.transfer.host_copies import changed_byte, flip
from tests.transfer.storage_bits import random_bits, storage_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinferry import PinnedArena

SIZES = (1, 512, 513, 4096, 7, 2**20 + 3)
# A storage and the byte of it that changes: its first, its last, some amid; in whole words of four
# bytes and in what is left of one.
PLACES = [
    ("s0", 0),
    ("s1", 0),
    ("s1", -1),
    ("s2", 512),
    ("s2", 511),
    ("s3", 2000),
    ("s4", 0),
    ("s4", 4),
    ("s4", 5),
    ("s4", 6),
    ("s5", 0),
    ("s5", 12345),
    ("s5", -4),
    ("s5", -1),
]
both_layouts = pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])

States = dict[str, torch.Tensor]


@pytest.fixture
def states(torch_device: str) -> States:
    return {
        f"s{i}": random_bits(torch.uint8, size, torch_device, seed=i)
        for i, size in enumerate(SIZES)
    }


@pytest.fixture
def engine(engine: TransferEngine) -> TransferEngine:
    engine.verify = Verify.CHECKSUM
    return engine


def bits(states: States) -> dict[str, bytes]:
    return {name: storage_bits(x) for name, x in states.items()}


def assert_refused(reload: Callable[[], object], name: str) -> None:
    with pytest.raises(ChecksumMismatch, match="changed there or on the way out") as caught:
        reload()
    assert caught.value.name == name
    assert str(caught.value).startswith(f"{name} did not come back as it left")


@both_layouts
@pytest.mark.parametrize("access", ["raise", "readable"])
def test_what_nobody_touched_comes_back_as_ever(
    engine: TransferEngine, states: States, compact: bool, access: str
) -> None:
    before = bits(states)
    engine.offload(states, access=access)
    engine.reload()
    assert bits(states) == before
    with engine.plan(states, compact=compact, immutable=["s2", "s4"]) as plan:
        for cycle in range(3):
            states["s3"].fill_(cycle)
            before = bits(states)
            plan.offload(access=access)
            plan.reload()
            assert bits(states) == before


@pytest.mark.parametrize(("name", "index"), PLACES)
def test_a_changed_byte_is_told_by_an_engine(
    engine: TransferEngine, states: States, name: str, index: int
) -> None:
    before = bits(states)
    engine.offload(states).synchronize()
    with changed_byte(engine, name, index):
        assert_refused(engine.reload, name)
        assert engine.offloaded_names() == tuple(states)
        with pytest.raises(RuntimeError, match="s3 is offloaded"):
            states["s3"].sum()
    engine.reload()
    assert bits(states) == before


@both_layouts
@pytest.mark.parametrize(("name", "index"), PLACES)
def test_a_changed_byte_is_told_by_a_plan(
    engine: TransferEngine, states: States, compact: bool, name: str, index: int
) -> None:
    before = bits(states)
    plan = engine.plan(states, compact=compact)
    for _ in range(2):  # a slab is read as one range from the second time on
        plan.offload().synchronize()
        with changed_byte(plan, name, index):
            assert_refused(plan.reload, name)
            assert plan.offloaded
            with pytest.raises(RuntimeError, match="s3 is offloaded"):
                states["s3"].sum()
        plan.reload()
        assert bits(states) == before
    plan.close()


@both_layouts
@pytest.mark.parametrize(("name", "index"), PLACES[::3])
def test_a_changed_byte_can_be_taken_as_it_is(
    engine: TransferEngine, states: States, compact: bool, name: str, index: int
) -> None:
    plan = engine.plan(states, compact=compact)
    before = bits(states)
    plan.offload().synchronize()
    flip(plan, name, index)
    assert_refused(plan.reload, name)
    engine.verify = None
    plan.reload()
    now = bits(states)
    expected = bytearray(before[name])
    expected[index] ^= 255
    assert now.pop(name) == expected
    before.pop(name)
    assert now == before
    plan.close()


@both_layouts
@pytest.mark.parametrize("name", ["s0", "s3", "s5"])
def test_a_copy_back_that_goes_wrong_is_told_apart(
    engine: TransferEngine,
    states: States,
    monkeypatch: pytest.MonkeyPatch,
    compact: bool,
    name: str,
) -> None:
    before = bits(states)
    plan = engine.plan(states, compact=compact)
    plan.offload()

    def wrong(device: object, cargo: object, **options: object) -> object:
        ticket, fresh = bring(device, cargo, **options)  # type: ignore[arg-type]
        ticket.synchronize(None)
        addresses = cargo.storage_addresses(fresh.addresses, packed=fresh.packed)  # type: ignore[attr-defined]
        names = cargo.names  # type: ignore[attr-defined]
        memory_at(states[name].device, addresses[names.index(name)], 1).bitwise_not_()
        return ticket, fresh

    with monkeypatch.context() as patch:
        patch.setattr("pinferry.transfer.mover.bring", wrong)
        with pytest.raises(ChecksumMismatch, match="the copy back went wrong") as caught:
            plan.reload()
    assert caught.value.name == name
    assert plan.offloaded
    plan.reload()
    assert bits(states) == before
    plan.close()


def test_what_lies_in_several_pieces_is_compared_too(
    engine: TransferEngine, arena: PinnedArena, torch_device: str
) -> None:
    blocks = []
    while (block := arena.try_alloc("64KiB")) is not None:
        blocks.append(block)
    for block in blocks[::2]:
        block.free()
    x = random_bits(torch.uint8, 100 * 1024 + 1, torch_device)
    before = storage_bits(x)
    with pytest.raises(ArenaExhausted):
        engine.offload({"x": x}, access="readable").synchronize()
    for index in (0, 64 * 1024 - 1, 64 * 1024, -1):
        engine.offload({"x": x}).synchronize()
        with changed_byte(engine, "x", index):
            with pytest.raises(ChecksumMismatch, match="in several pieces") as caught:
                engine.reload()
            assert caught.value.name == "x"
        engine.reload()
        assert storage_bits(x) == before


def test_what_was_written_while_readable_is_a_change_too(
    engine: TransferEngine, states: States
) -> None:
    engine.offload(states, access="readable")
    states["s3"][7] += 1
    assert_refused(engine.reload, "s3")
    states["s3"][7] -= 1
    engine.reload()


@both_layouts
def test_what_is_left_of_a_slab_is_compared_where_it_lies(
    engine: TransferEngine, torch_device: str, compact: bool
) -> None:
    gone, left = (random_bits(torch.uint8, 700, torch_device, seed=i) for i in range(2))
    before = storage_bits(left)
    with engine.plan({"gone": gone, "left": left}, compact=compact) as plan:
        del gone
        gc.collect()
        for _ in range(2):
            plan.offload()
            plan.reload()
            assert storage_bits(left) == before
