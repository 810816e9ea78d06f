"""What happens on access to state that is away: an error that names it, never garbage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["AccessCheck", "check_access"]


@dataclass(frozen=True, slots=True)
class AccessCheck:
    """One access to offloaded state.

    Attributes
    ----------
    access
        The code that was run.
    error
        The message of the `RuntimeError` that it raised, or None if it raised none.
    named
        The name of the state in that message, or None if it holds none.
    """

    access: str
    error: str | None
    named: str | None

    @property
    def failure(self) -> str | None:
        """What is wrong about it, or None."""
        if self.error is None:
            return f"{self.access} raised nothing while that state was offloaded"
        if self.named is None or "offloaded" not in self.error:
            return f"{self.access} raised an error that names no offloaded state: {self.error}"
        return None


def check_access(access: str, touch: Callable[[], object], names: Iterable[str]) -> AccessCheck:
    """Run `touch` and look for one of `names` in the error that it raises.

    Parameters
    ----------
    access
        The code of `touch`, to show.
    touch
        Reads state that is offloaded.
    names
        What that state may be called.
    """
    try:
        touch()
    except RuntimeError as error:
        # PyTorch may append a backtrace of its own, in which no name is of interest.
        message = str(error).splitlines()[0]
        found = [name for name in names if name in message]
        # The longest: "optimizer.state[1]" is also part of "optimizer.state[12]".
        return AccessCheck(access, message, max(found, key=len, default=None))
    return AccessCheck(access, None, None)
