"""Where the bytes of storages lie in blocks, worked out once."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import BlockFreed, InvalidArgument
from tests.workbench import LATE, MIB, random_bytes

if TYPE_CHECKING:
    from tests.workbench import Workbench


def fragmented(arena: _native.Arena) -> list[_native.Block]:
    """Leave holes of 512 bytes alone; return what lies between them."""
    blocks = [arena.allocate(512, 0.0) for _ in range(arena.stats().free_bytes // 512)]
    kept = blocks[1::2]
    blocks.clear()
    return kept


def test_storages_may_lie_across_the_blocks_of_their_place(workbench: Workbench) -> None:
    sizes, offsets = [700, 512, 1500, 0, 1], [0, 1024, 1536, 3072, 3072]
    data = [random_bytes(size, seed) for seed, size in enumerate(sizes)]
    memories = [workbench.memory(each or b"\0") for each in data]
    arena = workbench.arena(MIB)
    between = fragmented(arena)
    [blocks] = arena.allocate_extents([3584], 0.0)
    assert len(blocks) == 7
    copies = _native.CopyList([(blocks, offsets, sizes)])
    assert (copies.storages, copies.nbytes) == (5, sum(sizes))
    addresses = struct.pack(f"{len(sizes)}N", *(memory.address for memory in memories))
    assert _native.submit_list(
        device=workbench.device,
        direction=Direction.TO_HOST,
        copies=copies,
        addresses=addresses,
        streams=[],
    ).synchronize(LATE)
    everything = b"".join(bytes(memoryview(block)) for block in blocks)
    for each, offset in zip(data, offsets, strict=True):
        assert everything[offset : offset + len(each)] == each
    targets = [workbench.memory(bytes(max(1, size))) for size in sizes]
    addresses = struct.pack(f"{len(sizes)}N", *(memory.address for memory in targets))
    assert _native.submit_list(
        device=workbench.device,
        direction=Direction.TO_DEVICE,
        copies=copies,
        addresses=addresses,
        streams=[],
    ).synchronize(LATE)
    for target, each in zip(targets, data, strict=True):
        assert workbench.read(target)[: len(each)] == each
    del between


@pytest.mark.parametrize(
    ("offsets", "sizes", "message"),
    [
        ([0], [513], "513 bytes at offset 0 ends beyond"),
        ([512], [1], "1 bytes at offset 512 ends beyond"),
        ([2**63], [2**63], "ends beyond"),
        ([0, 1], [1], "2 offsets and 1 sizes"),
    ],
)
def test_a_storage_lies_within_its_blocks(
    workbench: Workbench, offsets: list[int], sizes: list[int], message: str
) -> None:
    block = workbench.arena(MIB).allocate(512, 0.0)
    with pytest.raises(InvalidArgument, match=message):
        _native.CopyList([([block], offsets, sizes)])


def test_each_storage_has_one_address(workbench: Workbench) -> None:
    block = workbench.arena(MIB).allocate(512, 0.0)
    copies = _native.CopyList([([block], [0, 256], [256, 256])])
    for addresses in (b"", bytes(8), bytes(24), bytes(15)):
        with pytest.raises(InvalidArgument, match="2 storages, but"):
            _native.submit_list(
                device=workbench.device,
                direction=Direction.TO_HOST,
                copies=copies,
                addresses=addresses,
                streams=[],
            )


def test_a_list_does_not_hold_its_blocks(workbench: Workbench) -> None:
    arena = workbench.arena(MIB)
    block = arena.allocate(512, 0.0)
    copies = _native.CopyList([([block], [0], [512])])
    del block
    assert arena.stats().blocks == 0
    with pytest.raises(BlockFreed, match="gone"):
        _native.submit_list(
            device=workbench.device,
            direction=Direction.TO_HOST,
            copies=copies,
            addresses=bytes(8),
            streams=[],
        )
