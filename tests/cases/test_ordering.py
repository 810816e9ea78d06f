"""Copies wait for what they depend on, and hold what they use. Streams are held by latches."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from pinferry import PinnedArena, StateOffloader, TransferEngine
from tests.workbench import LATE, SOON, Workbench, content, random_bytes

NBYTES = 64 * 1024


def test_a_copy_waits_for_the_kernel_that_writes_its_source(
    device: str, arena: PinnedArena
) -> None:
    """vllm#45704, prime-rl#1694: the copy began before the producer had finished."""
    state = torch.zeros(NBYTES, dtype=torch.uint8, device=device)
    producer = arena.device.create_stream()
    producer.hold()
    producer.fill(state.data_ptr(), 7, state.nbytes)
    with TransferEngine(arena) as engine:
        ticket = engine.offload({"state": state}, streams=[producer])
        with pytest.raises(TimeoutError):
            ticket.synchronize(SOON)
        producer.release()
        ticket.synchronize(LATE)
        engine.reload().synchronize(LATE)
        assert torch.equal(state.cpu(), torch.full((NBYTES,), 7, dtype=torch.uint8))


def test_a_reload_waits_for_the_kernel_that_still_reads_the_memory(workbench: Workbench) -> None:
    """vllm#47282: H2D overwrote memory that an earlier kernel still read."""
    old, new = random_bytes(NBYTES, 1), random_bytes(NBYTES, 2)
    memory, seen = workbench.memory(old), workbench.memory(bytes(NBYTES))
    block = workbench.arena().allocate(NBYTES, 0.0)
    memoryview(block)[:] = new
    reader = workbench.stream()
    reader.hold()
    reader.copy(seen.address, memory.address, NBYTES)
    ticket = workbench.reload(block, memory, reader)
    assert not ticket.synchronize(SOON)
    reader.release()
    assert ticket.synchronize(LATE)
    reader.synchronize()
    assert workbench.read(seen) == old
    assert workbench.read(memory) == new


def test_memory_given_back_is_not_reused_before_the_copy_has_read_it(
    device: str, arena: PinnedArena
) -> None:
    """torchrec#4231, verl#6447: the storage was freed while its D2H copy ran."""
    model = nn.Linear(128, 128, bias=False, device=device)
    before = model.weight.detach().cpu().clone()
    producer = arena.device.create_stream()
    producer.hold()
    engine = TransferEngine(arena)
    engine.offload({"weight": model.weight}, streams=[producer])
    # As large as what was given back, so that the allocator would take that first.
    pressure = [torch.full((128, 128), 9.0, device=device) for _ in range(50)]
    producer.release()
    engine.reload().synchronize(LATE)
    assert torch.equal(model.weight.detach().cpu(), before)
    assert all(bool((each == 9.0).all()) for each in pressure)


def test_every_reference_may_be_dropped_while_the_copy_runs(
    device: str, arena: PinnedArena
) -> None:
    """DeepSpeed#8256, cudf#22284: the source was dropped while a copy ran."""
    producer = arena.device.create_stream()
    producer.hold()
    state = torch.ones(NBYTES, dtype=torch.uint8, device=device)
    engine = TransferEngine(arena)
    ticket = engine.offload({"state": state}, streams=[producer])
    del state, engine
    gc.collect()
    pressure = [torch.zeros(NBYTES, dtype=torch.uint8, device=device) for _ in range(50)]
    producer.release()
    ticket.synchronize(LATE)
    assert not any(bool(each.any()) for each in pressure)


def test_room_of_dropped_state_comes_back_whoever_forgot_it(
    device: str, arena: PinnedArena
) -> None:
    """DeepSpeed#8256: host memory of what was dropped stayed in use."""
    state = torch.ones(NBYTES, dtype=torch.uint8, device=device)
    TransferEngine(arena).offload({"state": state}).synchronize(LATE)
    del state
    gc.collect()
    assert arena.stats().used_bytes == 0
    arena.close()


def test_an_offloader_that_is_dropped_leaves_no_state_behind(
    device: str, arena: PinnedArena
) -> None:
    """DeepSpeed#8256: what held the bytes was dropped before they were back."""
    model = nn.Linear(64, 64, device=device)
    before = model.weight.detach().cpu().clone()
    offloader = StateOffloader(model, arena=arena)
    engine = offloader.engine
    offloader.offload()
    del offloader
    gc.collect()
    engine.reload()
    assert torch.equal(model.weight.detach().cpu(), before)


def test_one_held_copy_does_not_stop_others_from_recycling(workbench: Workbench) -> None:
    """pytorch#183501: one unfinished event blocked all reuse of pinned blocks."""
    arena = workbench.arena(4 * NBYTES)
    data = random_bytes(NBYTES)
    memory = workbench.memory(data)
    stuck = workbench.stream()
    stuck.hold()
    block = arena.allocate(NBYTES, 0.0)
    held = workbench.offload(block, memory, stuck)
    del block
    for _ in range(50):
        block = arena.allocate(3 * NBYTES, LATE)
        # The way back is another stream, which nothing holds.
        memoryview(block)[:NBYTES] = data
        target = workbench.device.allocate(3 * NBYTES)
        assert workbench.reload(block, target).synchronize(LATE)
        del block
    assert not held.done()
    assert arena.stats().retired_bytes == NBYTES
    stuck.release()
    assert held.synchronize(LATE)
    assert arena.stats().retired_bytes == 0


def test_bytes_in_the_arena_are_the_ones_that_were_sent(workbench: Workbench) -> None:
    """sglang#21869, vllm#46379: batches through an interface of another version copied garbage."""
    data = random_bytes(NBYTES)
    arena = workbench.arena()
    blocks = arena.allocate_extents([1, 511, 512, 1024, 4096], 0.0)
    for [block] in blocks:
        memory = workbench.memory(data[: block.nbytes])
        assert workbench.offload(block, memory).synchronize(LATE)
        assert content(block) == data[: block.nbytes]
