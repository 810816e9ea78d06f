"""Every stage, category, kind of host memory and way of waiting: values, devices, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pinferry import Category
from pinferry.deepspeed import attach
from pinferry.errors import StateOffloaded
from pinferry.transfer.parked import is_away
from tests.zero.engines import WRAPPERS, engine_of
from tests.zero.model import batch, train

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry import PinnedArena
    from pinferry.deepspeed import DeepSpeedOffloader


@pytest.fixture(scope="module", params=WRAPPERS)
def trained(request: pytest.FixtureRequest, world: None) -> Iterator[Any]:
    """Return an engine between backward and step: all that there can be is there."""
    with engine_of(request.param) as engine:
        train(engine, 2)
        engine.backward(engine(batch(2, 0, engine.device)))
        yield engine


@pytest.fixture
def offloader(
    trained: Any,
    arena: PinnedArena,
) -> Iterator[DeepSpeedOffloader]:
    if hasattr(trained.optimizer, "empty_partition_cache"):
        trained.optimizer.empty_partition_cache()  # weights that are gathered do not come back
    with attach(trained, arena) as offloader:
        yield offloader


def bytes_of(offloader: DeepSpeedOffloader) -> dict[str, torch.Tensor]:
    """Return a copy of every storage, but of buckets that are empty."""
    return {
        entry.name: torch.tensor([], dtype=torch.uint8, device=entry.device)
        .set_(entry.storage)
        .cpu()
        .clone()
        for entry in offloader.discover()
        if entry.category is not Category.CONTIGUOUS_GRAD_BUFFER
    }


def allocated(device: str) -> int:
    return torch.cuda.memory_allocated(device) if device != "cpu" else 0


@pytest.mark.parametrize("non_blocking", [True, False], ids=["queued", "blocking"])
@pytest.mark.parametrize("pin_memory", [True, False], ids=["pinned", "pageable"])
@pytest.mark.parametrize("include", [*Category, None], ids=str)
def test_a_category_leaves_and_comes_back(  # noqa: PLR0917 -- the axes of the matrix
    include: Category | None,
    pin_memory: bool,
    non_blocking: bool,
    offloader: DeepSpeedOffloader,
    trained: Any,
    device: str,
) -> None:
    before = bytes_of(offloader)
    states = offloader.discover() if include is None else offloader.discover().only(include)
    wanted = set(states.by_category())
    held = allocated(device)

    ticket = trained.offload_states(include, "cpu", pin_memory, non_blocking)

    ticket.synchronize()
    assert offloader.offloaded_states() == wanted
    assert all(is_away(entry.storage) for entry in states)
    for category in wanted:
        devices = offloader.state_devices(category)
        scratch = category is Category.CONTIGUOUS_GRAD_BUFFER
        assert devices <= {torch.device("cpu")} if scratch else devices == {torch.device("cpu")}
    kept = ticket.nbytes
    assert (offloader.engine.offloaded_bytes >= kept) is pin_memory or kept == 0
    if wanted:
        report = offloader.reclaim()
        assert report.by_category == states.by_category()
        assert not set(states.names()) & set(report.stays)
        # Each storage is a block of its own, and blocks are multiples of 512 bytes.
        freed = sum(-entry.nbytes // 512 * -512 for entry in states) if device != "cpu" else 0
        assert held - allocated(device) == freed
        if include is None:
            assert not offloader.resident()

    trained.reload_states(non_blocking).synchronize()

    assert not offloader.offloaded_states()
    assert allocated(device) == held
    after = bytes_of(offloader)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_an_engine_whose_state_is_away_says_so_and_goes_on_after_a_reload(
    offloader: DeepSpeedOffloader,
    trained: Any,
    device: str,
) -> None:
    before = bytes_of(offloader)
    trained.offload_states()
    with pytest.raises(StateOffloaded, match="lp_params"):
        trained(batch(3, 0, device))
    trained.reload_states()
    after = bytes_of(offloader)
    assert all(torch.equal(after[name], before[name]) for name in before)
