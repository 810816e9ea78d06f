"""Phases of a run: measured, kept, and told to whoever watches."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pinferry.pool import open_device
from pinferry.states.memory import MemoryReading, read_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry.transfer import Ticket

__all__ = ["Observer", "OpenPhase", "Phase", "PhaseLog", "Silent"]


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase that is over.

    Attributes
    ----------
    cycle
        From 1 on; one more than there are cycles for what follows the last.
    kind
        ``"train"``, ``"offload"``, ``"generate"`` or ``"reload"``.
    categories
        What moved.
    seconds
        The whole phase, on the host's clock.
    moved_bytes, copy_ms
        What the ticket says about the copies alone.
    """

    cycle: int
    kind: str
    categories: tuple[str, ...]
    seconds: float
    moved_bytes: int
    copy_ms: float | None
    before: MemoryReading
    after: MemoryReading

    @property
    def shown_bytes(self) -> tuple[int, int]:
        """Memory in use before and after, by the count that says most.

        The GPU's own where NVML tells it, else what PyTorch took from it; on the CPU, resident
        memory.
        """
        for name in ("nvml_bytes", "reserved_bytes", "rss_bytes"):
            before, after = getattr(self.before, name), getattr(self.after, name)
            if isinstance(before, int) and isinstance(after, int):
                return before, after
        return 0, 0

    @property
    def bandwidth_gb_s(self) -> float | None:
        """Bytes moved per second of copying, in 10^9 bytes per second."""
        return self.moved_bytes / self.copy_ms / 1e6 if self.copy_ms else None


class Observer(Protocol):
    """Who watches a run, such as a live display. Must not touch the run's state."""

    def run_started(self, name: str, batches: int) -> None:
        """Begin a run that will see `batches` batches."""

    def phase_started(self, cycle: int, kind: str) -> None:
        """Begin a phase."""

    def loss(self, value: float) -> None:
        """Note the loss of one batch."""

    def token(self) -> None:
        """Note that every text grew by one character."""

    def phase_finished(self, phase: Phase) -> None:
        """End a phase."""


class Silent:
    """An observer that shows nothing."""

    def run_started(self, name: str, batches: int) -> None:
        """Do nothing."""

    def phase_started(self, cycle: int, kind: str) -> None:
        """Do nothing."""

    def loss(self, value: float) -> None:
        """Do nothing."""

    def token(self) -> None:
        """Do nothing."""

    def phase_finished(self, phase: Phase) -> None:
        """Do nothing."""


@dataclass(slots=True)
class OpenPhase:
    """A phase that is not over yet."""

    categories: tuple[str, ...] = ()
    moved_bytes: int = 0
    copy_ms: float | None = None

    def moved(self, ticket: Ticket, categories: tuple[str, ...]) -> None:
        """Wait for the copies of `ticket` and note what it says about them."""
        ticket.synchronize()
        self.categories = categories
        self.moved_bytes, self.copy_ms = ticket.nbytes, ticket.elapsed_ms


@dataclass(frozen=True, slots=True)
class PhaseLog:
    """Measures phases, keeps them and tells the observer."""

    device: str
    observer: Observer
    phases: list[Phase] = field(default_factory=list)

    @contextmanager
    def phase(self, cycle: int, kind: str) -> Iterator[OpenPhase]:
        """Measure what happens inside; a phase that raises is not kept."""
        self.observer.phase_started(cycle, kind)
        device = open_device(self.device)
        before, began = read_memory(device), time.perf_counter()
        opened = OpenPhase()
        yield opened
        seconds = time.perf_counter() - began
        after = read_memory(device)
        self.phases.append(
            Phase(
                cycle=cycle,
                kind=kind,
                categories=opened.categories,
                seconds=seconds,
                moved_bytes=opened.moved_bytes,
                copy_ms=opened.copy_ms,
                before=before,
                after=after,
            )
        )
        self.observer.phase_finished(self.phases[-1])
