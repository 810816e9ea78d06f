"""Which states nobody writes to."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING

from torch.nn.parameter import is_lazy

from pinferry.errors import InvalidArgument, UnsupportedStorage
from pinferry.states.holders import of_model, of_optimizer
from pinferry.transfer import inner_tensors, storage_key, storage_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from pinferry.states.state_set import StateSet

__all__ = ["Immutable", "immutable_names"]

#: ``"frozen"``, names of states, or None for nothing.
Immutable = str | Collection[str] | None

_FROZEN = "frozen"


def immutable_names(
    states: StateSet,
    immutable: Immutable,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
) -> Collection[str]:
    """Return the names among `states` of what was declared immutable.

    Raises
    ------
    InvalidArgument
        If `immutable` is a word other than ``"frozen"``.
    """
    if immutable is None:
        return ()
    given: object = immutable
    if isinstance(given, bool) or not isinstance(given, Collection):
        raise InvalidArgument(f"immutable={immutable!r}: give {_FROZEN!r}, several names, or None")
    if not isinstance(immutable, str):
        return immutable
    if immutable != _FROZEN:
        raise InvalidArgument(
            f"immutable={immutable!r}: there is {_FROZEN!r}; names of states go in a list"
        )
    parameters = [] if model is None else list(model.parameters())
    frozen = {id(each): each for each in parameters if not each.requires_grad}
    # A storage that holds anything else as well may be written to for the sake of that.
    found = [*of_model(model), *of_optimizer(optimizer, model)]
    written = [tensor for _, _, tensor in found if id(tensor) not in frozen]
    written += [] if optimizer is None else _stepped(optimizer)
    fixed = _keys(frozen.values()) - _keys(written)
    return states.where(lambda entry: storage_key(entry.storage) in fixed).names()


def _stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _keys(tensors: Iterable[torch.Tensor]) -> frozenset[int]:
    """Return the storages of tensors, by key; a tensor that has none of its own has no key."""
    found = set()
    for tensor in tensors:
        if is_lazy(tensor):
            continue
        for name, inner in inner_tensors("", tensor):
            with contextlib.suppress(UnsupportedStorage):
                found.add(storage_key(storage_of(name, inner)))
    return frozenset(found)
