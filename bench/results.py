"""One form for every figure."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Case", "Results", "SpeedUp"]


@dataclass(frozen=True, slots=True)
class Case:
    """One figure beside its reference of the same run.

    Attributes
    ----------
    ours, reference
        In `unit`. Rates are in GB/s (10^9 bytes a second). A reference that could not be measured
        is not a number, and null in JSON.
    unit
        Such as ``"GB/s"``, ``"s/GiB"``, ``"us"``, ``"bytes"``.
    reference_is
        What the reference is, in words; or why there is none.
    spread
        Smallest and largest of ours, where it was repeated.
    """

    ours: float
    reference: float
    unit: str
    reference_is: str
    spread: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        """Ours over the reference."""
        return self.ours / self.reference

    def to_dict(self) -> dict[str, object]:
        """Return it with its ratio."""
        found: dict[str, object] = {**asdict(self), "ratio": self.ratio}
        # JSON knows no such number.
        return {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in found.items()
        }


@dataclass(frozen=True, slots=True)
class SpeedUp(Case):
    """Two durations of the same work."""

    @property
    def ratio(self) -> float:
        """How many times longer the reference takes."""
        return self.reference / self.ours


@dataclass(slots=True)
class Results:
    """Cases by key, and where they were measured."""

    meta: dict[str, object]
    cases: dict[str, Case] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the form that is written."""
        return {
            "meta": self.meta,
            "cases": {key: case.to_dict() for key, case in self.cases.items()},
        }

    def write(self, path: Path) -> None:
        """Write JSON to `path`, or to standard output for ``-``."""
        text = json.dumps(self.to_dict(), indent=1) + "\n"
        if str(path) == "-":
            sys.stdout.write(text)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
