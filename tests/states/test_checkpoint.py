"""Checkpoints of state that is away refuse by name; afterwards they are as ever."""

from __future__ import annotations

import copy
import io
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pinferry import PinnedArena, StateOffloader
from pinferry.errors import UnsupportedStorage
from tests.states.training import Training, assert_same_bits

if TYPE_CHECKING:
    from pathlib import Path


def saved(run: Training) -> bytes:
    target = io.BytesIO()
    torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, target)
    return target.getvalue()


def loaded(checkpoint: bytes) -> dict[str, Any]:
    result: dict[str, Any] = torch.load(io.BytesIO(checkpoint), map_location="cpu")
    return result


@pytest.fixture
def run(device: str) -> Training:
    return Training(device).until_gradients()


@pytest.fixture
def offloader(run: Training, arena: PinnedArena) -> StateOffloader:
    return StateOffloader(run.model, run.optimizer, arena=arena)


@pytest.mark.parametrize(
    ("category", "name"),
    [("lp_params", r"model\.first\.weight"), ("optim_states", r"optimizer\.state\[0\]\.")],
)
def test_saving_what_is_away_raises_the_error_that_names_it(
    run: Training, offloader: StateOffloader, category: str, name: str
) -> None:
    with (
        offloader.offloaded(category),
        pytest.raises(RuntimeError, match=name + r".* is offloaded to pinned host memory"),
    ):
        saved(run)


def test_a_copy_of_a_model_that_is_away_raises_the_error_that_names_it(
    run: Training, offloader: StateOffloader
) -> None:
    with offloader.offloaded(), pytest.raises(RuntimeError, match=r"model\.\S+ is offloaded"):
        copy.deepcopy(run.model)


def test_a_checkpoint_after_the_reload_equals_one_before(
    run: Training, offloader: StateOffloader
) -> None:
    before = saved(run)
    with offloader.offloaded():
        pass
    assert saved(run) == before


def test_a_run_resumed_from_a_checkpoint_can_be_offloaded_and_trains_on(
    device: str, arena: PinnedArena, run: Training, offloader: StateOffloader
) -> None:
    with offloader.offloaded():
        pass
    run.clear()
    checkpoint = loaded(saved(run))
    resumed = Training(device)
    resumed.model.load_state_dict(checkpoint["model"])
    resumed.model.get_buffer("inv_freq").copy_(run.model.get_buffer("inv_freq"))
    resumed.optimizer.load_state_dict(checkpoint["optimizer"])
    resumed.steps = run.steps
    second = StateOffloader(resumed.model, resumed.optimizer, arena=arena)
    with second.offloaded():
        assert second.resident() == frozenset()
    for each in (run, resumed):
        each.step()
    assert_same_bits(resumed.bits(), run.bits())


@pytest.mark.parametrize("device", ["cpu"])
def test_tensors_that_share_a_file_s_memory_are_refused_by_name_and_a_clone_is_not(
    run: Training, arena: PinnedArena, tmp_path: Path
) -> None:
    (tmp_path / "saved.pt").write_bytes(saved(run))
    weights = torch.load(tmp_path / "saved.pt", mmap=True)["model"]
    run.model.load_state_dict(weights, assign=True)
    offloader = StateOffloader(run.model, arena=arena)
    with pytest.raises(UnsupportedStorage, match=r"model\.first\.weight .* clone"):
        offloader.offload()
    assert offloader.engine.offloaded_bytes == 0
    run.model.load_state_dict({name: t.clone() for name, t in weights.items()}, assign=True)
    before = run.bits()
    with offloader.offloaded():
        pass
    assert_same_bits(run.bits(), before)


def test_the_names_and_shapes_of_a_state_dict_stay_while_away(
    run: Training, offloader: StateOffloader
) -> None:
    before = {name: t.shape for name, t in run.model.state_dict().items()}
    with offloader.offloaded():
        assert {name: t.shape for name, t in run.model.state_dict().items()} == before
        assert len(run.optimizer.state_dict()["state"]) == 5
