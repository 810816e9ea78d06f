"""What is away of some holder's state: moving it by category, and remembering what it was."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pinferry.errors import ArenaExhausted, NotOffloaded
from pinferry.pool import format_bytes
from pinferry.states.leftovers import leftovers
from pinferry.states.memory import MemoryReading, read_memory
from pinferry.states.reclaim import ReclaimReport, measure_reclaim
from pinferry.transfer import Access, Release, storage_key
from pinferry.transfer.options import ReloadOptions
from pinferry.transfer.parked import is_away

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pinferry.states.categories import Category
    from pinferry.states.discovery import Survey
    from pinferry.states.state_set import StateSet
    from pinferry.transfer import Ticket, TransferEngine
    from pinferry.transfer.parked import ParkedStorage

__all__ = ["StateKeeper"]


class StateKeeper:
    """Moves states through one engine, and knows the category that each of them left under.

    Idempotent: what is away stays away. All-or-nothing: a call that fails has moved nothing.

    Parameters
    ----------
    engine
        What moves the bytes.
    survey
        Finds the state anew.
    lock
        Held while states move; keepers of one holder share it.
    """

    def __init__(
        self,
        engine: TransferEngine,
        survey: Callable[[], Survey],
        lock: threading.RLock | None = None,
    ) -> None:
        self.engine = engine
        self._survey = survey
        self._lock = threading.RLock() if lock is None else lock
        # Of what is away, by storage_key; an address may come to name another storage.
        self._categories: dict[int, tuple[ParkedStorage, Category]] = {}
        self._remembered: set[Category] = set()  # of these, and perhaps of some that are back
        self._last: tuple[dict[Category, int], MemoryReading, Ticket] | None = None
        self.moves = 0  # offloads that gave device memory back

    def offload(
        self,
        categories: Collection[Category],
        *,
        elsewhere: Collection[int] = (),
        streams: Sequence[object] | None = None,
        release: Release | str = Release.RECORD_STREAM,
        access: Access | str = Access.RAISE,
    ) -> Ticket:
        """Offload what is here of these categories; scratch is given up without a copy.

        Parameters
        ----------
        categories
            What moves.
        elsewhere
            Storages, by key, that are away already by another engine.
        streams, release, access
            As in `TransferEngine.offload`.
        """
        with self._lock:
            found = self._survey()
            found.require_movable(categories)
            away = self.engine.offloaded().keys() | elsewhere
            leaving = found.states.only(*categories).where(
                lambda entry: storage_key(entry.storage) not in away
            )
            kept = leaving.where(lambda entry: storage_key(entry.storage) not in found.scratch)
            given_up = leaving.where(lambda entry: storage_key(entry.storage) in found.scratch)
            # First: a refusal must come before the others have left.
            self.engine.require_movable(given_up.storages())
            before = read_memory(self.engine.device)
            try:
                ticket = self.engine.offload(
                    kept.storages(), streams=streams, release=release, access=access
                )
            except ArenaExhausted as error:
                raise _with_categories(error, kept) from None
            self.engine.discard(given_up.storages())
            self._remember(leaving)
            if any(entry.nbytes for entry in leaving):
                self._last = (leaving.by_category(), before, ticket)
                self.moves += 1
            return ticket

    def reload(
        self,
        categories: Collection[Category],
        leave: Collection[int] = (),
        *,
        defer: bool = False,
    ) -> Ticket:
        """Bring back what went under these categories, but for the storages in `leave`.

        With `defer`, it arrives when the ticket is waited for; see `TransferEngine.reload`.
        """
        with self._lock:
            return self.engine.reload_keys(
                [
                    key
                    for key, category in self.away().items()
                    if category in categories and key not in leave
                ],
                ReloadOptions(defer=defer),
            )

    def away(self) -> dict[int, Category]:
        """Return the category that each storage went under, forgetting what is back or gone.

        Remembered and not found anew: what a storage is may change while it is away.
        """
        with self._lock:
            held = self.engine.offloaded()
            gone = [
                key for key, (parked, _) in self._categories.items() if held.get(key) is not parked
            ]
            for key in gone:
                del self._categories[key]
            if len(self._categories) < len(held):  # another user of the engine has moved something
                self._remember(self._survey().states)
            away = {key: category for key, (_, category) in self._categories.items()}
            self._remembered = set(away.values())
            return away

    def away_of(self, categories: Collection[Category]) -> frozenset[Category]:
        """Return those of `categories` of which something is away.

        Meant to be asked before each forward: where thousands of storages of other categories are
        away, it does not look at each.
        """
        with self._lock:
            known = len(self._categories) == len(self.engine.offloaded())
            if known and self._remembered.isdisjoint(categories):
                return frozenset()
            return frozenset(self.away().values()).intersection(categories)

    def resident(self) -> StateSet:
        """Return the state that has bytes here: what nobody has offloaded, not a plan either."""
        with self._lock:
            return self._survey().states.where(
                lambda entry: entry.nbytes > 0 and not is_away(entry.storage)
            )

    def reclaim(self) -> ReclaimReport:
        """Measure what the last offload gave back; see `StateOffloader.reclaim`."""
        with self._lock:
            if self._last is None:
                raise NotOffloaded("nothing was offloaded yet, so there is nothing to measure")
            sizes, before, ticket = self._last
        ticket.synchronize()
        device = self.engine.device
        return measure_reclaim(
            device,
            sizes,
            before,
            lambda: leftovers(device, self.resident()),
        )

    def _remember(self, states: StateSet) -> None:
        held = self.engine.offloaded()
        for entry in states:
            key = storage_key(entry.storage)
            known = self._categories.get(key)
            if key in held and (known is None or known[0] is not held[key]):
                self._categories[key] = (held[key], entry.category)
                self._remembered.add(entry.category)


def _with_categories(error: ArenaExhausted, states: StateSet) -> ArenaExhausted:
    sizes = states.by_category()
    needed = ", ".join(f"{category} {format_bytes(size)}" for category, size in sizes.items())
    return ArenaExhausted(f"{error}. What was to move: {needed}", **error.fields)
