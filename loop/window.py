"""How much device memory the state may take while it streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.errors import InvalidArgument
from pinferry.loop.pipeline import PIECES_IN_WINDOW
from pinferry.pool import format_bytes
from pinferry.pool.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinferry.loop.piece import Member

__all__ = ["window_for"]

_LEAST = 64 * 2**20  # smaller pieces cost more time on the host than on the link
_PART_OF_ALL = 40


def window_for(members: Sequence[Member], window: int | str | None) -> int:
    """Return the bytes that four pieces may take.

    Raises
    ------
    InvalidArgument
        If `window` has no room for four pieces of the largest member.
    """
    largest = max(members, key=lambda member: member.nbytes)
    least = PIECES_IN_WINDOW * largest.nbytes
    if window is None:
        return max(least, _LEAST, sum(member.nbytes for member in members) // _PART_OF_ALL)
    given = parse_size(window)
    if given < least:
        raise InvalidArgument(
            f"a window of {format_bytes(given)} is too small: the state of {largest.name}, "
            f"of shape {tuple(largest.parameter.shape)}, takes {format_bytes(largest.nbytes)}, and "
            f"{PIECES_IN_WINDOW} pieces are on the device at once; give at least {least} bytes"
        )
    return given
