"""Who holds training state in a DeepSpeed engine. Asked anew each time: it rebinds tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.deepspeed.versions import require
from pinferry.deepspeed.wrappers import (
    basic_optimizer,
    buckets_of,
    table_of,
    trainable_parameters,
)
from pinferry.states.categories import Category
from pinferry.states.holders import Found, of_model, of_optimizer, tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch
    from deepspeed import DeepSpeedEngine

__all__ = ["of_engine"]

#: The order in which a storage with several holders is claimed.
_PRECEDENCE = (
    Category.LP_PARAMS,
    Category.FROZEN_PARAMS,
    Category.BUFFERS,
    Category.HP_PARAMS,
    Category.OPTIM_STATES,
    Category.LP_GRADS,
    Category.CONTIGUOUS_GRAD_BUFFER,
)


def of_engine(engine: DeepSpeedEngine) -> list[Found]:
    """Return each tensor that holds training state, with what names it.

    Raises
    ------
    UnsupportedVersion
        If this version of DeepSpeed lacks one of the holders.
    """
    wrapper, module = engine.optimizer, engine.module
    trained = trainable_parameters(wrapper)
    found = [
        *_of_module(module, trained),
        *of_optimizer(basic_optimizer(wrapper), module, _masters_of(wrapper)),
        *_of_wrapper(wrapper),
        *_of_parameters(module, trained),
    ]
    found += _of_gradients(found)
    return sorted(found, key=lambda each: _PRECEDENCE.index(each[0]))


def _masters_of(wrapper: object) -> list[torch.Tensor] | None:
    table = table_of(wrapper)
    if table is None:
        return None
    return [tensor for _, tensor in tensors_in("", require(wrapper, table.masters))]


def _weights(parameter: torch.Tensor, trained: frozenset[int] | None) -> Category:
    known = trained is None or id(parameter) in trained
    return Category.LP_PARAMS if known else Category.FROZEN_PARAMS


def _of_module(module: torch.nn.Module, trained: frozenset[int] | None) -> Iterator[Found]:
    for category, name, tensor in of_model(module):
        weights = category is Category.LP_PARAMS
        yield _weights(tensor, trained) if weights else category, name, tensor


def _of_parameters(module: torch.nn.Module, trained: frozenset[int] | None) -> Iterator[Found]:
    for name, parameter in module.named_parameters(prefix="model"):
        yield from _of_parameter(_weights(parameter, trained), name, parameter)


def _of_parameter(category: Category, name: str, parameter: torch.Tensor) -> Iterator[Found]:
    """Return what DeepSpeed hangs on a parameter."""
    for attribute in ("ds_tensor", "ds_secondary_tensor"):  # the shards of stage 3
        shard = getattr(parameter, attribute, None)
        if shard is not None:
            yield category, f"{name}.{attribute}", shard
            scale = getattr(shard, "ds_quant_scale", None)
            if scale is not None:
                yield category, f"{name}.{attribute}.ds_quant_scale", scale
    for attribute in ("grad_accum", "_hp_grad"):
        gradient = getattr(parameter, attribute, None)
        if gradient is not None:
            yield Category.LP_GRADS, f"{name}.{attribute}", gradient
    fragment = getattr(parameter, "_hp_mapping", None)
    if fragment is not None:
        yield category, f"{name}.lp_fragment", require(fragment, "lp_fragment")  # type: ignore[misc]
        yield from _within(Category.HP_PARAMS, f"{name}.hp_fragment", fragment, "hp_fragment")
        yield from _within(Category.OPTIM_STATES, f"{name}.optim", fragment, "optim_fragment")


def _of_wrapper(wrapper: object) -> Iterator[Found]:
    table = table_of(wrapper)
    if table is None:
        return
    for attribute in table.attributes:
        if not attribute.optional or hasattr(wrapper, attribute.name):
            name = f"optimizer.{attribute.name.rpartition('__')[2] or attribute.name}"
            yield from _within(attribute.category, name, wrapper, attribute.name)
    for index, bucket in enumerate(buckets_of(wrapper)):
        name = f"optimizer.ipg_buckets[{index}]"
        yield from _within(Category.CONTIGUOUS_GRAD_BUFFER, f"{name}.buffer", bucket, "buffer")
        if hasattr(bucket, "grads"):  # stage 3 has none
            yield from _within(Category.LP_GRADS, f"{name}.grads", bucket, "grads")


def _of_gradients(found: Iterable[Found]) -> list[Found]:
    """Return the gradients of master weights, which are there during a step."""
    return [
        (Category.LP_GRADS, f"{name}.grad", tensor.grad)
        for category, name, tensor in found
        if category is Category.HP_PARAMS and tensor.is_leaf and tensor.grad is not None
    ]


def _within(category: Category, name: str, holder: object, attribute: str) -> Iterator[Found]:
    for inner, tensor in tensors_in(name, require(holder, attribute)):
        yield category, inner, tensor
