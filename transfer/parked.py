"""Storages, and the host blocks that hold or will hold their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinferry import _native
from pinferry.errors import (
    AlreadyOffloaded,
    NotOffloaded,
    StorageChanged,
    UnsupportedStorage,
    WrongDevice,
)
from pinferry.transfer.bridge import load_bridge
from pinferry.transfer.storages import storage_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from pinferry._torch import StorageHandle

__all__ = ["ParkedStorage", "open_handle"]


@dataclass(slots=True)
class ParkedStorage:
    """A storage and its place in the arena: several extents where none is large enough."""

    name: str
    handle: StorageHandle
    nbytes: int
    blocks: list[_native.Block]

    @property
    def offloaded_message(self) -> str:
        """What an access says while the bytes are away."""
        return f"{self.name} is offloaded to pinned host memory; call reload() first"

    @property
    def arriving_message(self) -> str:
        """What an access says while nobody has waited for a deferred reload."""
        return f"{self.name} is being reloaded; call wait() on its ticket first"

    def pieces(self, address: int) -> Iterator[_native.Piece]:
        """Return the copies that connect the blocks with device memory at `address`."""
        for block in self.blocks:
            yield _native.Piece(block, address)
            address += block.nbytes

    def require_away(self) -> None:
        """Raise unless the storage is as it was left when its bytes were taken."""
        if not self.handle.guarded:
            raise NotOffloaded(
                f"{self.name} was given other memory while it was offloaded; the {self.nbytes} "
                "bytes it had are still in the arena. Offload it again to replace them"
            )
        if self.handle.nbytes != self.nbytes:
            raise StorageChanged(
                f"{self.name} was resized from {self.nbytes} to {self.handle.nbytes} bytes while "
                "it was offloaded; size it back, then reload"
            )


def open_handle(name: str, storage: torch.UntypedStorage, device: _native.Device) -> StorageHandle:
    """Return a handle of a resident storage that can be moved, or raise what stands against it.

    Raises
    ------
    WrongDevice
        If the storage lives elsewhere.
    AlreadyOffloaded
        If another engine, plan or library has taken its memory away.
    UnsupportedStorage
        If its memory cannot be given back and made again.
    """
    handle: StorageHandle = load_bridge().StorageHandle(storage_key(storage))
    here = "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"
    if handle.device != here:
        raise WrongDevice(
            f"{name} lives on {handle.device}, and this arena serves {here}; make an arena for "
            f"{handle.device}, or leave the tensor out"
        )
    if handle.guarded:
        raise AlreadyOffloaded(
            f"{name} is offloaded already, but not by this call's engine or plan; reload it there"
        )
    if handle.refusal:
        raise UnsupportedStorage(
            f"{name} cannot be offloaded: {handle.refusal}. Leave it out, or give its owner a clone"
        )
    return handle
