"""Microbenchmarks: each figure beside a reference of the same run."""

from __future__ import annotations

from pinferry.bench.results import Case, Results
from pinferry.bench.run import BENCHMARKS, run_benchmarks

__all__ = ["BENCHMARKS", "Case", "Results", "run_benchmarks"]
