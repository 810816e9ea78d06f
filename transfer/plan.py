"""A set of storages with a fixed place in the arena."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry import _native
from pinferry.errors import ArenaInUse, EngineClosed
from pinferry.transfer.interrupts import Uninterrupted
from pinferry.transfer.parked import open_handle, require_movable
from pinferry.transfer.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    import torch
    from typing_extensions import Self

    from pinferry.transfer.engine import TransferEngine
    from pinferry.transfer.parked import ParkedStorage

__all__ = ["TransferPlan"]


class TransferPlan:
    """The same storages, moved out and in again and again, from `TransferEngine.plan`.

    Their place in the arena is taken once and kept until `close`, so an offload can no longer fail
    for want of room. The plan holds the storages weakly and follows them: one that was resized gets
    new room, one that is gone is left out.
    """

    def __init__(self, engine: TransferEngine, named: Mapping[str, torch.UntypedStorage]) -> None:
        self._engine = engine
        handles = {
            name: open_handle(name, storage, engine.device)
            for name, storage in named.items()
            if storage.nbytes()
        }
        self._parked: list[ParkedStorage] = engine.park(handles) if handles else []
        self._away: list[ParkedStorage] = []
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Bytes of the storages that are still alive."""
        return sum(each.nbytes for each in self._parked if each.handle.alive)

    @property
    def offloaded(self) -> bool:
        """Whether the storages are away."""
        return any(each.handle.alive for each in self._away)

    def names(self) -> tuple[str, ...]:
        """Return the names of the storages that are still alive."""
        return tuple(each.name for each in self._parked if each.handle.alive)

    def offload(self, *, streams: Iterable[object] | None = None) -> Ticket:
        """Copy the storages out; see `TransferEngine.offload`. Does nothing while they are away."""
        with self._engine.lock:
            return self._offload(streams)

    def _offload(self, streams: Iterable[object] | None) -> Ticket:
        self._require_open()
        engine = self._engine
        engine.require_open()
        engine.reap()
        if self.offloaded:
            return Ticket(_native.Ticket(), engine.device)
        engine.settle()
        self._follow()
        if not self._parked:
            return Ticket(_native.Ticket(), engine.device)
        with Uninterrupted():
            ticket = engine.dispatch(self._parked, streams)
            self._away = list(self._parked)
            for each in self._away:
                each.leave_room_to_storage(self._hold)
            self._hold()
        return ticket

    def reload(self, *, streams: Iterable[object] | None = None, defer: bool = False) -> Ticket:
        """Copy the storages back; see `TransferEngine.reload`. Does nothing while they are here."""
        with self._engine.lock:
            self._require_open()
            away = [each for each in self._away if each.handle.alive]
            with Uninterrupted():
                if away:
                    for each in away:
                        each.keep_room()
                    ticket = self._engine.fetch(away, streams, defer=defer)
                else:
                    ticket = Ticket(_native.Ticket(), self._engine.device)
                self._away = []
                self._parked = away or self._parked
                self._hold()
        return ticket

    def close(self) -> None:
        """Give the place in the arena back. Closing twice is harmless.

        Raises
        ------
        ArenaInUse
            If the storages are away; reload them first.
        """
        self._engine.settle()
        if self.offloaded:
            raise ArenaInUse(
                f"this plan holds {len(self._away)} storages that are away; reload() them first",
                blocks=len(self._away),
                used=self.nbytes,
            )
        self._parked = []
        self._away = []
        self._closed = True

    def _hold(self) -> None:
        """Live on while somebody's bytes are here, and no longer."""
        if self.offloaded:
            _holding.add(self)
        else:
            _holding.discard(self)

    def _follow(self) -> None:
        """Leave out what is gone, and take new room for what has another size."""
        self._parked = [each for each in self._parked if each.handle.alive]
        for each in self._parked:
            require_movable(each.name, each.handle, self._engine.device)
        changed = {
            each.name: each.handle for each in self._parked if each.handle.nbytes != each.nbytes
        }
        if changed:
            fresh = {each.name: each for each in self._engine.park(changed)}
            self._parked = [fresh.get(each.name, each) for each in self._parked]

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("this plan is closed; make a new one")

    def __enter__(self) -> Self:
        """Return the plan."""
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the plan, unless an error passes through."""
        if kind is None:
            self.close()


# Plans that hold somebody's bytes live until those are back, whoever forgets them.
_holding: set[TransferPlan] = set()
