"""State in pinned memory and, where a caller asks for it, in pageable memory."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pinferry.pool import PinnedArena
from pinferry.states.engines import device_name
from pinferry.states.keeper import StateKeeper
from pinferry.transfer import JoinedTicket, TransferEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pinferry.states.categories import Category
    from pinferry.states.discovery import Survey
    from pinferry.states.reclaim import ReclaimReport
    from pinferry.states.state_set import StateSet
    from pinferry.transfer import Ticket

__all__ = ["Keepers"]

_log = logging.getLogger("pinferry")


class Keepers:
    """One keeper for pinned memory, and one for pageable memory from the first need on.

    What one has taken away, the other leaves alone; a reload asks both.
    """

    def __init__(self, arena: PinnedArena, survey: Callable[[], Survey]) -> None:
        self.lock = threading.RLock()
        self.survey = survey
        self.pinned = StateKeeper(TransferEngine(arena), survey, self.lock)
        self._pageable: StateKeeper | None = None
        self._last = self.pinned

    def offload(self, categories: Collection[Category], *, pinned: bool) -> Ticket:
        """Offload what is here of these categories."""
        with self.lock:
            keeper = self.pinned if pinned else self._require_pageable()
            elsewhere = {key for each in self._all() if each is not keeper for key in each.away()}
            before = keeper.moves
            ticket = keeper.offload(categories, elsewhere=elsewhere)
            if keeper.moves > before:
                self._last = keeper
            return ticket

    def reload(
        self,
        categories: Collection[Category],
        leave: Collection[int] = (),
        *,
        defer: bool = False,
    ) -> Ticket | JoinedTicket:
        """Bring back what went under these categories; see `StateKeeper.reload`."""
        with self.lock:
            tickets = [keeper.reload(categories, leave, defer=defer) for keeper in self._all()]
            return tickets[0] if len(tickets) == 1 else JoinedTicket(tickets)

    def away(self) -> dict[int, Category]:
        """Return the category that each storage that is away went under."""
        with self.lock:
            return {key: category for each in self._all() for key, category in each.away().items()}

    def away_of(self, categories: Collection[Category]) -> frozenset[Category]:
        """Return those of `categories` of which something is away."""
        with self.lock:
            return frozenset().union(*(each.away_of(categories) for each in self._all()))

    def given_up(self) -> frozenset[int]:
        """Return the storages that are away without their bytes."""
        with self.lock:
            return frozenset(
                key
                for each in self._all()
                for key, parked in each.engine.offloaded().items()
                if not parked.kept
            )

    def resident(self) -> StateSet:
        """Return the state that has bytes here."""
        return self.pinned.resident()

    def reclaim(self) -> ReclaimReport:
        """Measure what the last offload that moved something gave back."""
        with self.lock:
            return self._last.reclaim()

    def close(self) -> None:
        """Close the engines, and the pageable memory."""
        with self.lock:
            for keeper in self._all():
                keeper.engine.close()
            if self._pageable is not None:
                self._pageable.engine.arena.close()

    def _all(self) -> list[StateKeeper]:
        return [self.pinned] if self._pageable is None else [self.pinned, self._pageable]

    def _require_pageable(self) -> StateKeeper:
        if self._pageable is None:
            _log.warning(
                "pin_memory=False: states go to pageable memory, to and from which a GPU copies "
                "several times slower than with the pinned memory that is there (said once)"
            )
            most = max(4 * self.survey().states.nbytes(), 1 << 30)
            arena = PinnedArena(
                min(most, 1 << 26),
                device=device_name(self.pinned.engine),
                max_capacity=most,
                backend="unpinned",
            )
            self._pageable = StateKeeper(TransferEngine(arena), self.survey, self.lock)
        return self._pageable
