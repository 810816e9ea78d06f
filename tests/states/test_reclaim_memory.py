"""Whether memory that went really went, measured from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pinferry import PinnedArena, StateOffloader
from pinferry.errors import NotOffloaded, ReclaimShortfall
from tests.states.fixtures import forget_cached_memory
from tests.states.training import MasterTraining, allocated_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDE = 4096
WEIGHT_BYTES = SIDE * SIDE * 4  # 67 MB


@pytest.fixture
def arena(device: str) -> Iterator[PinnedArena]:
    forget_cached_memory(device)
    made = PinnedArena(3 * WEIGHT_BYTES + 2**20, device=device)
    yield made
    made.close(force=True)


@pytest.fixture
def offloader(device: str, arena: PinnedArena) -> StateOffloader:
    """Offload weights, gradients and momentum of 67 MB each."""
    model = nn.Linear(SIDE, SIDE, bias=False, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    return StateOffloader(model, optimizer, arena=arena)


def test_everything_comes_back_by_every_count(offloader: StateOffloader, device: str) -> None:
    before = allocated_bytes(device)
    offloader.offload()
    report = offloader.reclaim()
    report.verify()
    assert report.expected_bytes == 3 * WEIGHT_BYTES
    fell = before - allocated_bytes(device)
    if device == "cpu":
        assert report.rss_bytes is not None
        assert report.rss_bytes > 0.97 * 3 * WEIGHT_BYTES
        assert abs(fell - 3 * WEIGHT_BYTES) < 2**19
    else:
        assert report.allocator_bytes == fell == 3 * WEIGHT_BYTES
    offloader.reload()


def test_the_report_names_what_each_category_was_to_free(
    offloader: StateOffloader, device: str
) -> None:
    offloader.offload(["optim_states", "lp_grads"])
    report = offloader.reclaim()
    report.verify()
    assert report.by_category == {"optim_states": WEIGHT_BYTES, "lp_grads": WEIGHT_BYTES}
    assert report.expected_bytes == 2 * WEIGHT_BYTES
    assert report.device == device
    offloader.reload()


def test_memory_taken_since_the_offload_is_a_shortfall_with_numbers(
    offloader: StateOffloader, device: str
) -> None:
    offloader.offload("optim_states")
    taken = torch.ones(WEIGHT_BYTES // 4, device=device)
    report = offloader.reclaim()
    with pytest.raises(ReclaimShortfall, match="were offloaded from") as caught:
        report.verify()
    assert caught.value.expected == taken.nbytes
    by_count = caught.value.rss if device == "cpu" else caught.value.allocator
    assert isinstance(by_count, int)
    assert by_count < taken.nbytes // 2
    del taken
    offloader.reclaim().verify()
    offloader.reload()


def test_only_the_last_offload_that_moved_something_is_measured(
    offloader: StateOffloader,
) -> None:
    offloader.offload("lp_params")
    offloader.offload("lp_grads")
    offloader.offload("lp_grads")
    report = offloader.reclaim()
    report.verify()
    assert report.by_category == {"lp_grads": WEIGHT_BYTES}
    offloader.reload()


def test_what_was_away_before_is_not_measured_again(offloader: StateOffloader) -> None:
    offloader.offload("lp_params")
    offloader.offload()
    report = offloader.reclaim()
    report.verify()
    assert report.by_category == {"lp_grads": WEIGHT_BYTES, "optim_states": WEIGHT_BYTES}
    offloader.reload()


def test_memory_between_what_stays_comes_back_too(device: str, arena: PinnedArena) -> None:
    model = nn.Module()
    for index in range(800):
        weight = torch.ones(2**14, device=device)
        model.register_parameter(f"weight{index}", nn.Parameter(weight))
        model.register_buffer(f"buffer{index}", torch.ones(2**10, device=device))
    offloader = StateOffloader(model, arena=arena)
    offloader.offload("lp_params")
    report = offloader.reclaim()
    assert report.expected_bytes == 800 * 2**16
    if device == "cpu":
        report.verify()
    else:  # on CUDA the buffers hold the segments that they share with the weights
        assert report.allocator_bytes == report.expected_bytes
    offloader.reload()


def test_state_that_was_reloaded_is_not_counted_as_memory_that_came_back(
    offloader: StateOffloader,
) -> None:
    offloader.offload()
    offloader.reload()
    with pytest.raises(ReclaimShortfall):
        offloader.reclaim().verify()


def test_a_reclaim_before_any_offload_is_refused(offloader: StateOffloader) -> None:
    with pytest.raises(NotOffloaded, match="nothing was offloaded yet"):
        offloader.reclaim()


def test_an_offload_that_failed_leaves_nothing_to_measure(device: str) -> None:
    run = MasterTraining(device).until_gradients()
    with PinnedArena(512, device=device) as small:
        offloader = StateOffloader(run.model, run.optimizer, arena=small)
        with pytest.raises(Exception, match="no room"):
            offloader.offload()
        with pytest.raises(NotOffloaded):
            offloader.reclaim()
