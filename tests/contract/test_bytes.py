"""What goes out comes back equal to the bit, on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workbench import LATE, MIB, content, random_bytes, write

if TYPE_CHECKING:
    from tests.workbench import Workbench


@pytest.mark.parametrize("nbytes", [0, 1, 511, 512, 513, MIB + 1])
def test_bytes_are_equal_after_out_and_back(workbench: Workbench, nbytes: int) -> None:
    data = random_bytes(nbytes)
    memory, target = workbench.memory(data), workbench.memory(bytes(nbytes))
    block = workbench.arena().allocate(nbytes, 0.0)
    out = workbench.offload(block, memory)
    assert out.synchronize(LATE)
    assert content(block) == data
    back = workbench.reload(block, target)
    assert back.synchronize(LATE)
    assert workbench.read(target) == data
    assert out.nbytes == back.nbytes == nbytes


def test_a_copy_touches_nothing_beside_its_block(workbench: Workbench) -> None:
    arena = workbench.arena()
    before, block, after = (arena.allocate(n, 0.0) for n in (512, 512, 512))
    for neighbour in (before, after):
        write(neighbour, b"\xaa" * 512)
    memory = workbench.memory(b"\x55" * 2048)
    assert workbench.offload(block, memory).synchronize(LATE)
    assert content([before, block, after]) == b"\xaa" * 512 + b"\x55" * 512 + b"\xaa" * 512


def test_a_block_shorter_than_its_range_moves_only_what_was_asked_for(workbench: Workbench) -> None:
    block = workbench.arena().allocate(513, 0.0)
    write(block, b"\x11" * 513)
    memory = workbench.memory(b"\x22" * 1024)
    assert workbench.reload(block, memory).synchronize(LATE)
    assert workbench.read(memory) == b"\x11" * 513 + b"\x22" * 511


def test_several_pieces_of_one_batch_keep_their_own_bytes(workbench: Workbench) -> None:
    sizes = [1, 700, 0, 512, 65_537, 3 * 512]
    data = random_bytes(sum(sizes))
    memory, target = workbench.memory(data), workbench.memory(bytes(len(data)))
    blocks = [block for [block] in workbench.arena().allocate_extents(sizes, 0.0)]
    ticket = workbench.offload(blocks, memory)
    assert ticket.nbytes == len(data)
    assert ticket.synchronize(LATE)
    assert content(blocks) == data
    assert workbench.reload(blocks, target).synchronize(LATE)
    assert workbench.read(target) == data


def test_a_storage_in_several_extents_comes_back_whole(workbench: Workbench) -> None:
    data = random_bytes(5 * MIB + 3)
    memory, target = workbench.memory(data), workbench.memory(bytes(len(data)))
    [extents] = workbench.arena().allocate_extents([len(data)], 0.0)
    assert len(extents) > 1
    assert sum(block.nbytes for block in extents) == len(data)
    assert workbench.offload(extents, memory).synchronize(LATE)
    assert content(extents) == data
    assert workbench.reload(extents, target).synchronize(LATE)
    assert workbench.read(target) == data


def test_many_rounds_through_the_same_blocks_stay_right(workbench: Workbench) -> None:
    memory = workbench.memory(bytes(4096))
    block = workbench.arena().allocate(4096, 0.0)
    for seed in range(30):
        data = random_bytes(4096, seed)
        write(block, data)
        workbench.reload(block, memory)
        ticket = workbench.offload(block, memory, workbench.stream())
        assert ticket.synchronize(LATE)
        assert content(block) == data
