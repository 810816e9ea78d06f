"""The map of an arena: what its cells show, and that it can be read."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pinferry import PinnedArena
from pinferry.pool.cells import MIXED, cut
from pinferry.pool.map import Region, render
from pinferry.pool.stats import ArenaStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

MIB = 2**20
KINDS = ["used", "free", "retired", "absent", "making"]


def stats_of(regions: Sequence[Region], **others: int) -> ArenaStats:
    """Return the counters that belong to `regions`."""

    def total(*kinds: str) -> int:
        return sum(region.nbytes for region in regions if region.kind in kinds)

    holes = [region.nbytes for region in regions if region.kind == "free"]
    counters = {
        "capacity_bytes": total(*KINDS),
        "max_capacity_bytes": total(*KINDS),
        "used_bytes": total("used"),
        "peak_bytes": total("used"),
        "free_bytes": total("free"),
        "largest_free_bytes": max(holes, default=0),
        "retired_bytes": total("retired"),
        "locked_bytes": total("used", "free", "retired"),
        "blocks": len(regions),
        "allocations": 0,
        "failures": 0,
    }
    return ArenaStats(**{**counters, **others})


def laid_out(*parts: tuple[str, int]) -> list[Region]:
    """Return regions of these kinds and sizes, one behind the other."""
    regions, offset = [], 0
    for kind, nbytes in parts:
        regions.append(Region(kind, offset, nbytes))
        offset += nbytes
    return regions


def picture_of(regions: Sequence[Region], *, ascii_only: bool = False, width: int = 64) -> str:
    """Return the map as text."""
    return printed(
        render(
            stats_of(regions),
            regions,
            device="cuda:0",
            backend="registered",
            reason="pages [huge] of node 0",
            ascii_only=ascii_only,
            width=width,
        )
    )


def printed(picture: RenderableType, width: int = 100) -> str:
    """Return what a terminal of that width would show."""
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(picture)
    return capture.get()


def rows_of(picture: str) -> list[str]:
    """Return the cells of a picture, row by row."""
    return [
        words[2]
        for line in picture.split("\n\n")[1].splitlines()
        if len(words := line.split(maxsplit=2)) == 3
    ]


def test_a_cell_is_half_used_before_it_shows_as_used() -> None:
    parts = laid_out(("used", 512), ("free", 512), ("used", 256), ("free", 768))
    assert cut(parts, most_cells=2).kinds == ("used", MIXED)


def test_a_used_byte_is_never_hidden() -> None:
    regions = laid_out(("free", 600 * MIB), ("used", 1), ("free", 424 * MIB - 1))
    assert cut(regions, most_cells=16).kinds.count(MIXED) == 1
    assert picture_of(regions).split("\n\n")[1].count("▪") == 1


def test_what_is_not_used_shows_by_its_larger_part() -> None:
    parts = laid_out(("free", 400), ("retired", 624), ("absent", 600), ("making", 424))
    assert cut(parts, most_cells=2).kinds == ("retired", "absent")


def test_space_that_no_region_names_is_not_made() -> None:
    assert cut([Region("free", 1024, 512)], most_cells=8).kinds == ("absent", "absent", "free")


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5000)), max_size=60),
    st.sampled_from([1, 2, 7, 64, 1024]),
)
def test_cells_say_the_same_as_a_list_of_every_byte(
    parts: list[tuple[str, int]], most_cells: int
) -> None:
    grid = cut(laid_out(*parts), most_cells=most_cells)
    flat = [kind for kind, nbytes in parts for _ in range(nbytes)]
    assert len(grid.kinds) == -(-len(flat) // grid.cell_bytes) <= most_cells
    for index, shown in enumerate(grid.kinds):
        here = flat[index * grid.cell_bytes : (index + 1) * grid.cell_bytes]
        largest = max(map(here.count, KINDS))
        if shown == MIXED:
            assert 0 < here.count("used") < largest
        else:
            assert here.count(shown) == largest
            assert shown == "used" or "used" not in here


@pytest.mark.parametrize("ascii_only", [False, True])
def test_every_kind_has_a_character_of_its_own(ascii_only: bool) -> None:
    regions = laid_out(*((kind, 512) for kind in KINDS), ("used", 1), ("free", 511))
    picture = picture_of(regions, ascii_only=ascii_only)
    assert rows_of(picture) == ["#.%-~+" if ascii_only else "█·▒╌~▪"]
    legend = picture.split("\n\n")[2]
    for meaning in ("used", "used in part", "free", "retired", "not made", "being made"):
        assert meaning in legend
    assert "512 bytes each" in legend
    assert picture.isascii() == ascii_only


def test_the_legend_explains_what_is_there_and_no_more() -> None:
    legend = picture_of(laid_out(("free", MIB))).split("\n\n")[2]
    assert "free" in legend
    assert "retired" not in legend


def test_rows_begin_with_their_offset() -> None:
    regions = laid_out(("used", 3 * MIB), ("free", 5 * MIB))
    lines = picture_of(regions).split("\n\n")[1].splitlines()
    offsets = [" ".join(line.split()[:2]) for line in lines]
    assert offsets[:3] == ["0 bytes", "512.00 KiB", "1.00 MiB"]
    assert len(lines) == 16
    assert [row[0] for row in rows_of(picture_of(regions))] == ["█"] * 6 + ["·"] * 10
    assert {len(line.rstrip()) for line in lines} == {len(lines[0].rstrip())}


def test_the_head_has_the_numbers() -> None:
    regions = laid_out(("used", MIB), ("free", 2 * MIB), ("retired", MIB), ("free", 4 * MIB))
    head = picture_of(regions).split("\n\n")[0]
    for part in (
        "8.00 MiB for cuda:0",
        "registered (pages [huge] of node 0)",
        "1.00 MiB (12.5%)",
        "6.00 MiB (75.0%)",
        "4.00 MiB, fragmentation 33.3%",
    ):
        assert part in head
    names = [line.split()[0] for line in head.splitlines()]
    assert names == ["arena", "backend", "used", "free", "retired", "largest", "blocks", "locked"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nbytes", [512, MIB, 2**40], ids=["512B", "1MiB", "1TiB"])
def test_an_arena_of_one_kind_fills_its_map(kind: str, nbytes: int) -> None:
    rows = rows_of(picture_of(laid_out((kind, nbytes))))
    assert len(set("".join(rows))) == 1
    assert len("".join(rows)) == (1 if nbytes == 512 else 1024)


def test_thousands_of_regions_fit_on_a_screen() -> None:
    regions = laid_out(*((KINDS[i % 3], 512 * (1 + i % 7)) for i in range(20_000)))
    lines = picture_of(regions).splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100


def test_an_arena_without_regions_has_numbers_and_no_map() -> None:
    assert "\n\n" not in picture_of([])
    assert "0 bytes (0.0%)" in picture_of([])


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_row_is_not_cut_by_a_narrow_terminal(
    width: int, arena: PinnedArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = laid_out(("used", MIB // 2), ("free", MIB // 2))
    monkeypatch.setattr(PinnedArena, "regions", lambda _: regions)
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        arena.describe(console)
    rows = [line for line in capture.get().splitlines() if "██" in line or "··" in line]
    cells = "".join(character for row in rows for character in row if character in "█·")
    assert cells.count("█") == cells.count("·") > 32
    assert "…" not in "".join(rows)


def test_a_terminal_without_unicode_is_spared_it(
    arena: PinnedArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PinnedArena, "regions", lambda _: laid_out(("used", MIB)))
    bytes_written = io.BytesIO()
    file = io.TextIOWrapper(bytes_written, encoding="ascii")
    arena.describe(Console(file=file, width=100))
    file.flush()
    assert b"#" * 64 in bytes_written.getvalue()


@pytest.mark.parametrize("closed", [False, True])
def test_an_arena_describes_itself(
    arena: PinnedArena, capsys: pytest.CaptureFixture[str], closed: bool
) -> None:
    block = arena.alloc("256KiB")
    if closed:
        arena.close(force=True)
    arena.describe()
    shown = capsys.readouterr().out
    assert "256.00 KiB (25.0%)" in shown
    assert arena.backend in shown
    assert ("closed" in shown) == closed
    block.free()


def test_regions_of_the_core_cover_the_arena_in_order(arena: PinnedArena) -> None:
    blocks = [arena.alloc("128KiB") for _ in range(8)]
    del blocks[::2]
    regions = arena.regions()
    assert sum(region.nbytes for region in regions) >= arena.capacity_bytes
    assert all(a.offset_bytes + a.nbytes == b.offset_bytes for a, b in pairwise(regions))
    used = sum(region.nbytes for region in regions if region.kind == "used")
    assert used == arena.stats().used_bytes == MIB // 2


@pytest.mark.parametrize("closed", [False, True])
def test_a_dashboard_gets_numbers_and_strings(arena: PinnedArena, closed: bool) -> None:
    block = arena.alloc("256KiB")
    if closed:
        arena.close(force=True)
    told = arena.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["used_bytes"] == block.nbytes
    assert told["backend"] == arena.backend
    assert told["backend_reason"] == arena.backend_reason
    assert told["device"] == f"{arena.device.kind}:{arena.device.index}"
    assert told["closed"] is closed
    assert told["fragmentation"] == arena.stats().fragmentation
