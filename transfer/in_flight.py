"""What must stay alive while copies run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinferry import _native

__all__ = ["IN_FLIGHT", "InFlight"]


class InFlight:
    """Objects held until the copies that touch them have ended, whoever drops the tickets.

    Without a lock: each step is one of a dictionary, which no other thread cuts. A signal handler,
    or a finalizer, may move states amid any of them, and would wait for a lock of its own thread
    for ever.
    """

    def __init__(self) -> None:
        self._held: dict[_native.Ticket, list[object]] = {}

    def hold(self, ticket: _native.Ticket, held: object) -> None:
        """Keep `held` until `ticket` is done."""
        self._held.setdefault(ticket, []).append(held)

    def reap(self) -> None:
        """Let go of what is no longer touched. Never blocks."""
        for ticket in list(self._held):
            if ticket.done():
                self._held.pop(ticket, None)


#: Of the process: what a copy touches must outlive the engine that queued it.
IN_FLIGHT = InFlight()
