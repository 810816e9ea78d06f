"""Which storages an engine holds the bytes of."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

from pinferry.errors import NotOffloaded
from pinferry.transfer.storages import storage_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import torch

    from pinferry.transfer.parked import ParkedStorage

__all__ = ["AwayTable"]


class AwayTable:
    """Storages that are away, by `storage_key`, in the order they went.

    A storage may die, and be forgotten, amid any call of any thread. So nothing here goes through
    the table itself, but through a copy.

    Parameters
    ----------
    on_change
        A method, called when something came, went or died. Held weakly.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = weakref.WeakMethod(on_change)
        self._parked: dict[int, ParkedStorage] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._parked)

    def copy(self) -> dict[int, ParkedStorage]:
        """Return what is away now."""
        return self._parked.copy()

    def add(self, parked: Iterable[ParkedStorage]) -> None:
        """Remember storages that have left, until they are forgotten or die."""
        entries = list(parked)
        self._parked.update({each.handle.key: each for each in entries})
        for each in entries:
            each.leave_room_to_storage(partial(self._forget, each))
        self._changed()

    def remove(self, parked: Iterable[ParkedStorage]) -> None:
        """Forget storages that are back."""
        for each in parked:
            self._parked.pop(each.handle.key, None)
        self._changed()

    def prune(self) -> None:
        """Forget what died while nobody could be told, such as amid an interrupt."""
        self.remove(each for each in self.copy().values() if not each.handle.alive)

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Return whether the bytes of `storage` are here."""
        parked = self._parked.get(storage_key(storage))
        return parked is not None and parked.handle.alive and parked.handle.away

    def find(self, named: Mapping[str, torch.UntypedStorage]) -> list[int]:
        """Return the keys of storages, or raise `NotOffloaded` if one is not here."""
        sized = {name: storage for name, storage in named.items() if storage.nbytes()}
        missing = [name for name, storage in sized.items() if not self.holds(storage)]
        if missing:
            others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise NotOffloaded(
                f"{missing[0]}{others} cannot be reloaded: this engine did not offload it, or has "
                "brought it back. What a plan or another engine offloaded, only that one reloads. "
                "Nothing was moved"
            )
        return [storage_key(storage) for storage in sized.values()]

    def _forget(self, parked: ParkedStorage) -> None:
        if self._parked.get(parked.handle.key) is parked:
            self._parked.pop(parked.handle.key, None)
        self._changed()

    def _changed(self) -> None:
        if (on_change := self._on_change()) is not None:
            on_change()
