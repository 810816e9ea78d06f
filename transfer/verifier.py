"""Making sure that what comes back is what left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pinferry.errors import ChecksumMismatch, DeviceOutOfMemory
from pinferry.transfer.checksum import checksums, memory_at

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pinferry import _native
    from pinferry._torch import FreshMemory, ResidentStorages
    from pinferry.transfer.cargo import Cargo
    from pinferry.transfer.layout import Member

__all__ = ["Verifier"]


@dataclass(frozen=True, slots=True)
class _Left:
    """The checksum of a storage that left: one of several on its device."""

    member: Member  # holds the storage weakly, so that its key names no other one
    sums: torch.Tensor
    index: int


class Verifier:
    """Remembers a checksum of every storage that leaves, and compares.

    Each storage is read once more on the device, before it leaves and after it came; the host waits
    for the second. Meant for finding out who changes bytes, not for every day.
    """

    def __init__(self, device: _native.Device) -> None:
        cpu = device.kind == "cpu"
        self._device = torch.device("cpu") if cpu else torch.device(device.kind, device.index)
        # By the key of the storage and its room in the arena.
        self._left: dict[tuple[int, int], _Left] = {}

    def note(self, cargo: Cargo, held: ResidentStorages, skip: Sequence[int]) -> None:
        """Remember what leaves, and compare what needs no copy because it is immutable.

        Queued on the current stream; the host waits where there is something to compare.

        Raises
        ------
        ChecksumMismatch
            If an immutable storage has changed since it was copied.
        """
        sums = self._sums(cargo, held)
        kept = cargo.members_of(skip)
        for index, error in self._differences(cargo, sums, kept) if kept else ():
            raise ChecksumMismatch(
                f"{cargo.members[index].name} was declared immutable and is not what it was when "
                f"it was copied ({error}). Nothing was moved; make the plan anew without declaring "
                "it, or find what writes to it",
                name=cargo.members[index].name,
            )
        self._left = {key: left for key, left in self._left.items() if left.member.handle.alive}
        for index, member in enumerate(cargo.members):
            # What was copied before there was a verifier counts as it is now.
            if index not in kept or _key(cargo, index) not in self._left:
                self._left[_key(cargo, index)] = _Left(member, sums, index)

    def check(self, cargo: Cargo, fresh: FreshMemory) -> None:
        """Compare what came with what left. The host waits for the current stream.

        What left before there was a verifier is not compared.

        Raises
        ------
        ChecksumMismatch
            For the first storage that differs.
        """
        sums = self._sums(cargo, fresh)
        for index, error in self._differences(cargo, sums, range(len(cargo.members))):
            name = cargo.members[index].name
            raise ChecksumMismatch(
                f"{name} did not come back as it left ({error}); {self._blame(cargo, index)}. "
                "Nothing was reloaded and everything stays offloaded. To take it as it is, set "
                "engine.verify = None and reload() again",
                name=name,
            )
        for index, immutable in enumerate(cargo.immutable):
            if not immutable:  # whose copy is no longer what it is compared with
                self._left.pop(_key(cargo, index), None)

    def _sums(self, cargo: Cargo, memory: ResidentStorages | FreshMemory) -> torch.Tensor:
        addresses = cargo.storage_addresses(memory.addresses, packed=memory.packed)
        places = zip(addresses, cargo.members, strict=True)
        try:
            return checksums(
                [memory_at(self._device, address, member.nbytes) for address, member in places]
            )
        except torch.OutOfMemoryError as error:
            raise DeviceOutOfMemory(
                f"checksums need 16 MiB of device memory, and there is less ({error}). Nothing was "
                "moved; free some, or set engine.verify = None"
            ) from None

    def _differences(
        self, cargo: Cargo, sums: torch.Tensor, indices: Collection[int]
    ) -> list[tuple[int, str]]:
        now = sums.tolist()
        found = []
        for index in indices:
            left = self._left.get(_key(cargo, index))
            then = None if left is None else int(left.sums[left.index])
            if then is not None and then != now[index]:
                found.append((index, f"checksum {_hex(then)} then, {_hex(now[index])} now"))
        return found

    def _blame(self, cargo: Cargo, index: int) -> str:
        """Say on which way it was, by a look at the host copy."""
        member = cargo.members[index]
        addresses = cargo.host_addresses_or_none()
        if addresses is None:
            return "its host copy lies in several pieces and was not looked at"
        address = cargo.storage_addresses(addresses, packed=False)[index]
        [host] = checksums([memory_at(torch.device("cpu"), address, member.nbytes)]).tolist()
        left = self._left[_key(cargo, index)]
        if host == int(left.sums[left.index]):
            return "its host copy is as it left, so the copy back went wrong"
        return "its host copy differs, so it was changed there or on the way out"


def _key(cargo: Cargo, index: int) -> tuple[int, int]:
    return cargo.members[index].handle.key, cargo.rooms[index]


def _hex(checksum: int) -> str:
    return f"{checksum % 2**64:016x}"
