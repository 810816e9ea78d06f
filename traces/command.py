"""The summary and the plot as one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from pinferry.traces.plot import plot_trace
from pinferry.traces.reading import read_trace
from pinferry.traces.report import print_summary
from pinferry.traces.summary import summarize

if TYPE_CHECKING:
    import os

__all__ = ["main"]


def main(path: str | os.PathLike[str], *, plot: str | os.PathLike[str] | None = None) -> int:
    """Print what a trace amounts to, and draw it if asked to.

    Parameters
    ----------
    path
        A file that `TransferEngine.trace` wrote.
    plot
        Where to draw the lanes over time, as PNG.

    Returns
    -------
    int
        The exit code: 0.

    Raises
    ------
    InvalidArgument
        If the file cannot be read or is no trace, or the picture cannot be written.
    PackageMissing
        If a picture is asked for and matplotlib is not there.
    """
    trace = read_trace(path)
    console = Console()
    print_summary(summarize(trace), console)
    if plot is not None:
        plot_trace(trace, plot)
        console.print(f"drawn to {plot}")
    return 0
