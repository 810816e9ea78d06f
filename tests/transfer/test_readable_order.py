"""What is away and readable shows the bytes that its producer wrote, and lies in one piece."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import ArenaExhausted
from tests.transfer.storage_bits import random_bits, storage_bits
from tests.workbench import LATE, SOON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinferry import PinnedArena, TransferEngine, _native
    from pinferry.pool import PinnedBlock

NBYTES = 64 * 1024
KIB = 1024


def sevens(device: str) -> torch.Tensor:
    return torch.full((NBYTES,), 7, dtype=torch.uint8, device=device)


@pytest.mark.parametrize("by", ["engine", "plan", "immutable plan, later"])
@pytest.mark.parametrize("torch_device", ["cpu"], indirect=True)
def test_the_caller_waits_for_the_copy_behind_its_producer(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, by: str
) -> None:
    x = torch.zeros(NBYTES, dtype=torch.uint8)
    seen: list[torch.Tensor] = []
    streams = [stream]
    idle = [engine.device.create_stream() for _ in range(2)]
    plan = engine.plan({"x": x}, immutable=by.startswith("immutable"))
    if by.startswith("immutable"):
        x.fill_(7)
        stream.hold()
        plan.offload(streams=[stream])
        plan.reload(streams=idle[:1])  # the caller does not wait, and the copies have not begun
        streams = idle[1:]
    else:
        stream.hold()
        stream.fill(x.data_ptr(), 7, NBYTES)

    def offload_and_read() -> None:
        if by == "engine":
            engine.offload({"x": x}, streams=[stream], access="readable")
        else:
            plan.offload(streams=streams, access="readable")
        seen.append(x.clone())

    call = threading.Thread(target=offload_and_read)
    call.start()
    call.join(SOON)
    waited = call.is_alive()
    stream.release()
    call.join(LATE)
    assert waited
    assert torch.equal(seen[0], sevens(torch_device))
    (engine if by == "engine" else plan).reload()
    assert torch.equal(x, sevens(torch_device))
    plan.close()


@pytest.mark.gpu
@pytest.mark.parametrize("torch_device", ["cuda:0"], indirect=True)
def test_the_current_stream_waits_for_the_copy_and_the_host_does_not(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x = torch.zeros(NBYTES, dtype=torch.uint8, device=torch_device)
    target = torch.zeros_like(x)
    torch.cuda.synchronize()
    stream.hold()
    stream.fill(x.data_ptr(), 7, NBYTES)
    ticket = engine.offload({"x": x}, streams=[stream], access="readable")
    target.copy_(x)
    assert not ticket.done()
    stream.release()
    assert torch.equal(target, sevens(torch_device))
    engine.reload()
    assert torch.equal(x, sevens(torch_device))


@pytest.mark.gpu
@pytest.mark.parametrize("torch_device", ["cuda:0"], indirect=True)
def test_the_room_of_what_died_is_dealt_out_behind_those_who_read_it(
    engine: TransferEngine, arena: PinnedArena, stream: _native.Stream, torch_device: str
) -> None:
    x = sevens(torch_device)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    target = torch.zeros_like(x)
    engine.offload({"x": x}, access="readable").synchronize(LATE)
    torch.cuda.synchronize()
    stream.hold()
    with torch.cuda.stream(side):
        side.wait_stream(torch.cuda.ExternalStream(stream.handle))  # type: ignore[no-untyped-call]
        target.copy_(x)
        del x
    assert arena.stats().retired_bytes == NBYTES
    stream.release()
    torch.cuda.synchronize()
    assert torch.equal(target, sevens(torch_device))
    assert arena.try_alloc("4MiB") is not None


@pytest.fixture
def fragments(arena: PinnedArena) -> Iterator[list[PinnedBlock]]:
    """Yield blocks between holes of 64 KiB, which are all the room that is left."""
    blocks = []
    while (block := arena.try_alloc(NBYTES)) is not None:
        blocks.append(block)
    for block in blocks[::2]:
        block.free()
    kept = blocks[1::2]
    yield kept
    for block in kept:
        block.free()


def as_engine(engine: TransferEngine, states: dict[str, torch.Tensor], access: str) -> None:
    engine.offload(states, access=access)


def as_plan(engine: TransferEngine, states: dict[str, torch.Tensor], access: str) -> None:
    plan = engine.plan(states)
    try:
        plan.offload(access=access)
    finally:
        if not plan.offloaded:
            plan.close()


@pytest.mark.parametrize("offload", [as_engine, as_plan])
def test_where_no_room_is_in_one_piece_nothing_moves(
    engine: TransferEngine,
    arena: PinnedArena,
    torch_device: str,
    fragments: list[PinnedBlock],
    offload: Callable[[TransferEngine, dict[str, torch.Tensor], str], None],
) -> None:
    states = {
        "small": random_bits(torch.uint8, 100, torch_device),
        "large": random_bits(torch.uint8, 100 * KIB, torch_device),
    }
    before = {name: storage_bits(x) for name, x in states.items()}
    used = arena.stats().used_bytes
    with pytest.raises(ArenaExhausted, match="in one piece"):
        offload(engine, states, "readable")
    assert engine.offloaded_names() == ()
    assert arena.stats().used_bytes == used
    assert {name: storage_bits(x) for name, x in states.items()} == before
    offload(engine, {"small": states["small"]}, "readable")
    assert storage_bits(states["small"]) == before["small"]


@pytest.mark.usefixtures("fragments")
def test_several_pieces_do_for_what_is_not_to_be_read(
    engine: TransferEngine, torch_device: str
) -> None:
    x = random_bits(torch.uint8, 100 * KIB, torch_device)
    before = storage_bits(x)
    engine.offload({"x": x})
    engine.reload()
    assert storage_bits(x) == before
    with engine.plan({"x": x}) as plan:
        with pytest.raises(ArenaExhausted, match="in one piece"):
            plan.offload(access="readable")
        assert not plan.offloaded
        plan.offload()
        plan.reload()
    assert storage_bits(x) == before


def test_an_arena_without_any_room_moves_nothing(engine: TransferEngine, torch_device: str) -> None:
    x = torch.ones(5 * 2**20, dtype=torch.uint8, device=torch_device)
    with pytest.raises(ArenaExhausted, match="nothing was moved"):
        engine.offload({"x": x}, access="readable")
    assert x.sum() == x.numel()
