"""A naive model of an arena: one flag for each 512 bytes."""

from __future__ import annotations

UNIT = 512


class FreeRanges:
    """Which units of an arena are free, kept in the plainest way there is."""

    def __init__(self, capacity_bytes: int, chunk_bytes: int) -> None:
        self.taken = bytearray(capacity_bytes // UNIT)
        self._per_chunk = chunk_bytes // UNIT

    @staticmethod
    def units(nbytes: int) -> int:
        """Return how many units hold `nbytes`."""
        return -(-nbytes // UNIT)

    def runs(self) -> list[tuple[int, int]]:
        """Return (first unit, length) of every free run; a chunk's end ends a run."""
        found = []
        for chunk in range(0, len(self.taken), self._per_chunk):
            row = bytes(self.taken[chunk : chunk + self._per_chunk])
            start = row.find(0)
            while start >= 0:
                end = row.find(1, start)
                end = len(row) if end < 0 else end
                found.append((chunk + start, end - start))
                start = row.find(0, end)
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
        assert all(self.taken[first : first + count])
        self.taken[first : first + count] = bytes(count)
