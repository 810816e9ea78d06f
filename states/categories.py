"""The kinds of training state."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from pinferry.errors import InvalidArgument, UnknownCategory

__all__ = ["COMPACTED", "KNOWN_TO_PYTORCH", "Category", "Include", "parse_include"]


class Category(str, Enum):
    """A kind of training state; the first five are those of DeepSpeed's ``offload_states``.

    Members are strings: ``Category.BUFFERS == "buffers"``.
    """

    #: What the optimizer keeps per parameter: moments, momentum, …
    OPTIM_STATES = "optim_states"
    #: Master weights that the optimizer steps on, apart from the model's own.
    HP_PARAMS = "hp_params"
    #: The model's parameters; frozen ones too, unless something tells them apart.
    LP_PARAMS = "lp_params"
    #: Gradients.
    LP_GRADS = "lp_grads"
    #: A flat buffer that several gradients are views of.
    CONTIGUOUS_GRAD_BUFFER = "contiguous_grad_buffer"
    #: The model's buffers, non-persistent ones too.
    BUFFERS = "buffers"
    #: Parameters that no optimizer steps on, where they are told apart: with DeepSpeed.
    FROZEN_PARAMS = "frozen_params"

    __str__ = str.__str__


Include = str | Iterable[str] | None

#: Those that a plain model and optimizer are told apart by.
KNOWN_TO_PYTORCH = tuple(each for each in Category if each is not Category.FROZEN_PARAMS)

#: What only the optimizer touches, so that nobody minds if small storages share device memory.
COMPACTED = (Category.OPTIM_STATES, Category.HP_PARAMS, Category.LP_GRADS)


def parse_include(
    include: Include,
    known: Collection[Category] = KNOWN_TO_PYTORCH,
    *,
    argument: str = "include",
) -> frozenset[Category]:
    """Return the categories that `include` names, of those that are `known`; None names all.

    `argument` is what the caller's caller knows it as, for errors.

    Raises
    ------
    UnknownCategory
        If a name is none of them.

    Examples
    --------
    >>> sorted(parse_include(["buffers", Category.LP_GRADS]))
    [<Category.BUFFERS: 'buffers'>, <Category.LP_GRADS: 'lp_grads'>]
    """
    if include is None:
        return frozenset(known)
    if not isinstance(include, Iterable):
        raise InvalidArgument(f"{argument}={include!r}: give a category, several, or None for all")
    by_name = {category.value: category for category in known}
    chosen = set()
    names: Iterable[object] = [include] if isinstance(include, str) else include
    for name in names:
        if not isinstance(name, str) or name not in by_name:
            raise UnknownCategory(
                f"{name!r} is no category of state; choose from {', '.join(by_name)}",
                name=str(name),
            )
        chosen.add(by_name[name])
    return frozenset(chosen)
