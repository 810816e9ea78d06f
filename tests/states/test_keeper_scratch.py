"""State whose bytes nobody needs leaves with the rest, or neither does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pinferry import PinnedArena, TransferEngine
from pinferry.errors import UnsupportedStorage
from pinferry.states.categories import Category
from pinferry.states.discovery import Survey, collect
from pinferry.states.keeper import StateKeeper
from pinferry.transfer import storage_key


def keeper_of(engine: TransferEngine, kept: torch.Tensor, scratch: torch.Tensor) -> StateKeeper:
    def survey() -> Survey:
        found = collect(
            [(Category.HP_PARAMS, "kept", kept), (Category.BUFFERS, "scratch", scratch)]
        )
        return replace(found, scratch=frozenset({storage_key(scratch.untyped_storage())}))

    return StateKeeper(engine, survey)


def test_scratch_takes_no_room_and_comes_back_with_the_rest() -> None:
    kept, scratch = torch.ones(1000), torch.ones(1000)
    with PinnedArena("1MiB", device="cpu") as arena, TransferEngine(arena) as engine:
        keeper = keeper_of(engine, kept, scratch)
        assert keeper.offload(list(Category)).nbytes == 4000
        assert set(keeper.away().values()) == {Category.HP_PARAMS, Category.BUFFERS}
        keeper.reload(list(Category))
        assert kept.sum() == 1000
        scratch.zero_()


def test_scratch_that_cannot_be_given_up_keeps_the_rest_here() -> None:
    kept, scratch = torch.ones(1000), torch.from_numpy(torch.ones(10).numpy())
    with PinnedArena("1MiB", device="cpu") as arena, TransferEngine(arena) as engine:
        keeper = keeper_of(engine, kept, scratch)
        with pytest.raises(UnsupportedStorage, match="scratch"):
            keeper.offload(list(Category))
        assert keeper.away() == {}
        assert kept.sum() == 1000
