"""Urgent moves of an engine, beside bulk that is held up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import InvalidArgument
from tests.transfer.storage_bits import random_bits, storage_bits
from tests.workbench import LATE

if TYPE_CHECKING:
    from pinferry import TransferEngine, _native


@pytest.mark.parametrize("planned", [False, True], ids=["engine", "plan"])
def test_an_urgent_move_overtakes_a_bulk_one_each_way(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, planned: bool
) -> None:
    bulk = random_bits(torch.uint8, 100_000, torch_device, seed=1)
    small = random_bits(torch.uint8, 999, torch_device, seed=2)
    before = storage_bits(bulk), storage_bits(small)
    plan = engine.plan({"small": small})
    stream.hold()
    engine.offload({"bulk": bulk}, streams=[stream])
    if planned:
        plan.offload(urgent=True).synchronize(LATE)
    else:
        engine.offload({"small": small}, urgent=True).synchronize(LATE)
    waiting = engine.reload({"bulk": bulk}, defer=True)
    if planned:
        plan.reload(urgent=True).synchronize(LATE)
    else:
        engine.reload({"small": small}, urgent=True).synchronize(LATE)
    assert storage_bits(small) == before[1]
    assert not waiting.done()
    stream.release()
    waiting.synchronize(LATE)
    assert (storage_bits(bulk), storage_bits(small)) == before


def test_cycles_that_change_lanes_keep_every_bit(engine: TransferEngine, torch_device: str) -> None:
    states = {f"s{i}": random_bits(torch.uint8, 1000 + i, torch_device, seed=i) for i in range(9)}
    with engine.plan(states, compact=True) as plan:
        for cycle in range(8):
            states["s3"].fill_(cycle)
            before = {name: storage_bits(x) for name, x in states.items()}
            plan.offload(urgent=cycle % 2 == 0)
            plan.reload(urgent=cycle % 3 == 0, defer=cycle % 4 == 0).wait()
            assert {name: storage_bits(x) for name, x in states.items()} == before


@pytest.mark.parametrize("urgent", [1, None, "yes"])
def test_urgent_is_true_or_false(engine: TransferEngine, torch_device: str, urgent: bool) -> None:
    states = {"x": torch.ones(8, device=torch_device)}
    with engine.plan(states) as plan:
        for mover in (engine, plan):
            with pytest.raises(InvalidArgument, match="urgent"):
                mover.reload(urgent=urgent)
        with pytest.raises(InvalidArgument, match="urgent"):
            engine.offload(states, urgent=urgent)
        with pytest.raises(InvalidArgument, match="urgent"):
            plan.offload(urgent=urgent)
    assert states["x"].sum() == 8
    assert engine.offloaded_names() == ()
