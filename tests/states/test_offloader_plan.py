"""Plans of an offloader: state found once, moved in every iteration."""

from __future__ import annotations

import itertools

import pytest

from pinferry import PinnedArena, StateOffloader
from pinferry.errors import AlreadyOffloaded, InvalidArgument, UnknownCategory
from tests.states.training import Training, assert_same_bits


@pytest.fixture
def run(device: str) -> Training:
    return Training(device).until_gradients()


@pytest.fixture
def offloader(run: Training, arena: PinnedArena) -> StateOffloader:
    return StateOffloader(run.model, run.optimizer, arena=arena)


def spans(offloader: StateOffloader, category: str) -> list[tuple[int, int]]:
    """Return where the storages of a category begin and end."""
    found = offloader.discover().only(category)
    return sorted(
        (entry.storage.data_ptr(), entry.storage.data_ptr() + entry.nbytes)
        for entry in found
        if entry.nbytes
    )


def are_side_by_side(spans: list[tuple[int, int]]) -> bool:
    start = spans[0][0]
    return all(
        following - start == -(-(end - start) // 512) * 512
        for (_, end), (following, _) in itertools.pairwise(spans)
    )


def test_training_goes_on_to_the_bit_with_its_state_moved_in_every_step(
    run: Training, device: str, arena: PinnedArena
) -> None:
    control = Training(device).until_gradients()
    offloader = StateOffloader(run.model, run.optimizer, arena=arena)
    with offloader.plan(["optim_states", "hp_params"]) as plan:
        for _ in range(4):
            plan.offload()
            plan.reload()
            run.step()
            control.step()
    assert_same_bits(run.bits(), control.bits())


def test_what_only_the_optimizer_touches_is_compacted_by_default(
    run: Training, offloader: StateOffloader
) -> None:
    before = run.bits()
    with offloader.plan() as plan:
        plan.offload()
        plan.reload()
        plan.offload(release="ordered")
        plan.reload()
        together = spans(offloader, "optim_states") + spans(offloader, "lp_grads")
        assert are_side_by_side(sorted(together))
        assert len(together) > 2
    assert_same_bits(run.bits(), before)


@pytest.mark.parametrize("compact", ["buffers", (), ["lp_params", "buffers"]], ids=str)
def test_other_categories_are_compacted_if_named(
    run: Training, offloader: StateOffloader, compact: str | list[str]
) -> None:
    before = run.bits()
    with offloader.plan(compact=compact) as plan:
        plan.offload()
        plan.reload()
        # With the gaps between those that share a slab, which are copied too.
        expected = sum(
            -(-entry.nbytes // 512) * 512 if entry.category in compact else entry.nbytes
            for entry in offloader.discover()
        )
        assert plan.offload().nbytes == expected
        plan.reload()
        if "lp_params" in compact:
            assert are_side_by_side(spans(offloader, "lp_params"))
    assert_same_bits(run.bits(), before)


def test_a_plan_takes_the_categories_that_it_is_given(
    run: Training, offloader: StateOffloader
) -> None:
    with offloader.plan("lp_grads") as plan:
        assert plan.names() == offloader.discover().only("lp_grads").names()


@pytest.mark.parametrize(
    "arguments", [{"include": "weights"}, {"compact": ["optim_states", "weights"]}], ids=str
)
def test_an_unknown_category_takes_no_room(
    offloader: StateOffloader, arena: PinnedArena, arguments: dict[str, object]
) -> None:
    with pytest.raises(UnknownCategory, match="weights"):
        offloader.plan(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="compact=3"):
        offloader.plan(compact=3)  # type: ignore[arg-type]
    assert arena.stats().used_bytes == 0


def test_state_that_is_away_cannot_be_planned(
    run: Training, offloader: StateOffloader, arena: PinnedArena
) -> None:
    before = run.bits()
    offloader.offload("optim_states")
    held = arena.stats().used_bytes
    with pytest.raises(AlreadyOffloaded, match="reload"):
        offloader.plan()
    assert arena.stats().used_bytes == held
    offloader.reload()
    assert_same_bits(run.bits(), before)
