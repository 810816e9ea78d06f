"""Any choice of categories goes and comes back, bit for bit."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
import torch

from pinferry import Category, PinnedArena, StateOffloader
from pinferry.states.categories import KNOWN_TO_PYTORCH
from tests.states.training import MasterTraining, assert_same_bits

SUBSETS = list(
    chain.from_iterable(combinations(KNOWN_TO_PYTORCH, n) for n in range(len(KNOWN_TO_PYTORCH) + 1))
)


def names(subset: tuple[Category, ...]) -> str:
    return "+".join(subset) or "none"


@pytest.mark.parametrize("subset", SUBSETS, ids=names)
def test_a_subset_goes_alone_and_training_goes_on_as_if_it_had_not(
    device: str, arena: PinnedArena, subset: tuple[Category, ...]
) -> None:
    control, run = (MasterTraining(device).until_gradients(1) for _ in range(2))
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    ticket = offloader.offload(subset)
    assert offloader.offloaded_states() == frozenset(subset)
    assert offloader.resident() == frozenset(KNOWN_TO_PYTORCH) - frozenset(subset)
    away = {entry.name for entry in offloader.discover() if entry.category in subset}
    assert set(offloader.engine.offloaded_names()) == away
    assert ticket.nbytes == offloader.engine.offloaded_bytes
    offloader.reload(subset)
    assert offloader.resident() == frozenset(KNOWN_TO_PYTORCH)
    assert_same_bits(run.bits(), control.bits())
    for each in (control, run):
        each.update()
        each.clear()
        each.step()
    assert_same_bits(run.bits(), control.bits())


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda:0"])
@pytest.mark.parametrize("category", KNOWN_TO_PYTORCH)
def test_device_memory_falls_by_the_bytes_of_the_category_and_rises_again(
    device: str, arena: PinnedArena, category: Category
) -> None:
    run = MasterTraining(device).until_gradients()
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    # PyTorch deals out multiples of 512 bytes.
    sizes = [-(-entry.nbytes // 512) * 512 for entry in offloader.discover().only(category)]
    before = torch.cuda.memory_allocated(device)
    offloader.offload(category)
    assert before - torch.cuda.memory_allocated(device) == sum(sizes)
    offloader.reload(category)
    assert torch.cuda.memory_allocated(device) == before


@pytest.mark.parametrize("category", KNOWN_TO_PYTORCH)
def test_an_access_to_what_is_away_names_it_and_what_to_call(
    device: str, arena: PinnedArena, category: Category
) -> None:
    run = MasterTraining(device).until_gradients()
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    away = {entry.storage._cdata: entry.name for entry in offloader.discover().only(category)}
    with offloader.offloaded(category):
        for tensor in run.tensors().values():
            name = away.get(tensor.untyped_storage()._cdata)
            if name is None:
                tensor.detach().clone()
                continue
            with pytest.raises(RuntimeError) as caught:
                tensor.detach().clone()
            message = f"{name} is offloaded to pinned host memory; call reload() first"
            assert message in str(caught.value)
