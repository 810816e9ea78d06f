"""What moves cargo for engines and their plans."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pinferry import _native
from pinferry.errors import ArenaExhausted, InvalidArgument
from pinferry.pool import format_bytes
from pinferry.transfer.arrivals import Arrivals
from pinferry.transfer.in_flight import IN_FLIGHT
from pinferry.transfer.moves import bring, send
from pinferry.transfer.not_copied import NotCopied
from pinferry.transfer.options import Access, Verify, parse_verify
from pinferry.transfer.streams import current_stream, stream_handles
from pinferry.transfer.ticket import Ticket
from pinferry.transfer.trace import traced
from pinferry.transfer.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pinferry._torch import ResidentStorages
    from pinferry.pool import PinnedArena
    from pinferry.transfer.cargo import Cargo
    from pinferry.transfer.options import OffloadOptions, ReloadOptions
    from pinferry.transfer.parked import HostCopy
    from pinferry.transfer.trace import Trace

__all__ = ["Mover"]

# Blocks of a copy that is still running come back when it ends; a copy that takes longer than this
# is stuck behind its producer, and the caller should know.
_ARENA_WAIT_S = 60.0


class Mover(NotCopied):
    """Moves cargo between a device and an arena, in order with what it moved before.

    It knows nothing of which storages are away; its callers do.
    """

    def __init__(self, arena: PinnedArena, verify: Verify | None) -> None:
        self._arena = arena
        self._verifier = None if verify is None else Verifier(arena.device)
        self._lock = threading.RLock()
        self._arrivals = Arrivals(self._hold)
        # Reloads that may still run, and the storages that they bring. A later offload need not be
        # behind a stream that waits for one.
        self._reloads: list[tuple[_native.Ticket, frozenset[int]]] = []
        self.tracer: Trace | None = None  # what records the moves, while something does

    @property
    def lock(self) -> threading.RLock:
        """Guards the engine and its plans."""
        return self._lock

    @property
    def arena(self) -> PinnedArena:
        """Where the bytes go."""
        return self._arena

    @property
    def device(self) -> _native.Device:
        """The device that the engine serves."""
        return self._arena.device

    def take_room(self, sizes: Sequence[int]) -> list[list[_native.Block]]:
        """Take room in the arena for each of `sizes`, or raise `ArenaExhausted`."""
        try:
            return self._arena.deal(sizes, timeout=_ARENA_WAIT_S)
        except ArenaExhausted as error:
            raise ArenaExhausted(
                f"cannot offload {len(sizes)} storages, {format_bytes(sum(sizes))}, and nothing "
                f"was moved: {error}",
                **error.fields,
            ) from None

    @property
    def verify(self) -> Verify | None:
        """How moves are verified; None, the default, does not. May be set at any time."""
        return None if self._verifier is None else Verify.CHECKSUM

    @verify.setter
    def verify(self, verify: Verify | str | None) -> None:
        wanted = parse_verify(verify)
        with self._lock:
            if wanted is not self.verify:
                self._verifier = None if wanted is None else Verifier(self.device)

    @traced("H2D")
    def fetch(self, cargo: Cargo, options: ReloadOptions) -> Ticket:
        """Bring storages back from their blocks, which stay theirs."""
        consumers: list[int] | None = None
        if options.defer:
            consumers = []
        elif options.streams is not None:
            consumers = stream_handles(self.device, options.streams)
        if self._verifier is not None and options.defer:
            raise InvalidArgument(
                "a reload that is verified waits for its copies, so it cannot be deferred; use "
                "defer=False, or set engine.verify = None"
            )
        native, fresh = bring(self.device, cargo, consumers=consumers, urgent=options.urgent)
        self._reloads.append((native, cargo.keys))
        if consumers is not None:
            self.keep(native, fresh)
        if self._verifier is not None:
            native.wait(current_stream(self.device))
            self._verifier.check(cargo, fresh)
        if options.defer:
            ticket = self._arrivals.defer(native, self.device, fresh, cargo)
            self._hold()
            return ticket
        fresh.install()
        IN_FLIGHT.reap()  # on the CPU the way back has waited for the way out
        return Ticket(native, self.device)

    @traced("D2H")
    def dispatch(
        self,
        cargo: Cargo,
        held: ResidentStorages,
        owners: Sequence[HostCopy],
        options: OffloadOptions,
        *,
        skip: Sequence[int] = (),
    ) -> Ticket:
        """Send storages to their blocks and take their memory away, for `owners` to hold.

        The places in `skip` have the bytes already.
        """
        if options.access is Access.READABLE:
            self._require_reachable_host()
        streams = stream_handles(self.device, options.streams)
        after = self.reloads_of(cargo.keys)
        if self._verifier is not None:
            here = current_stream(self.device)
            for stream in streams:
                if stream != here:
                    _native.mark(self.device, stream).synchronize(None)
            for ticket in after:
                ticket.wait(here)
            self._verifier.note(cargo, held, skip)
            streams.append(here)
        native, released = send(
            self.device,
            cargo,
            held,
            owners=owners,
            streams=streams,
            after=after,
            skip=skip,
            options=options,
        )
        self.keep(native, released)
        return Ticket(native, self.device, on_done=IN_FLIGHT.reap)

    def _require_reachable_host(self) -> None:
        if self.device.kind != "cpu" and self._arena.backend == "unpinned":
            raise InvalidArgument(
                "access='readable' needs pinned memory, which a GPU can reach, and this arena's is "
                "not; use access='raise', or an arena of another backend. Nothing was moved"
            )

    def reloads_of(self, keys: Iterable[int]) -> list[_native.Ticket]:
        """Return the reloads that may still write to one of these storages."""
        wanted = frozenset(keys)
        return [ticket for ticket, keys in self._reloads if not keys.isdisjoint(wanted)]

    def keep(self, native: _native.Ticket, held: object) -> None:
        """Hold memory for as long as a copy may run in it: what no stream orders, on the CPU."""
        if self.device.kind == "cpu":
            IN_FLIGHT.hold(native, held)

    def reap(self) -> None:
        """Free what copies that have ended needed."""
        with self._lock:
            IN_FLIGHT.reap()
            self._reloads = [each for each in self._reloads if not each[0].done()]

    def settle(self) -> None:
        """Make the current stream wait for every deferred reload."""
        self._arrivals.settle()

    def _hold(self) -> None:
        """Do what is due when something has begun to arrive or has arrived."""
