"""A trace file, read and checked."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pinferry.errors import InvalidArgument
from pinferry.transfer.trace_file import DIRECTIONS, PRODUCER

if TYPE_CHECKING:
    import os

__all__ = ["KINDS", "Lane", "Span", "TraceFile", "read_trace"]

#: What a span may be: the host's call, waiting for its turn, or copying.
KINDS = ("host", "queued", "running")


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time, in microseconds since the trace began.

    Attributes
    ----------
    start_us, end_us
        When.
    nbytes
        Bytes of the batch.
    """

    start_us: float
    end_us: float
    nbytes: int

    @property
    def length_us(self) -> float:
        """How long it took."""
        return self.end_us - self.start_us


Lane = list[Span]


@dataclass(frozen=True, slots=True)
class TraceFile:
    """What a trace says.

    Attributes
    ----------
    device
        What was traced.
    lanes
        Spans by direction (``"D2H"``, ``"H2D"``) and kind (``"host"``, ``"queued"``,
        ``"running"``), in the order of their calls.
    """

    device: str
    lanes: dict[tuple[str, str], Lane] = field(default_factory=dict)


def read_trace(path: str | os.PathLike[str]) -> TraceFile:
    """Read a file that `TransferEngine.trace` wrote.

    Raises
    ------
    InvalidArgument
        If it cannot be read, is no JSON, or JSON of something else.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}; name a trace") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{path} is no JSON ({error}); give a file that engine.trace() has written to its end"
        ) from error
    try:
        return _parse(content)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{path} is JSON, but no trace of pinferry ({error}); give a file that engine.trace() "
            "has written"
        ) from error


def _parse(content: object) -> TraceFile:
    about = _dict(_dict(content, "the file").get("otherData"), "otherData")
    if about.get("producer") != PRODUCER:
        raise ValueError(f"its producer is {about.get('producer')!r}")
    if about.get("format") != 1:
        raise ValueError(f"its format is {about.get('format')!r}, and this pinferry knows 1")
    events = _dict(content, "the file").get("traceEvents")
    if not isinstance(events, list):
        raise TypeError("traceEvents is no list")
    lanes: dict[tuple[str, str], Lane] = {(d, kind): [] for d in DIRECTIONS for kind in KINDS}
    for event in events:
        each = _dict(event, "an event")
        if each.get("ph") != "X" or each.get("cat") not in KINDS:
            continue
        args = _dict(each.get("args"), "args")
        start = _number(each, "ts")
        span = Span(start, start + _number(each, "dur"), int(_number(args, "bytes")))
        key = (str(args.get("direction")), str(each["cat"]))
        if key not in lanes or span.nbytes < 0 or span.end_us < span.start_us:
            raise ValueError(f"an event makes no sense: {event!r:.200}")
        lanes[key].append(span)
    return TraceFile(str(about.get("device")), lanes)


def _dict(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"{what} is no object")
    return value


def _number(values: dict[str, object], key: str) -> float:
    value = values.get(key)
    # JSON as Python reads it has NaN and infinities.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{key} of an event is {value!r:.80}, no number")
    return value
