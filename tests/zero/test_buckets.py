"""Buckets that are empty are dropped and made anew; what is in one is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import Category
from pinferry.deepspeed import attach
from pinferry.errors import StateOffloaded
from tests.zero.engines import engine_of
from tests.zero.model import batch, train

if TYPE_CHECKING:
    from pinferry import PinnedArena


def test_an_empty_bucket_takes_no_room_on_the_host(arena: PinnedArena, device: str) -> None:
    with engine_of("zero3") as engine, attach(engine, arena) as offloader:
        train(engine, 1)
        (bucket,) = engine.optimizer.ipg_buckets.values()
        assert engine.offload_states(["contiguous_grad_buffer"]).nbytes == 0
        assert arena.stats().used_bytes == 0
        assert offloader.reclaim().expected_bytes == bucket.buffer.nbytes
        assert offloader.state_devices("contiguous_grad_buffer") == set()
        with pytest.raises(RuntimeError, match="buffer is offloaded"):
            bucket.buffer.sum()
        with pytest.raises(StateOffloaded, match="backward needs contiguous_grad_buffer"):
            engine.backward(engine(batch(1, 0, device)))
        engine.reload_states()
        bucket.buffer.zero_()
        train(engine, 1)


def test_a_bucket_with_gradients_in_it_keeps_them(arena: PinnedArena, device: str) -> None:
    with engine_of("zero3") as engine, attach(engine, arena):
        train(engine, 1)
        (bucket,) = engine.optimizer.ipg_buckets.values()
        bucket.elements = 7
        bucket.buffer.copy_(torch.arange(float(bucket.buffer.numel())))
        before = bucket.buffer.clone()
        assert engine.offload_states(["contiguous_grad_buffer"]).nbytes == bucket.buffer.nbytes
        engine.reload_states()
        assert torch.equal(bucket.buffer, before)
        bucket.elements = 0


def test_gradients_that_lie_in_a_bucket_are_gradients(arena: PinnedArena, device: str) -> None:
    with engine_of("zero3") as engine, attach(engine, arena) as offloader:
        train(engine, 1)
        (bucket,) = engine.optimizer.ipg_buckets.values()
        weight = next(engine.module.parameters())
        bucket.buffer.fill_(3)
        weight.grad_accum = bucket.buffer[:5]
        engine.offload_states(["contiguous_grad_buffer"])
        assert not offloader.offloaded_states()
        engine.offload_states(["lp_grads"])
        assert offloader.offloaded_states() == {Category.LP_GRADS}
        engine.reload_states()
        assert torch.equal(weight.grad_accum, torch.full_like(weight.grad_accum, 3))
        del weight.grad_accum
