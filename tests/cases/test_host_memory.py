"""Host memory: as much as the state takes, once, and the same after any number of cycles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pinferry import PinnedArena, StateOffloader, TransferEngine, _native
from pinferry.states.memory import read_memory
from tests.states.training import allocated_bytes

if TYPE_CHECKING:
    from tests.fake_driver import FakeDriver

MIB = 2**20


def rss_bytes() -> int:
    return read_memory(_native.HostDevice()).rss_bytes


def test_the_arena_holds_one_percent_more_than_the_state_at_most(device: str) -> None:
    """verl#6193, #7881: host memory was twice the state."""
    model = nn.Sequential(*(nn.Linear(128, 129, device=device) for _ in range(20)))
    nbytes = sum(p.nbytes for p in model.parameters())
    with PinnedArena(2 * nbytes, device=device) as arena:
        offloader = StateOffloader(model, arena=arena)
        with offloader.offloaded():
            assert nbytes <= arena.stats().used_bytes <= 1.01 * nbytes
        assert arena.stats().peak_bytes <= 1.01 * nbytes
        assert arena.stats().used_bytes == 0


def test_a_hundred_cycles_leave_host_memory_as_it_was(device: str, arena: PinnedArena) -> None:
    """verl#6193, #7881: host memory grew each cycle."""
    model = nn.ModuleList(nn.Linear(128, 129, device=device) for _ in range(20))
    model.register_buffer("large", torch.ones(2**20, device=device))
    offloader = StateOffloader(model, arena=arena)

    def readings_while_away(cycles: int) -> tuple[int, int]:
        for _ in range(cycles):
            with offloader.offloaded():
                pass
            model.get_buffer("large").add_(1)
        with offloader.offloaded():
            offloader.reclaim()
            return rss_bytes(), arena.stats().used_bytes

    rss_before, used = readings_while_away(30)
    rss_after, used_after = readings_while_away(100)
    assert rss_after - rss_before < MIB
    assert used_after == used
    assert arena.stats().peak_bytes == used


@pytest.mark.parametrize("device", ["cpu"])
def test_state_that_came_back_is_there_once(device: str) -> None:
    """verl#6193: memory was twice the state."""
    state = torch.ones(64 * MIB, dtype=torch.uint8, device=device)
    with PinnedArena("64MiB", device=device) as arena:
        producer = arena.device.create_stream()
        with TransferEngine(arena) as engine:
            before = allocated_bytes(device)
            producer.hold()
            engine.offload(state, streams=[producer])
            producer.release()  # the copy out is still running when the way back begins
            engine.reload()
            assert allocated_bytes(device) - before < MIB


def test_a_size_just_above_a_power_of_two_is_not_rounded_up_to_the_next() -> None:
    """pytorch#95823, cupy#7742: pinned sizes were rounded up to a power of two."""
    nbytes = 257 * MIB + 1
    before = rss_bytes()
    with PinnedArena(nbytes + 511, device="cpu") as arena:
        assert rss_bytes() - before <= 1.01 * nbytes + 4 * MIB
        with arena.alloc(nbytes) as block:
            assert block.nbytes == nbytes
            assert arena.stats().used_bytes <= 1.01 * nbytes


def test_what_the_driver_pins_is_not_rounded_up_either(fake_gpu: FakeDriver) -> None:
    """pytorch#95823, cupy#7742: pinned sizes were rounded up to a power of two."""
    nbytes = 257 * MIB + 1
    with PinnedArena(nbytes + 511, device=_native.CudaDevice(0)) as arena:
        assert nbytes <= arena.native.stats().locked_bytes <= 1.01 * nbytes


def test_every_block_begins_at_a_multiple_of_512(device: str) -> None:
    """LMCache#4418: a source off by 64 bytes lost a third of the speed."""
    with PinnedArena("1MiB", device=device) as arena:
        blocks = [arena.alloc(size) for size in (1, 511, 512, 513, 64, 4096, 3)]
        assert {block.offset % 512 for block in blocks} == {0}
        assert {block.address % 512 for block in blocks} == {0}
        for block in blocks:
            block.free()


FORK = """
import gc, os, sys, torch
from pinferry import PinnedArena, StateOffloader
from pinferry.errors import ForkedProcess
model = torch.nn.Linear(64, 64)
before = model.weight.detach().clone()
arena = PinnedArena("1MiB", device="cpu")
offloader = StateOffloader(model, arena=arena)
block = arena.alloc(4096)
offloader.offload()
child = os.fork()
if child == 0:
    code = 1
    try:
        arena.alloc(512)
    except ForkedProcess:
        try:
            offloader.reload()
        except ForkedProcess:
            code = 0
    block.free()
    del block, offloader, model, arena
    gc.collect()
    os._exit(code)
_, status = os.waitpid(child, 0)
offloader.reload()
assert torch.equal(model.weight, before)
block.free()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_touches_nothing_and_is_told_so() -> None:
    """dgl#4134, speculators#889: a forked child freed or used the parent's pinned memory."""
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        env={"PYTHONPATH": str(Path(_native.__file__).parents[1]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
