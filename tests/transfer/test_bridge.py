"""The bridge's own calls: handles, groups, and storages that read from other memory."""

from __future__ import annotations

import gc
import struct
import weakref
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import InvalidArgument, NotOffloaded, StorageChanged
from pinferry.transfer.bridge import load_bridge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinferry import PinnedArena
    from pinferry._torch import ReleasedMemory, StorageGroup, StorageHandle

SIZE = 4000


class Owner:
    """Something that can be seen to die."""


def handle_of(x: torch.Tensor) -> StorageHandle:
    handle: StorageHandle = load_bridge().StorageHandle(x.untyped_storage()._cdata)
    return handle


def group_of(*tensors: torch.Tensor) -> StorageGroup:
    group: StorageGroup = load_bridge().StorageGroup(
        [handle_of(x) for x in tensors],
        [f"x{i}" for i in range(len(tensors))],
        [x.untyped_storage().nbytes() for x in tensors],
        [],
    )
    return group


def packed(*addresses: int) -> bytes:
    return struct.pack(f"{len(addresses)}N", *addresses)


def release(
    group: StorageGroup, owners: Sequence[object], readable_at: bytes | None = None
) -> ReleasedMemory:
    held = group.hold()
    assert held is not None
    return held.release(owners, None, readable_at)


def test_a_handle_describes_its_storage_and_survives_it(torch_device: str) -> None:
    x = torch.ones(8, device=torch_device)
    handle = handle_of(x)
    assert (handle.alive, handle.guarded, handle.away, handle.refusal) == (True, False, False, "")
    assert (handle.nbytes, handle.address) == (32, x.data_ptr())
    assert handle.device == torch_device
    assert handle.key == x.untyped_storage()._cdata
    del x
    assert not handle.alive
    for name in ("nbytes", "address", "device", "guarded", "away", "refusal"):
        with pytest.raises(StorageChanged):
            getattr(handle, name)


def test_a_handle_keeps_the_address_of_the_dead_from_new_storages(torch_device: str) -> None:
    x = torch.ones(64, device=torch_device)
    handle = handle_of(x)
    del x
    others = [torch.ones(64, device=torch_device) for _ in range(500)]
    assert handle.key not in {each.untyped_storage()._cdata for each in others}
    assert not handle.alive


@pytest.mark.parametrize("readable", [False, True])
def test_a_handle_tells_what_is_away(arena: PinnedArena, torch_device: str, readable: bool) -> None:
    x, y = (torch.ones(1000, device=torch_device) for _ in range(2))
    handle, group = handle_of(x), group_of(x, y)
    assert (group.alive, group.still_away) == (2, 0)
    blocks = [arena.alloc(SIZE), arena.alloc(SIZE)]
    addresses = [block.address for block in blocks]
    released = release(group, blocks, packed(*addresses) if readable else None)
    assert (handle.away, handle.guarded) == (True, not readable)
    assert handle.address == (addresses[0] if readable else 0)
    assert (group.alive, group.still_away) == (2, 2)
    assert group.hold() is None
    del y
    assert (group.alive, group.still_away) == (1, 1)
    with pytest.raises(StorageChanged, match="x1 was freed"):
        group.allocate(None, slabs=True)
    group_of(x).allocate(None, slabs=True).install()
    assert (handle.away, handle.guarded, group.still_away) == (False, False, 0)
    del released


def test_a_storage_reads_and_writes_where_it_is_pointed(
    arena: PinnedArena, torch_device: str
) -> None:
    x = torch.zeros(1000, device=torch_device)
    view = x[10:13]
    block = arena.alloc(SIZE)
    block.tensor(torch.float32).copy_(torch.arange(1000.0))
    released = release(group_of(x), [block], packed(block.address))
    assert view.tolist() == [10, 11, 12]
    assert x.data_ptr() == block.address
    view.fill_(-1)
    assert torch.equal(x.cpu(), block.tensor(torch.float32))
    assert block.tensor(torch.float32)[11] == -1
    del released


@pytest.mark.parametrize("readable", [False, True])
@pytest.mark.parametrize("shared", [False, True], ids=["one each", "one for all"])
def test_an_owner_lives_as_long_as_what_it_holds_for(
    arena: PinnedArena, readable: bool, shared: bool
) -> None:
    tensors = [torch.zeros(1000) for _ in range(3)]
    blocks = [arena.alloc(SIZE) for _ in tensors]
    owners = [Owner()] if shared else [Owner() for _ in tensors]
    seen = [weakref.ref(owner) for owner in owners]
    places = packed(*(block.address for block in blocks)) if readable else None
    released = release(group_of(*tensors), owners, places)
    owners.clear()
    view = tensors.pop().detach()[5:]
    gc.collect()
    assert all(ref() is not None for ref in seen)
    group_of(tensors[0]).allocate(None, slabs=True).install()
    assert [ref() is not None for ref in seen] == ([True] if shared else [False, True, True])
    del tensors[1]
    gc.collect()
    assert [ref() is not None for ref in seen] == ([True] if shared else [False, False, True])
    del view
    gc.collect()
    assert not any(ref() is not None for ref in seen)
    del released


def test_a_storage_given_other_memory_lets_its_owner_go(arena: PinnedArena) -> None:
    x = torch.zeros(1000)
    group, owner, block = group_of(x), Owner(), arena.alloc(SIZE)
    seen = weakref.ref(owner)
    released = release(group, [owner], packed(block.address))
    del owner
    x.resize_(2000)
    assert seen() is None
    assert group.still_away == 0
    assert group.alive == 1
    with pytest.raises(NotOffloaded, match="x0 was given other memory"):
        group.allocate(None, slabs=True)
    del released


def test_lists_of_different_length_change_nothing(arena: PinnedArena) -> None:
    x = torch.ones(8)
    address = x.data_ptr()
    handle, block = handle_of(x), arena.alloc(32)
    for names, sizes in ((["x", "y"], [32]), (["x"], []), ([], [32])):
        with pytest.raises(InvalidArgument):
            load_bridge().StorageGroup([handle], names, sizes, [])
    group = group_of(x)
    for owners in ([], [x, x]):
        with pytest.raises(InvalidArgument, match="1 storages, but"):
            release(group, owners)
        with pytest.raises(InvalidArgument, match="1 storages, but"):
            release(group, owners, packed(block.address))
    for places in (b"", packed(block.address)[:-1], packed(block.address, 0), b"x"):
        with pytest.raises(InvalidArgument, match=r"1 storages, but|no array of addresses"):
            release(group, [block], places)
    assert x.data_ptr() == address
    assert x.sum() == 8
    assert not handle.away


def test_memory_that_was_made_and_not_installed_goes_back(torch_device: str) -> None:
    x = torch.ones(8, device=torch_device)
    handle, group = handle_of(x), group_of(x)
    with pytest.raises(NotOffloaded, match="x0 was given other memory"):
        group.allocate(None, slabs=True)
    released = release(group, [None])
    unused = group.allocate(None, slabs=True)
    fresh = group.allocate(None, slabs=True)
    assert unused.addresses != fresh.addresses
    del unused
    [address] = struct.unpack("N", fresh.addresses)
    assert handle.address == 0
    fresh.install()
    fresh.install()
    assert x.data_ptr() == address
    del released
