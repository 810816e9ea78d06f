"""Which storages of a plan lie side by side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pinferry import _native
    from pinferry._torch import StorageHandle

__all__ = ["Member", "Place", "laid_anew", "lay_out"]

# Of the device allocator too: each slice of a slab begins as a block of its own would.
_ALIGNMENT = 512
# What is larger reaches the link's speed alone, and would keep a slab alive for long.
_LARGEST_MEMBER = 16 * 2**20
# Enough for the link's speed, and not so much that the device allocator finds no such block.
_LARGEST_SLAB = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Member:
    """A storage of a plan, held weakly, and its size when the plan was laid out."""

    name: str
    handle: StorageHandle
    nbytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Storages one after the other, and the blocks that hold them.

    `shared` ones lie in one slab of device memory after a reload. `immutable` ones never change, so
    that they are copied to the blocks once.
    """

    members: tuple[Member, ...]
    offsets: tuple[int, ...]
    nbytes: int
    shared: bool
    immutable: bool = False
    blocks: list[_native.Block] = field(default_factory=list)

    @property
    def resized(self) -> bool:
        """Whether one of the storages has another size than it was given room for."""
        return any(member.handle.nbytes != member.nbytes for member in self.members)

    def alive(self) -> Place | None:
        """Return the place without what has died; None if nothing is left."""
        return self._only(lambda member: member.handle.alive)

    def held_by(self, token: object) -> Place | None:
        """Return the place without what has died or was given other memory, likewise.

        What is away with `token` was not.
        """
        return self._only(lambda member: member.handle.alive and member.handle.owner is token)

    def _only(self, stays: Callable[[Member], bool]) -> Place | None:
        kept = [
            (member, offset)
            for member, offset in zip(self.members, self.offsets, strict=True)
            if stays(member)
        ]
        if len(kept) == len(self.members):
            return self
        if not kept:
            return None
        members, offsets = zip(*kept, strict=True)
        return replace(self, members=members, offsets=offsets)


def lay_out(
    members: Iterable[Member],
    compact: Collection[str] | bool,
    immutable: Collection[str] | bool = False,
) -> list[Place]:
    """Return the places of storages: small ones that `compact` allows side by side.

    Parameters
    ----------
    members
        The storages.
    compact
        Names of those that may share a slab; True for all, False for none.
    immutable
        Names of those that never change, which share no slab with others.
    """
    places: list[Place] = []
    gathered: dict[bool, list[Member]] = {False: [], True: []}
    room = {False: 0, True: 0}
    for member in members:
        fixed = _among(immutable, member)
        if not _among(compact, member) or member.nbytes > _LARGEST_MEMBER:
            places.append(_alone(member, immutable=fixed))
            continue
        if room[fixed] + _rounded(member.nbytes) > _LARGEST_SLAB:
            places.append(_side_by_side(gathered[fixed], immutable=fixed))
            gathered[fixed], room[fixed] = [], 0
        gathered[fixed].append(member)
        room[fixed] += _rounded(member.nbytes)
    places += [_side_by_side(left, immutable=fixed) for fixed, left in gathered.items() if left]
    return places


def laid_anew(place: Place) -> Place:
    """Return the place as it must be for the sizes of today, without blocks."""
    members = [replace(member, nbytes=member.handle.nbytes) for member in place.members]
    if place.shared:
        return _side_by_side(members, immutable=place.immutable)
    [member] = members
    return _alone(member, immutable=place.immutable)


def _among(names: Collection[str] | bool, member: Member) -> bool:
    return names if isinstance(names, bool) else member.name in names


def _alone(member: Member, *, immutable: bool) -> Place:
    return Place((member,), (0,), member.nbytes, shared=False, immutable=immutable)


def _side_by_side(members: Sequence[Member], *, immutable: bool) -> Place:
    offsets: list[int] = []
    end = 0
    for member in members:
        offsets.append(end)
        end += _rounded(member.nbytes)
    return Place(tuple(members), tuple(offsets), end, shared=True, immutable=immutable)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
