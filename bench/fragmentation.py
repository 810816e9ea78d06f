"""How much address space real models' storages need over the bytes they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.bench.model_sizes import llama_lora, mixture_of_experts, zero_partitions
from pinferry.bench.replay import random_toggles, replay
from pinferry.bench.results import Case

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pinferry.bench.model_sizes import ModelStorages

__all__ = ["measure_fragmentation"]

_PEAK = "peak bytes asked for at one time"


def measure_fragmentation(
    models: Sequence[ModelStorages] | None = None, *, cycles: int = 10_000, seed: int = 0
) -> Iterator[tuple[str, Case]]:
    """Replay random offloads and reloads of each model's storages on the free list alone.

    Once with all of a model's state away at times, and once with never more than three quarters of
    it, where what goes away changes and storages of very different sizes take each other's places.

    Raises
    ------
    AssertionError
        If a storage found no room in pieces although the bytes sufficed.
    """
    if models is None:
        models = [llama_lora(), mixture_of_experts(), zero_partitions()]
    whole: list[float] = []
    partial: list[float] = []
    requests = 0
    for model in models:
        sizes = [storage.nbytes for storage in model.storages]
        for quarters, found in ((4, whole), (3, partial)):
            # A block takes up to 511 bytes more than was asked for.
            capacity = (model.nbytes + 512 * len(sizes)) * quarters // 4
            toggles = random_toggles(model.storages, cycles, capacity=capacity, seed=seed)
            outcome = replay(sizes, toggles)
            if outcome.failures:
                raise AssertionError(
                    f"{outcome.failures} of {outcome.requests} storages of {model.name} found no "
                    "room in pieces although the bytes sufficed"
                )
            found.append(outcome.fragmentation)
            requests += outcome.requests
        yield f"fragmentation_{model.name}", Case(whole[-1], 1.0, "of peak", _PEAK)
    yield "fragmentation_peak", Case(max(whole), 1.0, "of peak", f"{_PEAK}; worst of the models")
    what = f"{_PEAK}, with 3/4 of the state away at most; worst of the models"
    yield "fragmentation_peak_three_quarters", Case(max(partial), 1.0, "of peak", what)
    what = "requests made, in arenas of exactly the peak's rounded bytes"
    yield "extents_failures", Case(0, requests, "requests", what)
