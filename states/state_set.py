"""What a discovery found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from pinferry.states.categories import Category

__all__ = ["StateEntry", "StateSet"]


@dataclass(frozen=True, slots=True, eq=False)
class StateEntry:
    """One storage that holds training state.

    Attributes
    ----------
    category
        Its kind; the first that it was found under.
    name
        The first name that leads to it, such as ``optimizer.state[0].exp_avg``.
    aliases
        The other names: tied weights, views.
    nbytes
        Bytes of the whole storage.
    dtype, shape
        Of the tensor called `name`; others may see the storage otherwise.
    device
        Where it lives.
    storage
        The storage itself.
    """

    category: Category
    name: str
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    storage: torch.UntypedStorage = field(repr=False)
    aliases: tuple[str, ...] = ()

    def with_aliases(self, aliases: Iterable[str]) -> StateEntry:
        """Return the entry with its other names."""
        return replace(self, aliases=tuple(aliases))


class StateSet(Sequence[StateEntry]):
    """Training state, each storage once.

    Examples
    --------
    >>> import torch
    >>> from pinferry import discover
    >>> found = discover(torch.nn.Linear(4, 2))
    >>> found.names()
    ('model.weight', 'model.bias')
    >>> found.nbytes("lp_params")
    40
    """

    def __init__(self, entries: Sequence[StateEntry]) -> None:
        self._entries = tuple(entries)

    def only(self, *categories: str) -> StateSet:
        """Return the entries of these categories."""
        return StateSet([entry for entry in self._entries if entry.category in categories])

    def where(self, holds: Callable[[StateEntry], bool]) -> StateSet:
        """Return the entries for which `holds` is true."""
        return StateSet([entry for entry in self._entries if holds(entry)])

    def nbytes(self, category: str | None = None) -> int:
        """Return the bytes of a category, or of all."""
        return sum(
            entry.nbytes
            for entry in self._entries
            if category is None or entry.category == category
        )

    def names(self) -> tuple[str, ...]:
        """Return the name of each entry."""
        return tuple(entry.name for entry in self._entries)

    def by_category(self) -> dict[Category, int]:
        """Return the bytes of each category that is there."""
        return {
            category: self.nbytes(category)
            for category in dict.fromkeys(entry.category for entry in self._entries)
        }

    def storages(self) -> dict[str, torch.UntypedStorage]:
        """Return the storages by name, as the transfer engine takes them."""
        return {entry.name: entry.storage for entry in self._entries}

    def __len__(self) -> int:
        """Return the number of storages."""
        return len(self._entries)

    def __getitem__(self, index: int) -> StateEntry:  # type: ignore[override]
        """Return one entry."""
        return self._entries[index]

    def __iter__(self) -> Iterator[StateEntry]:
        """Go through the entries."""
        return iter(self._entries)

    def __repr__(self) -> str:
        """Say how much there is of each category."""
        sizes = ", ".join(f"{category}: {size}" for category, size in self.by_category().items())
        return f"<StateSet of {len(self)} storages, bytes by category: {{{sizes}}}>"
