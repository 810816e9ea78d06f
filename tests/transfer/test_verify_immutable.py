"""Engines that verify see who writes to what was declared immutable."""

from __future__ import annotations

import pytest
import torch

from pinferry import TransferEngine, Verify
from pinferry.errors import ChecksumMismatch
from tests.transfer.host_copies import changed_byte
from tests.transfer.storage_bits import random_bits, storage_bits

KIB = 1024
States = dict[str, torch.Tensor]
both_layouts = pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])


@pytest.fixture
def engine(engine: TransferEngine) -> TransferEngine:
    engine.verify = "checksum"
    return engine


def make_states(kind: str, count: int, device: str) -> States:
    return {
        f"{kind}{i}": random_bits(torch.uint8, 20 * KIB + 7 * i, device, seed=i)
        for i in range(count)
    }


@pytest.fixture
def states(torch_device: str) -> States:
    return make_states("s", 6, torch_device)


def bits(states: States) -> dict[str, bytes]:
    return {name: storage_bits(x) for name, x in states.items()}


@both_layouts
@pytest.mark.parametrize("name", ["s0", "s3", "s5"])
@pytest.mark.parametrize("since", ["the first copy", "later"])
def test_what_was_written_though_immutable_is_refused(
    engine: TransferEngine, states: States, compact: bool, name: str, since: str
) -> None:
    if since == "later":
        engine.verify = None
    plan = engine.plan(states, compact=compact, immutable=["s0", "s3", "s5"])
    plan.offload()
    plan.reload()
    engine.verify = Verify.CHECKSUM
    plan.offload()
    plan.reload()
    states[name][-1] += 1
    states["s1"].fill_(7)
    before = bits(states)
    with pytest.raises(ChecksumMismatch, match="was declared immutable") as caught:
        plan.offload()
    assert caught.value.name == name
    assert not plan.offloaded
    assert bits(states) == before
    states[name][-1] -= 1
    before = bits(states)
    plan.offload()
    plan.reload()
    assert bits(states) == before
    plan.close()


@both_layouts
def test_the_host_copy_of_what_is_immutable_is_compared_every_time(
    engine: TransferEngine, states: States, compact: bool
) -> None:
    plan = engine.plan(states, compact=compact, immutable=True)
    for _ in range(3):
        plan.offload().synchronize()
        with changed_byte(plan, "s4", 100), pytest.raises(ChecksumMismatch, match="changed there"):
            plan.reload()
        plan.reload()
    plan.close()


@both_layouts
def test_a_move_by_the_engine_meanwhile_hides_no_write(
    engine: TransferEngine, states: States, compact: bool
) -> None:
    plan = engine.plan(states, compact=compact, immutable=True)
    plan.offload()
    plan.reload()
    for cycle in range(3):
        states["s2"].fill_(cycle)
        engine.offload({"s2": states["s2"]})
        engine.reload()
    before = bits(states)
    with pytest.raises(ChecksumMismatch, match="s2 was declared immutable"):
        plan.offload()
    assert bits(states) == before
    plan.close()
