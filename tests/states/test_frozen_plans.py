"""Plans that copy frozen parameters once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import StateOffloader, TransferEngine
from pinferry.errors import ChecksumMismatch, InvalidArgument
from tests.states.adapters import Adapted, AdapterTraining
from tests.states.training import assert_same_bits

if TYPE_CHECKING:
    from pinferry import PinnedArena


def test_training_of_adapters_goes_on_to_the_bit_and_the_base_is_copied_once(
    device: str, arena: PinnedArena
) -> None:
    run, control = AdapterTraining(device), AdapterTraining(device)
    base = sum(p.nbytes for p in run.model.parameters() if not p.requires_grad)
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    with offloader.plan(immutable="frozen", compact=()) as plan:
        assert plan.offload().nbytes == plan.nbytes
        plan.reload()
        for _ in range(3):
            assert plan.offload().nbytes == plan.nbytes - base
            plan.reload()
            run.step()
            control.step()
    assert_same_bits(run.bits(), control.bits())


@pytest.mark.parametrize("compact", [(), ["lp_params", "optim_states"]], ids=str)
def test_what_is_compacted_too_keeps_its_bits(
    device: str, arena: PinnedArena, compact: list[str]
) -> None:
    run, control = AdapterTraining(device), AdapterTraining(device)
    engine = TransferEngine(arena, verify="checksum")
    offloader = StateOffloader(run.model, run.optimizer, engine=engine)
    with offloader.plan(immutable="frozen", compact=compact) as plan:
        for _ in range(4):
            plan.offload()
            plan.reload()
            run.step()
            control.step()
    assert_same_bits(run.bits(), control.bits())


def test_only_what_is_in_the_plan_is_declared(device: str, arena: PinnedArena) -> None:
    run = AdapterTraining(device)
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    with offloader.plan("optim_states", immutable="frozen") as plan:
        for _ in range(2):
            assert plan.offload().nbytes >= plan.nbytes
            plan.reload()


@pytest.mark.parametrize(
    "names", [["model.0.down.weight"], {"model.0.base.weight"}, (), None], ids=str
)
def test_what_is_named_is_copied_once(
    device: str, arena: PinnedArena, names: list[str] | None
) -> None:
    run = AdapterTraining(device)
    before = run.bits()
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    nbytes = sum(entry.nbytes for entry in offloader.discover() if entry.name in (names or ()))
    with offloader.plan(immutable=names, compact=()) as plan:
        plan.offload()
        plan.reload()
        assert plan.offload().nbytes == plan.nbytes - nbytes
        plan.reload()
    assert_same_bits(run.bits(), before)


@pytest.mark.parametrize(
    "immutable",
    ["Frozen", "", "all", "model.0.base.weight", ["frozen"], ["model.nobody"], b"frozen", 3, True],
    ids=str,
)
def test_a_word_or_name_that_does_not_exist_is_refused_and_takes_no_room(
    device: str, arena: PinnedArena, immutable: str
) -> None:
    run = AdapterTraining(device)
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    with pytest.raises(InvalidArgument, match="immutable"):
        offloader.plan(immutable=immutable)
    assert arena.stats().used_bytes == 0


def test_adapters_merged_into_the_base_are_told_by_an_engine_that_verifies(
    device: str, arena: PinnedArena
) -> None:
    run = AdapterTraining(device)
    engine = TransferEngine(arena, verify="checksum")
    offloader = StateOffloader(run.model, run.optimizer, engine=engine)
    plan = offloader.plan(immutable="frozen")
    plan.offload()
    plan.reload()
    block = run.model[0]
    assert isinstance(block, Adapted)
    with torch.no_grad():
        block.base.weight += block.up.weight @ block.down.weight
    before = run.bits()
    with pytest.raises(ChecksumMismatch, match=r"model\.0\.base\.weight was declared immutable"):
        plan.offload()
    assert_same_bits(run.bits(), before)
    plan.close()
