"""Reading what `TransferEngine.trace` wrote: numbers for people, and a picture."""

from __future__ import annotations

from pinferry.traces.command import main
from pinferry.traces.reading import Lane, TraceFile, read_trace
from pinferry.traces.summary import DirectionSummary, Summary, summarize

__all__ = [
    "DirectionSummary",
    "Lane",
    "Summary",
    "TraceFile",
    "main",
    "read_trace",
    "summarize",
]
