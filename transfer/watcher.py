"""Telling Python code that copies have ended."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING

from pinferry import _native
from pinferry.errors import PinferryError

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Called with None when the copies have ended, or with what the device says instead.
    Told = Callable[[PinferryError | None], None]

__all__ = ["WATCHER", "Watcher"]

_log = logging.getLogger("pinferry")

# Small copies end within the first pauses; later ones cost a thousandth of a core.
_SHORTEST_S = 50e-6
_LONGEST_S = 2e-3
# How long the interpreter's end waits for a callback that is running.
_FAREWELL_S = 1.0


class Watcher:
    """A thread that asks tickets whether they are done, for as long as there are any to ask.

    It asks, because the ways to be told cost more than they give: a driver's own callback may call
    neither the driver nor, without holding up the stream, Python; and a blocking wait needs a
    thread for each ticket.
    """

    def __init__(self) -> None:
        self._of_parent: dict[_native.Ticket, list[Told]] = {}
        self._begin()

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._watched: dict[_native.Ticket, list[Told]] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False

    def begin_in_child(self) -> None:
        """Start anew after a fork, which leaves the child neither the thread nor the copies."""
        # Not freed here: a lock that this takes may have been held in the parent, for ever.
        self._of_parent = self._watched
        self._begin()

    def watch(self, ticket: _native.Ticket, told: Told) -> None:
        """Call `told` in the watcher's thread when `ticket` is done. Does not block.

        Raises
        ------
        ForkedProcess, DriverCallFailed
            If the ticket can never be done: it is the parent process's, or its device has failed.
        """
        ticket.synchronize(0.0)
        with self._changed:
            self._watched.setdefault(ticket, []).append(told)
            if self._thread is not None:
                self._changed.notify()
                return
            thread = threading.Thread(target=self._run, name="pinferry-watcher", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter ends
                self._drop(ticket, told)
                raise
            self._thread = thread

    def forget(self, ticket: _native.Ticket, told: Told) -> None:
        """Call `told` no more, unless it is being called."""
        with self._changed:
            self._drop(ticket, told)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread: one that runs while the interpreter goes would be torn out of a call."""
        with self._changed:
            thread, self._stopping = self._thread, True
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_FAREWELL_S)

    def _drop(self, ticket: _native.Ticket, told: Told) -> None:
        waiting = self._watched.get(ticket, [])
        if told in waiting:
            waiting.remove(told)
        if not waiting:
            self._watched.pop(ticket, None)

    def _run(self) -> None:
        pause = _SHORTEST_S
        while True:
            for told, error in self._ended():
                _call(told, error)
            with self._changed:
                if self._stopping or not self._watched:
                    self._thread = None
                    return
                # Woken early, there is a new ticket, which may be a short one.
                woken = self._changed.wait(pause)
                pause = _SHORTEST_S if woken else min(2 * pause, _LONGEST_S)

    def _ended(self) -> list[tuple[Told, PinferryError | None]]:
        """Take out what is over, in the order it was asked for."""
        with self._changed:
            asked = list(self._watched)
        ended: list[tuple[Told, PinferryError | None]] = []
        for ticket, over in zip(asked, _native.over(asked), strict=True):
            if over:
                error = _failure(ticket)
                with self._changed:
                    ended += [(told, error) for told in self._watched.pop(ticket, [])]
        return ended


def _failure(ticket: _native.Ticket) -> PinferryError | None:
    try:
        ticket.synchronize(0.0)
    except PinferryError as error:
        return error.with_traceback(None)  # which would keep the ticket, and its device, alive
    return None


def _call(told: Told, error: PinferryError | None) -> None:
    try:
        told(error)
    except BaseException:  # noqa: BLE001 -- see below
        # Nobody is above this thread, and the others' callbacks must still come.
        _log.exception("a callback of a ticket failed")


#: Of the process.
WATCHER = Watcher()
os.register_at_fork(after_in_child=WATCHER.begin_in_child)
atexit.register(WATCHER.stop)
