"""Several tickets as one."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from pinferry.pool.options import check_timeout
from pinferry.transfer.not_copied import NotCopied
from pinferry.transfer.streams import stream_handle
from pinferry.transfer.ticket import call_back, check_callback

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from typing_extensions import Self

    from pinferry.transfer.ticket import Ticket

__all__ = ["JoinedTicket"]


class JoinedTicket(NotCopied):
    """Several batches of copies. Dropping it harms nothing.

    Like a `Ticket`, it may be awaited in an asyncio program.
    """

    def __init__(self, tickets: Sequence[Ticket]) -> None:
        self._tickets = tuple(tickets)

    @property
    def nbytes(self) -> int:
        """Bytes that they copy."""
        return sum(ticket.nbytes for ticket in self._tickets)

    def done(self) -> bool:
        """Return whether every copy has ended. Never blocks."""
        return all(ticket.done() for ticket in self._tickets)

    def wait(self, stream: object = None) -> None:
        """Make a stream wait for every copy; see `Ticket.wait`."""
        handle = None if stream is None else stream_handle(stream)
        for ticket in self._tickets:
            ticket.wait(handle)

    def synchronize(self, timeout: float | None = None) -> None:
        """Block the host until every copy has ended; see `Ticket.synchronize`."""
        check_timeout(timeout, least=-sys.float_info.max)
        deadline = None if timeout is None else time.monotonic() + timeout
        for ticket in self._tickets:
            ticket.synchronize(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call `callback` with this ticket once every copy has ended; see the one of `Ticket`."""
        check_callback(callback)
        left = iter(self._tickets)

        def go_on(_: object) -> None:
            for ticket in left:
                if not ticket.done():
                    ticket.add_done_callback(go_on)
                    return
            call_back(callback, self)

        go_on(None)

    def __await__(self) -> Generator[object, None, None]:
        """Give control back to the asyncio event loop until every copy has ended."""
        for ticket in self._tickets:
            yield from ticket.__await__()

    def __repr__(self) -> str:
        """Say how far it is."""
        state = "done" if self.done() else "running"
        return f"<{type(self).__name__} {self.nbytes} bytes, {state}>"
