"""What the optimizer steps on: parameters, or master weights of more precision in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pinferry.loop.piece import Member

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence

__all__ = ["drop_gradients", "give_gradients", "make_masters", "members_of", "take_weights"]

_STATES_PER_WEIGHT = 2  # as Adam has


def members_of(
    groups: Sequence[Mapping[str, Sequence[torch.Tensor]]],
    *,
    masters: bool,
    first_group: int = 0,
    first_index: int = 0,
) -> Iterator[Member]:
    """Return a member for each parameter; with `masters`, those of less than fp32 are mixed."""
    index = first_index
    for number, group in enumerate(groups, first_group):
        for position, parameter in enumerate(group["params"]):
            mixed = masters and parameter.is_floating_point() and parameter.element_size() < 4
            weight = 4 if mixed else parameter.element_size()
            yield Member(
                group=number,
                index=index,
                name=f"param_groups[{number}].params[{position}]",
                parameter=parameter,
                stepped_on=parameter,
                mixed=mixed,
                nbytes=(_STATES_PER_WEIGHT + mixed) * weight * parameter.numel(),
            )
            index += 1


def make_masters(members: Iterable[Member], state: MutableMapping[Any, Any]) -> None:
    """Make the master weights that there are to be, and hand them what state there is."""
    for member in members:
        if member.mixed and member.stepped_on is member.parameter:
            parameter = member.parameter
            member.stepped_on = torch.nn.Parameter(parameter.detach().float())
            kept = state.pop(parameter, None)
            if isinstance(kept, dict):
                state[member.stepped_on] = {
                    key: value.float() if _like(value, parameter) else value
                    for key, value in kept.items()
                }


def give_gradients(members: Iterable[Member]) -> None:
    """Give master weights the gradients of their parameters."""
    for member in members:
        if member.mixed and member.parameter.grad is not None:
            member.stepped_on.grad = member.parameter.grad.to(member.stepped_on.dtype)


def take_weights(members: Iterable[Member]) -> None:
    """Give parameters what their master weights have become."""
    with torch.no_grad():
        for member in members:
            if member.mixed and member.stepped_on.grad is not None:
                member.parameter.copy_(member.stepped_on)


def drop_gradients(members: Iterable[Member]) -> None:
    """Drop the gradients of master weights."""
    for member in members:
        if member.mixed:
            member.stepped_on.grad = None


def _like(value: object, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape
