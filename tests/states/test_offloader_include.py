"""How categories are named, and what a wrong name does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinferry import Category, PinnedArena, StateOffloader
from pinferry.errors import InvalidArgument, UnknownCategory
from pinferry.states.categories import KNOWN_TO_PYTORCH
from tests.states.training import MasterTraining, assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinferry.states.categories import Include

TWO = frozenset({Category.BUFFERS, Category.LP_GRADS})
FORMS: dict[str, tuple[Include, frozenset[Category]]] = {
    "none": (None, frozenset(KNOWN_TO_PYTORCH)),
    "text": ("buffers", frozenset({Category.BUFFERS})),
    "member": (Category.BUFFERS, frozenset({Category.BUFFERS})),
    "list": (["buffers", "lp_grads"], TWO),
    "mixed_tuple": ((Category.BUFFERS, "lp_grads"), TWO),
    "set": ({"buffers", "lp_grads"}, TWO),
    "generator": ((name for name in ("buffers", "lp_grads", "buffers")), TWO),
    "empty": ([], frozenset()),
}


@pytest.fixture
def run(device: str) -> MasterTraining:
    return MasterTraining(device).until_gradients()


@pytest.fixture
def offloader(run: MasterTraining, arena: PinnedArena) -> StateOffloader:
    return StateOffloader(run.model, run.optimizer, arena=arena)


@pytest.mark.parametrize("form", FORMS)
def test_categories_are_named_in_any_form(offloader: StateOffloader, form: str) -> None:
    # A generator can be read once only.
    include, meant = FORMS[form] if form != "generator" else (iter(("buffers", "lp_grads")), TWO)
    offloader.offload(include)
    assert offloader.offloaded_states() == meant
    offloader.reload()


@pytest.mark.parametrize("form", [f for f in FORMS if f != "generator"])
def test_reload_takes_the_same_forms(offloader: StateOffloader, form: str) -> None:
    include, meant = FORMS[form]
    offloader.offload()
    offloader.reload(include)
    assert offloader.offloaded_states() == frozenset(KNOWN_TO_PYTORCH) - meant
    offloader.reload()


WRONG: dict[str, Include] = {
    "misspelt": "optim_state",
    "one_of_two": ["lp_params", "gradients"],
    "joined": "lp_params,lp_grads",
    "upper_case": "BUFFERS",
    "empty_text": "",
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("call", ["offload", "reload", "offloaded"])
def test_an_unknown_category_moves_nothing(
    run: MasterTraining, offloader: StateOffloader, call: str, wrong: str
) -> None:
    offloader.offload("buffers")
    before = offloader.engine.offloaded_names()
    include = WRONG[wrong]
    names = [include] if isinstance(include, str) else list(include or ())
    calls: dict[str, Callable[[], object]] = {
        "offload": lambda: offloader.offload(include),
        "reload": lambda: offloader.reload(include),
        "offloaded": lambda: offloader.offloaded(*names).__enter__(),
    }
    with pytest.raises(UnknownCategory, match="choose from optim_states, hp_params") as caught:
        calls[call]()
    assert caught.value.name == names[-1]
    assert offloader.engine.offloaded_names() == before
    offloader.reload()


@pytest.mark.parametrize("include", [3, [["buffers"]], [None], b"buffers"])
def test_what_names_no_category_at_all_is_an_invalid_argument(
    offloader: StateOffloader, include: object
) -> None:
    with pytest.raises(InvalidArgument):
        offloader.offload(include)  # type: ignore[arg-type]
    assert offloader.engine.offloaded_bytes == 0


def test_blocking_calls_return_when_the_bytes_are_there(
    run: MasterTraining, offloader: StateOffloader
) -> None:
    before = run.bits()
    assert offloader.offload(non_blocking=False).done()
    assert offloader.reload(non_blocking=False).done()
    assert_same_bits(run.bits(), before)


def test_an_offloader_needs_state_and_one_place_for_it(
    run: MasterTraining, offloader: StateOffloader, arena: PinnedArena
) -> None:
    with pytest.raises(InvalidArgument, match="model, an optimizer"):
        StateOffloader(arena=arena)
    with pytest.raises(InvalidArgument, match="arena or an engine"):
        StateOffloader(run.model)
    with pytest.raises(InvalidArgument, match="arena or an engine"):
        StateOffloader(run.model, arena=arena, engine=offloader.engine)
