"""Where DeepSpeed's optimizers keep state: attributes by class, read in its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinferry.states.categories import Category

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NO_OPTIMIZER", "TABLES", "Attribute", "Table"]


@dataclass(frozen=True, slots=True)
class Attribute:
    """What holds tensors, in whatever nesting of containers.

    `optional` is what only some of the supported versions have, or only some configurations.
    """

    name: str
    category: Category
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A class that wraps an optimizer.

    Attributes
    ----------
    trainable
        The attribute that lists the module's parameters that it trains, by group.
    masters
        The attribute that lists what it steps on in their place.
    attributes
        What else holds state.
    buckets
        Whether it has ``ipg_buckets``, through which gradients are reduced.
    """

    trainable: str
    masters: str
    attributes: tuple[Attribute, ...]
    buckets: bool = False


def _several(category: Category, *names: str, optional: bool = False) -> tuple[Attribute, ...]:
    return tuple(Attribute(name, category, optional) for name in names)


_LP, _HP = Category.LP_PARAMS, Category.HP_PARAMS
_OPTIM, _GRADS = Category.OPTIM_STATES, Category.LP_GRADS
_BUFFER = Category.CONTIGUOUS_GRAD_BUFFER

_ZERO_1_AND_2 = Table(
    "bit16_groups",
    "single_partition_of_fp32_groups",
    (
        *_several(_LP, "bit16_groups_flat", "parallel_partitioned_bit16_groups"),
        *_several(_HP, "single_partition_of_fp32_groups"),
        *_several(_GRADS, "averaged_gradients", "previous_reduced_grads"),
        *_several(_GRADS, "extra_large_param_to_reduce"),
        *_several(_GRADS, "all_grad_tensors", "grads_in_partition", optional=True),
        *_several(_OPTIM, "_muon_pending_momentum", optional=True),
        *_several(_BUFFER, "_muon_allgather_buffers", optional=True),
        # As large as the largest parameter, where the optimizer lives on the host.
        *_several(_BUFFER, "temp_grad_buffer_for_gpu_offload", optional=True),
    ),
    buckets=True,
)

_ZERO_3 = Table(
    "fp16_groups",
    "fp32_partitioned_groups_flat",
    (
        *_several(_LP, "lp_param_buffer"),
        *_several(_LP, "fp16_partitioned_groups", "fp16_partitioned_groups_flat"),
        *_several(_HP, "fp32_partitioned_groups_flat", "next_swappable_fp32_partitioned_groups"),
        *_several(_GRADS, "grad_partitions_flat_buffer", "averaged_gradients"),
        *_several(_GRADS, "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition"),
        *_several(_GRADS, "previous_reduced_grads", optional=True),
        *_several(_OPTIM, "muon_momentum_buffer_partitioned_groups_flat", optional=True),
        *_several(_BUFFER, "_muon_allgather_buffers", optional=True),
    ),
    buckets=True,
)

_BF16 = Table(
    "bf16_groups",
    "fp32_groups_flat_partition",
    (
        *_several(_LP, "bf16_groups_flat", "bf16_partitioned_groups"),
        *_several(_HP, "fp32_groups_flat_partition"),
        *_several(_GRADS, "fp32_groups_gradients_flat", "fp32_groups_gradients"),
        *_several(_GRADS, "fp32_groups_gradient_dict", "fp32_groups_actual_gradients_flat"),
        *_several(_GRADS, "fp32_groups_gradient_flat_partition"),
        *_several(_GRADS, "non_expert_gradients", "expert_gradients", optional=True),
    ),
)

_FP16 = Table(
    "fp16_groups",
    "fp32_groups_flat",
    (*_several(_LP, "fp16_groups_flat"), *_several(_HP, "fp32_groups_flat")),
)

_FP16_UNFUSED = Table("fp16_groups", "fp32_groups", _several(_HP, "fp32_groups"))

#: By the name of the class, so that nothing of DeepSpeed is imported for it.
TABLES: Mapping[str, Table] = {
    "DeepSpeedZeroOptimizer": _ZERO_1_AND_2,
    "DeepSpeedZeroOptimizer_Stage3": _ZERO_3,
    "BF16_Optimizer": _BF16,
    "FP16_Optimizer": _FP16,
    "FP16_UnfusedOptimizer": _FP16_UNFUSED,
}

#: What takes an optimizer's place where there is none.
NO_OPTIMIZER = ("DummyOptim", "DeepSpeedZeRoOffload")
