"""Waiting for copies without being deaf to Ctrl-C."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinferry import _native

__all__ = ["wait_until_done"]

# A wait of the core cannot be interrupted, so signals are handled between short ones.
_SLICE_S = 0.1


def wait_until_done(ticket: _native.Ticket, timeout: float) -> bool:
    """Block until `ticket` is done, or for `timeout` seconds; return whether it is.

    Handlers of signals run within a tenth of a second, and what they raise ends the wait.

    Raises
    ------
    ForkedProcess, DriverCallFailed
        If it never will be.
    """
    deadline = time.monotonic() + timeout
    left_s = timeout
    while not ticket.synchronize(max(0.0, min(_SLICE_S, left_s))):  # none left: it only looks
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
    return True
