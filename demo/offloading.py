"""The run whose state leaves the device while it generates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pinferry
from pinferry.demo.access import AccessCheck, check_access
from pinferry.errors import ReclaimShortfall

if TYPE_CHECKING:
    import torch

    from pinferry.demo.options import Settings
    from pinferry.demo.phase_log import PhaseLog
    from pinferry.demo.training import Trainee
    from pinferry.states import ReclaimReport, StateSet

__all__ = ["OffloadedState", "Reclaim", "arena_capacity"]

# What generating needs none of.
_TRAINING_ONLY = (pinferry.Category.OPTIM_STATES, pinferry.Category.LP_GRADS)
_BLOCK_ALIGNMENT = 512


@dataclass(frozen=True, slots=True)
class Reclaim:
    """One offload's report, and what its own verification found missing, or None."""

    cycle: int
    report: ReclaimReport
    shortfall: str | None


def arena_capacity(states: StateSet) -> int:
    """Return an arena size in bytes that holds all of `states` at once.

    Each storage takes whole units of 512 bytes; 1 %, at least 1 MiB, is left over.
    """
    aligned = sum(-(-entry.nbytes // _BLOCK_ALIGNMENT) * _BLOCK_ALIGNMENT for entry in states)
    return aligned + max(aligned // 100, 1 << 20)


class OffloadedState:
    """Moves a trainee's state to an arena and back, and gathers proof that it left.

    The arena is made at the first move, when all state exists and its size is known.
    """

    def __init__(self, trainee: Trainee, settings: Settings, log: PhaseLog) -> None:
        self._trainee = trainee
        self._settings = settings
        self._log = log
        self._arena: pinferry.PinnedArena | None = None
        self._offloader: pinferry.StateOffloader | None = None
        self.state_bytes: dict[str, int] = {}
        self.reclaims: list[Reclaim] = []
        self.accesses: list[AccessCheck] = []

    @property
    def arena(self) -> pinferry.PinnedArena:
        """The arena, made now if there is none yet."""
        if self._arena is None:
            states = self._discover()
            self.state_bytes = {
                category.value: states.nbytes(category)
                for category in pinferry.Category
                if states.nbytes(category)
            }
            capacity = self._settings.arena_bytes
            self._arena = pinferry.PinnedArena(
                arena_capacity(states) if capacity is None else capacity,
                device=self._settings.device,
            )
        return self._arena

    @property
    def offloader(self) -> pinferry.StateOffloader:
        """The offloader over that arena."""
        if self._offloader is None:
            self._offloader = pinferry.StateOffloader(
                self._trainee.model, self._trainee.optimizer, arena=self.arena
            )
        return self._offloader

    def leave(self, cycle: int) -> None:
        """Offload what only training needs; the first time, touch some of it."""
        parameter = next(self._trainee.model.parameters())
        moment = self._trainee.optimizer.state[parameter]["exp_avg"]
        names = self._names_of(moment)
        self._offload(cycle, _TRAINING_ONLY)
        if not self.accesses:
            self.accesses.append(
                check_access("optimizer.state[parameter]['exp_avg'].sum()", moment.sum, names)
            )

    def come_back(self, cycle: int) -> None:
        """Reload it."""
        with self._log.phase(cycle, "reload") as phase:
            phase.moved(self.offloader.reload(_TRAINING_ONLY), _values(_TRAINING_ONLY))

    def leave_and_come_back(self, cycle: int) -> None:
        """Offload everything, touch a parameter through a view, and reload everything."""
        view = next(self._trainee.model.parameters()).view(-1)[:8]
        names = self._names_of(view)
        self._offload(cycle, None)
        self.accesses.append(check_access("parameter.view(-1)[:8].sum()", view.sum, names))
        categories = self.offloader.offloaded_states()
        with self._log.phase(cycle, "reload") as phase:
            phase.moved(self.offloader.reload(), _values(categories))

    def close(self, *, force: bool = False) -> None:
        """Close the arena. With `force`, also while it holds state, which is lost then."""
        if self._arena is not None:
            self._arena.close(force=force)

    def _offload(self, cycle: int, include: tuple[pinferry.Category, ...] | None) -> None:
        offloader = self.offloader
        with self._log.phase(cycle, "offload") as phase:
            ticket = offloader.offload(include)
            phase.moved(ticket, _values(offloader.offloaded_states()))
            report = offloader.reclaim()
        self.reclaims.append(Reclaim(cycle, report, _shortfall(report)))

    def _discover(self) -> StateSet:
        return pinferry.discover(self._trainee.model, self._trainee.optimizer)

    def _names_of(self, tensor: torch.Tensor) -> list[str]:
        address = tensor.untyped_storage().data_ptr()
        return [
            name
            for entry in self._discover()
            if entry.storage.data_ptr() == address
            for name in (entry.name, *entry.aliases)
        ]


def _values(
    categories: frozenset[pinferry.Category] | tuple[pinferry.Category, ...],
) -> tuple[str, ...]:
    return tuple(category.value for category in pinferry.Category if category in categories)


def _shortfall(report: ReclaimReport) -> str | None:
    try:
        report.verify()
    except ReclaimShortfall as shortfall:
        return str(shortfall)
    return None
