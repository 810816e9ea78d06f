"""Keeping owners of somebody's bytes alive, whoever forgets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["keep_while"]

_Owner = TypeVar("_Owner")


def keep_while(owners: set[_Owner], owner: _Owner, holds: Callable[[], bool]) -> None:
    """Have `owner` among `owners` if it `holds` anything, and not otherwise.

    To be called after each change of what it holds, by whichever thread: a storage dies amid any
    step of another one. So there is no lock, and what was done is looked at again.
    """
    while (owner in owners) is not (held := holds()):
        if held:
            owners.add(owner)
        else:
            owners.discard(owner)
