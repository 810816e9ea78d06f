"""What a step had done when it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.errors import StepInterrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinferry.loop.piece import Member

__all__ = ["interrupted"]


def interrupted(
    cause: Exception, updated: Sequence[Member], doubtful: Sequence[Member]
) -> StepInterrupted:
    """Return the error that says which parameters are updated."""
    parts = [f"the step failed with {type(cause).__name__}: {cause}."]
    if updated:
        parts.append(f"Updated: {_range(updated)}.")
    if doubtful:
        parts.append(f"Being updated, so in doubt: {_range(doubtful)}.")
    parts.append("All others, and their state, are as before the step; nothing is lost.")
    return StepInterrupted(" ".join(parts), updated=len(updated), doubtful=len(doubtful))


def _range(members: Sequence[Member]) -> str:
    if len(members) == 1:
        return members[0].name
    return f"{len(members)} parameters, {members[0].name} to {members[-1].name}"
