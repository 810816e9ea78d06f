"""How long compute waited for the link."""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pinferry.pool import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ScheduleReport", "Stalls"]

_KEPT = 1000
_HIDDEN = 0.03  # of a step's time


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """What a schedule has cost.

    Attributes
    ----------
    steps
        Updates that were seen.
    stalled_ms
        How long each of the last steps, 1000 at most, waited for state; one that still runs on the
        GPU is not in it yet.
    step_ms
        Median time from one update to the next, by the host's clock; None before there are two.
    parked_bytes
        Bytes that went out, in all.
    """

    steps: int
    stalled_ms: tuple[float, ...]
    step_ms: float | None
    parked_bytes: int

    @property
    def mean_stall_ms(self) -> float:
        """The mean of `stalled_ms`."""
        return sum(self.stalled_ms) / len(self.stalled_ms) if self.stalled_ms else 0.0

    @property
    def advice(self) -> str:
        """What to do about it, in a sentence."""
        if self.step_ms is None or not self.stalled_ms:
            return "Nothing can be said before a few steps."
        stalled = self.mean_stall_ms
        if stalled <= _HIDDEN * self.step_ms:
            return "The link is hidden behind compute."
        return (
            f"Each step waits {stalled:.1f} ms of {self.step_ms:.1f} ms for its state: give "
            "backward more to do (a larger batch, or accumulate= more micro-steps), or park less."
        )

    def __str__(self) -> str:
        """Say it in a line."""
        return (
            f"{self.steps} steps, {format_bytes(self.parked_bytes)} parked, "
            f"{self.mean_stall_ms:.2f} ms stalled per step. {self.advice}"
        )


class Stalls:
    """Measures on a device how long the current stream waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.parked_bytes = 0
        self._steps = 0
        self._stalled: deque[float] = deque(maxlen=_KEPT)
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._ends: deque[float] = deque(maxlen=_KEPT)

    def measure(self, wait: Callable[[], None]) -> None:
        """Call `wait`, which makes the current stream wait, and note for how long it does."""
        if self._device.type != "cuda":
            start = time.perf_counter()
            wait()
            self._stalled.append(1e3 * (time.perf_counter() - start))
            return
        stream = torch.cuda.current_stream(self._device)
        before, after = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        before.record(stream)
        wait()
        after.record(stream)
        self._pending.append((before, after))
        self._collect()

    def end_of_step(self) -> None:
        """Note that a step has been queued."""
        self._steps += 1
        self._ends.append(time.perf_counter())

    def report(self) -> ScheduleReport:
        """Return what was measured so far."""
        self._collect()
        ends = list(self._ends)
        spans = sorted(1e3 * (b - a) for a, b in itertools.pairwise(ends))
        return ScheduleReport(
            steps=self._steps,
            stalled_ms=tuple(self._stalled),
            step_ms=spans[len(spans) // 2] if spans else None,
            parked_bytes=self.parked_bytes,
        )

    def _collect(self) -> None:
        while self._pending and self._pending[0][1].query():  # type: ignore[no-untyped-call]
            before, after = self._pending.popleft()
            self._stalled.append(before.elapsed_time(after))
