"""The outcome, printed for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pinferry.demo.tables import heading, phase_table, sparkline
from pinferry.pool import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from pinferry.demo.experiment import Outcome

__all__ = ["print_failures", "print_report"]


def print_report(outcome: Outcome, console: Console) -> None:
    """Print everything that was found, the verdict last."""
    console.print(heading(outcome.settings, outcome.shape))
    console.print(Text(_arena_line(outcome)))
    console.print()
    console.print(phase_table(outcome.phases, on_cuda=outcome.settings.on_cuda))
    for categories in dict.fromkeys(p.categories for p in outcome.phases if p.categories):
        cycles = sorted({p.cycle for p in outcome.phases if p.categories == categories})
        moved = f"moved in cycle {_range(cycles)}: {', '.join(categories)}"
        console.print(Text(moved, style="dim"))
    console.print()
    console.print(_loss_table(outcome))
    console.print()
    _print_reclaims(outcome, console)
    _print_accesses(outcome, console)
    sample = "\n\n".join(text.rstrip().expandtabs(4) for text in outcome.offloaded.texts[-1][:2])
    console.print(Panel(Text(sample), title="sample of the generated text", title_align="left"))
    _print_verdict(outcome, console)


def print_failures(outcome: Outcome, console: Console) -> None:
    """Print what went wrong, each on its line."""
    for failure in outcome.failures:
        console.print(Text.assemble(("failed: ", "bold red"), failure), soft_wrap=True)


def _arena_line(outcome: Outcome) -> str:
    arena = outcome.arena
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in arena.state_bytes.items())
    return (
        f"arena of {format_bytes(arena.stats.capacity_bytes)} ({arena.backend}), at most "
        f"{format_bytes(arena.stats.peak_bytes)} in use; the state is {parts}"
    )


def _loss_table(outcome: Outcome) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("run", "first loss", "last ten, mean", "bits of the last", "curve"):
        table.add_column(title)
    runs = (("control", outcome.control), ("offloaded", outcome.offloaded))
    for name, run in runs:
        last_ten = run.losses[-10:]
        table.add_row(
            name,
            f"{run.losses[0]:.4f}",
            f"{sum(last_ten) / len(last_ten):.4f}",
            run.losses[-1].hex(),
            Text(sparkline(run.losses, width=16), style="green"),
        )
    return table


def _print_reclaims(outcome: Outcome, console: Console) -> None:
    for reclaim in outcome.reclaims:
        verdict = "verified" if reclaim.shortfall is None else "NOT all of it came back"
        size = format_bytes(reclaim.report.expected_bytes)
        console.print(
            Text(f"memory after the offload of {size} in cycle {reclaim.cycle}: {verdict}")
        )
    console.print("the last of them, with everything offloaded:")
    console.print(Text(str(outcome.reclaims[-1].report)))
    console.print()


def _print_accesses(outcome: Outcome, console: Console) -> None:
    console.print("touching what is offloaded:")
    for check in outcome.accesses:
        console.print(Text(f"  >>> {check.access}"), soft_wrap=True)
        answer = "nothing happened" if check.error is None else f"RuntimeError: {check.error}"
        style = "yellow" if check.failure is None else "bold red"
        console.print(Text(f"  {answer}", style=style), soft_wrap=True)
    console.print()


def _print_verdict(outcome: Outcome, console: Console) -> None:
    if outcome.failures:
        print_failures(outcome, console)
        return
    texts = sum(len(cycle) for cycle in outcome.control.texts)
    console.print(
        Text(
            f"Equal to the bit: {len(outcome.control.losses)} losses, {texts} texts and "
            f"{len(outcome.control.digests[-1])} tensors, with and without offload. "
            f"{outcome.seconds:.1f} s.",
            style="bold green",
        )
    )


def _range(numbers: list[int]) -> str:
    """Write consecutive numbers as their ends."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
