"""The benchmark of transfers: thousands of storages, tiny copies, and work beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.bench.alongside import measure_alongside
from pinferry.bench.cold import measure_cold
from pinferry.bench.many_copies import measure_many_copies
from pinferry.bench.options import measure_options
from pinferry.bench.planned import measure_planned
from pinferry.bench.swapping import measure_swap
from pinferry.bench.urgent import measure_urgent
from pinferry.pool import open_device
from pinferry.transfer.calibration import measure_copies
from pinferry.transfer.kernels import prepare_kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from pinferry.bench.results import Case

__all__ = ["measure_transfer"]


def measure_transfer(device: torch.device, nbytes: int, repeats: int) -> Iterator[tuple[str, Case]]:
    """Measure all of it; `nbytes` is what the bulk transfers move.

    On a GPU that copies small ranges by a kernel, the kernel is calibrated first: what was kept
    may have been measured beside other work.
    """
    opened = open_device(str(device))
    prepare_kernels(opened)
    if opened.copy_tier == "kernel":
        measure_copies(opened)
    yield from measure_planned(device, repeats)
    yield from measure_many_copies(device, repeats)
    yield from measure_cold(device, nbytes, repeats)
    yield from measure_alongside(device, nbytes, repeats)
    yield from measure_urgent(device, nbytes, repeats)
    yield from measure_options(device, nbytes, repeats)
    yield from measure_swap(device, nbytes, repeats)
