"""`pinferry demo`: a transformer trained with its state offloaded, proven equal to the bit."""

from __future__ import annotations

from pinferry.demo.command import main
from pinferry.demo.experiment import Outcome, prepare, run_experiment
from pinferry.demo.options import DemoOptions, Settings, resolve

__all__ = ["DemoOptions", "Outcome", "Settings", "main", "prepare", "resolve", "run_experiment"]
