"""State of a DeepSpeed engine that is parked on the host between its uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.deepspeed import attach
from pinferry.deepspeed.patching import Patches
from pinferry.states.categories import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from deepspeed import DeepSpeedEngine

    from pinferry.pool import PinnedArena
    from pinferry.transfer import JoinedTicket, Ticket

__all__ = ["ZeroParking"]


class ZeroParking:
    """Parks the state of a DeepSpeed engine.

    Parameters
    ----------
    engine
        The engine; not attached yet.
    arena
        Where its state is parked.
    categories
        What is parked.
    """

    def __init__(
        self, engine: DeepSpeedEngine, arena: PinnedArena, categories: Collection[Category]
    ) -> None:
        self._engine = engine
        self._patches = Patches()
        self._offloader = attach(engine, arena, on_access="reload")
        self._categories = frozenset(categories)
        self._of_the_step = self._categories - {Category.LP_GRADS}

    def watch_step(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Have these called around each update, until `close`."""
        engine, step = self._engine, self._engine.step

        # Around the guard that `attach` has put there, which would not wait for what is coming.
        def watched(*args: object, **kwargs: object) -> object:
            updates = engine.is_gradient_accumulation_boundary()
            if updates:
                before()
            result = step(*args, **kwargs)
            if updates:
                after()
            return result

        self._patches.method(engine, "step", watched)

    def park(self) -> int:
        """Send everything away that is here, and return its bytes."""
        return self._offloader.offload_states(self._categories, non_blocking=True).nbytes

    def recall(self) -> Ticket | JoinedTicket | None:
        """Begin to bring back what a step needs."""
        if not self._offloader.offloaded_states() & self._of_the_step:
            return None
        return self._offloader.recall(self._of_the_step)

    def recall_gradients(self) -> None:
        """Bring gradients back."""
        self._offloader.reload_states(True, self._categories & {Category.LP_GRADS})

    def bring(self) -> None:
        """Bring everything back."""
        self._offloader.reload_states(True, self._categories)

    def close(self) -> None:
        """Bring everything back, and give the engine its own methods back."""
        self._patches.restore()
        self._offloader.detach()
