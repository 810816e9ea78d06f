"""Plans: the same storages, moved out and in again and again."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import AlreadyOffloaded, ArenaExhausted, ArenaInUse, EngineClosed
from tests.transfer.storage_bits import random_bits, storage_bits

if TYPE_CHECKING:
    from pinferry import PinnedArena, TransferEngine

PROLOGUE = """
import torch
from pinferry import PinnedArena, TransferEngine
from pinferry.errors import AlreadyOffloaded, UnsupportedStorage
arena = PinnedArena("4MiB", device="cpu")
engine = TransferEngine(arena)
x = torch.ones(1024)
plan = engine.plan({"x": x})
"""


def run(program: str) -> None:
    """Run a program that a fault would end by a signal."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])


def test_cycles_move_the_same_bytes_and_take_no_new_room(
    arena: PinnedArena, engine: TransferEngine, torch_device: str
) -> None:
    states = {f"s{i}": random_bits(torch.float32, 100 * i, torch_device) for i in range(1, 6)}
    plan = engine.plan(states)
    assert plan.nbytes == sum(400 * i for i in range(1, 6))
    held = arena.stats()
    assert held.used_bytes >= plan.nbytes
    for cycle in range(20):
        before = {name: storage_bits(x) for name, x in states.items()}
        assert plan.offload().nbytes == plan.nbytes
        assert plan.offloaded
        with pytest.raises(RuntimeError, match=r"\As3 is offloaded"):
            states["s3"].sum()
        assert plan.reload().nbytes == plan.nbytes
        assert not plan.offloaded
        assert {name: storage_bits(x) for name, x in states.items()} == before
        states["s1"].fill_(cycle)
    now = arena.stats()
    assert (now.used_bytes, now.allocations) == (held.used_bytes, held.allocations)
    plan.close()
    assert arena.stats().used_bytes == 0


def test_an_offload_or_reload_too_many_does_nothing(
    engine: TransferEngine, torch_device: str
) -> None:
    x = torch.ones(8, device=torch_device)
    plan = engine.plan(x)
    assert plan.reload().nbytes == 0
    plan.offload()
    assert plan.offload().nbytes == 0
    plan.reload()
    assert plan.reload().nbytes == 0
    assert x.sum() == 8
    plan.close()


def test_a_plan_of_nothing_is_fine(engine: TransferEngine, torch_device: str) -> None:
    with engine.plan([torch.empty(0, device=torch_device)]) as plan:
        assert plan.nbytes == plan.offload().nbytes == plan.reload().nbytes == 0
        assert plan.names() == ()


@pytest.mark.parametrize("numel", [4000, 100])
def test_a_plan_follows_a_storage_that_was_resized(
    arena: PinnedArena, engine: TransferEngine, torch_device: str, numel: int
) -> None:
    x, y = torch.ones(1000, device=torch_device), torch.ones(10, device=torch_device)
    plan = engine.plan({"x": x, "y": y})
    x.resize_(numel)
    x.untyped_storage().resize_(numel * 4)
    x.fill_(3)
    assert plan.offload().nbytes == numel * 4 + 40
    plan.reload()
    assert torch.equal(x, torch.full((numel,), 3.0, device=torch_device))
    assert y.sum() == 10
    assert plan.nbytes == numel * 4 + 40
    plan.close()
    assert arena.stats().used_bytes == 0


@pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])
@pytest.mark.parametrize("verify", [None, "checksum"])
@pytest.mark.parametrize("access", ["raise", "readable"])
def test_a_plan_follows_a_storage_that_has_no_bytes_for_a_while(
    engine: TransferEngine, torch_device: str, compact: bool, verify: str | None, access: str
) -> None:
    x, y = torch.ones(1000, device=torch_device), torch.ones(10, device=torch_device)
    engine.verify = verify
    with engine.plan({"x": x, "y": y}, compact=compact) as plan:
        for numel in (0, 1000, 0):
            x.untyped_storage().resize_(numel * 4)
            if numel:
                x.fill_(numel)
            assert plan.offload(access=access).nbytes >= numel * 4 + 40
            plan.reload()
            assert y.sum() == 10
            assert numel == 0 or x.sum() == numel * 1000


@pytest.mark.parametrize("when", ["here", "away"])
def test_a_plan_leaves_out_what_is_gone(
    arena: PinnedArena, engine: TransferEngine, torch_device: str, when: str
) -> None:
    x, y = torch.ones(1000, device=torch_device), torch.ones(10, device=torch_device)
    plan = engine.plan({"x": x, "y": y})
    if when == "away":
        plan.offload()
    del x
    assert plan.names() == ("y",)
    plan.reload()
    assert plan.offload().nbytes == 40
    plan.reload()
    assert y.sum() == 10
    plan.close()
    assert arena.stats().used_bytes == 0


def test_a_plan_that_lacks_room_after_a_resize_moves_nothing(
    engine: TransferEngine, torch_device: str
) -> None:
    x, y = torch.ones(1000, device=torch_device), torch.ones(10, device=torch_device)
    plan = engine.plan({"x": x, "y": y})
    x.untyped_storage().resize_(5 * 2**20)
    with pytest.raises(ArenaExhausted):
        plan.offload()
    assert not plan.offloaded
    assert [x[:10].sum().item(), y.sum().item()] == [10, 10]
    x.untyped_storage().resize_(4000)
    plan.offload()
    plan.reload()
    assert x.sum() == 1000


def test_a_plan_whose_storages_are_away_does_not_close(
    arena: PinnedArena, engine: TransferEngine, torch_device: str
) -> None:
    x = torch.ones(8, device=torch_device)
    plan = engine.plan({"x": x})
    plan.offload()
    with pytest.raises(ArenaInUse, match="1 storage"):
        plan.close()
    plan.reload()
    plan.close()
    plan.close()
    assert arena.stats().used_bytes == 0
    assert x.sum() == 8
    for call in (plan.offload, plan.reload, plan.__enter__):
        with pytest.raises(EngineClosed):
            call()


def test_an_error_that_passes_through_a_plan_is_not_hidden(
    engine: TransferEngine, torch_device: str
) -> None:
    x = torch.ones(8, device=torch_device)
    plan = engine.plan(x)
    plan.offload()
    with pytest.raises(KeyError, match="body"), plan:
        raise KeyError("body")
    plan.reload()
    assert x.sum() == 8


def test_a_deferred_reload_of_a_plan_arrives_with_the_next_offload(
    engine: TransferEngine, torch_device: str
) -> None:
    x = random_bits(torch.float32, 1000, torch_device)
    before = storage_bits(x)
    plan = engine.plan({"x": x})
    for _ in range(3):
        plan.offload()
        plan.reload(defer=True)
        with pytest.raises(RuntimeError, match=r"\Ax is being reloaded"):
            x.sum()
    plan.offload()
    plan.reload()
    assert storage_bits(x) == before
    plan.close()


def test_a_forgotten_plan_keeps_what_is_away(engine: TransferEngine, torch_device: str) -> None:
    x = torch.ones(8, device=torch_device)
    plan = engine.plan({"x": x})
    plan.offload()
    kept = weakref.ref(plan)
    del plan
    gc.collect()
    found = kept()
    assert found is not None
    found.reload()
    assert x.sum() == 8
    del found
    gc.collect()
    assert kept() is None
    assert engine.arena.stats().used_bytes == 0


def test_a_plan_and_its_engine_do_not_mix(engine: TransferEngine, torch_device: str) -> None:
    x = torch.ones(8, device=torch_device)
    plan = engine.plan({"x": x})
    plan.offload()
    with pytest.raises(AlreadyOffloaded):
        engine.offload({"x": x})
    plan.reload()
    plan.close()


def test_a_plan_of_a_closed_engine_refuses_to_offload(
    engine: TransferEngine, torch_device: str
) -> None:
    x = torch.ones(8, device=torch_device)
    plan = engine.plan({"x": x})
    engine.close()
    with pytest.raises(EngineClosed):
        plan.offload()


def test_a_plan_refuses_a_storage_that_its_engine_has_taken_away() -> None:
    run(
        "engine.offload({'x': x})\n"
        "try:\n    plan.offload().synchronize()\n"
        "except AlreadyOffloaded:\n    pass\n"
        "else:\n    raise SystemExit('nothing was refused')\n"
        "engine.reload()\n"
        "assert x.sum() == 1024\n"
    )


def test_a_plan_refuses_a_storage_that_moved_to_shared_memory() -> None:
    run(
        "x.share_memory_()\n"
        "try:\n    plan.offload()\n"
        "except UnsupportedStorage:\n    pass\n"
        "else:\n    plan.reload()\n"
        "assert x.sum() == 1024\n"
    )
