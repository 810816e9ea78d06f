"""Some parameters, whose state comes and goes together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pinferry.states.holders import tensors_in
from pinferry.transfer import storage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch

    from pinferry.transfer import TransferEngine, TransferPlan

__all__ = ["Member", "Piece", "cut"]


@dataclass(slots=True, eq=False)
class Member:
    """A parameter.

    Attributes
    ----------
    group
        The number of its group.
    index
        Its number among all parameters.
    name
        For error texts.
    parameter
        The model's.
    stepped_on
        What the optimizer updates: the same, or its master weight.
    mixed
        Whether that is to be a master weight.
    nbytes
        What its state takes on the device, about.
    """

    group: int
    index: int
    name: str
    parameter: torch.Tensor
    stepped_on: torch.Tensor
    mixed: bool
    nbytes: int


@dataclass(slots=True, eq=False)
class Piece:
    """Members whose state moves by one plan.

    Attributes
    ----------
    members
        In the order of the groups.
    plan
        What moves the state; None until there is any.
    planned
        The storages that it moves, by their number.
    """

    members: Sequence[Member]
    plan: TransferPlan | None = None
    planned: frozenset[int] = field(default_factory=frozenset)

    def named(
        self, state: Mapping[Any, Any], device: torch.device
    ) -> dict[str, torch.UntypedStorage]:
        """Return the storages of its state and master weights that lie on `device`, by name."""
        found: dict[int, tuple[str, torch.UntypedStorage]] = {}
        for name, tensor in self._tensors(state):
            storage = storage_of(name, tensor)
            if storage.device == device and storage.nbytes():
                found.setdefault(storage._cdata, (name, storage))  # noqa: SLF001
        taken = Counter[str]()
        named = {}
        for name, storage in found.values():
            taken[name] += 1
            named[name if taken[name] == 1 else f"{name} ({taken[name]})"] = storage
        return named

    def replan(
        self, engine: TransferEngine, state: Mapping[Any, Any], device: torch.device
    ) -> None:
        """Make a plan for what there is, unless there is one; the state is here."""
        named = self.named(state, device)
        storages = frozenset(storage._cdata for storage in named.values())  # noqa: SLF001
        if storages == self.planned:
            return
        self.forget()
        self.plan = engine.plan(named, compact=True)
        self.planned = storages

    def forget(self) -> None:
        """Give the room in the arena back; the state is here."""
        if self.plan is not None:
            self.plan.close()
        self.plan, self.planned = None, frozenset()

    def _tensors(self, state: Mapping[Any, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        for member in self.members:
            if member.stepped_on is not member.parameter:
                yield f"{member.name}.master", member.stepped_on
            if member.stepped_on in state:
                yield from tensors_in(f"{member.name}.state", state[member.stepped_on])


def cut(members: Iterable[Member], nbytes: int) -> list[Piece]:
    """Return pieces of at most `nbytes`, in order; larger members have one each."""
    pieces: list[list[Member]] = []
    size = 0
    for member in members:
        if not pieces or size + member.nbytes > nbytes:
            pieces.append([])
            size = 0
        pieces[-1].append(member)
        size += member.nbytes
    return [Piece(each) for each in pieces]
