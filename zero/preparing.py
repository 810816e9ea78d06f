"""Backward by a tensor of its own, which DeepSpeed prepares at the first gradient to arrive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from pinferry.errors import StateOffloaded

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["prepared_again"]


def prepared_again(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``register_output_backward_hooks``, so that a refused backward is prepared once more.

    DeepSpeed notes that it has prepared before it does. The next attempt would then go without: its
    gradients would be computed, and never reduced.
    """

    def register_output_backward_hooks(
        outputs: object,
        preprocess_once_fn: Callable[[], None],
        preprocess_per_tensor_fn: Callable[[Any], Any] | None = None,
    ) -> Any:  # noqa: ANN401 -- as DeepSpeed's
        def prepare() -> None:
            try:
                preprocess_once_fn()
            except StateOffloaded:
                hooks = known()  # which the outputs keep
                if hooks is not None:
                    hooks.reset()
                raise

        made = original(outputs, prepare, preprocess_per_tensor_fn)
        known = weakref.ref(made)
        return made

    return register_output_backward_hooks
