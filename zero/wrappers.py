"""What takes an optimizer's place in a DeepSpeed engine, and what it steps on."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from pinferry.deepspeed.tables import NO_OPTIMIZER, TABLES, Table
from pinferry.deepspeed.versions import missing, require

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["basic_optimizer", "buckets_of", "table_of", "trainable_parameters"]


def table_of(wrapper: object) -> Table | None:
    """Return where DeepSpeed's wrapper of an optimizer keeps state; None for what is no wrapper.

    Raises
    ------
    UnsupportedVersion
        If it is of no known class.
    """
    kinds = [kind.__name__ for kind in type(wrapper).__mro__]
    for kind in kinds:
        if kind in TABLES:
            return TABLES[kind]
    if wrapper is None or isinstance(wrapper, torch.optim.Optimizer):
        return None
    if any(kind in NO_OPTIMIZER for kind in kinds):
        return None
    raise missing(f"optimizer that pinferry knows: {type(wrapper).__qualname__}")


def basic_optimizer(wrapper: object) -> torch.optim.Optimizer | None:
    """Return the optimizer that does the arithmetic."""
    if isinstance(wrapper, torch.optim.Optimizer):
        return wrapper
    if table_of(wrapper) is None:
        return None
    basic: torch.optim.Optimizer = require(wrapper, "optimizer")  # type: ignore[assignment]
    return None if type(basic).__name__ in NO_OPTIMIZER else basic


def trainable_parameters(wrapper: object) -> frozenset[int] | None:
    """Return the parameters that are stepped on, by id; None where nothing steps."""
    if basic_optimizer(wrapper) is None:
        return None
    table = table_of(wrapper)
    if table is not None:
        groups: Iterable[Iterable[torch.Tensor]] = require(wrapper, table.trainable)  # type: ignore[assignment]
    else:
        groups = [group["params"] for group in wrapper.param_groups]  # type: ignore[attr-defined]
    return frozenset(id(parameter) for parameter in chain.from_iterable(groups))


def buckets_of(wrapper: object) -> list[Any]:
    """Return the buckets through which gradients are reduced."""
    table = table_of(wrapper)
    if table is None or not table.buckets:
        return []
    buckets: dict[torch.dtype, Any] = require(wrapper, "ipg_buckets")  # type: ignore[assignment]
    return list(buckets.values())
