"""An arena's address space, cut into cells of equal size for a map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinferry.pool.map import Region

__all__ = ["MIXED", "Grid", "cut"]

# A cell with a used byte, where something else has the larger part.
MIXED = "mixed"

_SMALLEST_CELL = 512


@dataclass(frozen=True, slots=True)
class Grid:
    """What each cell shows.

    Attributes
    ----------
    cell_bytes
        Bytes of one cell: 512 times a power of two. The last cell may stand for fewer.
    kinds
        For each cell the kind of region with the largest part of it, or `MIXED`.
    """

    cell_bytes: int
    kinds: tuple[str, ...]


def cut(regions: Iterable[Region], *, most_cells: int) -> Grid:
    """Return the cells of `regions`, which lie in address order without overlap.

    Parameters
    ----------
    regions
        The whole address space.
    most_cells
        The cells are as small as this many allow.
    """
    parts = [region for region in regions if region.nbytes]
    total_bytes = max((part.offset_bytes + part.nbytes for part in parts), default=0)
    cell_bytes = _SMALLEST_CELL
    while cell_bytes * most_cells < total_bytes:
        cell_bytes *= 2
    cells: list[dict[str, int]] = [{} for _ in range(-(-total_bytes // cell_bytes))]
    for part in parts:
        start, end = part.offset_bytes, part.offset_bytes + part.nbytes
        while start < end:
            index = start // cell_bytes
            stop = min(end, (index + 1) * cell_bytes)
            cells[index][part.kind] = cells[index].get(part.kind, 0) + stop - start
            start = stop
    return Grid(cell_bytes, tuple(map(_shown, cells)))


def _shown(cell: dict[str, int]) -> str:
    """Return what a cell with these bytes of each kind shows."""
    # Space between regions is nobody's: as good as not made.
    largest = max(cell, key=lambda kind: (cell[kind], kind == "used"), default="absent")
    return MIXED if largest != "used" and cell.get("used") else largest
