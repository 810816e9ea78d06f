"""Losses with a cycle at every step are those of a run without, to the bit."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from pinferry import Category
from pinferry.deepspeed import attach
from tests.zero.engines import KINDS, WRAPPERS, engine_of
from tests.zero.model import train

if TYPE_CHECKING:
    from pinferry import PinnedArena

STEPS = 20


@cache
def losses_without(kind: str, accumulation: int) -> list[float]:
    with engine_of(kind, accumulation=accumulation) as engine:
        losses = train(engine, STEPS)
    assert len(set(losses)) > STEPS // 2  # it learns something
    return losses


EACH = [(kind, category) for kind in WRAPPERS for category in Category]
ALL = [(kind, None) for kind in KINDS]


@pytest.mark.parametrize(("kind", "include"), [*EACH, *ALL], ids=str)
def test_a_cycle_between_any_two_parts_of_a_step_changes_nothing(
    kind: str, include: Category | None, arena: PinnedArena, device: str
) -> None:
    moved: set[Category] = set()
    with engine_of(kind, accumulation=2) as engine, attach(engine, arena) as offloader:

        def cycle(moment: str, step: int) -> None:
            engine.offload_states(include, non_blocking=step % 2 == 0)
            moved.update(offloader.offloaded_states())
            engine.reload_states(non_blocking=step % 3 == 0)
            assert not offloader.offloaded_states()

        assert train(engine, STEPS, cycle) == losses_without(kind, 2)
        there = set(offloader.discover().by_category())
    assert moved >= (there if include is None else there & {include})
    assert moved <= (set(Category) if include is None else {include})


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_everything_leaves_before_each_step_and_comes_back_by_itself(
    kind: str, accumulation: int, arena: PinnedArena, device: str
) -> None:
    with (
        engine_of(kind, accumulation=accumulation) as engine,
        attach(engine, arena, on_access="reload") as offloader,
    ):

        def leave(moment: str, step: int) -> None:
            engine.offload_states(non_blocking=True)
            assert offloader.offloaded_states()

        assert train(engine, STEPS, leave) == losses_without(kind, accumulation)
