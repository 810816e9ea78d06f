"""The engine: storages out to the arena and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pinferry import _native
from pinferry.errors import (
    ArenaClosed,
    ArenaInUse,
    EngineClosed,
    InvalidArgument,
)
from pinferry.pool import PinnedArena, format_bytes, parse_size
from pinferry.transfer.away import AwayTable
from pinferry.transfer.cargo import Cargo
from pinferry.transfer.discarding import give_up, make_anew
from pinferry.transfer.holding import keep_while
from pinferry.transfer.interrupts import Uninterrupted
from pinferry.transfer.kernels import prepare_kernels
from pinferry.transfer.mover import Mover
from pinferry.transfer.options import (
    Access,
    OffloadOptions,
    Release,
    ReloadOptions,
    Verify,
    parse_verify,
)
from pinferry.transfer.parked import HostCopy, ParkedStorage, host_copy, open_handle
from pinferry.transfer.plan import TransferPlan
from pinferry.transfer.storages import named_storages, storage_key
from pinferry.transfer.swap import swap
from pinferry.transfer.ticket import Ticket
from pinferry.transfer.trace import Trace

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from pinferry._torch import StorageHandle
    from pinferry.transfer.storages import States
    from pinferry.transfer.swap_ticket import SwapTicket

__all__ = ["TransferEngine"]

# Engines that hold somebody's bytes live until those are back, whoever forgets them.
_holding: set[TransferEngine] = set()


class TransferEngine(Mover):
    """Moves the storages behind tensors between a device and a `PinnedArena`.

    Whole storages move, each once, so that every view of them goes and comes with it. While a
    storage is away, any access through any view raises ``RuntimeError`` with its name. Shapes,
    strides, identities and optimizer keys stay; after a reload only the address is new. Any thread
    may call.

    Parameters
    ----------
    arena
        Where the bytes go. Its device is the engine's.
    verify
        ``"checksum"`` compares a checksum of each storage before it leaves and after it has come
        back, and raises `ChecksumMismatch` instead of handing it over. Then a reload waits for its
        copies, and each way reads the device memory once more: for finding out who changes bytes.
        None, the default, does not. May be set later, as ``engine.verify``.

    Examples
    --------
    >>> import torch
    >>> from pinferry import PinnedArena, TransferEngine
    >>> weights = torch.arange(4.0)
    >>> with PinnedArena("1MiB", device="cpu") as arena, TransferEngine(arena) as engine:
    ...     _ = engine.offload({"weights": weights})
    ...     try:
    ...         weights.sum()
    ...     except RuntimeError as error:
    ...         print(str(error).splitlines()[0])
    ...     _ = engine.reload()
    ...     weights.sum()
    weights is offloaded to pinned host memory; call reload() first
    tensor(6.)
    """

    def __init__(self, arena: PinnedArena, *, verify: Verify | str | None = None) -> None:
        if not isinstance(arena, PinnedArena):
            raise InvalidArgument(
                f"an engine moves bytes to a PinnedArena, and {type(arena).__name__} is none; make "
                "one: PinnedArena('8GiB', device='cuda:0')"
            )
        if arena.closed:
            raise ArenaClosed("this arena is closed; make a new one for the engine")
        way = parse_verify(verify)
        prepare_kernels(arena.device)
        self._away = AwayTable(self._hold)
        self._closed = False
        super().__init__(arena, way)

    @classmethod
    def holding(cls, arena: PinnedArena) -> TransferEngine | None:
        """Return an engine that holds somebody's bytes in `arena`, if there is one."""
        return next((engine for engine in _holding.copy() if engine.arena is arena), None)

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of storages that are away."""
        with self._lock:
            self.reap()
            return sum(each.nbytes for each in self._away.copy().values())

    def offloaded_names(self) -> tuple[str, ...]:
        """Return the names of what is away, in the order it went."""
        with self._lock:
            self.reap()
            return tuple(each.name for each in self._away.copy().values())

    def is_offloaded(self, storage: torch.UntypedStorage) -> bool:
        """Return whether this engine holds the bytes of `storage`."""
        if not isinstance(storage, torch.UntypedStorage):
            raise InvalidArgument(
                f"a {type(storage).__name__} is no storage; give tensor.untyped_storage()"
            )
        with self._lock:
            return self._away.holds(storage)

    def offload(
        self,
        states: States,
        *,
        streams: Iterable[object] | None = None,
        release: Release | str = Release.RECORD_STREAM,
        access: Access | str = Access.RAISE,
        urgent: bool = False,
    ) -> Ticket:
        """Copy storages to the arena and give their device memory back to PyTorch's allocator.

        All of them or none. What is away already stays away. Does not wait for the copies.

        Parameters
        ----------
        states
            Tensors or storages, or a mapping from names (for error texts) to them.
        streams
            Streams that wrote the states: the copy starts behind what they have queued. Default:
            the current one. The memory is not reused before the copy has read it.
        release
            What sees to that: ``"record_stream"`` (PyTorch's allocator holds it back; nothing
            waits), ``"ordered"`` (the current stream waits for the copy; thousands of storages are
            given back in a fraction of the time), or ``"synchronous"`` (the host waits).
        access
            ``"raise"``: any access to what is away raises. ``"readable"``: it reads, and writes,
            the host copy over the link, such as for a checkpoint; the current stream waits for the
            copy. `docs/access.md` says what kernels can and cannot do there.
        urgent
            Go before what other calls have queued that is not: between its pieces, not behind it.

        Returns
        -------
        Ticket
            Of the copies. Nothing needs to wait for it: a reload, too, is ordered behind them.

        Raises
        ------
        ArenaExhausted
            If the arena lacks room, with the numbers. Nothing moved.
        WrongDevice, UnsupportedStorage, AlreadyOffloaded
            If one of them cannot be moved. Nothing moved.
        InvalidArgument
            If there is no such `release` or `access`, or one of `streams` is none. Nothing moved.
        """
        named = named_storages(states)
        options = OffloadOptions.parse(streams, release, access, urgent)
        with self._lock:
            handles = self._leaving(named)
            if not handles:
                return Ticket(_native.Ticket(), self.device)
            parked = self._park(handles, options.access)
            cargo = Cargo.of(parked)
            with Uninterrupted():
                rooms = [each.room() for each in parked]
                ticket = self.dispatch(cargo, cargo.require_held(), rooms, options)
                del rooms
                self._away.add(parked)
            return ticket

    def discard(self, states: States) -> None:
        """Give the device memory of storages up without keeping their bytes.

        For scratch space, such as communication buffers between two steps. Until they are reloaded,
        any access raises as for what is offloaded; a reload makes their memory anew, with whatever
        was in it. Takes no room in the arena, and waits for nothing: as after ``del``, the memory
        may be reused behind what the stream that it was allocated on has queued.

        Parameters
        ----------
        states
            Tensors or storages, or a mapping from names (for error texts) to them. What is away
            already stays away, with its bytes.

        Raises
        ------
        WrongDevice, UnsupportedStorage, AlreadyOffloaded
            If one of them cannot be given up. Nothing was.
        """
        with self._lock:
            handles = self._leaving(named_storages(states))
            if not handles:
                return
            parked = [
                ParkedStorage(name, handle, handle.nbytes, HostCopy([]))
                for name, handle in handles.items()
            ]
            with Uninterrupted():
                released = give_up(parked)
                for ticket in self.reloads_of(each.handle.key for each in parked):
                    self.keep(ticket, released)
                self._away.add(parked)

    def require_movable(self, states: States) -> None:
        """Raise what stands against moving `states`, as `discard` does, and move nothing."""
        with self._lock:
            self._leaving(named_storages(states))

    def reload(
        self,
        states: States | None = None,
        *,
        streams: Iterable[object] | None = None,
        defer: bool = False,
        urgent: bool = False,
    ) -> Ticket:
        """Make device memory again and copy the bytes back.

        All of them or none. Does not block the host on CUDA.

        Parameters
        ----------
        states
            What to bring back; default: everything that this engine holds. What a plan offloaded is
            the plan's to reload.
        streams
            Streams that will read the states: each waits for the copy. Default: the current one.
        defer
            Let no stream wait yet, so that other work can run beside the copy. The states stay
            guarded until `Ticket.wait` or `Ticket.synchronize` is called on the ticket.
        urgent
            Go before what other calls have queued that is not: between its pieces, not behind it.

        Raises
        ------
        NotOffloaded
            If one of `states` is not away. Nothing moved.
        DeviceOutOfMemory
            If the device lacks memory. Everything stays offloaded and intact.
        StorageChanged
            If a storage was resized while it was away.
        ChecksumMismatch
            If the engine verifies, and one did not come back as it left. Everything stays
            offloaded.
        InvalidArgument
            If `defer` or `urgent` is neither True nor False, one of `streams` is none, or a reload
            that is verified is to be deferred. Nothing moved.
        """
        options = ReloadOptions.parse(streams, defer, urgent)
        with self._lock:
            self.require_open()
            self.reap()
            if states is None:
                self.settle()
                self._away.prune()
            keys = list(self._away.copy()) if states is None else self._find(states)
            return self.reload_keys(keys, options)

    def offloaded(self) -> dict[int, ParkedStorage]:
        """Return what is away, by `storage_key`."""
        with self._lock:
            self.reap()
            return self._away.copy()

    def reload_keys(self, keys: Iterable[int], options: ReloadOptions) -> Ticket:
        """Bring back storages by `storage_key`, for callers that do not hold them; see `reload`.

        Those that have died meanwhile are left out.
        """
        with self._lock:
            self.require_open()
            table = self._away.copy()
            parked = [table[key] for key in keys if key in table and table[key].handle.alive]
            if not parked:
                return Ticket(_native.Ticket(), self.device)
            kept = [each for each in parked if each.kept]
            discarded = [each for each in parked if not each.kept]
            with Uninterrupted():
                ordered, fresh = _native.Ticket(), None
                if discarded:
                    ordered, fresh = make_anew(self.device, discarded, options)
                # The copies, too, come behind what the current stream did so far.
                ticket = (
                    self.fetch(Cargo.of(kept), options) if kept else Ticket(ordered, self.device)
                )
                if fresh is not None:
                    fresh.install()
                self._away.remove(parked)
            return ticket

    def plan(
        self,
        states: States,
        *,
        compact: Collection[str] | bool = False,
        immutable: Collection[str] | bool = False,
    ) -> TransferPlan:
        """Fix the place of `states` in the arena, for moving them again and again.

        Parameters
        ----------
        states
            Tensors or storages, or a mapping from names to them.
        compact
            Names of those whose device memory may become slices of one slab from the first reload
            on; True for all. Small ones then move as one range, at the speed of the link, and cost
            one allocation. A slab goes back only when its last slice dies; `docs/compaction.md`
            says what else it means. Meant for what only the optimizer touches.
        immutable
            Names of those that nobody writes to, such as frozen weights; True for all. They are
            copied to the arena once: later offloads only give their device memory up. What is
            written to one in between is lost with the next reload; an engine that verifies raises
            instead.

        Raises
        ------
        ArenaExhausted, WrongDevice, UnsupportedStorage, AlreadyOffloaded
            As for `offload`.
        InvalidArgument
            If `compact` or `immutable` names what is not among `states`.
        """
        named = named_storages(states)
        with self._lock:
            self.require_open()
            self._arrivals.settle([storage_key(storage) for storage in named.values()])
            return TransferPlan(self, named, compact, immutable)

    def swap(
        self,
        *,
        out: TransferPlan,
        into: TransferPlan,
        slack: int | str = "1GiB",
        streams: Iterable[object] | None = None,
    ) -> SwapTicket:
        """Move one plan's storages out while another's come in, in the memory just freed.

        Both directions of the link run at once, and the two sets are never on the device together:
        besides the larger of them it takes `slack` and the rest of the allocator's blocks that do
        not fit. All or nothing. Does not block the host on CUDA; the current stream waits for both
        directions.

        Parameters
        ----------
        out
            What leaves. If it is away already, the other is only reloaded.
        into
            What comes. If it is here already, the other is only offloaded.
        slack
            Bytes that may come in before as much has left. With less than a piece (128 MiB, or the
            largest storage) the directions wait for each other.
        streams
            Streams that wrote what leaves; default: the current one.

        Raises
        ------
        InvalidArgument
            If the plans are one, or not this engine's.
        DeviceOutOfMemory
            If the device lacks memory all the same. Everything is back where it was.
        EngineClosed
            If the engine or a plan is closed.
        """
        room = parse_size(slack)
        options = OffloadOptions.parse(streams, Release.ORDERED, Access.RAISE, urgent=False)
        plans: tuple[object, ...] = (out, into)
        for plan in plans:
            if not isinstance(plan, TransferPlan) or plan.engine is not self:
                raise InvalidArgument("a swap takes two plans of this engine; see engine.plan()")
        if out is into:
            raise InvalidArgument("a swap takes two plans; this is one, and cannot be out and in")
        with self._lock:
            self.require_open()
            self.reap()
            return swap(self, out, into, slack=room, streams=options.streams)

    def trace(self, path: str | os.PathLike[str], *, nvtx: bool = False) -> Trace:
        """Record what moves, plans' moves too, and write it for Perfetto and `pinferry trace`.

        Costs some microseconds a move. Waits at its beginning, for an idle stream of its own, and
        at its end, for the copies that still run; see `Trace`.

        Parameters
        ----------
        path
            The file: Chrome's trace format, JSON.
        nvtx
            Mark the host's calls as NVTX ranges too.

        Raises
        ------
        InvalidArgument
            If the file cannot be written, a trace of this engine runs already, or `nvtx` is asked
            for without CUDA.

        Examples
        --------
        >>> import tempfile, torch
        >>> from pinferry import PinnedArena, TransferEngine
        >>> folder = tempfile.mkdtemp()
        >>> with PinnedArena("1MiB", device="cpu") as arena, TransferEngine(arena) as engine:
        ...     with engine.trace(f"{folder}/trace.json") as trace:
        ...         _ = engine.offload({"weights": torch.ones(1024)})
        >>> [(batch.direction, batch.nbytes, batch.names) for batch in trace.batches]
        [('D2H', 4096, ('weights',))]
        """
        return Trace(self, path, nvtx=nvtx)

    def _leaving(self, named: Mapping[str, torch.UntypedStorage]) -> dict[str, StorageHandle]:
        """Return what of these has bytes and is not away yet, once it has arrived."""
        self.require_open()
        self.reap()
        self._arrivals.settle([storage_key(storage) for storage in named.values()])
        return {
            name: open_handle(name, storage, self.device)
            for name, storage in named.items()
            if storage.nbytes() and not self._away.holds(storage)
        }

    def _park(self, handles: Mapping[str, StorageHandle], access: Access) -> list[ParkedStorage]:
        sizes = [handle.nbytes for handle in handles.values()]
        return [
            ParkedStorage(name, handle, size, host_copy(extents, self.device, access))
            for (name, handle), size, extents in zip(
                handles.items(), sizes, self.take_room(sizes), strict=True
            )
        ]

    def _hold(self) -> None:
        """Live on while somebody's bytes are here, and no longer."""
        keep_while(_holding, self, lambda: len(self._away) + len(self._arrivals) > 0)

    def close(self) -> None:
        """Refuse further work. Closing twice is harmless; the arena stays open.

        Raises
        ------
        ArenaInUse
            If it or one of its plans still holds somebody's bytes; it stays open.
        """
        with self._lock:
            self.settle()
            self._away.prune()
            plans = TransferPlan.holding(self)
            held = self.offloaded_bytes + sum(plan.nbytes for plan in plans)
            if held:
                of_plans = [name for plan in plans for name in plan.names()]
                names = [*self.offloaded_names(), *of_plans]
                raise ArenaInUse(
                    f"the engine still holds {len(names)} storages with {format_bytes(held)}, the "
                    f"first of them {names[0]}; reload() them first"
                    + (f", {len(of_plans)} of them by their plan" if of_plans else ""),
                    blocks=len(names),
                    used=held,
                )
            self._closed = True

    def _find(self, states: States) -> list[int]:
        named = named_storages(states)
        self._arrivals.settle([storage_key(storage) for storage in named.values()])
        return self._away.find(named)

    def require_open(self) -> None:
        """Raise `EngineClosed` if it was closed."""
        if self._closed:
            raise EngineClosed("this engine is closed; make a new one")

    def __repr__(self) -> str:
        """Say what it serves and how much of it is away; a plan says so of its own."""
        away = self._away.copy().values()
        if self._closed:
            state = "closed"
        else:
            state = f"{len(away)} storages, {format_bytes(sum(each.nbytes for each in away))}, away"
        device = self.device
        name = "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"
        return f"<TransferEngine for {name}, {state}>"

    def __enter__(self) -> Self:
        """Return the engine."""
        self.require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the engine, unless an error passes: then what is away can still be reloaded."""
        if kind is None:
            self.close()
