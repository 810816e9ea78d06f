"""What an engine has while an offloader is attached, and what it has after."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pinferry import Category, PinnedArena
from pinferry.deepspeed import attach
from pinferry.errors import ArenaInUse, UnknownCategory
from tests.zero.engines import WRAPPERS, engine_of
from tests.zero.model import batch, train

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", WRAPPERS)
def test_an_engine_is_afterwards_as_it_was(kind: str, arena: PinnedArena, device: str) -> None:
    import deepspeed.runtime.zero.offload_states as functions
    from deepspeed import utils

    with engine_of(kind) as engine:
        train(engine, 2)
        holders = [engine, engine.optimizer]
        before = [dict(vars(holder)) for holder in holders]
        hooks = [len(module._forward_pre_hooks) for module in (engine, engine.module)]
        original = functions.get_state_devices, utils.safe_get_full_grad
        with attach(engine, arena):
            assert functions.get_state_devices is not original[0]
            train(engine, 2)
            engine.offload_states()
        assert [vars(holder).keys() for holder in holders] == [each.keys() for each in before]
        assert hooks == [len(module._forward_pre_hooks) for module in (engine, engine.module)]
        assert (functions.get_state_devices, utils.safe_get_full_grad) == original
        train(engine, 2)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_optimizer_and_engine_share_the_methods(kind: str, arena: PinnedArena, device: str) -> None:
    with engine_of(kind) as engine, attach(engine, arena) as offloader:
        train(engine, 1)
        engine.optimizer.offload_states(include=["optim_states"], non_blocking=True)
        assert offloader.offloaded_states() == {Category.OPTIM_STATES}
        if hasattr(engine.optimizer, "offloaded_states"):
            assert engine.optimizer.offloaded_states == {"optim_states"}
        engine.offload_states(include=["hp_params"])
        engine.optimizer.reload_states(True)
        assert not offloader.offloaded_states()
        assert not getattr(engine.optimizer, "offloaded_states", None)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_the_first_offload_may_come_before_the_first_step(
    kind: str, arena: PinnedArena, device: str
) -> None:
    with engine_of(kind) as engine:
        expected = train(engine, 3)
    with engine_of(kind) as engine, attach(engine, arena) as offloader:
        engine.offload_states()
        # The wrappers of fp16 make it at once.
        made_at_once = kind in ("fused", "unfused")
        assert (Category.OPTIM_STATES in offloader.offloaded_states()) is made_at_once
        engine.reload_states()
        assert train(engine, 3) == expected
        engine.offload_states(["optim_states"])
        assert Category.OPTIM_STATES in offloader.offloaded_states()


@pytest.mark.parametrize("kind", WRAPPERS)
def test_an_arena_made_here_holds_the_state_of_later_too(kind: str, device: str) -> None:
    with engine_of(kind, accumulation=2) as engine, attach(engine) as offloader:
        made = offloader.arena
        train(engine, 3)
        engine.backward(engine(torch.zeros(2, 9, dtype=torch.long, device=device)))
        engine.offload_states()
        assert not offloader.resident()
        capacity = made.capacity_bytes
        engine.reload_states()
        engine.offload_states()
        assert made.capacity_bytes == capacity
    assert made.closed


def test_an_arena_that_was_given_stays_open(arena: PinnedArena, device: str) -> None:
    with engine_of("zero1") as engine:
        with attach(engine, arena):
            engine.offload_states()
        assert not arena.closed
        assert arena.stats().used_bytes == 0
        with attach(engine, "2MiB") as offloader:
            assert offloader.arena.capacity_bytes == 2 << 20


@pytest.mark.parametrize("kind", ["plain", "zero1", "zero2"])
def test_a_copy_of_the_module_is_a_module_of_its_own(
    kind: str, arena: PinnedArena, device: str
) -> None:
    with engine_of(kind) as engine, attach(engine, arena):
        train(engine, 1)
        reference = copy.deepcopy(engine.module)
        tokens = batch(1, 0, device)
        expected = reference(tokens)
        engine.offload_states()
        assert torch.equal(reference(tokens), expected)
        engine.reload_states()
        assert torch.equal(engine(tokens), expected)


def test_a_detachment_that_fails_can_be_repeated(arena: PinnedArena, device: str) -> None:
    with engine_of("zero2") as engine:
        before = set(vars(engine))
        offloader = attach(engine, arena)
        other = torch.ones(100, device=device)
        offloader.engine.offload({"other": other})
        engine.offload_states()
        with pytest.raises(ArenaInUse, match="other"):
            offloader.detach()
        assert offloader.attached
        train(engine, 1)
        offloader.engine.reload({"other": other})
        offloader.detach()
        assert not offloader.attached
        assert set(vars(engine)) == before
        train(engine, 1)


def test_an_error_within_brings_everything_back(arena: PinnedArena, device: str) -> None:
    with engine_of("zero3") as engine:
        offloader = attach(engine, arena)
        engine.offload_states()
        with pytest.raises(UnknownCategory), offloader:
            engine.reload_states(include=["nothing"])
        assert not offloader.attached
        train(engine, 1)


def test_a_scheduler_made_while_attached_steps(arena: PinnedArena, device: str) -> None:
    with engine_of("plain") as engine:
        with attach(engine, arena):
            scheduler = torch.optim.lr_scheduler.StepLR(engine.optimizer, 1, gamma=0.5)
            train(engine, 2)
            scheduler.step()
            assert engine.optimizer.param_groups[0]["lr"] == 5e-3
            engine.offload_states()
        train(engine, 1)  # with the scheduler's own wrapper of step() left in place


def test_a_block_may_end_after_its_offloader(arena: PinnedArena, device: str) -> None:
    with engine_of("zero2") as engine:
        train(engine, 1)
        offloader = attach(engine, arena)
        with offloader.offloaded():
            offloader.detach()


def test_a_block_passes_its_own_error_on(arena: PinnedArena, device: str) -> None:
    def leave(engine: Any) -> None:
        with attach(engine, arena).offloaded():
            engine.destroy()
            raise KeyError("ours")

    with engine_of("zero2") as engine, pytest.raises(KeyError, match="ours"):
        leave(engine)


def test_a_block_offloads_and_leaves_what_was_away_before(arena: PinnedArena, device: str) -> None:
    with engine_of("zero2") as engine, attach(engine, arena) as offloader:
        train(engine, 1)
        engine.offload_states(["hp_params"])
        with offloader.offloaded("optim_states", "hp_params"):
            assert offloader.offloaded_states() == {Category.OPTIM_STATES, Category.HP_PARAMS}
        assert offloader.offloaded_states() == {Category.HP_PARAMS}
        with offloader.offloaded():
            assert not offloader.resident()
        assert offloader.offloaded_states() == {Category.HP_PARAMS}


def test_two_engines_are_told_apart(arena: PinnedArena, device: str) -> None:
    from deepspeed.runtime.zero.offload_states import get_state_devices

    with (
        engine_of("zero3") as actor,
        engine_of("zero2") as critic,
        attach(actor, arena) as first,
    ):
        train(actor, 1)
        with attach(critic, arena) as second:
            critic.offload_states(["hp_params"])
            assert not first.offloaded_states()
            actor.offload_states(["optim_states"])
            assert second.offloaded_states() == {Category.HP_PARAMS}
            from deepspeed.runtime.zero.offload_states import (
                get_state_devices as imported_while_attached,
            )

            assert imported_while_attached(critic, "hp_params") == {torch.device("cpu")}
        assert first.offloaded_states() == {Category.OPTIM_STATES}
    assert get_state_devices.__name__ == "get_state_devices"


@pytest.mark.parametrize("kind", WRAPPERS)
def test_an_engine_that_is_destroyed_gets_its_state_back_first(
    kind: str, arena: PinnedArena, device: str
) -> None:
    with engine_of(kind) as engine:
        offloader = attach(engine, arena)
        train(engine, 1)
        weights = list(offloader.discover().only("hp_params", "lp_params"))
        before = [torch.tensor([], device=device).set_(each.storage).clone() for each in weights]
        engine.offload_states()
    assert not offloader.attached
    after = [torch.tensor([], device=device).set_(each.storage) for each in weights]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))
    assert arena.stats().used_bytes == 0


def test_an_offloader_goes_with_its_engine(device: str, tmp_path: Path) -> None:
    with engine_of("zero2") as engine:
        offloader = weakref.ref(attach(engine))
        engine.offload_states(["lp_grads"])
        holder = weakref.ref(engine)
    del engine
    gc.collect()
    assert holder() is None
    assert offloader() is None
