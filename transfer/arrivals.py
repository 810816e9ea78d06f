"""Reloads that nobody has waited for yet."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinferry.transfer.interrupts import Uninterrupted
from pinferry.transfer.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pinferry import _native
    from pinferry._torch import FreshMemory
    from pinferry.transfer.cargo import Cargo

__all__ = ["Arrivals"]


@dataclass(slots=True, eq=False)
class _Arrival:
    keys: frozenset[int]
    fresh: FreshMemory
    ticket: Ticket | None = None


class Arrivals:
    """Deferred reloads: the storages stay guarded until somebody waits for their ticket.

    So a reload can run beside computation, and forgetting to wait is an error, not garbage.

    Parameters
    ----------
    on_landing
        A method, called after each handover. Held weakly: an owner that nobody else holds goes at
        once, and its arena with it, not with the next run of the garbage collector.
    """

    def __init__(self, on_landing: Callable[[], None]) -> None:
        self._on_landing = weakref.WeakMethod(on_landing)
        # In order, and without a lock: a signal handler, or a finalizer, may call amid any step.
        self._pending: dict[_Arrival, None] = {}

    def defer(
        self,
        native: _native.Ticket,
        device: _native.Device,
        fresh: FreshMemory,
        cargo: Cargo,
    ) -> Ticket:
        """Return the ticket whose first wait hands the memory to the storages."""
        cargo.group.announce_arrival()
        arrival = _Arrival(cargo.keys, fresh)
        arrival.ticket = Ticket(native, device, on_wait=lambda: self._land(arrival))
        self._pending[arrival] = None
        return arrival.ticket

    def settle(self, keys: Collection[int] | None = None) -> None:
        """Make the current stream wait for the arrivals that touch `keys`, or for all."""
        for arrival in list(self._pending):
            if arrival.ticket is not None and (keys is None or not arrival.keys.isdisjoint(keys)):
                arrival.ticket.wait()

    def __len__(self) -> int:
        """Return how many reloads were not waited for."""
        return len(self._pending)

    def _land(self, arrival: _Arrival) -> None:
        # May come twice: an interrupt at the end of this scope leaves the first wait unfinished.
        with Uninterrupted():
            arrival.fresh.install()
            self._pending.pop(arrival, None)
            if (on_landing := self._on_landing()) is not None:
                on_landing()
