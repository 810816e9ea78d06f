"""Storages of real models: whether they add up to what the architectures say."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pinferry.bench.model_sizes import llama_lora, mixture_of_experts, zero_partitions

if TYPE_CHECKING:
    from pinferry.bench.model_sizes import ModelStorages


def bytes_by_category(model: ModelStorages) -> Counter[str]:
    found: Counter[str] = Counter()
    for storage in model.storages:
        found[storage.category] += storage.nbytes
    return found


def test_llama_has_the_parameters_that_its_makers_say() -> None:
    model = llama_lora()
    assert model.parameters == 1_235_814_400
    assert bytes_by_category(model)["lp_params"] == 2 * model.parameters


def test_lora_has_two_matrices_of_its_rank_beside_each_projection() -> None:
    model = llama_lora(rank=8)
    # In and out widths of the seven projections of one layer.
    widths = 2 * (2048 + 2048) + 2 * (2048 + 512) + 3 * (2048 + 8192)
    adapters = 16 * 8 * widths
    found = bytes_by_category(model)
    assert found["adapters"] == 4 * adapters
    assert found["optim_states"] == 2 * 4 * adapters + 4 * (16 * 7 * 2)


def test_the_experts_are_most_of_their_mixture() -> None:
    model = mixture_of_experts()
    experts = 16 * 8 * 3 * 2048 * 4096
    assert experts < model.parameters < 1.2 * experts
    assert sum(storage.nbytes == 2 * 2048 * 4096 for storage in model.storages) >= 16 * 8 * 3


def test_mixed_precision_keeps_master_weights_and_two_moments() -> None:
    model = mixture_of_experts()
    assert bytes_by_category(model) == {
        "lp_params": 2 * model.parameters,
        "hp_params": 4 * model.parameters,
        "optim_states": 8 * model.parameters,
    }


def test_the_partitions_hold_llama_7b_and_some_padding() -> None:
    model = zero_partitions()
    assert model.parameters == 6_738_415_616
    padded = bytes_by_category(model)["hp_params"] // 4
    assert model.parameters <= padded < 1.0001 * model.parameters


def test_partitions_are_padded_and_uneven() -> None:
    parts = [s.nbytes for s in zero_partitions().storages if s.category == "hp_params"]
    assert all(nbytes % 16 == 0 for nbytes in parts)
    assert len(set(parts)) > 4


def test_each_of_the_eight_ranks_has_every_category() -> None:
    pairs = {(storage.layer, storage.category) for storage in zero_partitions().storages}
    assert len(pairs) == 8 * 4


@pytest.mark.parametrize("model", [llama_lora(), mixture_of_experts(), zero_partitions()])
def test_storages_come_category_by_category(model: ModelStorages) -> None:
    order = [storage.category for storage in model.storages]
    assert sorted(order, key=list(dict.fromkeys(order)).index) == order
    assert min(storage.nbytes for storage in model.storages) > 0
