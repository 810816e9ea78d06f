"""A summary, printed for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pinferry.pool import format_bytes
from pinferry.transfer.trace_file import DIRECTIONS

if TYPE_CHECKING:
    from rich.console import Console

    from pinferry.traces.summary import Summary

__all__ = ["print_summary"]

_HEADINGS = ("direction", "batches", "bytes", "busy", "GB/s", "longest queue", "host calls")


def print_summary(summary: Summary, console: Console) -> None:
    """Print a row for each direction, and what they did together."""
    console.print(Text(f"trace of {summary.device}"))
    table = Table(box=None, pad_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "direction" else "right")
    for name, each in summary.directions.items():
        rate = each.bandwidth_gb_s
        table.add_row(
            f"{name} ({DIRECTIONS[name]})",
            str(each.batches),
            format_bytes(each.nbytes),
            _ms(each.busy_us),
            "-" if rate is None else f"{rate:.2f}",
            _ms(each.longest_queue_us),
            _ms(each.host_us),
        )
    console.print(table)
    console.print(
        Text(
            f"both directions ran for {summary.both_share:.1%} of the {_ms(summary.either_us)} in "
            "which either did"
        )
    )
    unfinished = sum(each.unfinished for each in summary.directions.values())
    if unfinished:
        console.print(
            Text(f"{unfinished} failed, or had not ended when the trace did", style="yellow")
        )


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:,.3f} ms"
