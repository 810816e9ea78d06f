"""What a transfer gives back."""

from __future__ import annotations

import logging
import math
import sys
import threading
from typing import TYPE_CHECKING, TypeVar

from pinferry.errors import InvalidArgument, TransferTimeout
from pinferry.pool.options import check_timeout
from pinferry.transfer.awaiting import until_done
from pinferry.transfer.not_copied import NotCopied
from pinferry.transfer.streams import current_stream, stream_handle
from pinferry.transfer.waiting import wait_until_done
from pinferry.transfer.watcher import WATCHER

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pinferry import _native
    from pinferry.errors import PinferryError

__all__ = ["Ticket", "call_back", "check_callback"]

_log = logging.getLogger("pinferry")

_T = TypeVar("_T")


def check_callback(callback: object) -> None:
    """Raise `InvalidArgument` for what cannot be called."""
    if not callable(callback):
        raise InvalidArgument(
            f"a callback is called with the ticket, and {type(callback).__name__} cannot be; "
            "give a function of one argument"
        )


def call_back(callback: Callable[[_T], object], ticket: _T) -> None:
    """Call a callback; what it raises is logged and stops nobody."""
    try:
        callback(ticket)
    except Exception:  # noqa: BLE001 -- as promised, whatever it is
        _log.exception("a callback of %r failed", ticket)


class Ticket(NotCopied):
    """One submitted batch of copies.

    Dropping a ticket harms nothing: the copies go on, and what they touch is kept for them. In an
    asyncio program, ``await ticket`` is `synchronize` that lets other tasks run meanwhile.

    Parameters
    ----------
    native
        The core's ticket.
    device
        The device whose current stream `wait` stands for.
    on_wait
        Called when a stream or the host first waits for the copies, and again only if that raised.
    on_done
        Called when this ticket is seen to be done.
    """

    def __init__(
        self,
        native: _native.Ticket,
        device: _native.Device,
        *,
        on_wait: Callable[[], None] | None = None,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        self._native = native
        self._device = device
        self._lock = threading.RLock()  # a signal handler amid a wait may wait itself
        self._on_wait = on_wait
        self._on_done = on_done

    @property
    def native(self) -> _native.Ticket:
        """The core's ticket."""
        return self._native

    @property
    def nbytes(self) -> int:
        """Bytes that the batch copies."""
        return self._native.nbytes

    @property
    def elapsed_ms(self) -> float | None:
        """Milliseconds from the first copy's start to the last one's end; None before that."""
        return self._native.elapsed_ms

    def done(self) -> bool:
        """Return whether every copy has ended. Never blocks."""
        if not self._native.done():
            return False
        if self._on_done is not None:
            self._on_done()
        return True

    def wait(self, stream: object = None) -> None:
        """Make a stream wait for the copies: what it does from now on sees their result.

        Does not block the host on CUDA. On the CPU device the calling thread is the stream, and
        blocks.

        Parameters
        ----------
        stream
            A `torch.cuda.Stream`, CuPy stream or handle; default: the caller's current stream.
        """
        self._native.wait(current_stream(self._device) if stream is None else stream_handle(stream))
        self._arrive()

    def synchronize(self, timeout: float | None = None) -> None:
        """Block the host until every copy has ended.

        Parameters
        ----------
        timeout
            Seconds; None waits for as long as it takes. Less than none are left where a deadline
            has passed: then it does not wait. Ctrl-C ends the wait, but for one without a timeout
            on CUDA, which ends with the copies, as `torch.cuda.synchronize` does.

        Raises
        ------
        TransferTimeout
            If it takes longer. The copies go on.
        InvalidArgument
            If it is no number of seconds.
        """
        check_timeout(timeout, least=-sys.float_info.max)
        if timeout is None and self._device.kind == "cuda":
            self._native.synchronize(None)  # the driver waits better than any who asks it
        elif not wait_until_done(self._native, math.inf if timeout is None else timeout):
            raise TransferTimeout(
                f"{self.nbytes} bytes were not copied within {timeout} s, and copying goes on; "
                "wait longer, or find what holds the producing stream"
            )
        self._arrive()
        self.done()

    def add_done_callback(self, callback: Callable[[Ticket], object]) -> None:
        """Call `callback` with this ticket once every copy has ended.

        As `concurrent.futures` does: at once in the calling thread if they have ended, else in a
        thread of pinferry's own, in the order of registration. It may call anything, but while it
        runs no other callback does. What it raises is logged by the logger ``pinferry`` and stops
        nobody. It does not count as waiting: a deferred reload stays guarded until `wait` is called
        for the stream that reads it.

        It is never called if the copies never end, if their device fails (which is logged), or if
        the interpreter ends before they do. Does not block.

        Raises
        ------
        InvalidArgument
            If it cannot be called.
        ForkedProcess, DriverCallFailed
            If the copies can never end: they are the parent process's, or their device has failed.
        """
        check_callback(callback)
        if self.done():
            call_back(callback, self)
            return

        def told(error: PinferryError | None) -> None:
            if error is not None:
                _log.error(
                    "a callback of a ticket is dropped, because its copies failed: %s", error
                )
                return
            self.done()
            callback(self)

        WATCHER.watch(self._native, told)

    def __await__(self) -> Generator[object, None, None]:
        """Give control back to the asyncio event loop until every copy has ended.

        Then do what `synchronize` does: a deferred reload arrives, in the event loop's thread.
        Any number of tasks may wait, and cancelling one harms neither the copies nor the others.
        """
        yield from until_done(self._native).__await__()
        self.synchronize()

    def _arrive(self) -> None:
        # The lock is held: who waits second must not return before the first one's call has.
        with self._lock:
            on_wait = self._on_wait
            if on_wait is not None:
                on_wait()
                self._on_wait = None

    def __repr__(self) -> str:
        """Say how far it is."""
        return f"<Ticket {self.nbytes} bytes, {'done' if self.done() else 'running'}>"
