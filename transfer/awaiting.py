"""Waiting for copies in an asyncio program."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from pinferry.transfer.watcher import WATCHER

if TYPE_CHECKING:
    from pinferry import _native
    from pinferry.errors import PinferryError

__all__ = ["until_done"]


async def until_done(ticket: _native.Ticket) -> None:
    """Give control back to the event loop until `ticket` is done.

    Raises
    ------
    ForkedProcess, DriverCallFailed
        If it never will be.
    """
    if ticket.done():
        return
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def settle(error: PinferryError | None) -> None:
        if ended.done():  # cancelled meanwhile
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def told(error: PinferryError | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits any more
            loop.call_soon_threadsafe(settle, error)

    WATCHER.watch(ticket, told)
    try:
        await ended
    finally:
        WATCHER.forget(ticket, told)
