"""The host copies of what is away, to change them under a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pinferry import TransferEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry.transfer import TransferPlan
    from pinferry.transfer.layout import Place

__all__ = ["changed_byte", "flip"]


def _places(holder: TransferEngine | TransferPlan) -> list[Place]:
    if isinstance(holder, TransferEngine):
        return [parked.place() for parked in holder.offloaded().values()]
    return holder._places


def flip(holder: TransferEngine | TransferPlan, name: str, index: int) -> None:
    """Change one byte of the host copy of `name`; a second time puts it back.

    Its offload must have ended.
    """
    for place in _places(holder):
        for member, offset in zip(place.members, place.offsets, strict=True):
            if member.name != name:
                continue
            left = offset + (index if index >= 0 else index + member.nbytes)
            for block in place.blocks:
                if left < block.nbytes:
                    memoryview(block)[left] ^= 255
                    return
                left -= block.nbytes
    raise LookupError(name)


@contextmanager
def changed_byte(holder: TransferEngine | TransferPlan, name: str, index: int) -> Iterator[None]:
    """Change one byte of the host copy of `name` within the scope."""
    flip(holder, name, index)
    yield
    flip(holder, name, index)
