"""The bridge's own calls: handles, and storages re-pointed at other memory."""

from __future__ import annotations

import gc
import struct
import weakref

import pytest
import torch

from pinferry import PinnedArena, TransferEngine
from pinferry.errors import InvalidArgument, NotOffloaded, StorageChanged, UnsupportedStorage
from pinferry.transfer.bridge import load_bridge


class Owner:
    """Something that can be seen to die."""


def test_a_handle_describes_its_storage_and_survives_it(torch_device: str) -> None:
    x = torch.ones(8, device=torch_device)
    handle = load_bridge().StorageHandle(x.untyped_storage()._cdata)
    assert (handle.alive, handle.guarded, handle.refusal) == (True, False, "")
    assert (handle.nbytes, handle.address) == (32, x.data_ptr())
    assert handle.device == torch_device
    assert handle.key == x.untyped_storage()._cdata
    del x
    assert not handle.alive
    for name in ("nbytes", "address", "device", "guarded", "refusal"):
        with pytest.raises(StorageChanged):
            getattr(handle, name)


def test_a_handle_keeps_the_address_of_the_dead_from_new_storages(torch_device: str) -> None:
    x = torch.ones(64, device=torch_device)
    handle = load_bridge().StorageHandle(x.untyped_storage()._cdata)
    del x
    others = [torch.ones(64, device=torch_device) for _ in range(500)]
    assert handle.key not in {each.untyped_storage()._cdata for each in others}
    assert not handle.alive


def test_a_storage_pointed_at_the_arena_reads_from_there(
    arena: PinnedArena, torch_device: str
) -> None:
    x = torch.arange(1000.0, device=torch_device)
    view = x[10:13]
    block = arena.alloc(4000)
    block.tensor(torch.float32).copy_(x)
    handle = load_bridge().StorageHandle(x.untyped_storage()._cdata)
    with TransferEngine(arena) as engine:
        engine.offload({"x": x}).synchronize()
        load_bridge().point_at([handle], [block.address], [block])
        assert view.tolist() == [10, 11, 12]
        assert x.data_ptr() == block.address
        assert torch.equal(x.clone().cpu(), torch.arange(1000.0))
        with pytest.raises(NotOffloaded, match=r"\Ax cannot be reloaded"):
            engine.reload({"x": x})
        engine.reload()
        assert x.data_ptr() == block.address
        with pytest.raises(UnsupportedStorage, match=r"\Ay "):
            engine.offload({"y": x})
        del block, x, view
        assert engine.offloaded_bytes == 0
        assert arena.stats().used_bytes == 0


def test_the_owner_of_the_memory_lives_as_long_as_the_storage(arena: PinnedArena) -> None:
    block = arena.alloc(4096)
    block.tensor(torch.float32).copy_(torch.arange(1024.0))
    x = torch.zeros(1024)
    owner = Owner()
    seen = weakref.ref(owner)
    handle = load_bridge().StorageHandle(x.untyped_storage()._cdata)
    load_bridge().point_at([handle], [block.address], [owner])
    del owner
    gc.collect()
    assert seen() is not None
    view = x.detach()[5:]
    del x
    gc.collect()
    assert seen() is not None
    assert view[0] == 5
    del view
    gc.collect()
    assert seen() is None
    assert not handle.alive


def test_a_storage_pointed_elsewhere_lets_the_first_owner_go(arena: PinnedArena) -> None:
    blocks = [arena.alloc(4096), arena.alloc(4096)]
    owners = [Owner(), Owner()]
    seen = [weakref.ref(owner) for owner in owners]
    x = torch.zeros(1024)
    handle = load_bridge().StorageHandle(x.untyped_storage()._cdata)
    for block in blocks:
        load_bridge().point_at([handle], [block.address], [owners.pop(0)])
    gc.collect()
    assert seen[0]() is None
    assert seen[1]() is not None
    assert handle.address == blocks[1].address
    x.fill_(1)
    assert blocks[1].tensor(torch.float32).sum() == 1024
    del x


def test_lists_of_different_length_change_nothing() -> None:
    x = torch.ones(8)
    address = x.data_ptr()
    bridge = load_bridge()
    handle = bridge.StorageHandle(x.untyped_storage()._cdata)
    for addresses, owners in (([], [x]), ([address], []), ([address] * 2, [x] * 2)):
        with pytest.raises(InvalidArgument):
            bridge.point_at([handle], addresses, owners)
    for names, sizes in ((["x", "y"], [32]), (["x"], []), ([], [32])):
        with pytest.raises(InvalidArgument):
            bridge.StorageGroup([handle], names, sizes, [])
    held = bridge.StorageGroup([handle], ["x"], [32], []).hold()
    for owners in ([], [x, x]):
        with pytest.raises(InvalidArgument):
            held.release(owners, None)
    assert x.data_ptr() == address
    assert x.sum() == 8


def test_memory_that_was_made_and_not_installed_goes_back() -> None:
    x = torch.ones(8)
    bridge = load_bridge()
    handle = bridge.StorageHandle(x.untyped_storage()._cdata)
    group = bridge.StorageGroup([handle], ["x"], [32], [])
    with pytest.raises(NotOffloaded, match="x was given other memory"):
        group.allocate(None, slabs=True)
    released = group.hold().release([None], None)
    fresh = group.allocate(None, slabs=True)
    [address] = struct.unpack("N", fresh.addresses)
    assert handle.address == 0
    fresh.install()
    fresh.install()
    assert x.data_ptr() == address
    del released
