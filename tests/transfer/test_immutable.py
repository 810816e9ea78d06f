"""Storages of a plan that nobody writes to: copied to the arena once."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

from tests.transfer.storage_bits import random_bits, storage_bits

if TYPE_CHECKING:
    from pathlib import Path

    from pinferry import TransferEngine

SIZES = (1, 512, 513, 4096, 100, 7777, 3)

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
@pytest.mark.parametrize("access", ["raise", "readable"])
def test_they_are_copied_once_and_come_back_every_time(
    engine: TransferEngine, states: States, compact: bool, release: str, access: str
) -> None:
    before = bits(states)
    with engine.plan(states, compact=compact, immutable=True) as plan:
        assert plan.offload(release=release, access=access).nbytes == sum(SIZES)
        assert plan.reload().nbytes >= sum(SIZES)
        for _ in range(3):
            assert plan.offload(release=release, access=access).nbytes == 0
            assert plan.offloaded
            if access == "readable":
                assert bits(states) == before
            else:
                with pytest.raises(RuntimeError, match="s3 is offloaded"):
                    states["s3"].sum()
            assert plan.reload().nbytes >= sum(SIZES)
            assert bits(states) == before


@both_layouts
def test_what_comes_back_is_what_was_copied_first(
    engine: TransferEngine, states: States, compact: bool
) -> None:
    before = bits(states)
    with engine.plan(states, compact=compact, immutable=True) as plan:
        plan.offload()
        plan.reload()
        states["s3"].fill_(9)
        states["s6"].fill_(9)
        plan.offload()
        plan.reload()
        assert bits(states) == before


def test_what_is_written_while_readable_stays_written(
    engine: TransferEngine, states: States
) -> None:
    with engine.plan(states, immutable=True) as plan:
        for value in (1, 2):
            plan.offload(access="readable")
            states["s3"].fill_(value)
            plan.reload()
            assert bool((states["s3"] == value).all())
            plan.offload()
            plan.reload()
            assert bool((states["s3"] == value).all())


@both_layouts
@pytest.mark.parametrize("nbytes", [300, 9000], ids=["shrunk", "grown"])
def test_what_was_resized_is_copied_anew(
    engine: TransferEngine, states: States, compact: bool, nbytes: int
) -> None:
    plan = engine.plan(states, compact=compact, immutable=True)
    plan.offload()
    plan.reload()
    states["s3"].untyped_storage().resize_(nbytes)
    states["s3"] = states["s3"].new_empty(0).set_(states["s3"].untyped_storage())
    states["s3"].fill_(9)
    before = bits(states)
    assert plan.offload().nbytes >= nbytes
    plan.reload()
    assert bits(states) == before
    assert plan.offload().nbytes == 0
    plan.reload()
    assert bits(states) == before
    plan.close()


@both_layouts
@pytest.mark.parametrize("gone", ["s0", "s3", "s6"])
@pytest.mark.parametrize("when", ["before", "here", "away"])
def test_when_one_dies_the_others_are_not_copied_again(
    engine: TransferEngine, states: States, compact: bool, gone: str, when: str
) -> None:
    plan = engine.plan(states, compact=compact, immutable=True)
    left = sum(SIZES) - states[gone].numel()
    if when != "before":
        plan.offload()
    if when == "here":
        plan.reload()
    del states[gone]
    gc.collect()
    before = bits(states) if when != "away" else {}
    assert plan.offload().nbytes == (left if when == "before" else 0)
    plan.reload()
    before = before or bits(states)
    assert bits(states) == before
    assert plan.offload().nbytes == 0
    plan.reload()
    assert bits(states) == before
    plan.close()


def test_a_plan_made_anew_copies_anew(engine: TransferEngine, states: States) -> None:
    for value in range(3):
        with engine.plan(states, immutable=True) as plan:
            states["s3"].fill_(value)
            before = bits(states)
            assert plan.offload().nbytes == sum(SIZES)
            plan.reload()
            assert plan.offload().nbytes == 0
            plan.reload()
            assert bits(states) == before


def test_two_plans_copy_for_themselves(engine: TransferEngine, states: States) -> None:
    before = bits(states)
    with engine.plan(states, immutable=True) as first, engine.plan(states) as second:
        for cycle in range(2):
            assert first.offload().nbytes == (0 if cycle else sum(SIZES))
            first.reload()
            assert second.offload().nbytes == sum(SIZES)
            second.reload()
            assert bits(states) == before


@both_layouts
def test_a_deferred_reload_brings_what_was_copied_once(
    engine: TransferEngine, states: States, compact: bool
) -> None:
    before = bits(states)
    plan = engine.plan(states, compact=compact, immutable=["s0", "s3", "s5"])
    for _ in range(3):
        plan.offload()
        plan.reload(defer=True)
    engine.settle()
    assert bits(states) == before
    plan.close()


def test_a_trace_counts_what_was_copied(
    engine: TransferEngine, states: States, tmp_path: Path
) -> None:
    with engine.plan(states, immutable=["s3", "s5"]) as plan:
        plan.offload()
        plan.reload()
        with engine.trace(tmp_path / "trace.json") as trace:
            plan.offload()
            plan.reload()
    left = sum(SIZES) - SIZES[3] - SIZES[5]
    moves = [(batch.direction, batch.nbytes, batch.storages) for batch in trace.batches]
    assert moves == [("D2H", left, len(SIZES)), ("H2D", sum(SIZES), len(SIZES))]
