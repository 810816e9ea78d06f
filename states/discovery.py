"""Finding the state of a model and its optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from pinferry.errors import InvalidArgument
from pinferry.states.categories import Category
from pinferry.states.state_set import StateEntry, StateSet
from pinferry.transfer import inner_tensors, storage_key, storage_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["discover"]

_Found = tuple[Category, str, torch.Tensor]


def discover(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    device: object = None,
) -> StateSet:
    """Find every storage that holds state of `model` and `optimizer`.

    Reads references only: nothing is copied, and an optimizer that has not stepped stays without
    state. Call it anew whenever a framework may have replaced tensors.

    Parameters
    ----------
    model
        Its parameters (frozen ones too), their gradients, and all its buffers.
    optimizer
        Its state, and the parameters it steps on that are not the model's (master weights).
    device
        Leave out what lives elsewhere, such as ``step`` counters on the CPU. Default: leave out
        nothing.

    Returns
    -------
    StateSet
        Each storage once, under the first category and name that lead to it: parameters, buffers,
        gradients, master weights, optimizer state.

    Raises
    ------
    UnsupportedStorage
        If a tensor has no storage of its own (sparse or opaque).
    """
    if model is None and optimizer is None:
        raise InvalidArgument("nothing to look through: give a model, an optimizer, or both")
    found = [*_of_model(model), *_of_optimizer(optimizer, model)]
    shared = _shared_gradients(found)
    first: dict[int, tuple[Category, str, torch.Tensor, torch.UntypedStorage]] = {}
    aliases: dict[int, list[str]] = {}
    for category, outer_name, outer in found:
        for name, tensor in inner_tensors(outer_name, outer):
            storage = storage_of(name, tensor)
            key = storage_key(storage)
            if key in first:
                aliases[key].append(name)
                continue
            kind = category
            if category is Category.LP_GRADS and key in shared:
                kind = Category.CONTIGUOUS_GRAD_BUFFER
            first[key] = (kind, name, tensor, storage)
            aliases[key] = []
    wanted = None if device is None else torch.device(str(device))
    return StateSet(
        [
            StateEntry(
                category=category,
                name=name,
                nbytes=storage.nbytes(),
                dtype=tensor.dtype,
                shape=tuple(tensor.shape),
                device=storage.device,
                storage=storage,
                aliases=tuple(aliases[key]),
            )
            for key, (category, name, tensor, storage) in first.items()
            if wanted is None or storage.device == wanted
        ]
    )


def _of_model(model: torch.nn.Module | None) -> Iterator[_Found]:
    if model is None:
        return
    for name, parameter in model.named_parameters(prefix="model", remove_duplicate=False):
        yield Category.LP_PARAMS, name, parameter
    for name, buffer in model.named_buffers(prefix="model", remove_duplicate=False):
        yield Category.BUFFERS, name, buffer
    for name, parameter in model.named_parameters(prefix="model"):
        if parameter.grad is not None:
            yield Category.LP_GRADS, f"{name}.grad", parameter.grad


def _of_optimizer(
    optimizer: torch.optim.Optimizer | None, model: torch.nn.Module | None
) -> Iterator[_Found]:
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
    indices = {id(parameter): index for index, parameter in enumerate(parameters)}
    # Keys are parameters, except where an optimizer keeps something of its own under a name.
    state: list[tuple[object, object]] = list(optimizer.state.items())
    for key, value in state:
        label = indices.get(id(key), key if isinstance(key, str | int) else type(key).__name__)
        for name, tensor in _tensors_in(f"optimizer.state[{label}]", value):
            yield Category.OPTIM_STATES, name, tensor


def _tensors_in(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors inside nested containers, with names that lead to them."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            label = f".{key}" if isinstance(key, str) else f"[{key}]"
            yield from _tensors_in(name + label, inner)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _tensors_in(f"{name}[{index}]", inner)


def _shared_gradients(found: Iterable[_Found]) -> set[int]:
    """Return the storages that more than one gradient is a view of."""
    uses = Counter(
        storage_key(storage_of(inner_name, tensor))
        for category, name, gradient in found
        if category is Category.LP_GRADS
        for inner_name, tensor in inner_tensors(name, gradient)
    )
    return {key for key, count in uses.items() if count > 1}
