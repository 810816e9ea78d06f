"""Recording what an engine moves, and when."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import time
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from pinferry import _native
from pinferry.errors import InvalidArgument, PinferryError
from pinferry.transfer.nvtx import nvtx_range, require_nvtx
from pinferry.transfer.options import ReloadOptions
from pinferry.transfer.streams import stream_handle
from pinferry.transfer.trace_file import DIRECTIONS, Batch, write_trace
from pinferry.transfer.waiting import wait_until_done

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import TextIO

    from typing_extensions import Self

    from pinferry.transfer.cargo import Cargo
    from pinferry.transfer.engine import TransferEngine
    from pinferry.transfer.ticket import Ticket

    Move = TypeVar("Move", bound=Callable[..., Ticket])

__all__ = ["Trace", "traced"]

# Names kept of each batch: enough to know it by, whatever thousands it moves.
_NAMES = 8
# The device's clock is tied to the host's by the shortest of several looks at both.
_LOOKS = 5
# How long copies are waited for when the traced code has failed, perhaps because they hang.
_FAREWELL_S = 1.0


def traced(direction: str) -> Callable[[Move], Move]:
    """Let a move of an engine be recorded by the engine's trace, if it has one."""

    def decorate(move: Move) -> Move:
        signature = inspect.signature(move)

        @functools.wraps(move)
        def wrapper(
            engine: TransferEngine, cargo: Cargo, *arguments: object, **options: object
        ) -> Ticket:
            if engine.tracer is None:
                return move(engine, cargo, *arguments, **options)
            given = signature.bind(engine, cargo, *arguments, **options).arguments["options"]
            defer = isinstance(given, ReloadOptions) and given.defer
            with engine.tracer.call(direction, cargo, defer=defer, urgent=given.urgent) as call:
                ticket = move(engine, cargo, *arguments, **options)
                call.submitted(ticket.native, given.streams)
            return ticket

        return cast("Move", wrapper)

    return decorate


class _Call:
    """One batch while it is recorded, and what will tell when it ran."""

    __slots__ = ("batch", "native")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.native: _native.Ticket | None = None

    def submitted(self, native: _native.Ticket, streams: Iterable[object] | None) -> None:
        self.native = native
        self.batch.nbytes = native.nbytes  # not what the arena has already
        if streams is not None:
            self.batch.streams = tuple(stream_handle(each) for each in streams)

    def wait(self, timeout: float) -> PinferryError | None:
        """Wait until the copies have ended, for `timeout` seconds; return what failed."""
        try:
            if self.native is not None:
                wait_until_done(self.native, timeout)
        except PinferryError as error:
            self.batch.error = f"{type(error).__name__}: {error}"
            return error
        return None


class Trace:
    """A recording of what one engine moves, from `TransferEngine.trace`; use it in a ``with``.

    While it runs, each offload and reload is noted with the times of the host, and its ticket is
    kept, which holds two events and nothing else alive. Nothing waits, but for two moments: the
    beginning, which waits for an idle stream of its own to tie the device's clock to the host's,
    and the end, which waits for the copies that still run. If the code within fails, it waits for
    them a second at most and writes what there is.

    CUDA tells time since the beginning in 24 bits: after a minute the start of a copy is known to
    4 µs, after an hour to a quarter of a millisecond. How long it took is exact throughout.

    Parameters
    ----------
    engine
        What to record.
    path
        Where to write; folders are made.
    nvtx
        Mark the host's calls as NVTX ranges too.
    """

    def __init__(
        self, engine: TransferEngine, path: str | os.PathLike[str], *, nvtx: bool = False
    ) -> None:
        if nvtx:
            require_nvtx()
        self._engine = engine
        self._path = _parse_path(path)
        self._nvtx = nvtx
        self._calls: list[_Call] = []
        self._file: TextIO | None = None
        self._began_ns = 0
        self._process = os.getpid()
        # Of its own, since the copy streams may be held up behind producers; and made here, because
        # a driver may wait for the whole device when it allocates.
        self._clock: _native.Stream | None = engine.device.create_stream()

    @property
    def path(self) -> Path:
        """Where the trace is written, at its end."""
        return self._path

    @property
    def batches(self) -> tuple[Batch, ...]:
        """What was recorded so far; when it ran on the device is known at the end."""
        return tuple(call.batch for call in self._calls)

    @contextlib.contextmanager
    def call(self, direction: str, cargo: Cargo, *, defer: bool, urgent: bool) -> Iterator[_Call]:
        """Record a call of the host, for `traced`."""
        batch = Batch(
            direction=direction,
            called_us=0.0,
            nbytes=cargo.nbytes,
            storages=len(cargo.names),
            names=cargo.names[:_NAMES],
            names_total=len(cargo.names),
            defer=defer,
            urgent=urgent,
        )
        call = _Call(batch)
        text = f"pinferry {DIRECTIONS[direction]}: {batch.storages} storages, {batch.nbytes} bytes"
        with nvtx_range(text) if self._nvtx else contextlib.nullcontext():
            batch.called_us = self._now_us()
            try:
                yield call
            except BaseException as error:
                batch.error = f"{type(error).__name__}: {error}"
                raise
            finally:
                batch.returned_us = self._now_us()
                self._calls.append(call)

    def __enter__(self) -> Self:
        """Begin. Waits for an idle stream of its own."""
        if self._clock is None:
            raise InvalidArgument("this trace was used; ask the engine for a new one")
        with self._engine.lock:
            self._engine.require_open()
            if self._engine.tracer is not None:
                raise InvalidArgument(
                    f"this engine is being traced to {self._engine.tracer.path}; end that first"
                )
            self._file = _open(self._path)
            try:
                self._tie_clocks(self._clock)
            except BaseException:
                self._file.close()
                raise
            self._clock = None
            self._began_ns = time.perf_counter_ns()
            self._engine.tracer = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the copies that still run, and write the file."""
        if os.getpid() != self._process:
            return  # the child of a fork: the file is the parent's, and so are the copies
        with self._engine.lock:  # no call is half recorded
            self._engine.tracer = None
        failure: PinferryError | None = None
        try:
            failure = self._await_copies(None if kind is None else _FAREWELL_S)
        finally:
            self._place()
            self._write()
        if failure is not None and kind is None:
            raise failure

    def _tie_clocks(self, clock: _native.Stream) -> None:
        """Note a moment of the device, and the host's time then."""
        looks: list[tuple[int, int, _native.Mark]] = []
        for _ in range(_LOOKS):
            before = time.perf_counter_ns()
            mark = _native.mark(self._engine.device, clock.handle)
            mark.synchronize(None)
            after = time.perf_counter_ns()
            looks.append((after - before, (before + after) // 2, mark))
        _, self._base_ns, self._base = min(looks, key=itemgetter(0))

    def _await_copies(self, timeout: float | None) -> PinferryError | None:
        """Wait for everything; return the first failure of a device."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        failure: PinferryError | None = None
        for call in self._calls:
            error = call.wait(deadline - time.monotonic())
            failure = failure or error
        return failure

    def _place(self) -> None:
        """Give each batch its times on the device, where they are known."""
        offset_us = (self._base_ns - self._began_ns) / 1e3
        for call in self._calls:
            try:
                span = None if call.native is None else call.native.span_ms(self._base)
            except PinferryError as error:
                call.batch.error = f"{type(error).__name__}: {error}"
                continue
            if span is not None:
                call.batch.started_us = offset_us + span[0] * 1e3
                call.batch.ended_us = offset_us + span[1] * 1e3
            elif call.batch.error is None:
                call.batch.error = "had not ended when the trace did"

    def _write(self) -> None:
        device = self._engine.device
        name = "cpu" if device.kind == "cpu" else f"cuda:{device.index} ({device.name})"
        if self._file is not None:
            with self._file:
                write_trace(self._file, self.batches, device=name)

    def _now_us(self) -> float:
        return (time.perf_counter_ns() - self._began_ns) / 1e3


def _parse_path(path: object) -> Path:
    try:
        parsed = Path(path)  # type: ignore[arg-type]
    except TypeError:
        parsed = None
    if parsed is None or "\0" in str(parsed):
        raise InvalidArgument(f"{path!r} names no file; write the trace to 'trace.json', say")
    return parsed


def _open(path: Path) -> TextIO:
    """Open the file at once: a long run must not end with the news that it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(
            f"the trace cannot be written to {path}: {error.strerror}; name another file"
        ) from error
