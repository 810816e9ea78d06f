"""The file that a trace is written to: Chrome's trace format, which Perfetto opens too."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

__all__ = ["DIRECTIONS", "PRODUCER", "Batch", "trace_to_dict", "write_trace"]

#: How a reader knows our files.
PRODUCER = "pinferry"

#: What each direction is called by its users.
DIRECTIONS = {"D2H": "offload", "H2D": "reload"}

Event = dict[str, object]

# Lanes are drawn in the order of their numbers. Each queue gets as many as it needs.
_HOST_LANE = 1
_STREAM_LANES = {("D2H", False): 2, ("D2H", True): 3, ("H2D", False): 4, ("H2D", True): 5}
_QUEUE_LANES = {"D2H": 1000, "H2D": 2000}


@dataclass(slots=True)
class Batch:
    """One offload or reload: times in microseconds since the trace began.

    Attributes
    ----------
    direction
        ``"D2H"`` or ``"H2D"``.
    called_us, returned_us
        When the host submitted it, and had done so.
    started_us, ended_us
        When its copies began and ended on the device; None where that is not known.
    nbytes
        Bytes in all.
    storages
        How many moved.
    names
        The first of their names, of `names_total`.
    streams
        Handles of the streams it was ordered behind (D2H) or that wait for it (H2D), or None for
        the caller's current one.
    defer
        Whether it is a reload that nobody waited for at once.
    urgent
        Whether it ran on the stream for what is urgent.
    error
        What went wrong.
    """

    direction: str
    called_us: float
    nbytes: int
    storages: int
    names: tuple[str, ...]
    names_total: int
    streams: tuple[int, ...] | None = None
    defer: bool = False
    urgent: bool = False
    returned_us: float = 0.0
    started_us: float | None = None
    ended_us: float | None = None
    error: str | None = None

    @property
    def bandwidth_gb_s(self) -> float | None:
        """10^9 bytes a second while its copies ran; None where that is not known."""
        if self.started_us is None or self.ended_us is None or self.ended_us <= self.started_us:
            return None
        return self.nbytes / (self.ended_us - self.started_us) / 1e3

    @property
    def queued_us(self) -> float:
        """Time from the call to the start of the copies; 0 where that is not known."""
        # The clocks are tied to some microseconds: what starts at once may seem to be earlier.
        return max(0.0, (self.started_us or 0.0) - self.called_us)


def write_trace(file: TextIO, batches: Sequence[Batch], *, device: str) -> None:
    """Write `batches` of one engine, whose device is called `device`."""
    json.dump(trace_to_dict(batches, device=device), file)
    file.write("\n")


def trace_to_dict(batches: Sequence[Batch], *, device: str) -> dict[str, object]:
    """Return what is written."""
    queues = _queue_lanes(batches)
    lanes = {_HOST_LANE: "host calls"}
    for (direction, urgent), lane in _STREAM_LANES.items():
        if not urgent or any(each.urgent and each.direction == direction for each in batches):
            lanes[lane] = f"{direction} copy stream" + (", urgent" if urgent else "")
    for number, lane in queues.items():
        direction = batches[number].direction
        depth = lane - _QUEUE_LANES[direction] + 1
        lanes[lane] = f"{direction} queue" + (f" {depth}" if depth > 1 else "")
    spans = (_spans(number, batch, queues.get(number, 0)) for number, batch in enumerate(batches))
    return {
        "traceEvents": [*_metadata(lanes, device), *chain.from_iterable(spans)],
        "displayTimeUnit": "ms",
        "otherData": {"producer": PRODUCER, "format": 1, "device": device},
    }


def _queue_lanes(batches: Sequence[Batch]) -> dict[int, int]:
    """Spread what waits at the same time over lanes, since spans of one lane may only nest."""
    lanes: dict[int, int] = {}
    free_at: dict[str, list[float]] = {direction: [] for direction in DIRECTIONS}
    for number, batch in enumerate(batches):
        if batch.started_us is None:
            continue
        ends = free_at[batch.direction]
        depth = next((n for n, end in enumerate(ends) if end <= batch.called_us), len(ends))
        ends[depth : depth + 1] = [batch.called_us + batch.queued_us]
        lanes[number] = _QUEUE_LANES[batch.direction] + depth
    return lanes


def _spans(number: int, batch: Batch, queue: int) -> Iterator[Event]:
    move = DIRECTIONS[batch.direction]
    args: dict[str, object] = {
        "batch": number,
        "direction": batch.direction,
        "bytes": batch.nbytes,
        "storages": batch.storages,
        "names": list(batch.names),
        "names_total": batch.names_total,
        "streams": "current" if batch.streams is None else [hex(each) for each in batch.streams],
        "defer": batch.defer,
        "urgent": batch.urgent,
        "gb_s": batch.bandwidth_gb_s,
    }
    if batch.error is not None:
        args["error"] = batch.error
    called, running = batch.called_us, (batch.started_us, batch.ended_us)
    yield _span(f"{move} call", "host", _HOST_LANE, (called, batch.returned_us), args)
    if running[0] is not None and running[1] is not None:
        waited = (called, called + batch.queued_us)
        yield _span(f"{move} queued", "queued", queue, waited, args)
        lane = _STREAM_LANES[batch.direction, batch.urgent]
        yield _span(f"{move} running", "running", lane, (running[0], running[1]), args)


def _span(
    name: str, category: str, lane: int, period_us: tuple[float, float], args: dict[str, object]
) -> Event:
    start, end = (round(each, 3) for each in period_us)
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": os.getpid(),
        "tid": lane,
        "ts": start,
        "dur": round(end - start, 3),
        "args": args,
    }


def _metadata(lanes: dict[int, str], device: str) -> Iterator[Event]:
    about = {"ph": "M", "pid": os.getpid()}
    yield {**about, "name": "process_name", "args": {"name": f"pinferry, {device}"}}
    for lane, name in lanes.items():
        yield {**about, "name": "thread_name", "tid": lane, "args": {"name": name}}
        yield {**about, "name": "thread_sort_index", "tid": lane, "args": {"sort_index": lane}}
