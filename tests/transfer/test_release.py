"""What holds the memory of an offload back until its copy has read it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import Release
from pinferry.errors import InvalidArgument
from tests.transfer.storage_bits import random_bits, storage_bits
from tests.workbench import LATE, SOON

if TYPE_CHECKING:
    from pinferry import TransferEngine, _native

NBYTES = 64 * 1024
on_gpu = pytest.mark.parametrize(
    "torch_device", [pytest.param("cuda:0", marks=pytest.mark.gpu)], indirect=True
)


def sevens(device: str) -> torch.Tensor:
    return torch.full((NBYTES,), 7, dtype=torch.uint8, device=device)


@pytest.mark.parametrize("release", list(Release), ids=str)
@pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])
def test_cycles_keep_every_bit(
    engine: TransferEngine, torch_device: str, release: Release, compact: bool
) -> None:
    states = {f"s{i}": random_bits(torch.uint8, 999, torch_device, seed=i) for i in range(9)}
    with engine.plan(states, compact=compact) as plan:
        for cycle in range(4):
            states["s3"].fill_(cycle)
            before = {name: storage_bits(x) for name, x in states.items()}
            plan.offload(release=release)
            others = [torch.zeros(999, dtype=torch.uint8, device=torch_device) for _ in range(20)]
            plan.reload()
            assert {name: storage_bits(x) for name, x in states.items()} == before
            assert not any(other.any() for other in others)
            engine.offload(states, release=str(release))
            engine.reload()
            assert {name: storage_bits(x) for name, x in states.items()} == before


@on_gpu
@pytest.mark.parametrize("release", ["record_stream", "ordered"])
@pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])
def test_memory_is_not_reused_before_the_copy_has_read_it(
    engine: TransferEngine,
    stream: _native.Stream,
    torch_device: str,
    release: str,
    compact: bool,
) -> None:
    states = {f"s{i}": sevens(torch_device) for i in range(4)}
    with engine.plan(states, compact=compact) as plan:
        plan.offload()
        plan.reload()
        torch.cuda.synchronize()
        stream.hold()
        plan.offload(streams=[stream], release=release)
        others = [torch.zeros(NBYTES, dtype=torch.uint8, device=torch_device) for _ in range(50)]
        stream.release()
        plan.reload()
        assert all(torch.equal(x, sevens(torch_device)) for x in states.values())
        assert not any(other.any() for other in others)


@on_gpu
@pytest.mark.parametrize("urgent", [False, True], ids=["bulk", "urgent"])
def test_memory_is_not_reused_before_the_copy_of_its_own_lane_has_read_it(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, urgent: bool
) -> None:
    x = sevens(torch_device)
    torch.cuda.synchronize()
    stream.hold()
    engine.offload({"x": x}, streams=[stream], urgent=urgent)
    others = [torch.zeros(NBYTES, dtype=torch.uint8, device=torch_device) for _ in range(50)]
    stream.release()
    engine.reload()
    assert torch.equal(x, sevens(torch_device))
    assert not any(other.any() for other in others)


@on_gpu
def test_memory_of_another_stream_is_not_reused_before_the_copy_has_read_it(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    """It is dealt out again on the stream that it was allocated on, which waits for nothing."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        x = sevens(torch_device)
    torch.cuda.synchronize()
    stream.hold()
    engine.offload({"x": x}, streams=[stream], release="ordered")
    with torch.cuda.stream(side):
        others = [torch.zeros(NBYTES, dtype=torch.uint8, device=torch_device) for _ in range(50)]
    stream.release()
    engine.reload()
    torch.cuda.synchronize()
    assert torch.equal(x, sevens(torch_device))
    assert not any(other.any() for other in others)


@on_gpu
@pytest.mark.parametrize(("release", "waits"), [("record_stream", False), ("ordered", True)])
def test_the_current_stream_waits_for_an_ordered_offload_alone(
    engine: TransferEngine,
    stream: _native.Stream,
    torch_device: str,
    release: str,
    waits: bool,
) -> None:
    x = sevens(torch_device)
    torch.cuda.synchronize()
    stream.hold()
    ticket = engine.offload({"x": x}, streams=[stream], release=release)
    mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
    mark.record()
    if not waits:
        mark.synchronize()
    assert mark.query() is not waits  # type: ignore[no-untyped-call]
    assert not ticket.done()
    stream.release()
    ticket.synchronize(LATE)
    mark.synchronize()
    engine.reload()
    assert torch.equal(x, sevens(torch_device))


@pytest.mark.parametrize(
    ("torch_device", "release"),
    [
        ("cpu", "synchronous"),
        ("cpu", "ordered"),  # the calling thread is what waits there
        pytest.param("cuda:0", "synchronous", marks=pytest.mark.gpu),
    ],
    indirect=["torch_device"],
)
def test_an_offload_that_makes_the_caller_wait_returns_after_the_copy(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, release: str
) -> None:
    x = sevens(torch_device)
    stream.hold()
    call = threading.Thread(
        target=lambda: engine.offload({"x": x}, streams=[stream], release=release)
    )
    call.start()
    call.join(SOON)
    assert call.is_alive()
    stream.release()
    call.join(LATE)
    assert not call.is_alive()
    engine.reload()
    assert torch.equal(x, sevens(torch_device))


@pytest.mark.parametrize("release", ["recordstream", None, 1, "", "ORDERED"], ids=repr)
def test_a_policy_that_does_not_exist_is_refused_and_nothing_moves(
    engine: TransferEngine, torch_device: str, release: object
) -> None:
    x = sevens(torch_device)
    plan = engine.plan({"x": x})
    names = r"'record_stream', 'ordered', 'synchronous'"
    with pytest.raises(InvalidArgument, match=names):
        plan.offload(release=release)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=names):
        engine.offload({"x": x}, release=release)  # type: ignore[arg-type]
    assert x.sum() == 7 * NBYTES
    plan.close()
