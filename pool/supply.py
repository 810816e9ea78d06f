"""How an arena comes by more memory: chunks made in the background, and chunks made on demand."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from pinferry.errors import ForkedProcess, PinferryError
from pinferry.pool.host_memory import require_host_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinferry import _native

__all__ = ["ChunkSupply"]


class ChunkSupply:
    """Makes the chunks of one arena that are not there yet, one at a time.

    Before each it asks whether the host has the memory left. A chunk that cannot be had is an error
    of the request that wanted it, and of `wait`; what is there stays usable.

    Parameters
    ----------
    native
        The arena of the core, held weakly by the thread that fills it.
    initial_bytes
        Capacity to reach in the background.
    reserve_bytes
        Host memory to leave to others.
    """

    def __init__(self, native: _native.Arena, *, initial_bytes: int, reserve_bytes: int) -> None:
        self._native = weakref.ref(native)
        self._initial_bytes = initial_bytes
        self._reserve_bytes = reserve_bytes
        self._process = os.getpid()
        self._changed = threading.Condition()  # guards what follows
        self._busy = False
        self._filling = native.stats().capacity_bytes < initial_bytes
        self._failure: PinferryError | None = None
        if self._filling:
            # Not a daemon: the interpreter's end waits for the chunk at hand, as tearing the driver
            # down amid a registration would crash.
            threading.Thread(target=self._fill, name="pinferry-arena").start()

    @property
    def failure(self) -> PinferryError | None:
        """Why the last chunk could not be made."""
        return self._failure

    def wait(self, timeout: float | None) -> bool:
        """Wait until the background has made all it was to make; False if it takes longer.

        Raises
        ------
        PinferryError
            If a chunk could not be made.
        """
        self._require_same_process()
        with self._changed:
            done = self._changed.wait_for(lambda: not self._filling, timeout)
            if self._failure is not None:
                raise self._failure
        return done

    def wait_idle(self) -> None:
        """Wait until no chunk is being made."""
        self._require_same_process()
        with self._changed:
            self._changed.wait_for(lambda: not (self._filling or self._busy))

    def stop(self) -> None:
        """Make no further chunk in the background, and wait for the one at hand."""
        if os.getpid() != self._process:
            return  # the thread that makes them is not here
        with self._changed:
            self._initial_bytes = 0
            self._changed.wait_for(lambda: not (self._filling or self._busy))

    def more(self, native: _native.Arena, sizes: Sequence[int], *, contiguous: bool) -> bool:
        """Make, or wait for, one more chunk for a request that found no room.

        Returns
        -------
        bool
            Whether it is worth to ask again.
        """
        self._require_same_process()
        with self._changed:
            if self._busy or self._filling:
                before = native.stats().capacity_bytes
                self._changed.wait_for(
                    lambda: (
                        native.stats().capacity_bytes != before or not (self._busy or self._filling)
                    )
                )
                return True
            if not native.would_fit_after_growth(sizes, contiguous):
                return False
            self._busy = True
        return self._make(native)

    def _require_same_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkedProcess(
                "this arena belongs to the parent process and cannot be used after fork; make a "
                "new one here, or start workers with 'spawn'"
            )

    def _make(self, native: _native.Arena) -> bool:
        made, failure = False, None
        try:
            require_host_bytes(native.next_chunk_nbytes, reserve=self._reserve_bytes)
            made = native.make_chunk()
        except PinferryError as error:
            failure = error
        finally:
            with self._changed:
                self._busy = False
                self._failure = failure
                self._changed.notify_all()
        return made

    def _fill(self) -> None:
        try:
            while self._make_next():
                pass
        finally:
            with self._changed:
                self._filling = False
                self._changed.notify_all()

    def _make_next(self) -> bool:
        native = self._native()
        if native is None or native.closed:
            return False
        return native.stats().capacity_bytes < self._initial_bytes and self._make(native)
