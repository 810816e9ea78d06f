"""A set of storages with a fixed place in the arena."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from pinferry import _native
from pinferry.errors import ArenaInUse, EngineClosed, InvalidArgument, StorageChanged
from pinferry.pool import format_bytes
from pinferry.transfer.cargo import Cargo, Piece, cut
from pinferry.transfer.holding import keep_while
from pinferry.transfer.interrupts import Uninterrupted
from pinferry.transfer.layout import Member, Place, laid_anew, lay_out
from pinferry.transfer.not_copied import NotCopied
from pinferry.transfer.options import Access, OffloadOptions, Release, ReloadOptions
from pinferry.transfer.parked import HostCopy, host_copy, open_handle, require_movable
from pinferry.transfer.ticket import Ticket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    import torch
    from typing_extensions import Self

    from pinferry._torch import ResidentStorages
    from pinferry.transfer.engine import TransferEngine

__all__ = ["TransferPlan"]


class TransferPlan(NotCopied):
    """The same storages, moved out and in again and again, from `TransferEngine.plan`.

    Their place in the arena is taken once and kept until `close`, so an offload can no longer fail
    for want of room, and a move costs a handful of native calls, however many storages there are.
    The plan holds the storages weakly and follows them: one that was resized gets new room, one
    that is gone is left out. What has no bytes when the plan is made is none of its own.
    """

    def __init__(
        self,
        engine: TransferEngine,
        named: Mapping[str, torch.UntypedStorage],
        compact: Collection[str] | bool,
        immutable: Collection[str] | bool,
    ) -> None:
        self._engine = engine
        places = lay_out(
            _members(engine, named),
            _checked("compact", compact, named),
            _checked("immutable", immutable, named),
        )
        self._places: list[Place] = []
        # Numbers of the places that never change, and of those whose bytes the arena has for good.
        self._immutable: tuple[int, ...] = ()
        self._copied: tuple[int, ...] = ()
        self._settle_on(self._with_room(places))
        self._access = Access.RAISE  # to what is away
        self._away: list[Place] = []  # all, but where a swap failed and could not be undone
        self._closed = False
        # Of what the storages hold while they are away: dead once all of them are back or gone.
        self._token: weakref.ref[HostCopy] | None = None

    @classmethod
    def holding(cls, engine: TransferEngine) -> list[TransferPlan]:
        """Return the plans of `engine` whose storages are away."""
        return [plan for plan in _holding.copy() if plan.engine is engine and plan.offloaded]

    @property
    def engine(self) -> TransferEngine:
        """The engine that moves the storages."""
        return self._engine

    @property
    def nbytes(self) -> int:
        """Bytes of the storages that are still alive."""
        return sum(member.nbytes for member in self._members())

    @property
    def offloaded(self) -> bool:
        """Whether the storages are away, or some of them."""
        return bool(self._away) and self._living_token() is not None

    def names(self) -> tuple[str, ...]:
        """Return the names of the storages that are still alive."""
        return tuple(member.name for member in self._members())

    def offload(
        self,
        *,
        streams: Iterable[object] | None = None,
        release: Release | str = Release.RECORD_STREAM,
        access: Access | str = Access.RAISE,
        urgent: bool = False,
    ) -> Ticket:
        """Copy the storages out; see `TransferEngine.offload`. Does nothing while they are away.

        Those that were declared immutable are copied the first time, and later given up only.
        """
        options = OffloadOptions.parse(streams, release, access, urgent)
        with self._engine.lock:
            self._require_open()
            engine = self._engine
            engine.require_open()
            engine.reap()
            if self.offloaded:
                return Ticket(_native.Ticket(), engine.device)
            engine.settle()
            cargo, held = self._follow()
            if cargo is None or held is None:
                return Ticket(_native.Ticket(), engine.device)
            with Uninterrupted():
                token = self.new_token(options.access)
                ticket = engine.dispatch(cargo, held, [token], options, skip=self._copied)
                self.note_away(self._places)
            return ticket

    def reload(
        self,
        *,
        streams: Iterable[object] | None = None,
        defer: bool = False,
        urgent: bool = False,
    ) -> Ticket:
        """Copy the storages back; see `TransferEngine.reload`. Does nothing while they are here."""
        options = ReloadOptions.parse(streams, defer, urgent)
        with self._engine.lock:
            self._require_open()
            with Uninterrupted():
                if not self.offloaded:
                    self.note_away([])
                    return Ticket(_native.Ticket(), self._engine.device)
                ticket = self._engine.fetch(self._cargo_away(), options)
                self.note_away([])
        return ticket

    def pieces_here(self, nbytes: int) -> list[Piece]:
        """Return the storages in pieces of about `nbytes`, to be moved out one by one: for swaps.

        Empty if they are away already.
        """
        self._require_open()
        if self.offloaded:
            return []
        self._engine.settle()
        self._follow()
        return self._pieces(self._places, nbytes)

    def pieces_away(self, nbytes: int) -> list[Piece]:
        """Return what is away in pieces of about `nbytes`, to be moved in one by one: for swaps."""
        self._require_open()
        if not self.offloaded:
            return []
        self._cargo_away()
        return self._pieces(self._away, nbytes)

    def note_away(self, places: Sequence[Place]) -> None:
        """Remember which places are away."""
        self._away = list(places)
        if len(self._copied) < len(self._immutable):
            left = set(map(id, places))
            self._copied = tuple(
                number
                for number in self._immutable
                if number in self._copied or id(self._places[number]) in left
            )
        self._hold()

    @property
    def access(self) -> Access:
        """What an access to the storages that are away does."""
        return self._access

    def copied(self, places: Sequence[Place]) -> list[int]:
        """Return the numbers among `places` of those whose bytes the arena has for good."""
        have = {id(self._places[number]) for number in self._copied}
        return [number for number, place in enumerate(places) if id(place) in have]

    def new_token(self, access: Access = Access.RAISE) -> HostCopy:
        """Return what storages hold while they are away; when it dies, all are back or gone."""
        living = self._living_token() if self._away else None
        if living is not None:
            return living  # a swap that failed adds to what is away
        blocks = [block for place in self._places for block in place.blocks]
        token = host_copy(blocks, self._engine.device, access)
        self._access = access
        self._token = weakref.ref(token, lambda _: self._hold())
        return token

    def close(self) -> None:
        """Give the place in the arena back. Closing twice is harmless.

        Raises
        ------
        ArenaInUse
            If the storages are away; reload them first.
        """
        with self._engine.lock:
            self._engine.settle()
            if self.offloaded:
                raise ArenaInUse(
                    f"this plan holds {len(self.names())} storages that are away; reload() them "
                    "first",
                    blocks=len(self.names()),
                    used=self.nbytes,
                )
            self._closed = True  # first: an interrupt must leave no plan that moves nothing
            self._away = []
            self._settle_on([])

    def _living_token(self) -> HostCopy | None:
        return None if self._token is None else self._token()

    def _members(self) -> Iterator[Member]:
        return (member for place in self._places for member in place.members if member.handle.alive)

    def _with_room(self, places: Sequence[Place]) -> list[Place]:
        """Return the places with blocks of the arena, all or none."""
        if not places:
            return []
        rooms = self._engine.take_room([place.nbytes for place in places])
        return [replace(place, blocks=blocks) for place, blocks in zip(places, rooms, strict=True)]

    def _settle_on(self, places: Sequence[Place]) -> None:
        """Work out what the moves need."""
        # By their blocks: a place that lost a storage is another one, and still has them.
        copied = {id(self._places[number].blocks) for number in self._copied}
        self._copied = tuple(n for n, place in enumerate(places) if id(place.blocks) in copied)
        self._immutable = tuple(n for n, place in enumerate(places) if place.immutable)
        self._places = list(places)
        self._cargo = Cargo(places) if places else None
        self._cut: tuple[tuple[int, ...], int, list[Piece]] | None = None

    def _follow(self) -> tuple[Cargo | None, ResidentStorages | None]:
        """Return what is to move, after the storages: looks at each only if one has changed."""
        if self._cargo is not None and (held := self._cargo.hold()) is not None:
            return self._cargo, held
        places = [kept for place in self._places if (kept := place.alive()) is not None]
        for place in places:
            for member in place.members:
                require_movable(member.name, member.handle, self._engine.device)
        resized = [place for place in places if place.resized]
        fresh = iter(self._with_room([laid_anew(place) for place in resized]))
        self._settle_on([next(fresh) if place in resized else place for place in places])
        if self._cargo is None:
            return None, None
        return self._cargo, self._cargo.require_held()

    def _cargo_away(self) -> Cargo:
        """Return what is to come back, without what has died or was given other memory."""
        cargo, token = self._cargo, self._living_token()
        # What is readable may have been given other memory, and have left with somebody else since.
        strayed = self._access is Access.READABLE
        if cargo is not None and (strayed or cargo.group.still_away < len(cargo.keys)):
            left = [place.held_by(token) for place in self._away] if token is not None else []
            self._away = [place for place in left if place is not None]
            if cargo.group.alive < len(cargo.keys):
                alive = [place.alive() for place in self._places]
                self._settle_on([place for place in alive if place is not None])
        if self._cargo is not None and self._away == self._places:
            return self._cargo
        if not self._away:
            raise StorageChanged(
                "every storage of this plan was freed, or given other memory, while it was being "
                "moved"
            )
        return Cargo(self._away)

    def _pieces(self, places: Sequence[Place], nbytes: int) -> list[Piece]:
        """Return the places in groups of about `nbytes`, worked out once while they stay."""
        key = tuple(map(id, places))
        if self._cut is None or self._cut[:2] != (key, nbytes):
            self._cut = (key, nbytes, cut(places, nbytes))
        return self._cut[2]

    def _hold(self) -> None:
        """Live on while somebody's bytes are here, and no longer."""
        keep_while(_holding, self, lambda: self.offloaded)

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("this plan is closed; make a new one")

    def __repr__(self) -> str:
        """Say how much it moves, and where that is."""
        where = "closed" if self._closed else "away" if self.offloaded else "here"
        count, nbytes = len(self.names()), format_bytes(self.nbytes)
        return f"<TransferPlan of {count} storages, {nbytes}, {where}>"

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


def _checked(
    argument: str, chosen: Collection[str] | bool, named: Mapping[str, torch.UntypedStorage]
) -> Collection[str] | bool:
    """Return `chosen` if it is a choice among `named`, or raise `InvalidArgument`."""
    if isinstance(chosen, bool):
        return chosen
    if isinstance(chosen, str) or not isinstance(chosen, Collection):
        raise InvalidArgument(f"{argument}={chosen!r}: give True, False, or several names")
    names: Collection[object] = chosen
    unknown = [name for name in names if not isinstance(name, str) or name not in named]
    if unknown:
        raise InvalidArgument(f"{argument} names {unknown[0]!r}, which is not among the states")
    return frozenset(chosen)


def _members(engine: TransferEngine, named: Mapping[str, torch.UntypedStorage]) -> Iterator[Member]:
    for name, storage in named.items():
        if storage.nbytes():
            handle = open_handle(name, storage, engine.device)
            yield Member(name, handle, handle.nbytes)
