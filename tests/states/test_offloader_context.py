"""``with offloader.offloaded(...)``: away inside, back outside, whatever happens."""

from __future__ import annotations

import pytest

from pinferry import Category, PinnedArena, StateOffloader
from pinferry.errors import ArenaExhausted
from tests.states.training import MasterTraining, assert_same_bits


@pytest.fixture
def run(device: str) -> MasterTraining:
    return MasterTraining(device).until_gradients()


@pytest.fixture
def offloader(run: MasterTraining, arena: PinnedArena) -> StateOffloader:
    return StateOffloader(run.model, run.optimizer, arena=arena)


def test_everything_is_away_inside_and_back_afterwards(
    run: MasterTraining, offloader: StateOffloader
) -> None:
    before = run.bits()
    with offloader.offloaded() as inside:
        assert inside is offloader
        assert offloader.resident() == frozenset()
    assert_same_bits(run.bits(), before)


def test_only_the_named_categories_go(offloader: StateOffloader) -> None:
    with offloader.offloaded("optim_states", Category.LP_GRADS):
        assert offloader.offloaded_states() == {Category.OPTIM_STATES, Category.LP_GRADS}
    assert offloader.offloaded_states() == frozenset()


def test_an_error_inside_passes_through_and_everything_comes_back(
    run: MasterTraining, offloader: StateOffloader
) -> None:
    before = run.bits()
    with pytest.raises(KeyError, match="from inside"), offloader.offloaded():
        raise KeyError("from inside")
    assert_same_bits(run.bits(), before)


def test_an_access_inside_fails_and_everything_comes_back(
    run: MasterTraining, offloader: StateOffloader
) -> None:
    before = run.bits()
    with (
        pytest.raises(RuntimeError, match="is offloaded to pinned host memory"),
        offloader.offloaded(),
    ):
        run.loss()
    assert_same_bits(run.bits(), before)


def test_what_was_away_before_stays_away(run: MasterTraining, offloader: StateOffloader) -> None:
    before = run.bits()
    offloader.offload("hp_params")
    with offloader.offloaded("hp_params", "lp_params"):
        assert offloader.offloaded_states() == {Category.HP_PARAMS, Category.LP_PARAMS}
    assert offloader.offloaded_states() == {Category.HP_PARAMS}
    offloader.reload()
    assert_same_bits(run.bits(), before)


def test_nested_blocks_bring_back_what_each_took(
    run: MasterTraining, offloader: StateOffloader
) -> None:
    before = run.bits()
    with offloader.offloaded("optim_states"):
        with offloader.offloaded():
            assert offloader.resident() == frozenset()
        assert offloader.offloaded_states() == {Category.OPTIM_STATES}
    assert_same_bits(run.bits(), before)


def test_a_block_inside_the_same_block_brings_nothing_back(offloader: StateOffloader) -> None:
    with offloader.offloaded("buffers"):
        with offloader.offloaded("buffers"):
            pass
        assert offloader.offloaded_states() == {Category.BUFFERS}
    assert offloader.offloaded_states() == frozenset()


def test_a_reload_inside_is_no_harm(run: MasterTraining, offloader: StateOffloader) -> None:
    before = run.bits()
    with offloader.offloaded():
        offloader.reload("lp_params")
        assert Category.LP_PARAMS in offloader.resident()
    assert_same_bits(run.bits(), before)


def test_an_offload_of_another_category_inside_stays(offloader: StateOffloader) -> None:
    with offloader.offloaded("buffers"):
        offloader.offload("lp_params")
    assert offloader.offloaded_states() == {Category.LP_PARAMS}
    offloader.reload()


def test_gradients_dropped_inside_do_not_come_back(
    run: MasterTraining, offloader: StateOffloader
) -> None:
    with offloader.offloaded("lp_grads", "contiguous_grad_buffer", "lp_params"):
        for parameter in run.model.parameters():
            parameter.grad = None
    assert Category.LP_GRADS not in offloader.resident()
    assert offloader.engine.offloaded_bytes <= run.buffer.nbytes


def test_a_block_that_cannot_be_entered_has_moved_nothing(run: MasterTraining, device: str) -> None:
    before = run.bits()
    with PinnedArena("4KiB", device=device) as small:
        offloader = StateOffloader(run.model, run.optimizer, arena=small)
        with pytest.raises(ArenaExhausted), offloader.offloaded():
            raise AssertionError
        assert offloader.offloaded_states() == frozenset()
    assert_same_bits(run.bits(), before)
