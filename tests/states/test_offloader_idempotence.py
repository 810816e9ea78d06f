"""Calls may be repeated, and in any order."""

from __future__ import annotations

import pytest

from pinferry import Category, PinnedArena, StateOffloader
from pinferry.states.categories import KNOWN_TO_PYTORCH
from tests.states.training import MasterTraining, Net, assert_same_bits


@pytest.fixture
def run(device: str) -> MasterTraining:
    return MasterTraining(device).until_gradients()


@pytest.fixture
def offloader(run: MasterTraining, arena: PinnedArena) -> StateOffloader:
    return StateOffloader(run.model, run.optimizer, arena=arena)


def test_the_second_offload_moves_nothing(
    run: MasterTraining, offloader: StateOffloader, arena: PinnedArena
) -> None:
    before = run.bits()
    assert offloader.offload().nbytes == offloader.discover().nbytes()
    used = arena.stats()
    again = offloader.offload()
    assert (again.nbytes, again.done()) == (0, True)
    assert arena.stats() == used
    offloader.reload()
    assert_same_bits(run.bits(), before)


def test_the_second_reload_moves_nothing(run: MasterTraining, offloader: StateOffloader) -> None:
    offloader.offload()
    offloader.reload()
    addresses = {name: t.data_ptr() for name, t in run.tensors().items()}
    assert offloader.reload().nbytes == 0
    assert {name: t.data_ptr() for name, t in run.tensors().items()} == addresses


@pytest.mark.parametrize("include", [None, "optim_states", ["lp_params", "buffers"]])
def test_a_reload_of_what_was_never_offloaded_does_nothing(
    run: MasterTraining,
    offloader: StateOffloader,
    arena: PinnedArena,
    include: list[str] | str | None,
) -> None:
    before, addresses = run.bits(), [t.data_ptr() for t in run.tensors().values()]
    ticket = offloader.reload(include)
    assert (ticket.nbytes, ticket.done()) == (0, True)
    assert_same_bits(run.bits(), before)
    assert [t.data_ptr() for t in run.tensors().values()] == addresses
    assert arena.stats().allocations == 0


def test_a_reload_moves_only_what_is_away(run: MasterTraining, offloader: StateOffloader) -> None:
    offloader.offload(["lp_grads", "buffers"])
    moved = offloader.discover().only("lp_grads").nbytes()
    assert offloader.reload(["lp_grads", "lp_params"]).nbytes == moved
    assert offloader.offloaded_states() == {Category.BUFFERS}
    offloader.reload()


def test_categories_go_and_come_one_by_one(run: MasterTraining, offloader: StateOffloader) -> None:
    before = run.bits()
    for category in KNOWN_TO_PYTORCH:
        offloader.offload(category)
    assert offloader.resident() == frozenset()
    for category in reversed(KNOWN_TO_PYTORCH):
        offloader.reload(category)
    assert offloader.offloaded_states() == frozenset()
    assert_same_bits(run.bits(), before)


def test_an_offload_after_part_of_it_moves_the_rest(
    run: MasterTraining, offloader: StateOffloader
) -> None:
    before = run.bits()
    first = offloader.offload("lp_params").nbytes
    assert offloader.offload().nbytes == offloader.discover().nbytes() - first
    offloader.reload()
    assert_same_bits(run.bits(), before)


def test_identities_and_shapes_stay_while_state_is_away(
    run: MasterTraining, offloader: StateOffloader
) -> None:
    def identities() -> dict[str, tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
        return {
            name: (id(t), t.untyped_storage().nbytes(), tuple(t.shape), t.stride())
            for name, t in run.tensors().items()
        }

    before, keys = identities(), [id(key) for key in run.optimizer.state]
    offloader.offload()
    assert identities() == before
    assert run.model.state_dict().keys() == Net().state_dict().keys()
    offloader.reload()
    assert identities() == before
    assert [id(key) for key in run.optimizer.state] == keys


def test_offloaders_that_share_an_engine_share_what_is_away(
    run: MasterTraining, offloader: StateOffloader
) -> None:
    other = StateOffloader(run.model, run.optimizer, engine=offloader.engine)
    before = run.bits()
    offloader.offload("lp_params")
    assert other.offloaded_states() == {Category.LP_PARAMS}
    assert other.offload("lp_params").nbytes == 0
    other.reload()
    assert offloader.offloaded_states() == frozenset()
    assert_same_bits(run.bits(), before)


def test_the_bytes_that_come_back_are_those_of_the_last_offload(
    run: MasterTraining, offloader: StateOffloader
) -> None:
    for _ in range(5):
        offloader.offload()
        offloader.reload()
        run.update()
        run.clear()
        before = run.bits()
        offloader.offload()
        offloader.reload()
        assert_same_bits(run.bits(), before)
        run.backward()
