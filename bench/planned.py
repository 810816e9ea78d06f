"""How near a plan comes to the link, whatever the tensors look like."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from pinferry.bench.raw import time_raw
from pinferry.bench.results import Case
from pinferry.bench.state_shapes import MIXED, SMALL, make_tensors
from pinferry.bench.timing import Timing, synchronize, time_once, time_repeated
from pinferry.pool import PinnedArena
from pinferry.transfer import TransferEngine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pinferry.transfer import TransferPlan

__all__ = ["measure_planned"]

_FIRST_TIMES = 3
_LARGEST_SMALL = 2**20  # bytes; what is larger is taken for weights, which are not compacted


@dataclass(slots=True)
class _Times:
    """Seconds of moving the same tensors."""

    first: list[float] = field(default_factory=list)
    first_recorded: list[float] = field(default_factory=list)
    submit: list[float] = field(default_factory=list)
    offload: list[float] = field(default_factory=list)
    reload: list[float] = field(default_factory=list)


def measure_planned(
    device: torch.device, repeats: int, *, layers: float = 1.0
) -> Iterator[tuple[str, Case]]:
    """Compare plans of thousands of storages with one raw copy of as many bytes.

    Timed by the wall, from an idle device until the copies have ended, with the release of the
    device memory and its allocation. `layers` takes a part of the tensors, for a quick look.
    """
    for kind, sizes in (("small", SMALL), ("mixed", MIXED)):
        taken = sizes[: max(2, round(len(sizes) * layers))]
        yield from _measure(kind, taken, device, repeats)


def _measure(
    kind: str, sizes: Sequence[int], device: torch.device, repeats: int
) -> Iterator[tuple[str, Case]]:
    total = sum(sizes)
    raw_out, raw_in = time_raw(total, device, repeats)
    with PinnedArena(round(total * 1.1) + 2**20, device=device) as arena:
        times = _time_plan(sizes, device, arena, repeats)
    what = f"one raw copy between the device and pinned memory, {total} bytes"
    tensors = f"{len(sizes)} storages"
    for key, ours, raw in (
        (f"offload_{kind}_first", times.first, raw_out),
        (f"offload_{kind}_first_recorded", times.first_recorded, raw_out),
        (f"offload_{kind}", times.offload, raw_out),
        (f"reload_{kind}", times.reload, raw_in),
    ):
        timing = Timing(tuple(ours))
        yield (
            key,
            Case(
                timing.rate_gb_s(total),
                raw.rate_gb_s(total),
                "GB/s",
                f"{what}; ours are {tensors}",
                timing.rate_spread(total),
            ),
        )
    submit = Timing(tuple(seconds * 1e6 for seconds in times.submit))
    spread = min(submit.seconds), max(submit.seconds)
    limit = "4 ms, the most that a planned offload of so many storages may hold up the host"
    yield f"submit_planned_{len(sizes)}_us", Case(submit.median, 4000.0, "us", limit, spread)
    loop = _time_loop(sizes, device, min(repeats, 3))
    ours_gb_s = Timing(tuple(times.offload)).rate_gb_s(total)
    what = "a loop of copy_(non_blocking=True) into pinned tensors that are kept"
    yield f"offload_{kind}_vs_loop", Case(ours_gb_s, loop.rate_gb_s(total), "GB/s", what)


def _time_plan(
    sizes: Sequence[int], device: torch.device, arena: PinnedArena, repeats: int
) -> _Times:
    times = _Times()
    with TransferEngine(arena) as engine:
        for turn in range(2 * _FIRST_TIMES + 1):
            tensors = make_tensors(sizes, device)
            small = [name for name, x in tensors.items() if x.nbytes <= _LARGEST_SMALL]
            copies = [x.clone() for x in tensors.values()]
            with engine.plan(tensors, compact=small) as plan:
                ordered = turn % 2 == 0
                policy = "ordered" if ordered else "record_stream"
                first = time_once(partial(_offload, plan, policy), device)
                if turn:  # the very first warms the engine up
                    (times.first if ordered else times.first_recorded).append(first)
                plan.reload()
                if turn == 2 * _FIRST_TIMES:
                    for _ in range(repeats):
                        synchronize(device)
                        start = time.perf_counter()
                        ticket = plan.offload()
                        times.submit.append(time.perf_counter() - start)
                        ticket.synchronize()
                        synchronize(device)
                        times.offload.append(time.perf_counter() - start)
                        times.reload.append(time_once(plan.reload, device))
                for x, copy in zip(tensors.values(), copies, strict=True):
                    if not torch.equal(x, copy):
                        raise AssertionError("the bytes that came back are not those that went")
    return times


def _offload(plan: TransferPlan, release: str) -> None:
    plan.offload(release=release).synchronize()


def _time_loop(sizes: Sequence[int], device: torch.device, repeats: int) -> Timing:
    tensors = make_tensors(sizes, device)
    flat = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    hosts = torch.split(flat, list(sizes))

    def copy() -> None:
        for host, x in zip(hosts, tensors.values(), strict=True):
            host.copy_(x, non_blocking=True)

    return time_repeated(copy, device, repeats)
