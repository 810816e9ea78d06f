"""Which storages of a plan are declared immutable, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import InvalidArgument
from tests.transfer.storage_bits import random_bits, storage_bits

if TYPE_CHECKING:
    from pinferry import PinnedArena, TransferEngine

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
@pytest.mark.parametrize(
    "names",
    [["s0"], ("s3",), {"s1", "s5"}, frozenset({"s0", "s6"}), [], ["s2", "s2"], {"s4": 1}.keys()],
    ids=["list", "tuple", "set", "frozenset", "nothing", "twice", "keys"],
)
def test_only_what_is_named_is_copied_once(
    engine: TransferEngine, states: States, compact: bool, names: list[str]
) -> None:
    fixed = [name for name in states if name in names]
    others = [name for name in states if name not in fixed]
    nbytes = sum(states[name].numel() for name in others)
    with engine.plan(states, compact=compact, immutable=names) as plan:
        assert set(plan.names()) == set(states)
        assert plan.offload().nbytes == sum(SIZES)
        plan.reload()
        for cycle in range(3):
            for name in others:
                states[name].fill_(cycle)
            before = bits(states)
            moved = plan.offload().nbytes
            assert moved == nbytes or (compact and moved == whole(states, others))
            plan.reload()
            assert bits(states) == before


def whole(states: States, names: list[str]) -> int:
    """Return the bytes of the slab of these, with its gaps."""
    return sum(-(-states[name].numel() // 512) * 512 for name in names)


def test_false_declares_nothing(engine: TransferEngine, states: States) -> None:
    with engine.plan(states, immutable=False) as plan:
        for _ in range(2):
            assert plan.offload().nbytes == sum(SIZES)
            plan.reload()


@pytest.mark.parametrize(
    "immutable",
    ["s1", "frozen", ["s1", "nobody"], [3], [None], [["s1"]], None, 1, 0.5, object()],
    ids=lambda each: str(each)[:10],
)
def test_what_names_no_state_is_refused_and_takes_no_room(
    engine: TransferEngine, arena: PinnedArena, states: States, immutable: object
) -> None:
    with pytest.raises(InvalidArgument, match="immutable"):
        engine.plan(states, immutable=immutable)  # type: ignore[arg-type]
    assert arena.stats().used_bytes == 0
