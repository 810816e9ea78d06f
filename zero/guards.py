"""What needs which state: refused, or preceded by a reload, while that is away."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from pinferry.deepspeed.wrappers import basic_optimizer
from pinferry.states.categories import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from deepspeed import DeepSpeedEngine
    from torch.utils.hooks import RemovableHandle

    from pinferry.deepspeed.patching import Patches

    #: Is handed what an operation needs, and its name.
    Require = Callable[[Collection[Category], str], None]

__all__ = ["install_guards"]

_FORWARD = frozenset({Category.LP_PARAMS, Category.FROZEN_PARAMS, Category.BUFFERS})
_REDUCTION = frozenset({Category.LP_GRADS, Category.CONTIGUOUS_GRAD_BUFFER})
_OPTIMIZER = frozenset({Category.HP_PARAMS, Category.OPTIM_STATES})
_UPDATE = _OPTIMIZER | {Category.LP_PARAMS, Category.LP_GRADS}
_CHECKPOINT = _FORWARD | _OPTIMIZER

_METHODS = {
    "save_checkpoint": _CHECKPOINT,
    "load_checkpoint": _CHECKPOINT,
    "eval_batch": _FORWARD,
    "save_16bit_model": _FORWARD,
    "save_fp16_model": _FORWARD,
}


def install_guards(
    engine: DeepSpeedEngine, patches: Patches, require: Require
) -> list[RemovableHandle]:
    """Have `require` called before each operation of `engine` that needs state.

    Returns
    -------
    list
        Hooks, to be removed. What else is replaced goes to `patches`.
    """
    guards = _Guards(engine, require)
    checks: dict[str, Callable[[], None]] = {
        "backward": guards.before_backward,
        "_backward_prologue": guards.before_backward,  # of loss.backward(), where that is allowed
        # With one of these ends a block of coalesce_grad_reduction().
        "_flush_coalesced_reduction_zero12": guards.before_reduction,
        "_flush_coalesced_reduction_zero3": guards.before_reduction,
        "step": guards.before_step,
        "train_batch": guards.before_batch,
        **{name: partial(require, needed, name) for name, needed in _METHODS.items()},
    }
    for name, check in checks.items():
        if hasattr(type(engine), name):  # an engine has what its module has, too
            patches.before(engine, name, check)
    if basic_optimizer(engine.optimizer) is not None:
        patches.before(engine.optimizer, "step", guards.before_update)

    # A function, and not a method: a copy of the module must not copy what that belongs to.
    def before_forward(module: torch.nn.Module, _: object) -> None:
        guards.before_forward(module)

    return [
        module.register_forward_pre_hook(before_forward, prepend=True)
        for module in (engine, engine.module)
    ]


class _Guards:
    """What an engine needs for what, in its present state."""

    def __init__(self, engine: DeepSpeedEngine, require: Require) -> None:
        self._engine = engine
        self._require = require

    def before_forward(self, module: torch.nn.Module) -> None:
        if torch.compiler.is_compiling():  # what is compiled is called from what is not
            return
        if module is self._engine or module is self._engine.module:  # a copy has weights of its own
            self._require(_FORWARD, "forward")

    def before_backward(self) -> None:
        self._require(_FORWARD | self._needed_by_reduction(), "backward")

    def before_reduction(self) -> None:
        self._require(self._needed_by_reduction(), "the reduction of gradients")

    def before_step(self) -> None:
        if not getattr(self._engine, "managed_gradient_accumulation", lambda: True)():
            # Each step is a boundary then, though not said to be one yet, and reduces first.
            self._require(self._needed_by_update() | _REDUCTION, "step")
        elif self._engine.is_gradient_accumulation_boundary():
            self.before_update()

    def before_batch(self) -> None:
        # Of a pipeline: forward, backward and step of several parts, by methods of the class.
        needed = _FORWARD | self._needed_by_reduction() | self._needed_by_update()
        self._require(needed, "train_batch")

    def before_update(self) -> None:
        self._require(self._needed_by_update(), "step")

    def _needed_by_reduction(self) -> frozenset[Category]:
        optimizer = basic_optimizer(self._engine.optimizer)
        groups = [] if optimizer is None else optimizer.param_groups
        # Muon updates its momentum where gradients are reduced.
        muon = any(group.get("use_muon") for group in groups)
        return _REDUCTION | _OPTIMIZER if muon else _REDUCTION

    def _needed_by_update(self) -> frozenset[Category]:
        # Stage 3 gathers small parameters again after an update, frozen ones too.
        sharded = self._engine.zero_optimization_partition_weights()
        return _UPDATE | {Category.FROZEN_PARAMS} if sharded else _UPDATE
