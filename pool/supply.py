"""How an arena comes by more memory: chunks made in the background, and chunks made on demand."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pinferry.errors import ArenaError, ArenaExhausted, ForkedProcess, PinferryError
from pinferry.pool.host_memory import require_host_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pinferry import _native

__all__ = ["ChunkSupply"]

_Dealt = TypeVar("_Dealt")


class ChunkSupply:
    """Makes the chunks of one arena that are not there yet, one at a time.

    Before each it asks whether the host has the memory left. A chunk that cannot be had is an error
    of the request that wanted it, and of `wait`; what is there stays usable.

    Parameters
    ----------
    native
        The arena of the core, held weakly: the thread that fills it keeps no arena alive.
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
        # Held while a chunk is made. Reentrant: a signal handler amid it may close the arena.
        self._making = threading.RLock()
        self._failure: _Failure | None = None
        self._fill_failure: _Failure | None = None
        self._progress = threading.Condition()  # told of each chunk of the background
        self._filling = native.stats().capacity_bytes < initial_bytes  # guarded by _progress
        # Not a daemon: the interpreter's end waits for the chunk at hand, as tearing the driver
        # down amid a registration would crash.
        self._filler = threading.Thread(target=self._fill, name="pinferry-arena")
        if self._filling:
            try:
                self._filler.start()
            except RuntimeError as error:
                raise ArenaError(f"no thread to make chunks in: {error}; use eager=True") from None

    @property
    def here(self) -> bool:
        """Whether this is the process that the arena was made in."""
        return os.getpid() == self._process

    def wait(self, timeout: float | None) -> bool:
        """Wait until the background has made all it was to make; False if it takes longer.

        Raises
        ------
        PinferryError
            If a chunk could not be made.
        """
        self._require_same_process()
        with self._progress:
            done = self._progress.wait_for(self._filled, timeout)
        if done and self._fill_failure is not None:
            raise self._fill_failure.error()
        return done

    def wait_idle(self) -> None:
        """Wait until no chunk is being made, but by this thread."""
        self._require_same_process()
        with self._progress:
            self._progress.wait_for(self._filled)
        with self._making:
            pass

    def stop(self) -> None:
        """Make no further chunk in the background, and wait for the one at hand."""
        self._initial_bytes = 0
        self.wait_idle()

    def serve(
        self,
        sizes: Sequence[int],
        *,
        contiguous: bool,
        patient: bool,
        attempt: Callable[[], _Dealt | None],
        wait: Callable[[], _Dealt],
    ) -> _Dealt:
        """Serve a request that found no room: with more chunks, then with what is in flight.

        Parameters
        ----------
        sizes
            What was asked for.
        contiguous
            Whether each must be one range.
        patient
            Whether the request will wait for what is retired.
        attempt
            Asks again, without waiting.
        wait
            Asks for the last time, and waits for what is retired.

        Raises
        ------
        ArenaExhausted
            If there is no room. Its cause says why the arena cannot grow, if it was tried.
        """
        self._failure = None
        while self._more(sizes, contiguous=contiguous, patient=patient):
            dealt = attempt()
            if dealt is not None:
                return dealt
        try:
            return wait()
        except ArenaExhausted as error:
            if self._failure is None:
                raise
            why = self._failure.error()
            raise ArenaExhausted(f"{error}. It could not grow: {why}", **error.fields) from why

    def _more(self, sizes: Sequence[int], *, contiguous: bool, patient: bool) -> bool:
        """Make, or wait for, one more chunk; return whether it is worth to ask again."""
        self._require_same_process()
        native = self._native()
        if native is None:
            return False
        before = native.stats().capacity_bytes
        with self._progress:
            if not self._filled():
                self._progress.wait_for(
                    lambda: self._filled() or native.stats().capacity_bytes != before
                )
                return True
        with self._making:
            if native.stats().capacity_bytes > before:
                return True  # another thread's request has brought one
            if not native.would_fit_after_growth(sizes, contiguous, patient):
                return False
            made, self._failure = self._make(native)
            return made

    def _filled(self) -> bool:
        return not self._filling or threading.current_thread() is self._filler

    def _require_same_process(self) -> None:
        if not self.here:
            raise ForkedProcess(
                "this arena belongs to the parent process and cannot be used after fork; start "
                "workers with 'spawn', or, on the CPU device alone, make a new one here"
            )

    def _make(self, native: _native.Arena) -> tuple[bool, _Failure | None]:
        try:
            require_host_bytes(native.next_chunk_nbytes, reserve=self._reserve_bytes)
            return native.make_chunk(), None
        except PinferryError as error:
            return False, _Failure(type(error), str(error), error.fields)

    def _fill(self) -> None:
        try:
            while self._fill_next():
                with self._progress:
                    self._progress.notify_all()
        except Exception as error:  # noqa: BLE001 -- whatever it is, whoever waits must hear of it
            told = f"a chunk could not be made in the background: {error!r}"
            self._fill_failure = _Failure(ArenaError, told, {})
        finally:
            with self._progress:
                self._filling = False
                self._progress.notify_all()

    def _fill_next(self) -> bool:
        native = self._native()
        over = native is None or native.closed or not threading.main_thread().is_alive()
        if native is None or over:
            return False
        with self._making:
            if native.stats().capacity_bytes >= self._initial_bytes:
                return False
            made, self._fill_failure = self._make(native)
            return made


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error without its traceback, which would keep the caller's blocks alive."""

    kind: type[PinferryError]
    message: str
    fields: Mapping[str, int | str | None]

    def error(self) -> PinferryError:
        return self.kind(self.message, **self.fields)
