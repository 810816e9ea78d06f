"""What there is only one of."""

from __future__ import annotations

from typing import NoReturn

from pinferry.errors import NotCopyable

__all__ = ["NotCopied"]


class NotCopied:
    """Refuses to be copied or pickled: each copy would hold the same bytes, and give them back."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """Raise `NotCopyable`."""
        raise NotCopyable(
            f"a {type(self).__name__} stands for memory of this process and is neither copied nor "
            "pickled; share the one that there is, or leave it out"
        )
