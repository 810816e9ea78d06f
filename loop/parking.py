"""State of plain PyTorch that is parked on the host between its uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pinferry.states.categories import Category
from pinferry.states.discovery import survey
from pinferry.states.engines import device_name
from pinferry.transfer import storage_key
from pinferry.transfer.options import ReloadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import torch

    from pinferry.transfer import JoinedTicket, Ticket, TransferEngine, TransferPlan

__all__ = ["Parking", "PlainParking"]


class Parking(Protocol):
    """Where a schedule parks state: what only a step needs, and gradients, which backward needs."""

    def watch_step(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Have these called around each update, until `close`."""

    def park(self) -> int:
        """Send everything away that is here, and return its bytes. Waits for nothing."""

    def recall(self) -> Ticket | JoinedTicket | None:
        """Begin to bring back what a step needs; it arrives when the ticket is waited for."""

    def recall_gradients(self) -> None:
        """Bring gradients back: the current stream waits for them."""

    def bring(self) -> None:
        """Bring everything back: the current stream waits for it."""

    def close(self) -> None:
        """Bring everything back, and give the room in the arena back."""


class PlainParking:
    """Parks the state of a model and an optimizer.

    Parameters
    ----------
    engine
        What moves it.
    model, optimizer
        Whose state.
    categories
        What is parked.
    """

    def __init__(
        self,
        engine: TransferEngine,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        categories: Collection[Category],
    ) -> None:
        self._engine = engine
        self._model = model
        self._optimizer = optimizer
        self._gradients = Category.LP_GRADS in categories
        self._of_the_step = frozenset(categories) - {Category.LP_GRADS}
        self._plan: TransferPlan | None = None
        self._planned = -1  # tensors of the optimizer's state when the plan was made
        self._away: list[int] = []  # gradients, by storage_key
        self._hooks = [optimizer.register_load_state_dict_post_hook(lambda _: self._forget())]

    def watch_step(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Have these called around each update, until `close`."""
        self._hooks += [
            self._optimizer.register_step_pre_hook(lambda *_: before()),
            self._optimizer.register_step_post_hook(lambda *_: after()),
        ]

    def park(self) -> int:
        """Send everything away that is here, and return its bytes."""
        moved = 0
        plan = self._current_plan()
        if plan is not None and not plan.offloaded:
            moved += plan.offload().nbytes
        if self._gradients:
            moved += self._park_gradients()
        return moved

    def recall(self) -> Ticket | None:
        """Begin to bring back what a step needs."""
        if self._plan is None or not self._plan.offloaded:
            return None
        return self._plan.reload(defer=True)

    def recall_gradients(self) -> None:
        """Bring gradients back."""
        if self._away:
            self._engine.reload_keys(self._away, ReloadOptions())
            self._away = []

    def bring(self) -> None:
        """Bring everything back."""
        self.recall_gradients()
        if self._plan is not None:
            self._plan.reload()

    def close(self) -> None:
        """Bring everything back, and give the room in the arena back."""
        for hook in self._hooks:
            hook.remove()
        self.recall_gradients()
        self._forget()

    def _current_plan(self) -> TransferPlan | None:
        count = sum(map(_size, self._optimizer.state.values()))
        if count != self._planned:  # as after the first step
            self._forget()
            found = survey(self._model, self._optimizer, device=device_name(self._engine))
            found.require_movable(self._of_the_step)
            states = found.states.only(*self._of_the_step)
            self._plan = self._engine.plan(states.storages(), compact=True) if states else None
            self._planned = count
        return self._plan

    def _forget(self) -> None:
        """Drop the plan, with everything here: the optimizer's state is another one."""
        if self._plan is not None:
            if self._plan.offloaded:
                self._plan.reload()
            self._plan.close()
        self._plan, self._planned = None, -1

    def _park_gradients(self) -> int:
        groups = self._optimizer.param_groups
        gradients = {
            f"param_groups[{number}].params[{index}].grad": parameter.grad
            for number, group in enumerate(groups)
            for index, parameter in enumerate(group["params"])
            if parameter.grad is not None
        }
        if not gradients:
            return 0
        ticket = self._engine.offload(gradients)
        self._away = [storage_key(each.untyped_storage()) for each in gradients.values()]
        return ticket.nbytes


def _size(state: object) -> int:
    return len(state) if isinstance(state, dict) else 1
