"""The benchmark of transfers: thousands of storages, tiny copies, and work beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.bench.alongside import measure_alongside
from pinferry.bench.cold import measure_cold
from pinferry.bench.many_copies import measure_many_copies
from pinferry.bench.planned import measure_planned

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from pinferry.bench.results import Case

__all__ = ["measure_transfer"]


def measure_transfer(device: torch.device, nbytes: int, repeats: int) -> Iterator[tuple[str, Case]]:
    """Measure all of it; `nbytes` is what the bulk transfers move."""
    yield from measure_planned(device, repeats)
    yield from measure_many_copies(device, repeats)
    yield from measure_cold(device, nbytes, repeats)
    yield from measure_alongside(device, nbytes, repeats)
