"""What must stay alive while copies run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinferry import _native

__all__ = ["IN_FLIGHT", "InFlight"]


class InFlight:
    """Objects held until the copies that touch them have ended, whoever drops the tickets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[tuple[_native.Ticket, object]] = []

    def hold(self, ticket: _native.Ticket, held: object) -> None:
        """Keep `held` until `ticket` is done."""
        with self._lock:
            self._held.append((ticket, held))

    def reap(self) -> None:
        """Let go of what is no longer touched. Never blocks."""
        running: list[tuple[_native.Ticket, object]] = []
        finished: list[object] = []
        with self._lock:
            for ticket, held in self._held:
                if ticket.done():
                    finished.append(held)
                else:
                    running.append((ticket, held))
            self._held = running
        # What `finished` holds is freed on return, outside the lock.


#: Of the process: what a copy touches must outlive the engine that queued it.
IN_FLIGHT = InFlight()
