"""Storages, and the host blocks that hold or will hold their bytes."""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import TYPE_CHECKING

from pinferry import _native
from pinferry.errors import (
    AlreadyOffloaded,
    NotOffloaded,
    PinferryError,
    UnsupportedStorage,
    WrongDevice,
)
from pinferry.transfer.bridge import load_bridge
from pinferry.transfer.layout import Member, Place
from pinferry.transfer.options import Access
from pinferry.transfer.storages import storage_key
from pinferry.transfer.streams import current_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pinferry._torch import StorageHandle

__all__ = [
    "HostCopy",
    "ParkedStorage",
    "host_copy",
    "is_away",
    "open_handle",
    "require_movable",
]


class HostCopy:
    """Room in the arena for one storage: several extents where none is large enough.

    While the storage is away it holds this itself, so that the room comes back the moment the
    storage dies, whoever forgets about it.
    """

    __slots__ = ("__weakref__", "blocks")

    def __init__(self, blocks: list[_native.Block]) -> None:
        self.blocks = blocks


class ReadableCopy(HostCopy):
    """Room in the arena that the storage itself is pointed at while it is away.

    When it is let go of, kernels on the current stream may still use the blocks, as with any memory
    of PyTorch's: their next users wait for them.
    """

    __slots__ = ("_device",)

    def __init__(self, blocks: list[_native.Block], device: _native.Device) -> None:
        super().__init__(blocks)
        self._device = device

    def __del__(self) -> None:
        """Order what is dealt out of the blocks behind their readers."""
        if sys.is_finalizing():
            return
        # Where the device has failed, or is the parent process's, nobody is ordered any more.
        with contextlib.suppress(PinferryError):
            _native.note_use(self._device, self.blocks, current_stream(self._device))


class ParkedStorage:
    """A storage and its room in the arena.

    Parameters
    ----------
    name
        For error texts.
    handle
        The storage, held weakly.
    nbytes
        Its size, which is the room's.
    room
        The room; one without blocks where the bytes are not kept.
    """

    __slots__ = ("_held", "_room", "handle", "name", "nbytes")

    def __init__(self, name: str, handle: StorageHandle, nbytes: int, room: HostCopy) -> None:
        self.name = name
        self.handle = handle
        self.nbytes = nbytes
        self._held: HostCopy | None = room
        self._room = weakref.ref(room)

    @property
    def kept(self) -> bool:
        """Whether the bytes are in the room; without any, they were given up."""
        return bool(self.room().blocks)

    def leave_room_to_storage(self, on_return: Callable[[], None]) -> None:
        """Hold the room weakly from now on; `on_return` is called when it is given back."""
        room, self._held = self._held, None
        if room is not None:
            self._room = weakref.ref(room, lambda _: on_return())

    def room(self) -> HostCopy:
        """Return the room, whoever holds it."""
        room = self._room()
        if room is None:
            raise NotOffloaded(
                f"{self.name} was given other memory while it was offloaded, and what it held then "
                "is gone"
            )
        return room

    def place(self) -> Place:
        """Return where the bytes lie."""
        member = Member(self.name, self.handle, self.nbytes)
        return Place((member,), (0,), self.nbytes, shared=False, blocks=self.room().blocks)


def host_copy(blocks: list[_native.Block], device: _native.Device, access: Access) -> HostCopy:
    """Return what a storage that is away holds."""
    return ReadableCopy(blocks, device) if access is Access.READABLE else HostCopy(blocks)


def open_handle(name: str, storage: torch.UntypedStorage, device: _native.Device) -> StorageHandle:
    """Return a handle of a resident storage that can be moved; see `require_movable`."""
    handle: StorageHandle = load_bridge().StorageHandle(storage_key(storage))
    require_movable(name, handle, device)
    return handle


def is_away(storage: torch.UntypedStorage) -> bool:
    """Return whether the memory of a storage is away, whoever holds its bytes."""
    handle: StorageHandle = load_bridge().StorageHandle(storage_key(storage))
    return handle.away or handle.guarded


def require_movable(name: str, handle: StorageHandle, device: _native.Device) -> None:
    """Raise what stands against moving a storage off `device`.

    Raises
    ------
    WrongDevice
        If the storage lives elsewhere.
    AlreadyOffloaded
        If its memory is away.
    UnsupportedStorage
        If its memory cannot be given back and made again.
    """
    here = "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"
    if handle.device != here:
        served = handle.device.partition(":")[0] in ("cpu", "cuda")
        what = f"make an arena for {handle.device}, or leave" if served else "leave"
        raise WrongDevice(
            f"{name} lives on {handle.device}, and this arena serves {here}; {what} the tensor out"
        )
    if handle.away or handle.guarded:
        raise AlreadyOffloaded(
            f"{name} is offloaded already, and only the engine or plan that did it can bring it "
            "back; reload it there first. Nothing was moved"
        )
    if handle.refusal:
        raise UnsupportedStorage(
            f"{name} cannot be offloaded: {handle.refusal}. Leave it out, or give its owner a clone"
        )
