"""Holding signals back while state is between two places."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

__all__ = ["Uninterrupted"]

# Those whose Python handlers may raise, or move states, in the middle of anything: Ctrl-C, timers,
# and what a scheduler sends before it ends a job.
_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
)


class Uninterrupted:
    """A scope in which no signal handler raises; what arrived meanwhile is handled at its end.

    Python runs handlers in the main thread between any two steps. An exception there, amid a move,
    would free memory that a copy still uses, or forget where bytes went. Costs some microseconds,
    and nothing outside the main thread.
    """

    __slots__ = ("_arrived", "_saved")

    def __init__(self) -> None:
        self._saved: list[tuple[int, Callable[[int, FrameType | None], object]]] = []
        self._arrived: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        """Hold signals back."""
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._saved.append((number, handler))
                    signal.signal(number, self._note)
        except BaseException:
            self._restore()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Handle what arrived."""
        self._restore()
        saved = dict(self._saved)
        for number, frame in self._arrived:
            saved[number](number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append((number, frame))

    def _restore(self) -> None:
        for number, handler in self._saved:
            signal.signal(number, handler)
