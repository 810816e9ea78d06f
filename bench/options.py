"""What the options of an offload cost, or save."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pinferry.bench.results import Case
from pinferry.bench.timing import Timing, time_once
from pinferry.pool import PinnedArena
from pinferry.transfer import TransferEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry.transfer import TransferPlan

__all__ = ["measure_options"]

_TENSORS = 5


def measure_options(device: torch.device, nbytes: int, repeats: int) -> Iterator[tuple[str, Case]]:
    """Compare moves that are verified, and offloads of what is immutable, with plain ones."""
    size = nbytes // _TENSORS
    total = size * _TENSORS
    tensors = {
        f"state[{i}]": torch.empty(size, dtype=torch.uint8, device=device).random_()
        for i in range(_TENSORS)
    }
    with PinnedArena(total + 2**20, device=device) as arena, TransferEngine(arena) as engine:
        with engine.plan(tensors) as plan:
            plain = _cycle(plan, device, repeats)
            engine.verify = "checksum"
            verified = _cycle(plan, device, repeats)
            engine.verify = None
        with engine.plan(tensors, immutable=True) as plan:
            dropped, _ = _cycle(plan, device, repeats)
    for key, ours, reference in zip(
        ("verified_offload", "verified_reload"), verified, plain, strict=True
    ):
        what = f"the same without verify, {total} bytes"
        yield (
            key,
            Case(
                ours.rate_gb_s(total),
                reference.rate_gb_s(total),
                "GB/s",
                what,
                ours.rate_spread(total),
            ),
        )
    spread = min(dropped.seconds) * 1e3, max(dropped.seconds) * 1e3
    what = f"an offload of {total} bytes that may have changed"
    yield (
        "immutable_offload_ms",
        Case(dropped.median * 1e3, plain[0].median * 1e3, "ms", what, spread),
    )


def _cycle(plan: TransferPlan, device: torch.device, repeats: int) -> tuple[Timing, Timing]:
    """Return the times of offloads and of reloads after a first one of each."""
    out: list[float] = []
    back: list[float] = []
    for _ in range(repeats + 1):
        out.append(time_once(lambda: plan.offload().synchronize(), device))
        back.append(time_once(lambda: plan.reload().synchronize(), device))
    return Timing(tuple(out[1:])), Timing(tuple(back[1:]))
