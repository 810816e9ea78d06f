"""What a trace amounts to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinferry.transfer.trace_file import DIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinferry.traces.reading import Span, TraceFile

__all__ = ["DirectionSummary", "Summary", "summarize"]


@dataclass(frozen=True, slots=True)
class DirectionSummary:
    """One direction.

    Attributes
    ----------
    batches
        How many were submitted.
    unfinished
        How many of them are not known to have run: they failed, or the trace ended first.
    nbytes
        Bytes that were copied.
    busy_us
        Time in which its stream was copying.
    longest_queue_us
        The longest time from a call to the start of its copies.
    host_us
        Time that the host spent in the calls.
    """

    batches: int
    unfinished: int
    nbytes: int
    busy_us: float
    longest_queue_us: float
    host_us: float

    @property
    def bandwidth_gb_s(self) -> float | None:
        """10^9 bytes a second of busy time; None where nothing was copied."""
        return self.nbytes / self.busy_us / 1e3 if self.busy_us else None


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole trace.

    Attributes
    ----------
    device
        What was traced.
    directions
        By name.
    both_us
        Time in which both directions were copying.
    either_us
        Time in which at least one was.
    """

    device: str
    directions: dict[str, DirectionSummary]
    both_us: float
    either_us: float

    @property
    def both_share(self) -> float:
        """Share of the copying time in which both directions were."""
        return self.both_us / self.either_us if self.either_us else 0.0


def summarize(trace: TraceFile) -> Summary:
    """Add a trace up."""
    running = {direction: trace.lanes[direction, "running"] for direction in DIRECTIONS}
    busy = {direction: _covered_us(spans) for direction, spans in running.items()}
    either = _covered_us(span for spans in running.values() for span in spans)
    directions = {}
    for direction, spans in running.items():
        calls = trace.lanes[direction, "host"]
        queued = trace.lanes[direction, "queued"]
        directions[direction] = DirectionSummary(
            batches=len(calls),
            unfinished=len(calls) - len(spans),
            nbytes=sum(span.nbytes for span in spans),
            busy_us=busy[direction],
            longest_queue_us=max((span.length_us for span in queued), default=0.0),
            host_us=sum(span.length_us for span in calls),
        )
    # What is in both is counted twice in the sum of the two, and once in either.
    return Summary(trace.device, directions, max(0.0, sum(busy.values()) - either), either)


def _covered_us(spans: Iterable[Span]) -> float:
    """Return the time that is within at least one span."""
    covered, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda each: each.start_us):
        covered += max(0.0, span.end_us - max(span.start_us, until))
        until = max(until, span.end_us)
    return covered
