"""A map of an arena for people: what lies where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rich.columns import Columns
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pinferry.errors import InvalidArgument
from pinferry.pool.cells import MIXED, cut
from pinferry.pool.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from pinferry.pool.arena import PinnedArena
    from pinferry.pool.cells import Grid
    from pinferry.pool.stats import ArenaStats

__all__ = ["Region", "describe", "render"]

_WIDTH = 64
_ROWS = 16
# The longest offset, "1023.99 GiB", and the gap beside it.
_OFFSET_WIDTH = 12


@dataclass(frozen=True, slots=True)
class Region:
    """One part of an arena's address space.

    Attributes
    ----------
    kind
        ``"used"``: held by blocks. ``"retired"``: freed, but a copy may still run in it.
        ``"free"``. ``"making"``: memory that is being made. ``"absent"``: memory that is not made.
    offset_bytes
        Bytes from the start of the arena.
    nbytes
        Bytes that it spans.
    """

    kind: str
    offset_bytes: int
    nbytes: int


class _Sign(NamedTuple):
    """How a cell looks; the characters differ so that the map reads without colour."""

    character: str
    ascii: str
    style: str
    meaning: str


_SIGNS = {
    "used": _Sign("█", "#", "green", "used"),
    MIXED: _Sign("▪", "+", "green", "used in part"),
    "retired": _Sign("▒", "%", "yellow", "retired"),
    "free": _Sign("·", ".", "dim", "free"),
    "making": _Sign("~", "~", "cyan", "being made"),
    "absent": _Sign("╌", "-", "dim", "not made"),
}


def describe(arena: PinnedArena, regions: Sequence[Region], console: Console | None = None) -> None:
    """Print a map of `arena`, whose address space is `regions`."""
    console = Console() if console is None else console
    if not isinstance(console, Console):
        raise InvalidArgument(f"console={console!r}: give a rich.console.Console, or None")
    width = _WIDTH
    while width > 8 and width + _OFFSET_WIDTH > console.width:
        width //= 2
    picture = render(
        arena.stats(),
        regions,
        device=f"{arena.device.kind}:{arena.device.index}",
        backend=arena.backend,
        reason=arena.backend_reason,
        closed=arena.closed,
        width=width,
        ascii_only=console.options.ascii_only,
    )
    console.print(picture)


def render(
    stats: ArenaStats,
    regions: Sequence[Region],
    *,
    device: str,
    backend: str,
    reason: str,
    closed: bool = False,
    width: int = _WIDTH,
    ascii_only: bool = False,
) -> RenderableType:
    """Return a map of an arena: its numbers, its address space in rows of cells, a legend.

    Parameters
    ----------
    stats
        The counters.
    regions
        The address space in order; without any, there is no map below the numbers.
    device, backend, reason, closed
        As of the arena.
    width
        Cells in a row; there are at most 16 rows.
    ascii_only
        For a terminal that shows nothing else.

    Notes
    -----
    A cell shows what has the larger part of it, but a used byte is never hidden: where something
    else has the larger part, the cell says that it is used in part.
    """
    head = _head(stats, device, f"{backend} ({reason})", closed=closed)
    if not any(region.nbytes for region in regions):
        return head
    grid = cut(regions, most_cells=width * _ROWS)
    rows = Table.grid(padding=(0, 1))
    rows.add_column(justify="right", no_wrap=True)
    rows.add_column(no_wrap=True)
    for first in range(0, len(grid.kinds), width):
        row = Text()
        for kind in grid.kinds[first : first + width]:
            row.append(_character(kind, ascii_only=ascii_only), style=_SIGNS[kind].style)
        rows.add_row(format_bytes(first * grid.cell_bytes), row)
    return Group(head, Text(), rows, Text(), _legend(grid, ascii_only=ascii_only))


def _head(stats: ArenaStats, device: str, backend: str, *, closed: bool) -> Table:
    """Return the numbers."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    state = ", closed" if closed else ""
    table.add_row("arena", Text(f"{format_bytes(stats.capacity_bytes)} for {device}{state}"))
    table.add_row("backend", Text(backend))
    for name, nbytes in (
        ("used", stats.used_bytes),
        ("free", stats.free_bytes),
        ("retired", stats.retired_bytes),
    ):
        share = nbytes / stats.capacity_bytes if stats.capacity_bytes else 0.0
        table.add_row(name, f"{format_bytes(nbytes)} ({share:.1%})")
    hole = format_bytes(stats.largest_free_bytes)
    table.add_row("largest hole", f"{hole}, fragmentation {stats.fragmentation:.1%}")
    table.add_row("blocks", str(stats.blocks))
    table.add_row("locked", format_bytes(stats.locked_bytes))
    return table


def _legend(grid: Grid, *, ascii_only: bool) -> Columns:
    """Return what each character of the map means."""
    meanings = [
        Text.assemble((_character(kind, ascii_only=ascii_only), sign.style), f" {sign.meaning}")
        for kind, sign in _SIGNS.items()
        if kind in grid.kinds
    ]
    return Columns([*meanings, f"{format_bytes(grid.cell_bytes)} each"], padding=(0, 3))


def _character(kind: str, *, ascii_only: bool) -> str:
    return _SIGNS[kind].ascii if ascii_only else _SIGNS[kind].character
