"""Checkpoints are those of a run without offload, and both ways of loading go on from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pinferry.deepspeed import attach
from tests.zero.engines import WRAPPERS, engine_of
from tests.zero.model import train

if TYPE_CHECKING:
    from pathlib import Path

    from pinferry import PinnedArena


def files_in(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint says, by file."""
    return {
        path.name: torch.load(path, map_location="cpu", weights_only=False)
        for path in sorted(folder.rglob("*.pt"))
    }


def same(one: Any, other: Any) -> bool:
    """Return whether two nested values are equal to the bit, and to the key."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other)


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_checkpoint_after_cycles_is_that_of_a_run_without(
    kind: str, arena: PinnedArena, device: str, tmp_path: Path
) -> None:
    with engine_of(kind) as engine:
        train(engine, 3)
        engine.save_checkpoint(str(tmp_path / "without"), tag="three")
        expected = train(engine, 2, first=3)
    with engine_of(kind) as engine, attach(engine, arena):
        train(engine, 2)
        engine.offload_states()
        engine.reload_states()
        train(engine, 1, first=2)
        engine.offload_states(pin_memory=False)
        engine.reload_states()
        engine.save_checkpoint(str(tmp_path / "with"), tag="three")
    without, cycled = files_in(tmp_path / "without"), files_in(tmp_path / "with")
    assert without
    assert same(without, cycled)

    with engine_of(kind) as engine, attach(engine, arena):
        train(engine, 1)
        engine.offload_states()
        engine.reload_states()
        engine.load_checkpoint(str(tmp_path / "with"), tag="three")
        engine.offload_states()
        engine.reload_states()
        assert train(engine, 2, first=3) == expected


@pytest.mark.parametrize("kind", WRAPPERS)
def test_saving_and_loading_bring_back_what_they_need(
    kind: str, arena: PinnedArena, device: str, tmp_path: Path
) -> None:
    with engine_of(kind) as engine:
        expected = train(engine, 5)[3:]
    with engine_of(kind) as engine, attach(engine, arena, on_access="reload"):
        train(engine, 3)
        engine.offload_states()
        engine.save_checkpoint(str(tmp_path), tag="three")
        train(engine, 1, first=3)
        engine.offload_states()
        engine.load_checkpoint(str(tmp_path), tag="three")
        engine.offload_states()
        assert train(engine, 2, first=3) == expected


@pytest.mark.parametrize("kind", WRAPPERS)
def test_weights_are_saved_as_ever(
    kind: str, arena: PinnedArena, device: str, tmp_path: Path
) -> None:
    gather = {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True}}
    if kind != "zero3":
        gather = {}
    with engine_of(kind, **gather) as engine:  # type: ignore[arg-type]
        train(engine, 2)
        engine.save_16bit_model(str(tmp_path), "without.pt")
        with attach(engine, arena):
            engine.offload_states()
            engine.reload_states()
            engine.save_16bit_model(str(tmp_path), "with.pt")
    saved = files_in(tmp_path)
    assert set(saved) == {"without.pt", "with.pt"}
    assert same(saved["without.pt"], saved["with.pt"])


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_state_dict_taken_before_an_offload_is_no_way_around_the_guard(
    kind: str, arena: PinnedArena, device: str, tmp_path: Path
) -> None:
    with engine_of(kind) as engine, attach(engine, arena):
        train(engine, 1)
        state = engine.optimizer.state_dict()
        weights = engine.module.state_dict()
        engine.offload_states()
        for each in (state, weights):
            with pytest.raises(RuntimeError, match="offloaded"):
                torch.save(each, tmp_path / "away.pt")
        engine.reload_states()
        torch.save([state, weights], tmp_path / "back.pt")
