"""Who holds training state in plain PyTorch: modules and optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from pinferry.errors import InvalidArgument
from pinferry.states.categories import Category

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["Found", "check_holders", "of_model", "of_optimizer", "tensors_in"]

#: A category, a name that leads to the tensor, and the tensor.
Found = tuple[Category, str, torch.Tensor]


def check_holders(model: object, optimizer: object) -> None:
    """Raise `InvalidArgument` unless each is None or, of whatever type, has what is asked of it."""
    if not _offers(model, "parameters", "named_parameters", "named_buffers"):
        raise InvalidArgument(
            f"a model is a torch.nn.Module, or has its named_parameters() and named_buffers(); "
            f"{_kind(model)} has not"
        )
    if not _offers(optimizer, "param_groups", "state"):
        raise InvalidArgument(
            f"an optimizer is a torch.optim.Optimizer, or has its param_groups and state; "
            f"{_kind(optimizer)} has not"
        )


def _offers(holder: object, *names: str) -> bool:
    # A class has what its instances have, and holds nothing.
    return holder is None or (
        not isinstance(holder, type) and all(hasattr(holder, name) for name in names)
    )


def _kind(holder: object) -> str:
    return f"the class {holder.__name__}" if isinstance(holder, type) else type(holder).__name__


def of_model(model: torch.nn.Module | None) -> Iterator[Found]:
    """Return parameters, buffers and gradients; tied ones under each of their names."""
    if model is None:
        return
    for name, parameter in model.named_parameters(prefix="model", remove_duplicate=False):
        yield Category.LP_PARAMS, name, parameter
    for name, buffer in model.named_buffers(prefix="model", remove_duplicate=False):
        yield Category.BUFFERS, name, buffer
    for name, parameter in model.named_parameters(prefix="model"):
        if parameter.grad is not None:
            yield Category.LP_GRADS, f"{name}.grad", parameter.grad


def of_optimizer(
    optimizer: torch.optim.Optimizer | None,
    model: torch.nn.Module | None,
    keys: Sequence[torch.Tensor] | None = None,
) -> Iterator[Found]:
    """Return what the optimizer steps on apart from the model's parameters, and its state.

    `keys` are what its state is kept for, in an order to name it by; by default its parameters.
    """
    if optimizer is None:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = {id(parameter) for parameter in model.parameters()} if model is not None else set()
    # Without the model, what the optimizer steps on can only be the weights themselves.
    category = Category.HP_PARAMS if model is not None else Category.LP_PARAMS
    for index, parameter in enumerate(parameters):
        if id(parameter) in own:
            continue
        name = f"optimizer.params[{index}]"
        yield category, name, parameter
        if parameter.grad is not None:
            yield Category.LP_GRADS, f"{name}.grad", parameter.grad
    indices = {id(key): index for index, key in enumerate(parameters if keys is None else keys)}
    # Keys are parameters, except where an optimizer keeps something of its own under a name.
    state: list[tuple[object, object]] = list(optimizer.state.items())
    for position, (key, value) in enumerate(state):
        label = f"key {key}" if isinstance(key, int) else _label(key, position, indices)
        for name, tensor in tensors_in(f"optimizer.state[{label}]", value, (), indices):
            yield Category.OPTIM_STATES, name, tensor


def _label(key: object, position: int, indices: Mapping[int, int]) -> str:
    """Return a name for a key: of a parameter of the groups, its index.

    Never what a key says of itself: a tensor would show its contents, which may be away.
    """
    if id(key) in indices:
        return str(indices[id(key)])
    if isinstance(key, str | int):
        return str(key)
    return f"{type(key).__name__} at {position}"


def tensors_in(
    name: str,
    value: object,
    inside: Collection[int] = (),
    indices: Mapping[int, int] = MappingProxyType({}),
) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors in nested containers, by name.

    `inside` are those that we are in already; `indices` those of parameters, by id, as keys.
    """
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if id(value) in inside:
        return
    within = (*inside, id(value))
    if isinstance(value, Mapping):
        for position, (key, inner) in enumerate(value.items()):
            label = f".{key}" if isinstance(key, str) else f"[{_label(key, position, indices)}]"
            yield from tensors_in(name + label, inner, within, indices)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from tensors_in(f"{name}[{index}]", inner, within, indices)
