"""How an arena comes by more memory: chunks made in the background, and chunks made on demand."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from pinferry.errors import ArenaError, ForkedProcess, PinferryError
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
        self._making = threading.Lock()  # held while a chunk is made
        self._failure: PinferryError | None = None
        self._fill_failure: PinferryError | None = None
        self._progress = threading.Condition()  # told of each chunk of the background
        self._filling = native.stats().capacity_bytes < initial_bytes  # guarded by _progress
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
        with self._progress:
            done = self._progress.wait_for(lambda: not self._filling, timeout)
        if done and self._fill_failure is not None:
            raise self._fill_failure
        return done

    def wait_idle(self) -> None:
        """Wait until no chunk is being made."""
        self._require_same_process()
        with self._progress:
            self._progress.wait_for(lambda: not self._filling)
        with self._making:
            pass

    def stop(self) -> None:
        """Make no further chunk in the background, and wait for the one at hand."""
        if os.getpid() != self._process:
            return  # the thread that makes them is not here
        self._initial_bytes = 0
        self.wait_idle()

    def more(self, native: _native.Arena, sizes: Sequence[int], *, contiguous: bool) -> bool:
        """Make, or wait for, one more chunk for a request that found no room.

        Returns
        -------
        bool
            Whether it is worth to ask again.
        """
        self._require_same_process()
        before = native.stats().capacity_bytes
        with self._progress:
            if self._filling:
                self._progress.wait_for(
                    lambda: not self._filling or native.stats().capacity_bytes != before
                )
                return True
        with self._making:
            if native.stats().capacity_bytes > before:
                return True  # another thread's request has brought one
            if not native.would_fit_after_growth(sizes, contiguous):
                return False
            return self._make(native)

    def _require_same_process(self) -> None:
        if os.getpid() != self._process:
            raise ForkedProcess(
                "this arena belongs to the parent process and cannot be used after fork; make a "
                "new one here, or start workers with 'spawn'"
            )

    def _make(self, native: _native.Arena) -> bool:
        try:
            require_host_bytes(native.next_chunk_nbytes, reserve=self._reserve_bytes)
            made = native.make_chunk()
        except PinferryError as error:
            self._failure = error
            return False
        self._failure = None
        return made

    def _fill(self) -> None:
        try:
            while self._fill_next():
                with self._progress:
                    self._progress.notify_all()
        except Exception as error:  # noqa: BLE001 -- whatever it is, whoever waits must hear of it
            self._fill_failure = ArenaError(
                f"a chunk could not be made in the background: {error!r}"
            )
        finally:
            with self._progress:
                self._filling = False
                self._progress.notify_all()

    def _fill_next(self) -> bool:
        native = self._native()
        if native is None or native.closed:
            return False
        with self._making:
            if native.stats().capacity_bytes >= self._initial_bytes:
                return False
            made = self._make(native)
            self._fill_failure = self._failure
            return made
