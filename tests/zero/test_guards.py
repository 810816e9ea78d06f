"""What needs state that is away raises before it begins, or brings it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch

from pinferry import Category
from pinferry.deepspeed import attach
from pinferry.errors import StateOffloaded
from pinferry.states.keeper import StateKeeper
from tests.zero.engines import WRAPPERS, engine_of
from tests.zero.model import batch, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pinferry import PinnedArena

    Operation = Callable[[Any, Path], object]

STEPS = 3


def forward(engine: Any, folder: Path) -> object:
    return engine(batch(0, 0, engine.device))


def module_forward(engine: Any, folder: Path) -> object:
    return engine.module(batch(0, 0, engine.device))


def step(engine: Any, folder: Path) -> object:
    return engine.step()


def save(engine: Any, folder: Path) -> object:
    return engine.save_checkpoint(str(folder), tag="away")


def load(engine: Any, folder: Path) -> object:
    return engine.load_checkpoint(str(folder), tag="there")


def save_weights(engine: Any, folder: Path) -> object:
    return engine.save_16bit_model(str(folder))


@pytest.fixture(scope="module", params=WRAPPERS)
def engine(request: pytest.FixtureRequest, world: None) -> Iterator[Any]:
    """Return an engine between backward and step."""
    with engine_of(request.param) as engine:
        train(engine, 2)
        engine.backward(engine(batch(2, 0, engine.device)))
        yield engine


NEEDED = [
    (forward, "lp_params"),
    (forward, "frozen_params"),
    (forward, "buffers"),
    (module_forward, "lp_params"),
    (step, "lp_params"),
    (step, "hp_params"),
    (step, "optim_states"),
    (step, "lp_grads"),
    (save, "lp_params"),
    (save, "frozen_params"),
    (save, "hp_params"),
    (save, "optim_states"),
    (load, "hp_params"),
    (save_weights, "lp_params"),
    (save_weights, "buffers"),
]


@pytest.mark.parametrize(
    ("operation", "category"), NEEDED, ids=[f"{each.__name__}-{name}" for each, name in NEEDED]
)
def test_an_operation_names_what_it_needs_and_has_not_begun(
    operation: Operation,
    category: str,
    engine: Any,
    arena: PinnedArena,
    tmp_path: Path,
) -> None:
    with attach(engine, arena) as offloader:
        if category not in offloader.discover().by_category():
            return  # this wrapper has none of it
        engine.offload_states([category])
        steps = engine.global_steps
        with pytest.raises(StateOffloaded, match=f"needs {category}.*reload_states"):
            operation(engine, tmp_path)
        assert engine.global_steps == steps
        assert not list(tmp_path.iterdir())
        assert offloader.offloaded_states() == {category}


@pytest.mark.parametrize("category", ["lp_params", "buffers", "lp_grads"])
def test_backward_names_what_it_needs_and_can_be_repeated(
    category: str,
    engine: Any,
    arena: PinnedArena,
) -> None:
    with attach(engine, arena) as offloader:
        loss = engine(batch(5, 0, engine.device))
        if category not in offloader.discover().by_category():
            return
        engine.offload_states([category])
        with pytest.raises(StateOffloaded, match=f"backward needs {category}"):
            engine.backward(loss)
        engine.reload_states()


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_refusal_at_any_part_of_a_step_leaves_the_training_as_it_was(
    kind: str, arena: PinnedArena, device: str
) -> None:
    with engine_of(kind) as engine:
        expected = train(engine, STEPS)
    with engine_of(kind) as engine, attach(engine, arena):
        losses = []
        for number in range(STEPS):
            loss: Any = None

            def attempt(operation: Callable[[], Any]) -> Any:
                engine.offload_states()
                with pytest.raises(StateOffloaded):
                    operation()
                engine.reload_states()
                return operation()

            loss = attempt(lambda: engine(batch(number, 0, device)))  # noqa: B023
            attempt(lambda: engine.backward(loss))  # noqa: B023
            attempt(engine.step)
            losses.append(loss.item())
        assert losses == expected


@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3"])
def test_a_loss_of_its_own_backward_is_refused_too(
    kind: str, arena: PinnedArena, device: str
) -> None:
    with engine_of(kind) as engine, attach(engine, arena):
        loss = engine(batch(0, 0, device))
        engine.offload_states(["lp_params"])
        with pytest.raises(StateOffloaded, match="backward needs lp_params"):
            loss.backward()
        engine.reload_states()


@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3"])
def test_a_loss_of_its_own_can_go_backward_after_it_was_refused(
    kind: str, arena: PinnedArena, device: str
) -> None:
    def steps(engine: Any, backward: Callable[[Any], object]) -> list[float]:
        losses = []
        for number in range(STEPS):
            loss = engine(batch(number, 0, device))
            backward(loss)
            engine.step()
            losses.append(loss.item())
        return losses

    with engine_of(kind) as engine:
        expected = steps(engine, lambda loss: loss.backward())
    with engine_of(kind) as engine, attach(engine, arena):

        def attempt(loss: Any) -> None:
            engine.offload_states()
            with pytest.raises(StateOffloaded):
                loss.backward()
            engine.reload_states()
            loss.backward()

        assert steps(engine, attempt) == expected


def test_gathering_weights_that_are_away_harms_nothing(arena: PinnedArena, device: str) -> None:
    from deepspeed.runtime.zero import GatheredParameters

    with engine_of("zero3") as engine:
        expected = train(engine, STEPS)
    with engine_of("zero3") as engine, attach(engine, arena):
        losses = train(engine, 1)
        engine.offload_states(["lp_params"])
        parameters = list(engine.module.parameters())
        # One rank alone gathers nothing: it looks at its shard, which is away.
        with pytest.raises(RuntimeError, match="offloaded"), GatheredParameters(parameters):
            parameters[0].sum()
        engine.reload_states()
        with GatheredParameters(parameters):
            assert parameters[0].shape == (37, 24)
        assert losses + train(engine, STEPS - 1, first=1) == expected


def test_an_update_between_two_boundaries_is_not_refused(arena: PinnedArena, device: str) -> None:
    with engine_of("zero2", accumulation=2) as engine, attach(engine, arena):
        engine.backward(engine(batch(0, 0, device)))
        engine.offload_states(["hp_params", "optim_states"])
        engine.step()  # not at the boundary: it needs nothing
        engine.backward(engine(batch(1, 0, device)))
        with pytest.raises(StateOffloaded):
            engine.step()
        engine.reload_states()
        engine.step()


@pytest.mark.parametrize("kind", ["plain", "bf16_optimizer", "zero1", "zero2", "zero3"])
def test_a_step_that_is_always_a_boundary_is_refused_before_it_reduces(
    kind: str, arena: PinnedArena, device: str
) -> None:
    def steps(engine: Any, step: Callable[[], object]) -> list[float]:
        losses = []
        for number in range(2 * STEPS):
            loss = engine(batch(number, 0, device))
            engine.backward(loss)
            losses.append(loss.item())
            if number % 2:
                step()
        return losses

    own: dict[str, Any] = {"managed_gradient_accumulation": False}
    with engine_of(kind, accumulation=2, **own) as engine:
        if not hasattr(type(engine), "managed_gradient_accumulation"):
            pytest.skip("this release manages gradient accumulation itself")
        expected = steps(engine, engine.step)
    with engine_of(kind, accumulation=2, **own) as engine, attach(engine, arena):

        def attempt() -> None:
            engine.offload_states()
            with pytest.raises(StateOffloaded, match="step needs"):
                engine.step()
            assert not engine.is_gradient_accumulation_boundary()
            engine.reload_states()
            engine.step()

        assert steps(engine, attempt) == expected


@pytest.mark.parametrize("on_access", ["raise", "reload"])
@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3"])
def test_gradients_that_are_reduced_together_are_there_when_they_are(
    kind: str, on_access: str, arena: PinnedArena, device: str
) -> None:
    def accumulate(engine: Any, losses: list[float], at_the_end: Callable[[], object]) -> None:
        with engine.coalesce_grad_reduction():
            for _ in range(2):
                loss = engine(batch(len(losses), 0, device))
                engine.backward(loss)
                losses.append(loss.item())
            at_the_end()

    expected: list[float] = []
    losses: list[float] = []
    with engine_of(kind) as engine:
        if not hasattr(type(engine), "coalesce_grad_reduction"):
            pytest.skip("this release has no such block")
        for _ in range(STEPS):
            accumulate(engine, expected, lambda: None)
            engine.step()
    with engine_of(kind) as engine, attach(engine, arena, on_access=on_access):
        for _ in range(STEPS):
            if on_access == "reload":
                accumulate(engine, losses, engine.offload_states)
            else:
                with pytest.raises(StateOffloaded, match="reduction of gradients needs"):
                    accumulate(engine, losses, engine.offload_states)
                engine.reload_states()
                with engine.coalesce_grad_reduction():
                    pass  # reduces what the refused block has left
            engine.step()
    assert losses == expected


def test_an_operation_that_needs_nothing_of_what_is_away_does_not_go_through_it(
    arena: PinnedArena, device: str
) -> None:
    with engine_of("zero2") as engine, attach(engine, arena):
        train(engine, 1)
        engine.offload_states(["optim_states", "hp_params"])
        with patch.object(StateKeeper, "away", side_effect=AssertionError):
            engine(batch(1, 0, device))
        engine.reload_states()
        engine.offload_states(["lp_params"])
        with pytest.raises(StateOffloaded):
            engine(batch(1, 0, device))


def test_a_compiled_module_is_guarded_where_the_engine_calls_it(
    arena: PinnedArena, device: str
) -> None:
    with engine_of("zero2") as engine, attach(engine, arena):
        engine.module.compile(backend="eager")
        with torch.no_grad():
            before = engine(batch(0, 0, device)).item()
            engine.offload_states(["lp_params"])
            with pytest.raises(StateOffloaded, match="forward needs lp_params"):
                engine(batch(0, 0, device))
            engine.reload_states()
            assert engine(batch(0, 0, device)).item() == before


def test_what_is_needed_returns_by_itself_where_that_was_asked_for(
    arena: PinnedArena, device: str
) -> None:
    with engine_of("zero3") as engine, attach(engine, arena, on_access="reload") as offloader:
        train(engine, 1)
        engine.offload_states()
        engine(batch(1, 0, device))
        assert offloader.offloaded_states() == {
            Category.HP_PARAMS,
            Category.OPTIM_STATES,
            Category.LP_GRADS,
            Category.CONTIGUOUS_GRAD_BUFFER,
        }
