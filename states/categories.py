"""The kinds of training state."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from pinferry.errors import InvalidArgument, UnknownCategory

__all__ = ["COMPACTED", "Category", "Include", "parse_include"]


class Category(str, Enum):
    """A kind of training state; the first five are those of DeepSpeed's ``offload_states``.

    Members are strings: ``Category.BUFFERS == "buffers"``.
    """

    #: What the optimizer keeps per parameter: moments, momentum, …
    OPTIM_STATES = "optim_states"
    #: Master weights that the optimizer steps on, apart from the model's own.
    HP_PARAMS = "hp_params"
    #: The model's parameters, frozen ones too.
    LP_PARAMS = "lp_params"
    #: Gradients.
    LP_GRADS = "lp_grads"
    #: A flat buffer that several gradients are views of.
    CONTIGUOUS_GRAD_BUFFER = "contiguous_grad_buffer"
    #: The model's buffers, non-persistent ones too.
    BUFFERS = "buffers"

    __str__ = str.__str__


Include = str | Iterable[str] | None

#: What only the optimizer touches, so that nobody minds if small storages share device memory.
COMPACTED = (Category.OPTIM_STATES, Category.HP_PARAMS, Category.LP_GRADS)


def parse_include(include: Include) -> frozenset[Category]:
    """Return the categories that `include` names; None names all.

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
        return frozenset(Category)
    if not isinstance(include, Iterable):
        raise InvalidArgument(f"include={include!r}: give a category, several, or None for all")
    known = {category.value: category for category in Category}
    chosen = set()
    names: Iterable[object] = [include] if isinstance(include, str) else include
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise UnknownCategory(
                f"{name!r} is no category of state; choose from {', '.join(known)}", name=str(name)
            )
        chosen.add(known[name])
    return frozenset(chosen)
