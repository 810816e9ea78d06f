"""From tensors to the storages that hold their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pinferry.errors import InvalidArgument, UnsupportedStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["States", "inner_tensors", "named_storages", "storage_key", "storage_of"]

_State = torch.Tensor | torch.UntypedStorage
#: What can be moved: one tensor or storage, several, or a mapping from names to them.
States = _State | Iterable[_State] | Mapping[str, _State]


def named_storages(states: States) -> dict[str, torch.UntypedStorage]:
    """Return each storage once, under the first name that leads to it, in order.

    Raises
    ------
    InvalidArgument
        If something is neither a tensor nor a storage, or its name is no text.
    UnsupportedStorage
        If a tensor has no storage of its own (sparse or opaque).
    """
    named: dict[str, torch.UntypedStorage] = {}
    seen: set[int] = set()
    for name, state in _named(states):
        for inner_name, storage in _storages(name, state):
            if storage_key(storage) in seen:
                continue
            seen.add(storage_key(storage))
            # The inside of a wrapper may be called as something else is.
            taken = inner_name in named
            named[f"{inner_name} ({len(seen)})" if taken else inner_name] = storage
    return named


def _named(states: States) -> Iterator[tuple[str, _State]]:
    if isinstance(states, (torch.Tensor, torch.UntypedStorage)):
        yield "tensor", states
    elif isinstance(states, Mapping):
        for name, state in states.items():
            if not isinstance(name, str):
                raise InvalidArgument(
                    f"a {type(name).__name__} is no name for a state; give text: it is for errors"
                )
            yield name, state
    elif isinstance(states, Iterable):
        for index, state in enumerate(states):
            yield f"tensors[{index}]", state
    else:
        raise InvalidArgument(
            f"a {type(states).__name__} cannot be moved; give tensors, storages, or a mapping of "
            "names to them"
        )


def _storages(name: str, state: _State) -> Iterator[tuple[str, torch.UntypedStorage]]:
    if isinstance(state, torch.UntypedStorage):
        yield name, state
    elif isinstance(state, torch.Tensor):
        for inner_name, tensor in inner_tensors(name, state):
            yield inner_name, storage_of(inner_name, tensor)
    else:
        raise InvalidArgument(
            f"{name} is a {type(state).__name__}, no tensor or storage; give only what holds bytes"
        )


def inner_tensors(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors that hold the bytes of `tensor`: itself, or what a wrapper wraps."""
    if not is_traceable_wrapper_subclass(tensor):
        yield name, tensor
        return
    attributes, _ = tensor.__tensor_flatten__()
    for attribute in attributes:
        yield from inner_tensors(f"{name}.{attribute}", getattr(tensor, attribute))


def storage_key(storage: torch.UntypedStorage) -> int:
    """Return what names a storage while it lives: the address of its record, not of its bytes."""
    key: int = storage._cdata  # noqa: SLF001  -- PyTorch's own modules identify storages by it
    return key


def storage_of(name: str, tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the storage of a tensor that wraps no others."""
    try:
        return tensor.untyped_storage()
    except ValueError as error:  # by a parameter of a lazy module
        raise UnsupportedStorage(
            f"{name} ({type(tensor).__name__}) has no bytes before its module has seen an input, "
            "and cannot be moved; run the module once, or leave it out"
        ) from error
    except (NotImplementedError, RuntimeError) as error:
        raise UnsupportedStorage(
            f"{name} ({tensor.layout}, {type(tensor).__name__}) has no storage of its own and "
            "cannot be moved; leave it out"
        ) from error
