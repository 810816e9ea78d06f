"""Which optimizers update each parameter by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pinferry.errors import InvalidArgument, WrongDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinferry.loop.piece import Member

__all__ = ["device_of", "require_per_parameter"]

_REFUSED = {
    "LBFGS": "looks at all parameters at once, and evaluates the loss several times a step",
    "SparseAdam": "is for sparse gradients, which come as rows here and there",
}


def require_per_parameter(optimizer: object, *, vouched: bool) -> None:
    """Raise `InvalidArgument` unless the update of a parameter depends on that parameter alone.

    That is known of PyTorch's own. For others, a caller may vouch.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgument(
            f"a {type(optimizer).__name__} is no torch.optim.Optimizer; make one, and give it here"
        )
    name = type(optimizer).__name__
    if name in _REFUSED:
        raise InvalidArgument(f"{name} {_REFUSED[name]}; it cannot be streamed")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise InvalidArgument("a step that is differentiable keeps all state alive; leave that out")
    if not f"{type(optimizer).__module__}.".startswith("torch.optim.") and not vouched:
        raise InvalidArgument(
            f"{name} is not PyTorch's, and may look at several parameters at once; if it updates "
            "each by itself and keeps its state in optimizer.state[parameter], say so with "
            "per_parameter=True"
        )


def device_of(members: Sequence[Member]) -> torch.device:
    """Return where all parameters are.

    Raises
    ------
    InvalidArgument, WrongDevice
        If there are none, or if they are on several devices.
    """
    if not members:
        raise InvalidArgument("this optimizer has no parameters; give it some first")
    first = members[0].parameter.device
    for member in members:
        if member.parameter.device != first:
            raise WrongDevice(
                f"{members[0].name} is on {first} and {member.name} on {member.parameter.device}; "
                "an arena serves one device, so make an optimizer for each"
            )
    return first
