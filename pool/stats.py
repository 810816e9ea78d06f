"""What an arena has done and holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinferry import _native

__all__ = ["ArenaStats"]


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """Counters of an arena at one moment. Sizes are bytes.

    Attributes
    ----------
    capacity_bytes
        Everything that can be dealt out: the chunks that are there.
    max_capacity_bytes
        What the arena may grow to.
    used_bytes
        Held by blocks.
    peak_bytes
        The most that was ever out of use for others: held or retired.
    free_bytes, largest_free_bytes
        Free in all, and the largest free range.
    retired_bytes
        Freed, but a copy may still run in it.
    locked_bytes
        Pinned by the driver; 0 for the CPU device.
    blocks
        Blocks that live.
    allocations, failures
        Blocks dealt out, and requests refused by an error, so far.
    """

    capacity_bytes: int
    max_capacity_bytes: int
    used_bytes: int
    peak_bytes: int
    free_bytes: int
    largest_free_bytes: int
    retired_bytes: int
    locked_bytes: int
    blocks: int
    allocations: int
    failures: int

    @classmethod
    def of(cls, native: _native.ArenaStats) -> ArenaStats:
        """Copy the counters of the core."""
        return cls(**{field.name: getattr(native, field.name) for field in fields(cls)})

    @property
    def fragmentation(self) -> float:
        """Part of the free bytes that is not in the largest free range, 0 to 1."""
        return 1 - self.largest_free_bytes / self.free_bytes if self.free_bytes else 0.0

    def to_dict(self) -> dict[str, int | float]:
        """Return all of it for a dashboard."""
        return {**asdict(self), "fragmentation": self.fragmentation}
