"""The live display of a run."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pinferry.demo.tables import heading, phase_table, sparkline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry.demo.options import Settings
    from pinferry.demo.phase_log import Phase
    from pinferry.demo.shape import ModelShape

__all__ = ["LiveDisplay"]

_PHASES_SHOWN = 10


@dataclass(slots=True)
class _Run:
    """What is shown of one run."""

    name: str
    batches: int
    losses: list[float] = field(default_factory=list)


class LiveDisplay:
    """Shows the run while it goes on; an `Observer`. Draws inside `shown`.

    On what is no terminal it draws nothing.
    """

    def __init__(self, settings: Settings, shape: ModelShape, console: Console) -> None:
        self._settings = settings
        self._shape = shape
        self._runs: list[_Run] = []
        self._phases: deque[Phase] = deque(maxlen=_PHASES_SHOWN)
        self._now = ""
        self._tokens = 0
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=8, transient=True
        )
        self._draws = console.is_terminal

    def run_started(self, name: str, batches: int) -> None:
        """Begin a progress bar."""
        self._runs.append(_Run(name, batches))
        self._phases.clear()

    def phase_started(self, cycle: int, kind: str) -> None:
        """Say what is going on."""
        self._now = f"cycle {cycle}: {kind}"
        self._tokens = 0

    def loss(self, value: float) -> None:
        """Extend the loss curve."""
        self._runs[-1].losses.append(value)

    def token(self) -> None:
        """Count a character."""
        self._tokens += 1

    def phase_finished(self, phase: Phase) -> None:
        """Add a row."""
        self._phases.append(phase)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw while inside, and take the drawing away afterwards."""
        with self._live if self._draws else nullcontext():
            yield

    def _draw(self) -> Group:
        runs = Table.grid(padding=(0, 2))
        for run in tuple(self._runs):
            losses = tuple(run.losses)
            bar = ProgressBar(total=run.batches, completed=len(losses), width=24)
            loss = f"loss {losses[-1]:.3f}" if losses else ""
            runs.add_row(Text(run.name), bar, Text(loss), Text(sparkline(losses), style="green"))
        characters = f", {self._tokens} characters" if self._tokens else ""
        return Group(
            heading(self._settings, self._shape),
            runs,
            Text(f"{self._now}{characters}", style="bold"),
            phase_table(tuple(self._phases), on_cuda=self._settings.on_cuda),
        )
