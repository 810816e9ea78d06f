"""What a reclaim report says is on the device still."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch
from torch import nn

from pinferry import PinnedArena, StateOffloader, StateSet, TransferEngine
from pinferry.pool import open_device
from pinferry.states.leftovers import leftovers

if TYPE_CHECKING:
    import pytest


def test_state_that_was_not_offloaded_goes_by_its_name(device: str, arena: PinnedArena) -> None:
    model = nn.BatchNorm1d(700).to(device)
    offloader = StateOffloader(model, arena=arena)
    offloader.offload("lp_params")
    stays = offloader.reclaim().stays
    assert stays["model.running_mean"] == 2800
    assert not any("weight" in name for name in stays)
    offloader.reload()


def test_what_a_plan_or_another_engine_holds_does_not_stay(device: str, arena: PinnedArena) -> None:
    model, stray = nn.BatchNorm1d(700).to(device), torch.ones(77, 13, device=device)
    offloader, other = StateOffloader(model, arena=arena), TransferEngine(arena)
    other.offload([stray])
    with offloader.plan("lp_params") as plan:
        offloader.offload("buffers")
        plan.offload()
        assert offloader.resident() == frozenset()
        stays = offloader.reclaim().stays
        assert not any("model." in name or "(77, 13)" in name for name in stays)
        plan.reload()
        assert offloader.resident() == {"lp_params"}
    offloader.reload()
    other.reload()


def test_a_tensor_of_nobodys_state_goes_by_its_dtype_and_shape(
    device: str, arena: PinnedArena
) -> None:
    model = nn.Linear(9, 9).to(device)
    stray = torch.ones(77, 13, dtype=torch.float64, device=device)
    view = stray[3:]  # the same storage, counted once
    offloader = StateOffloader(model, arena=arena)
    offloader.offload()
    stays = offloader.reclaim().stays
    named = [name for name in stays if "torch.float64 (7" in name]
    assert len(named) == 1
    assert stays[named[0]] == stray.nbytes == view.untyped_storage().nbytes()
    offloader.reload()


def test_the_largest_come_first_and_cuda_accounts_for_every_byte(device: str) -> None:
    gc.collect()
    kept = [torch.ones(size, device=device) for size in (10_000, 3_000_000, 500_000)]
    stays = leftovers(open_device(device), StateSet([]))
    if device == "cpu":
        assert list(stays.values()) == sorted(stays.values(), reverse=True)
    else:
        assert sum(stays.values()) >= torch.cuda.memory_allocated()
    assert {tensor.nbytes for tensor in kept} <= set(stays.values())


def test_looking_keeps_no_tensor_alive_and_disturbs_no_proxy(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Proxy:
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"was asked for its {name}")

    proxy = Proxy()
    uninitialized = nn.LazyLinear(3)  # refuses to be asked for its storage
    stray = torch.ones(5, device=device)
    before = gc.get_referrers(stray)
    leftovers(open_device(device), StateSet([]))
    assert len(gc.get_referrers(stray)) == len(before)
    assert uninitialized.has_uninitialized_params()
    del proxy
