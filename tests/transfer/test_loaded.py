"""What torch.load() has read moves like any other state, though it names no allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena, TransferEngine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def loaded(tmp_path: Path) -> dict[str, torch.Tensor]:
    torch.save({"weight": torch.arange(1000.0), "step": torch.tensor(3.0)}, tmp_path / "saved.pt")
    states: dict[str, torch.Tensor] = torch.load(tmp_path / "saved.pt")
    return states


def test_it_leaves_and_comes_back_any_number_of_times(loaded: dict[str, torch.Tensor]) -> None:
    view = loaded["weight"][10:20]
    with PinnedArena("1MiB", device="cpu") as arena, TransferEngine(arena) as engine:
        for _ in range(3):
            engine.offload(loaded)
            with pytest.raises(RuntimeError, match="weight is offloaded"):
                view.sum()
            engine.reload()
            assert torch.equal(loaded["weight"], torch.arange(1000.0))
            assert torch.equal(view, torch.arange(10.0, 20.0))
            view.add_(0)
        engine.discard(loaded)
        engine.reload()


@pytest.mark.parametrize("compact", [False, True])
def test_a_plan_takes_it_too(loaded: dict[str, torch.Tensor], compact: bool) -> None:
    with PinnedArena("1MiB", device="cpu") as arena, TransferEngine(arena) as engine:
        with engine.plan(loaded, compact=compact) as plan:
            for _ in range(3):
                plan.offload()
                plan.reload()
        engine.offload(loaded)
        engine.reload()
        assert torch.equal(loaded["weight"], torch.arange(1000.0))
        assert loaded["step"] == 3
