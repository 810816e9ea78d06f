"""Storages that move in one batch, and where their bytes lie on the host."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from pinferry import _native
from pinferry.errors import ArenaExhausted, InvalidArgument, StorageChanged
from pinferry.transfer.bridge import load_bridge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinferry._torch import ResidentStorages, StorageGroup
    from pinferry.transfer.layout import Place
    from pinferry.transfer.parked import ParkedStorage

__all__ = ["Cargo", "Piece", "cut"]


class Cargo:
    """What the two moves need, worked out once: nothing here is done storage by storage again.

    Parameters
    ----------
    places
        Where the storages lie. Those that share a place share a slab of device memory after a
        reload, and then move as one range.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        members = [member for place in places for member in place.members]
        slabs: list[tuple[int, list[int], int]] = []
        first = 0
        for place in places:
            if place.shared:
                slabs.append((first, list(place.offsets), place.nbytes))
            first += len(place.members)
        self.members = tuple(members)
        # What tells copies of a storage in several places of the arena apart.
        self.rooms = tuple(id(place.blocks) for place in places for _ in place.members)
        self.immutable = tuple(place.immutable for place in places for _ in place.members)
        self._offsets = [place.offsets for place in places]
        self.keys = frozenset(member.handle.key for member in members)
        self.names = tuple(member.name for member in members)
        self.nbytes = sum(member.nbytes for member in members)
        self.group: StorageGroup = load_bridge().StorageGroup(
            [member.handle for member in members],
            self.names,
            [member.nbytes for member in members],
            slabs,
        )
        self._loose = _native.CopyList(
            [
                (place.blocks, place.offsets, [member.nbytes for member in place.members])
                for place in places
            ]
        )
        self._packed = self._loose
        if slabs:
            self._packed = _native.CopyList(
                [(place.blocks, [0], [place.nbytes]) for place in places]
            )
        self.has_slabs = bool(slabs)

    @classmethod
    def of(cls, parked: Sequence[ParkedStorage]) -> Cargo:
        """Return storages that each have a room of their own."""
        return cls([each.place() for each in parked])

    def hold(self) -> ResidentStorages | None:
        """Return the storages, kept alive, if all of them are here and as they were; else None."""
        held: ResidentStorages | None = self.group.hold()
        return held

    def require_held(self) -> ResidentStorages:
        """Return the storages as `hold` does, or raise `StorageChanged`."""
        held = self.hold()
        if held is None:
            raise StorageChanged(
                "a storage was freed, resized or offloaded by another thread while it was being "
                "moved; nothing was moved"
            )
        return held

    def copies(self, *, packed: bool) -> _native.CopyList:
        """Return where the bytes go, for addresses of slabs (`packed`) or of every storage."""
        return self._packed if packed else self._loose

    def host_addresses(self, device: _native.Device) -> bytes:
        """Return where each storage lies in the arena, for accesses to it there.

        Raises
        ------
        ArenaExhausted
            If one lies in several pieces.
        InvalidArgument
            If the device has other addresses for the memory than the host.
        """
        if not device.maps_host_memory:
            raise InvalidArgument(
                "access='readable' needs a GPU that sees pinned memory at the host's own address, "
                "and this one does not; use access='raise'"
            )
        addresses = self.host_addresses_or_none()
        if addresses is None:
            raise ArenaExhausted(
                "access='readable' needs each storage in one piece, and the arena was too full to "
                f"hold all of these {len(self.members)} so; free blocks or make the arena larger, "
                "and make a plan anew, or use access='raise'. Nothing was moved"
            )
        return addresses

    def host_addresses_or_none(self) -> bytes | None:
        """Return where each storage lies in the arena; None unless each lies in one piece."""
        return self._loose.host_addresses

    def storage_addresses(self, addresses: bytes, *, packed: bool) -> list[int]:
        """Return an address for each storage, for those of places (`packed`) or of storages."""
        given = array("Q", addresses).tolist()
        if not packed:
            return given
        return [
            address + offset
            for address, offsets in zip(given, self._offsets, strict=True)
            for offset in offsets
        ]

    def members_of(self, places: Sequence[int]) -> frozenset[int]:
        """Return which storages lie in the places of these numbers."""
        ends = list(accumulate(map(len, self._offsets)))
        return frozenset(
            member
            for place in places
            for member in range(ends[place] - len(self._offsets[place]), ends[place])
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """Some places of a plan, as a cargo of their own."""

    places: tuple[Place, ...]
    cargo: Cargo
    nbytes: int


def cut(places: Sequence[Place], nbytes: int) -> list[Piece]:
    """Return consecutive places in pieces of at most `nbytes`, or one place where that is more."""
    groups: list[list[Place]] = []
    room = 0
    for place in places:
        if not groups or place.nbytes > room:
            groups.append([])
            room = nbytes
        groups[-1].append(place)
        room -= place.nbytes
    return [
        Piece(tuple(group), Cargo(group), sum(place.nbytes for place in group)) for group in groups
    ]
