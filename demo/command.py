"""The demo as one call."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from pinferry.demo.display import LiveDisplay
from pinferry.demo.experiment import Outcome, prepare, run_experiment
from pinferry.demo.facts import to_dict
from pinferry.demo.options import DemoOptions, resolve
from pinferry.demo.phase_log import Silent
from pinferry.demo.report import print_failures, print_report

__all__ = ["main"]


def main(options: DemoOptions) -> int:
    """Train a small transformer with its state offloaded while it generates, and prove it equal.

    Parameters
    ----------
    options
        What to do. With ``json="-"`` standard output is the JSON, and people read standard error.

    Returns
    -------
    int
        The exit code: 0 if both runs were equal to the bit, the memory came back and access to
        offloaded state was refused by name; else 1.

    Raises
    ------
    InvalidArgument
        If an option makes no sense.
    PinferryError
        If the device cannot be had or state cannot be moved.
    """
    settings = resolve(options)
    console = Console(stderr=str(options.json) == "-" or options.quiet)
    corpus, shape = prepare(settings)
    if options.quiet:
        outcome = run_experiment(settings, corpus, shape, Silent())
        print_failures(outcome, console)
    else:
        display = LiveDisplay(settings, shape, console)
        with display.shown():
            outcome = run_experiment(settings, corpus, shape, display)
        print_report(outcome, console)
    if options.json is not None:
        _write_json(outcome, str(options.json))
    return 1 if outcome.failures else 0


def _write_json(outcome: Outcome, where: str) -> None:
    text = json.dumps(to_dict(outcome), indent=2) + "\n"
    if where == "-":
        sys.stdout.write(text)
    else:
        Path(where).write_text(text)
