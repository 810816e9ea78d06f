"""A picture of a trace: lanes over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pinferry.errors import InvalidArgument, PackageMissing
from pinferry.transfer.trace_file import DIRECTIONS

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure

    from pinferry.traces.reading import TraceFile

__all__ = ["plot_trace"]

# From the top: what the host did, then what each stream did, above what waited for it.
_ROWS = [("host", "host calls"), ("running", "copy stream"), ("queued", "queue")]
_COLOURS = {"D2H": "tab:blue", "H2D": "tab:orange"}


def plot_trace(trace: TraceFile, path: str | os.PathLike[str]) -> None:
    """Draw the lanes of a trace over time, as PNG.

    Raises
    ------
    PackageMissing
        If matplotlib cannot be imported.
    InvalidArgument
        If the picture cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # not pyplot: that looks for a screen
    except ImportError as error:
        raise PackageMissing(
            f"a plot needs matplotlib, which cannot be imported ({error}); "
            "pip install 'pinferry[bench]'"
        ) from error
    figure = Figure(figsize=(12, 4), layout="constrained")
    _draw(trace, figure)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise InvalidArgument(
            f"the plot cannot be written to {path}: {error.strerror}; name another file"
        ) from error


def _draw(trace: TraceFile, figure: Figure) -> None:
    rows = [(d, kind, f"{d} {what}") for kind, what in _ROWS for d in DIRECTIONS]
    axes = figure.subplots()
    for row, (direction, kind, _) in enumerate(rows):
        bars = [(s.start_us / 1e3, s.length_us / 1e3) for s in trace.lanes[direction, kind]]
        # What waits at the same time lies over each other; the darker, the more.
        shade = 0.3 if kind == "queued" else 1.0
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=_COLOURS[direction], alpha=shade)
    axes.set_yticks(range(len(rows)), [label for _, _, label in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("ms since the trace began")
    axes.set_title(f"pinferry on {trace.device}")
    axes.grid(axis="x", alpha=0.3)
