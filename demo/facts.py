"""Everything that was found, as plain data."""

from __future__ import annotations

import math
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import torch

from pinferry.demo.device_name import device_name
from pinferry.demo.digest import digest_of
from pinferry.states.nvml import nvml_driver_version

if TYPE_CHECKING:
    from pinferry.demo.experiment import Outcome
    from pinferry.demo.phase_log import Phase
    from pinferry.demo.phases import RunResult

__all__ = ["to_dict"]


def to_dict(outcome: Outcome) -> dict[str, object]:
    """Give the outcome as data that JSON can hold: what the report prints, in full."""
    comparison = outcome.comparison
    return {
        "ok": not outcome.failures,
        "failures": list(outcome.failures),
        "equal": comparison.equal,
        "equal_losses": not comparison.losses,
        "equal_texts": not comparison.texts,
        "equal_state": not comparison.state,
        "options": _options(outcome),
        "model": {**asdict(outcome.shape), "parameters": outcome.shape.parameters},
        "control": _run(outcome.control),
        "offloaded": _run(outcome.offloaded),
        "phases": [_phase(phase) for phase in outcome.phases],
        "arena": {
            "backend": outcome.arena.backend,
            "backend_reason": outcome.arena.backend_reason,
            "state_bytes": outcome.arena.state_bytes,
            **outcome.arena.stats.to_dict(),
        },
        "reclaims": [
            {
                "cycle": reclaim.cycle,
                "verified": reclaim.shortfall is None,
                "shortfall": reclaim.shortfall,
                "report": reclaim.report.to_dict(),
            }
            for reclaim in outcome.reclaims
        ],
        "named_errors": [
            {**asdict(check), "ok": check.failure is None} for check in outcome.accesses
        ],
        "sample": outcome.offloaded.sample,
        "device_name": device_name(outcome.settings.device),
        "versions": _versions(),
        "seconds": outcome.seconds,
    }


def _options(outcome: Outcome) -> dict[str, object]:
    settings = asdict(outcome.settings)
    scale: dict[str, object] = settings.pop("scale")
    # `params` and `steps` of the scale are defaults; those in use stand beside it.
    sizes = {name: value for name, value in scale.items() if name not in settings}
    return {**settings, **sizes}


def _run(result: RunResult) -> dict[str, object]:
    return {
        # JSON has no word for what is not a number; the hexadecimal form has.
        "losses": [loss if math.isfinite(loss) else None for loss in result.losses],
        "losses_hex": [loss.hex() for loss in result.losses],
        "texts": result.texts,
        "digests": [digest_of(digest) for digest in result.digests],
        "tensors": result.digests[-1],
    }


def _phase(phase: Phase) -> dict[str, object]:
    return {
        "cycle": phase.cycle,
        "kind": phase.kind,
        "categories": list(phase.categories),
        "seconds": phase.seconds,
        "moved_bytes": phase.moved_bytes,
        "copy_ms": phase.copy_ms,
        "bandwidth_gb_s": phase.bandwidth_gb_s,
        "before": asdict(phase.before),
        "after": asdict(phase.after),
    }


def _versions() -> dict[str, str | None]:
    try:
        own: str | None = version("pinferry")
    except PackageNotFoundError:
        own = None
    return {
        "pinferry": own,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "driver": nvml_driver_version(),
    }
