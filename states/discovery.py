"""Finding the state of a model and its optimizer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from pinferry.errors import InvalidArgument, UnknownDevice, UnsupportedStorage
from pinferry.states.categories import Category
from pinferry.states.holders import Found, check_holders, of_model, of_optimizer
from pinferry.states.state_set import StateEntry, StateSet
from pinferry.transfer import inner_tensors, storage_key, storage_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Survey", "collect", "discover", "survey"]


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found: storages that can be named, and tensors that have none of their own.

    By `storage_key`: `shared_gradients` are those that several gradients are views of, and
    `scratch` those whose bytes nobody needs.
    """

    states: StateSet
    unmovable: tuple[tuple[Category, UnsupportedStorage], ...]
    shared_gradients: frozenset[int] = frozenset()
    scratch: frozenset[int] = frozenset()

    def with_shared_gradients_as_a_buffer(self) -> Survey:
        """Return the same, where gradients that share a storage are one contiguous buffer."""
        entries = [
            replace(entry, category=Category.CONTIGUOUS_GRAD_BUFFER)
            if entry.category is Category.LP_GRADS
            and storage_key(entry.storage) in self.shared_gradients
            else entry
            for entry in self.states
        ]
        return replace(self, states=StateSet(entries))

    def require_movable(self, categories: Iterable[Category]) -> None:
        """Raise for the first tensor of these categories that has no storage of its own."""
        for category, error in self.unmovable:
            if category in categories:
                raise error


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
        gradients, master weights, optimizer state. Names are unique.

    Raises
    ------
    UnsupportedStorage
        If a tensor has no storage of its own (sparse or opaque).
    InvalidArgument
        If `model` or `optimizer` holds nothing that could be looked through, or there is no such
        `device`.
    """
    found = survey(model, optimizer, device=device)
    found.require_movable(Category)
    return found.states


def survey(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    device: object = None,
) -> Survey:
    """Find what `discover` finds, and what stands in its way."""
    if model is None and optimizer is None:
        raise InvalidArgument("nothing to look through: give a model, an optimizer, or both")
    check_holders(model, optimizer)
    found = collect([*of_model(model), *of_optimizer(optimizer, model)], device=device)
    return found.with_shared_gradients_as_a_buffer()


def collect(found: Iterable[Found], *, device: object = None) -> Survey:
    """Take each storage once, under the first category and name that lead to it."""
    wanted = None if device is None else _parse_device(device)
    unmovable: list[tuple[Category, UnsupportedStorage]] = []
    first: dict[int, StateEntry] = {}
    aliases: dict[int, list[str]] = {}
    gradients: Counter[int] = Counter()
    taken: Counter[str] = Counter()
    for category, name, tensor, storage in _storages(found, unmovable):
        key = storage_key(storage)
        gradients[key] += category is Category.LP_GRADS
        if key in first:
            aliases[key].append(name)
            continue
        taken[name] += 1
        aliases[key] = []
        first[key] = StateEntry(
            category=category,
            name=name if taken[name] == 1 else f"{name} ({taken[name]})",
            nbytes=storage.nbytes(),
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            device=storage.device,
            storage=storage,
        )
    entries = [entry.with_aliases(aliases[key]) for key, entry in first.items()]
    here = [entry for entry in entries if wanted is None or _is_on(entry.device, wanted)]
    shared = frozenset(key for key, count in gradients.items() if count > 1)
    return Survey(StateSet(here), tuple(unmovable), shared)


def _storages(
    found: Iterable[Found], unmovable: list[tuple[Category, UnsupportedStorage]]
) -> Iterator[tuple[Category, str, torch.Tensor, torch.UntypedStorage]]:
    for category, outer_name, outer in found:
        if torch.nn.parameter.is_lazy(outer):
            continue  # it has no bytes until its module has seen an input
        for name, tensor in inner_tensors(outer_name, outer):
            storage = _try_storage(category, name, tensor, unmovable)
            if storage is not None:
                yield category, name, tensor, storage


def _try_storage(
    category: Category,
    name: str,
    tensor: torch.Tensor,
    unmovable: list[tuple[Category, UnsupportedStorage]],
) -> torch.UntypedStorage | None:
    try:
        return storage_of(name, tensor)
    except UnsupportedStorage as error:
        unmovable.append((category, error))
        return None


def _parse_device(device: object) -> torch.device:
    try:
        return torch.device(str(device))
    except RuntimeError:
        raise UnknownDevice(
            f"{str(device)!r} is no device of PyTorch; give one such as 'cuda:0' or 'cpu'"
        ) from None


def _is_on(device: torch.device, wanted: torch.device) -> bool:
    """Return whether `device` is `wanted`, which names all of a kind if it has no index."""
    return device.type == wanted.type and wanted.index in {None, device.index}
