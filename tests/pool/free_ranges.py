"""A naive model of an arena: one flag for each 512 bytes."""

from __future__ import annotations

import re

UNIT = 512


class FreeRanges:
    """Which units of an arena are free, kept in the plainest way there is."""

    ABSENT = 2  # no memory is there

    def __init__(self, capacity_bytes: int, chunk_bytes: int, growth: tuple[int, ...] = ()) -> None:
        self.taken = bytearray(capacity_bytes // UNIT)
        self._per_chunk = chunk_bytes // UNIT
        self.initial = [
            (first, min(self._per_chunk, len(self.taken) - first))
            for first in range(0, len(self.taken), self._per_chunk)
        ]
        self.chunks = list(self.initial)  # (first unit, units), there or not
        for nbytes in growth:
            first = len(self.chunks) * self._per_chunk
            self.chunks.append((first, nbytes // UNIT))
            self.taken.extend(bytes([self.ABSENT]) * (first + nbytes // UNIT - len(self.taken)))

    @staticmethod
    def units(nbytes: int) -> int:
        """Return how many units hold `nbytes`."""
        return -(-nbytes // UNIT)

    def runs(self) -> list[tuple[int, int]]:
        """Return (first unit, length) of every free run; a chunk's end ends a run."""
        found = []
        for chunk in range(0, len(self.taken), self._per_chunk):
            row = self.taken[chunk : chunk + self._per_chunk]
            found += [(chunk + run.start(), len(run[0])) for run in re.finditer(rb"\x00+", row)]
        return found

    @property
    def capacity_bytes(self) -> int:
        """Return the bytes of the chunks that are there."""
        return (len(self.taken) - self.taken.count(self.ABSENT)) * UNIT

    def absent(self) -> list[tuple[int, int]]:
        """Return the chunks that are not there."""
        return [chunk for chunk in self.chunks if self.taken[chunk[0]] == self.ABSENT]

    def grow_for(self, nbytes: int, *, contiguous: bool) -> None:
        """Make chunks, the first ones first, until `nbytes` fit or no chunk would help."""
        wanted = self.units(nbytes)
        while (self.best_fit(nbytes) is None) if contiguous else wanted > self.taken.count(0):
            growth = [count for _, count in self.absent()]
            if contiguous and wanted > max(growth, default=0):
                return
            if not growth or wanted > self.taken.count(0) + sum(growth):
                return
            first, count = self.absent()[0]
            self.taken[first : first + count] = bytes(count)

    def trim(self, keep_bytes: int) -> int:
        """Take chunks away that are wholly free, the last ones first; return the bytes."""
        before = self.capacity_bytes
        for first, count in reversed(self.chunks):
            wholly_free = not any(self.taken[first : first + count])
            if wholly_free and self.capacity_bytes - count * UNIT >= keep_bytes:
                self.taken[first : first + count] = bytes([self.ABSENT]) * count
        return before - self.capacity_bytes

    def regions(self) -> list[tuple[str, int, int]]:
        """Return (kind, offset, bytes) of every run of units; a chunk's end ends a run."""
        found = []
        for first, count in self.chunks:
            for run in re.finditer(rb"\x00+|\x01+|\x02+", self.taken[first : first + count]):
                kind = ("free", "used", "absent")[run[0][0]]
                found.append((kind, (first + run.start()) * UNIT, len(run[0]) * UNIT))
        return found

    @property
    def free_bytes(self) -> int:
        """Return the free bytes in all."""
        return self.taken.count(0) * UNIT

    @property
    def largest_bytes(self) -> int:
        """Return the size of the largest free run."""
        return max((length for _, length in self.runs()), default=0) * UNIT

    def best_fit(self, nbytes: int) -> int | None:
        """Return the length of the smallest run that holds `nbytes`, if there is one."""
        wanted = self.units(nbytes)
        return min((length for _, length in self.runs() if length >= wanted), default=None)

    def fewest_pieces(self, nbytes: int) -> int | None:
        """Return how many runs `nbytes` needs at least; None if it does not fit in all."""
        left = self.units(nbytes)
        pieces = 0
        for length in sorted((length for _, length in self.runs()), reverse=True):
            if left <= 0:
                break
            left -= length
            pieces += 1
        return pieces if left <= 0 else None

    def take(self, offset: int, nbytes: int) -> int:
        """Mark a block as taken and return the length of the run that it came from."""
        assert offset % UNIT == 0
        first, count = offset // UNIT, self.units(nbytes)
        home = [
            length
            for start, length in self.runs()
            if start <= first and first + count <= start + length
        ]
        assert home, f"{nbytes} bytes at {offset} overlap a block, a chunk's end or the arena's"
        self.taken[first : first + count] = b"\1" * count
        return home[0]

    def give(self, offset: int, nbytes: int) -> None:
        """Mark a block as free again."""
        first, count = offset // UNIT, self.units(nbytes)
        assert set(self.taken[first : first + count]) == {1}
        self.taken[first : first + count] = bytes(count)
