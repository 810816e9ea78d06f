"""What a bulk offload does to the work beside it. GPUs only: on the CPU copies are that work."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch

from pinferry.bench.results import Case
from pinferry.bench.timing import synchronize
from pinferry.pool import PinnedArena
from pinferry.transfer import TransferEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["measure_alongside"]

_TENSORS = 5
_ORDER = 8192


def measure_alongside(
    device: torch.device, nbytes: int, repeats: int
) -> Iterator[tuple[str, Case]]:
    """Time matrix products during an offload of `nbytes`."""
    if device.type != "cuda":
        return
    size = nbytes // _TENSORS
    bulk = {
        f"bulk[{i}]": torch.empty(size, dtype=torch.uint8, device=device).random_()
        for i in range(_TENSORS)
    }
    with (
        PinnedArena(size * _TENSORS + 2**20, device=device) as arena,
        TransferEngine(arena) as engine,
        engine.plan(bulk) as plan,
    ):
        plan.offload()
        plan.reload()
        yield "interference", _interference(device, repeats, plan.offload, plan.reload)
        copies = _RawCopies(bulk)
        yield "interference_raw", _interference(device, repeats, copies.start, copies.wait)


class _RawCopies:
    """The same bytes by PyTorch's copy into pinned memory, on a stream of their own."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = list(tensors.values())
        self._host = torch.empty_like(self._tensors[0], device="cpu", pin_memory=True)
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def start(self) -> None:
        with torch.cuda.stream(self._stream):
            for tensor in self._tensors:
                self._host.copy_(tensor, non_blocking=True)

    def wait(self) -> None:
        self._stream.synchronize()


def _interference(
    device: torch.device,
    repeats: int,
    offload: Callable[[], object],
    reload: Callable[[], object],
) -> Case:
    a = torch.randn(_ORDER, _ORDER, dtype=torch.bfloat16, device=device)
    b = torch.empty_like(a)

    def products(count: int) -> float:
        """Return the milliseconds of so many products, by events."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(count):
            torch.mm(a, a, out=b)
        end.record()
        end.synchronize()
        elapsed: float = start.elapsed_time(end)
        return elapsed

    products(20)
    each = products(50) / 50
    count = max(10, round(100.0 / each))  # a tenth of a second: less than the offload takes
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(repeats):
        synchronize(device)
        alone.append(products(count))
        offload()
        beside.append(products(count))
        reload()
        synchronize(device)
    what = f"{count} products of {_ORDER} x {_ORDER} bf16 matrices with nothing beside them"
    return Case(
        statistics.median(beside), statistics.median(alone), "ms", what, (min(beside), max(beside))
    )
