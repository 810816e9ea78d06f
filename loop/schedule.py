"""State that is on the device only in the parts of a step that need it."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from pinferry.errors import InvalidArgument
from pinferry.loop.parking import Parking, PlainParking
from pinferry.loop.stalls import ScheduleReport, Stalls
from pinferry.states.categories import Category, parse_include
from pinferry.states.engines import device_name, engine_for
from pinferry.states.holders import check_holders

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import TracebackType

    from torch.utils.hooks import RemovableHandle
    from typing_extensions import Self

    from pinferry.pool import PinnedArena
    from pinferry.states.categories import Include
    from pinferry.transfer import JoinedTicket, Ticket

__all__ = ["OffloadSchedule"]

#: What can be away during a forward.
_PARKABLE = (Category.OPTIM_STATES, Category.HP_PARAMS, Category.LP_GRADS)


class OffloadSchedule:
    """Parks what only the end of a step needs, and recalls it in time, by hooks.

    Optimizer state and master weights leave when a forward begins, and come back beside the
    backward; the step waits for what has not arrived. So their memory is free when activations need
    it most. In evaluation and generation they stay away. The loop stays as it is: gradient
    accumulation, clipping, ``GradScaler``, schedulers, ``torch.compile``, DDP, Accelerate and
    DeepSpeed work as ever, and losses are equal to the bit.

    Parameters
    ----------
    arena
        Where the state is parked.

    Examples
    --------
    >>> import torch
    >>> from pinferry import OffloadSchedule, PinnedArena
    >>> model = torch.nn.Linear(64, 64)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> with PinnedArena("1MiB", device="cpu") as arena:
    ...     with OffloadSchedule(arena).attach(model, optimizer) as schedule:
    ...         for _ in range(3):
    ...             model(torch.ones(4, 64)).sum().backward()
    ...             optimizer.step()
    ...             optimizer.zero_grad()
    ...         schedule.report().steps
    3
    """

    def __init__(self, arena: PinnedArena) -> None:
        self._engine = engine_for(arena)
        self._stalls = Stalls(torch.device(device_name(self._engine)))
        self._parking: Parking | None = None
        self._hooks: list[RemovableHandle] = []
        self._accumulate = 1
        self._backwards = 0  # since the last update
        self._paused = 0
        self._coming: Ticket | JoinedTicket | None = None

    def attach(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        policy: Include = (Category.OPTIM_STATES, Category.HP_PARAMS),
        accumulate: int = 1,
    ) -> Self:
        """Begin to park the state of `optimizer` while `model` runs forward.

        Parameters
        ----------
        model
            Whose forward and backward are watched: the module that the loop calls, wrapped or not,
            or a DeepSpeed engine, which gets attached (`pinferry.deepspeed.attach`).
        optimizer
            Whose step needs the state. Not for a DeepSpeed engine, which has its own.
        policy
            What is parked: ``"optim_states"``, ``"hp_params"``, and ``"lp_grads"`` for gradients
            that are accumulated over several forwards.
        accumulate
            Backwards to an update: state comes back in the last one only.

        Raises
        ------
        InvalidArgument
            If something else is to be parked, or the schedule is attached already.
        """
        if self._parking is not None:
            raise InvalidArgument("this schedule is attached already; detach() it, or make another")
        check_holders(model, None if _is_deepspeed(model) else optimizer)
        categories = parse_include(policy, _PARKABLE, argument="policy")
        if type(accumulate) is not int or accumulate < 1:
            raise InvalidArgument(f"accumulate={accumulate!r}: how many backwards has an update?")
        self._accumulate, self._backwards = accumulate, 0
        self._parking = self._park_for(model, optimizer, categories)
        self._parking.watch_step(self._before_step, self._after_step)
        # What is compiled calls them, but does not look into them.
        quiet: Any = torch.compiler.disable
        self._hooks = [
            model.register_forward_pre_hook(quiet(self._before_forward), prepend=True),
            model.register_forward_hook(quiet(self._after_forward)),
        ]
        return self

    def detach(self) -> None:
        """Bring everything back and watch no longer. Does nothing where nothing is attached."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._arrive()
        if self._parking is not None:
            self._parking.close()
        self._parking = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[Self]:
        """Bring everything back, and park nothing within the block."""
        self._arrive()
        if self._parking is not None:
            self._parking.bring()
        self._paused += 1
        try:
            yield self
        finally:
            self._paused -= 1

    def report(self) -> ScheduleReport:
        """Return what it has cost so far, with advice."""
        return self._stalls.report()

    def _park_for(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        categories: Collection[Category],
    ) -> Parking:
        if _is_deepspeed(model):
            from pinferry.loop.zero_parking import ZeroParking

            return ZeroParking(model, self._engine.arena, categories)
        if optimizer is None:
            raise InvalidArgument("give the optimizer whose state is to be parked")
        return PlainParking(self._engine, model, _innermost(optimizer), categories)

    def _before_forward(self, *_: object) -> None:
        if self._parking is None or self._paused:
            return
        self._coming = None
        self._stalls.parked_bytes += self._parking.park()

    def _after_forward(self, _: object, __: object, output: object) -> None:
        if self._parking is None or not torch.is_grad_enabled():
            return
        begun: list[bool] = []

        def begin(_: torch.Tensor) -> None:
            if not begun:
                begun.append(True)
                self._backward_begins()

        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(begin)  # type: ignore[no-untyped-call]

    def _backward_begins(self) -> None:
        if self._parking is None or self._paused:
            return
        self._parking.recall_gradients()
        self._backwards += 1
        if self._backwards % self._accumulate == 0:
            self._coming = self._parking.recall()

    def _before_step(self, *_: object) -> None:
        if self._parking is None:
            return
        if self._coming is None:
            self._coming = self._parking.recall()
        self._stalls.measure(self._arrive)
        self._parking.bring()  # gradients, where something ran forward since

    def _after_step(self, *_: object) -> None:
        self._backwards = 0
        self._stalls.end_of_step()

    def _arrive(self) -> None:
        if self._coming is not None:
            self._coming.wait()
        self._coming = None

    def __repr__(self) -> str:
        """Say whether it is attached, and what it has cost."""
        state = "detached" if self._parking is None else "attached"
        return f"<OffloadSchedule, {state}: {self.report()}>"

    def __enter__(self) -> Self:
        """Return the schedule."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Detach."""
        self.detach()


def _is_deepspeed(model: object) -> bool:
    deepspeed = sys.modules.get("deepspeed")  # who has an engine has imported it
    return deepspeed is not None and isinstance(model, deepspeed.DeepSpeedEngine)


def _innermost(optimizer: Any) -> torch.optim.Optimizer:  # noqa: ANN401 -- Accelerate has no types
    """Return what steps in the end, such as the optimizer that Accelerate wraps."""
    inner = getattr(optimizer, "optimizer", None)
    while isinstance(inner, torch.optim.Optimizer):
        optimizer, inner = inner, getattr(inner, "optimizer", None)
    steps: torch.optim.Optimizer = optimizer
    return steps
