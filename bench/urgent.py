"""How long a small reload takes beside bulk. GPUs only: the CPU device copies on every core."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import torch

from pinferry.bench.results import Case
from pinferry.bench.timing import synchronize
from pinferry.pool import PinnedArena
from pinferry.transfer import TransferEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinferry.transfer import Ticket, TransferPlan

__all__ = ["measure_urgent"]

_TENSORS = 5
_SMALL_BYTES = 2**20


def measure_urgent(device: torch.device, nbytes: int, repeats: int) -> Iterator[tuple[str, Case]]:
    """Time a reload of 1 MiB, from the call until it is there, amid bulk moves of `nbytes`."""
    if device.type != "cuda":
        return
    size = nbytes // _TENSORS
    bulk = {
        f"bulk[{i}]": torch.empty(size, dtype=torch.uint8, device=device).random_()
        for i in range(_TENSORS)
    }
    urgent = {"urgent": torch.zeros(_SMALL_BYTES, dtype=torch.uint8, device=device)}
    with (
        PinnedArena(size * _TENSORS + 2 * _SMALL_BYTES, device=device) as arena,
        TransferEngine(arena) as engine,
        engine.plan(bulk) as plan,
        engine.plan(urgent) as small,
    ):
        plan.offload()
        plan.reload()
        times = [_amid(plan.offload, plan.reload, small, device) for _ in range(repeats + 1)]
        what = f"1 ms, for a reload of {_SMALL_BYTES} bytes during an offload of {nbytes}"
        yield "urgent_ms", _case(times, 1.0, what)
        plan.offload()
        behind, between = (
            [
                # Deferred: a stream that waits for the bulk would let nothing pass.
                _amid(
                    partial(plan.reload, defer=True),
                    plan.offload,
                    small,
                    device,
                    urgent=urgent,
                    done=not urgent,
                )
                for _ in range(repeats + 1)
            ]
            for urgent in (False, True)
        )
        plan.reload()
        what = f"the same without urgent=True, so behind all of a reload of {nbytes} bytes"
        yield "urgent_same_way_ms", _case(between, statistics.median(behind[1:]), what)


def _amid(
    bulk: Callable[[], Ticket],
    undo: Callable[[], object],
    small: TransferPlan,
    device: torch.device,
    *,
    urgent: bool = False,
    done: bool = False,
) -> float:
    """Return the milliseconds of the small reload, and see that it overtook what it should."""
    small.offload().synchronize()
    synchronize(device)
    ticket = bulk()
    start = time.perf_counter()
    small.reload(urgent=urgent).synchronize()
    milliseconds = (time.perf_counter() - start) * 1e3
    if ticket.done() is not done:
        raise AssertionError("the small reload ended at another time than it was to be measured")
    synchronize(device)
    undo()
    synchronize(device)
    return milliseconds


def _case(milliseconds: list[float], reference: float, what: str) -> Case:
    kept = milliseconds[1:]  # the first one warms up
    return Case(statistics.median(kept), reference, "ms", what, (min(kept), max(kept)))
