"""What a swap gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.transfer.joined_ticket import JoinedTicket

if TYPE_CHECKING:
    from pinferry.transfer.ticket import Ticket

__all__ = ["SwapTicket"]


class SwapTicket(JoinedTicket):
    """The copies of one swap, in both directions. The current stream waits for them by itself."""

    def __init__(self, out: list[Ticket], into: list[Ticket]) -> None:
        super().__init__([*out, *into])
        self._out = out
        self._into = into

    @property
    def nbytes_out(self) -> int:
        """Bytes that go to the host."""
        return sum(ticket.nbytes for ticket in self._out)

    @property
    def nbytes_in(self) -> int:
        """Bytes that come from the host."""
        return sum(ticket.nbytes for ticket in self._into)

    def __repr__(self) -> str:
        """Say how far it is."""
        state = "done" if self.done() else "running"
        return f"<SwapTicket {self.nbytes_out} bytes out, {self.nbytes_in} bytes in, {state}>"
