"""DeepSpeed's helper functions, told of what is offloaded.

They are functions of modules, not of an engine, so they are replaced once for all engines: those of
an engine that is not attached go on as ever.
"""

from __future__ import annotations

import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pinferry.deepspeed.patching import Patches
from pinferry.deepspeed.preparing import prepared_again
from pinferry.states.categories import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from pinferry.deepspeed.offloader import DeepSpeedOffloader

__all__ = ["HELPERS"]

# Where a rank holds no part of a parameter, only the others would notice that it is away, and this
# one would wait for them for ever. So all ask before they begin.
_NEEDED = {
    "fp32_param": frozenset({Category.HP_PARAMS}),
    "optimizer_state": frozenset({Category.OPTIM_STATES, Category.HP_PARAMS}),
    "grad": frozenset({Category.LP_GRADS, Category.CONTIGUOUS_GRAD_BUFFER}),
}
_ACCESSORS = {
    f"safe_{verb}_{extent}_{what}": needed
    for verb in ("get", "set")
    for extent in ("full", "local")
    for what, needed in _NEEDED.items()
}
_OF_A_LIST = {"safe_update_full_grad_vectorized": _NEEDED["grad"]}


class Helpers:
    """The replacements, in place while any engine is attached."""

    def __init__(self) -> None:
        self._offloaders: weakref.WeakSet[DeepSpeedOffloader] = weakref.WeakSet()
        self._patches = Patches()

    def add(self, offloader: DeepSpeedOffloader) -> None:
        """Tell the helpers of an engine."""
        if not self._offloaders:
            self._patches.restore()
            self._install()
        self._offloaders.add(offloader)

    def remove(self, offloader: DeepSpeedOffloader) -> None:
        """Forget an engine."""
        self._offloaders.discard(offloader)
        if not self._offloaders:
            self._patches.restore()

    def _install(self) -> None:
        devices = import_module("deepspeed.runtime.zero.offload_states")
        if hasattr(devices, "get_state_devices"):
            self._patches.function(devices, "get_state_devices", self._state_devices)
        accessors = import_module("deepspeed.utils.tensor_fragment")
        for name, needed in (_ACCESSORS | _OF_A_LIST).items():
            if hasattr(accessors, name):
                self._patches.function(accessors, name, self._guarded(name, needed))
        hooks = import_module("deepspeed.runtime.utils")
        if hasattr(hooks, "register_output_backward_hooks"):
            self._patches.function(hooks, "register_output_backward_hooks", prepared_again)

    def _state_devices(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_state_devices(model: object, state: str) -> Any:  # noqa: ANN401 -- as DeepSpeed's
            for offloader in list(self._offloaders):
                if offloader.serves(model):
                    return offloader.state_devices(state)
            return original(model, state)

        return get_state_devices

    def _guarded(
        self, name: str, needed: frozenset[Category]
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def accessor(param: torch.Tensor, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
                self._require([param], needed, name)
                return original(param, *args, **kwargs)

            def accessor_of_a_list(
                param_list: Sequence[torch.Tensor], *args: object, **kwargs: object
            ) -> Any:  # noqa: ANN401
                self._require(param_list, needed, name)
                return original(param_list, *args, **kwargs)

            return accessor_of_a_list if name in _OF_A_LIST else accessor

        return wrap

    def _require(
        self, parameters: Sequence[torch.Tensor], needed: frozenset[Category], name: str
    ) -> None:
        for offloader in list(self._offloaders):
            if offloader.missing(needed) and any(map(offloader.owns, parameters)):
                offloader.need(needed, name)


#: Of this process.
HELPERS = Helpers()
