"""Loading the state of a streamed optimizer, one piece at a time."""

from __future__ import annotations

import copy
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from pinferry.errors import InvalidArgument
from pinferry.loop.saving import MASTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pinferry.loop.piece import Member, Piece
    from pinferry.loop.pipeline import Pipeline

__all__ = ["load_pieces", "require_fitting"]


def require_fitting(
    saved: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], pieces: Sequence[Piece]
) -> None:
    """Raise `InvalidArgument` unless a ``state_dict`` is of an optimizer with these groups."""
    if not isinstance(saved, dict) or not {"state", "param_groups"} <= saved.keys():
        raise InvalidArgument("this is no state_dict of an optimizer: it has no state and groups")
    here = [len(group["params"]) for group in groups]
    there = [len(group["params"]) for group in saved["param_groups"]]
    if here != there:
        raise InvalidArgument(
            f"the groups of this optimizer have {here} parameters, those that were saved {there}; "
            "load it into an optimizer with the same groups. Nothing was loaded"
        )
    masters = saved.get(MASTERS)
    for member in chain.from_iterable(piece.members for piece in pieces):
        if masters is not None and member.mixed:
            shape = getattr(masters.get(member.index), "shape", None)
            if shape != member.parameter.shape:
                raise InvalidArgument(
                    f"the master weight of {member.name} has shape {shape} where it was saved, and "
                    f"the parameter {member.parameter.shape}. Nothing was loaded"
                )


def load_pieces(
    pipeline: Pipeline,
    pieces: Sequence[Piece],
    inner: torch.optim.Optimizer,
    only: Callable[[Piece], AbstractContextManager[None]],
    saved: Mapping[str, Any],
) -> None:
    """Replace the state of `inner` by what was saved, by its own rules, piece by piece.

    `only` makes it see the members of one piece alone.
    """
    numbers = list(chain.from_iterable(group["params"] for group in saved["param_groups"]))
    loaded: defaultdict[Any, Any] = defaultdict(dict)
    loaded.update({k: v for k, v in saved["state"].items() if k not in set(numbers)})
    for piece in pieces:
        pipeline.bring(piece)
        for member in piece.members:
            inner.state.pop(member.stepped_on, None)
            if member.mixed:
                _fill_master(member, saved.get(MASTERS))
        rest = inner.state
        with only(piece):
            inner.load_state_dict(_part_of(saved, piece, numbers))
        loaded.update(inner.state)
        inner.state = rest
        pipeline.park(piece, loaded)
    inner.state = loaded
    for group, options in zip(inner.param_groups, saved["param_groups"], strict=True):
        group.update(copy.deepcopy({k: v for k, v in options.items() if k != "params"}))


def _part_of(saved: Mapping[str, Any], piece: Piece, numbers: Sequence[Any]) -> dict[str, Any]:
    """Return what was saved of one piece, copied: the optimizer keeps what it is given."""
    params: defaultdict[int, list[Any]] = defaultdict(list)
    for member in piece.members:
        params[member.group].append(numbers[member.index])
    return {
        "state": {
            number: copy.deepcopy(saved["state"][number])
            for number in chain.from_iterable(params.values())
            if number in saved["state"]
        },
        "param_groups": [
            {**saved["param_groups"][group], "params": params[group]} for group in sorted(params)
        ],
    }


def _fill_master(member: Member, masters: Mapping[int, torch.Tensor] | None) -> None:
    with torch.no_grad():
        member.stepped_on.copy_(member.parameter if masters is None else masters[member.index])
