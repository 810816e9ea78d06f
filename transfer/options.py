"""How a move is asked for, checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from pinferry.errors import InvalidArgument
from pinferry.pool.options import check_flag

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Access", "OffloadOptions", "Release", "ReloadOptions", "Verify", "parse_verify"]

_Choice = TypeVar("_Choice", bound=Enum)


class Release(str, Enum):
    """What holds the memory of an offload back until its copy has read it."""

    #: PyTorch's allocator is told that the copy stream uses the memory (``record_stream``). Nothing
    #: waits; the allocator keeps an event for each block until it has passed.
    RECORD_STREAM = "record_stream"
    #: The current stream waits for the copy, so that its later work may have the memory at once.
    ORDERED = "ordered"
    #: The host waits for the copy.
    SYNCHRONOUS = "synchronous"

    def __str__(self) -> str:
        """Return what a caller would type."""
        return self.value


class Access(str, Enum):
    """What an access to a state that is offloaded does."""

    #: It raises ``RuntimeError`` with the state's name.
    RAISE = "raise"
    #: It reads and writes the host copy, over the link.
    READABLE = "readable"

    def __str__(self) -> str:
        """Return what a caller would type."""
        return self.value


class Verify(str, Enum):
    """How an engine makes sure that what comes back is what left."""

    #: By a checksum of every storage, before it leaves and after it has come back.
    CHECKSUM = "checksum"

    def __str__(self) -> str:
        """Return what a caller would type."""
        return self.value


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """How storages leave; see `TransferEngine.offload`."""

    streams: tuple[object, ...] | None = None
    release: Release = Release.RECORD_STREAM
    access: Access = Access.RAISE
    urgent: bool = False

    @classmethod
    def parse(
        cls,
        streams: Iterable[object] | None,
        release: Release | str,
        access: Access | str,
        urgent: bool,
    ) -> Self:
        """Return the options, or raise `InvalidArgument` for what is none."""
        return cls(
            _several(streams),
            _parse(Release, "release", release),
            _parse(Access, "access", access),
            check_flag("urgent", urgent),
        )


@dataclass(frozen=True, slots=True)
class ReloadOptions:
    """How storages come back; see `TransferEngine.reload`."""

    streams: tuple[object, ...] | None = None
    defer: bool = False
    urgent: bool = False

    @classmethod
    def parse(cls, streams: Iterable[object] | None, defer: bool, urgent: bool) -> Self:
        """Return the options, or raise `InvalidArgument` for what is none."""
        return cls(_several(streams), check_flag("defer", defer), check_flag("urgent", urgent))


def parse_verify(verify: Verify | str | None) -> Verify | None:
    """Return the way of that name, None for none, or raise `InvalidArgument`."""
    return None if verify is None else _parse(Verify, "verify", verify)


def _several(streams: Iterable[object] | None) -> tuple[object, ...] | None:
    if streams is None:
        return None
    if not isinstance(streams, Iterable):
        raise InvalidArgument(f"streams={streams!r}: give several streams, in a list")
    several = tuple(streams)
    if not several:
        raise InvalidArgument(
            "streams names none, so nothing would be ordered with the copies; name those that use "
            "the states, or leave it out for the current one. Nothing was moved"
        )
    return several


def _parse(kind: type[_Choice], argument: str, given: object) -> _Choice:
    try:
        return kind(given)
    except ValueError:
        names = ", ".join(repr(each.value) for each in kind)
        raise InvalidArgument(f"{argument}={given!r}: there is {names}") from None
