"""A block as other libraries see it: buffers, DLPack and NumPy's array interface."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import socket
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
from torch.utils.dlpack import from_dlpack

from pinferry import PinnedArena, PinnedBlock, _native
from pinferry.errors import (
    ArenaExhausted,
    BlockFreed,
    CannotExport,
    ForkedProcess,
    InvalidArgument,
    NotCopyable,
)
from pinferry.pool import dlpack
from pinferry.pool.host_memory import available_host_bytes
from tests.faults.test_fork import status_of_child
from tests.pool.views import VIEWS, View, content, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fake_driver import FakeDriver

GIB = 2**30

every_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
# PyTorch puts an error of its own in the place of whatever the owner of a buffer says.
every_outspoken_view = pytest.mark.parametrize(
    "view",
    [pytest.param(view, id=name) for name, view in VIEWS.items() if name != "torch.frombuffer"],
)


class Interface:
    """Someone who keeps the object and the address, as the array interface has it."""

    def __init__(self, block: PinnedBlock) -> None:
        self.__array_interface__ = block.__array_interface__
        self.block = block


@every_view
def test_a_view_shares_the_memory_of_the_block(arena: PinnedArena, view: View) -> None:
    block = arena.alloc(4)
    seen = view(block)
    block.numpy()[:] = [1, 2, 3, 4]
    assert content(seen) == b"\1\2\3\4"
    write(seen, b"abcd")
    assert bytes(block) == b"abcd"


@every_view
def test_a_view_keeps_the_memory_of_a_block_that_was_freed(arena: PinnedArena, view: View) -> None:
    block = arena.alloc("1MiB")
    block.tensor().fill_(7)
    seen = view(block)
    block.free()
    assert arena.stats().used_bytes == 2**20
    with pytest.raises(ArenaExhausted):
        arena.alloc(1)
    assert content(seen) == b"\7" * 2**20
    del seen
    assert arena.stats().used_bytes == 0
    assert arena.alloc("1MiB").nbytes == 2**20


@every_view
def test_a_view_keeps_the_memory_of_a_block_that_was_dropped(
    arena: PinnedArena, view: View
) -> None:
    seen = view(arena.alloc("1MiB"))
    assert arena.stats().used_bytes == 2**20
    write(seen, b"\5" * 2**20)
    del seen
    assert arena.stats().used_bytes == 0


@every_view
@pytest.mark.parametrize("close", [True, False], ids=["closed", "dropped"])
def test_a_view_outlives_its_arena(torch_device: str, view: View, close: bool) -> None:
    arena = PinnedArena("1MiB", device=torch_device)
    block = arena.alloc("1MiB")
    seen = view(block)
    write(seen, b"\7" * 2**20)
    if close:
        arena.close(force=True)
    gone = weakref.ref(arena)
    del arena, block
    assert gone() is None
    # Nothing made afterwards may take the memory that the view still shows.
    with PinnedArena("1MiB", device=torch_device) as other, other.alloc("1MiB") as taken:
        taken.tensor().fill_(0xEE)
        assert content(seen) == b"\7" * 2**20


@every_outspoken_view
def test_a_freed_block_has_no_views(arena: PinnedArena, view: View) -> None:
    block = arena.alloc(64)
    block.free()
    with pytest.raises(BlockFreed, match="allocate a new one"):
        view(block)
    assert arena.stats().used_bytes == 0


@every_view
def test_a_block_of_zero_bytes_has_views_of_zero_bytes(arena: PinnedArena, view: View) -> None:
    block = arena.alloc(0)
    seen = view(block)
    assert content(seen) == b""
    block.free()
    assert arena.stats().blocks == 1
    del seen
    assert arena.stats().blocks == 0


@every_outspoken_view
def test_a_forked_child_is_told_whose_memory_it_is(view: View, fake_gpu: FakeDriver) -> None:
    arenas = [PinnedArena("1MiB", device=_native.CudaDevice(0)), PinnedArena("1MiB", device="cpu")]
    blocks = [arena.alloc(64) for arena in arenas]

    def body() -> None:
        for block in blocks:
            with pytest.raises(ForkedProcess, match="parent process"):
                view(block)
            with pytest.raises(ForkedProcess, match="parent process"):
                _ = block.__array_interface__
            block.free()

    assert status_of_child(body) == 0
    for block, arena in zip(blocks, arenas, strict=True):
        write(view(block), b"x" * 64)
        assert arena.stats().used_bytes == 512


def test_a_buffer_is_bytes_in_one_dimension_that_can_be_written(arena: PinnedArena) -> None:
    memory = memoryview(arena.alloc(64))
    assert (memory.format, memory.itemsize, memory.shape, memory.strides) == ("B", 1, (64,), (1,))
    assert not memory.readonly
    assert memory.c_contiguous


def test_the_owner_of_a_buffer_is_not_the_block_that_can_be_freed(arena: PinnedArena) -> None:
    block = arena.alloc(64)
    assert memoryview(block).obj is block.native


def test_a_file_is_read_into_a_block(arena: PinnedArena, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"from the disk")
    block = arena.alloc(13)
    with (tmp_path / "file").open("rb", buffering=0) as file:
        assert file.readinto(block) == 13
    assert bytes(block) == b"from the disk"
    assert io.BytesIO(b"0123456789abcdef").readinto(block) == 13
    assert bytes(block) == b"0123456789abc"


def test_a_socket_receives_into_a_block(arena: PinnedArena) -> None:
    sender, receiver = socket.socketpair()
    block = arena.alloc(8)
    with sender, receiver:
        sender.sendall(b"datagram")
        assert receiver.recv_into(block, 8, socket.MSG_WAITALL) == 8
    assert bytes(block) == b"datagram"


def test_numpy_never_takes_a_freed_block_for_an_object(arena: PinnedArena) -> None:
    block = arena.alloc(8)
    block.free()
    for make in (np.asarray, np.array, np.ascontiguousarray):
        with pytest.raises(BlockFreed):
            make(block)


def test_the_array_interface_names_the_memory(arena: PinnedArena) -> None:
    block = arena.alloc(10)
    assert block.__array_interface__ == {
        "version": 3,
        "typestr": "|u1",
        "shape": (10,),
        "data": (block.address, False),
    }


@pytest.mark.parametrize("free", [True, False], ids=["freed", "dropped"])
def test_a_block_whose_address_was_read_holds_the_memory_until_it_is_collected(
    arena: PinnedArena, free: bool
) -> None:
    block = arena.alloc("1MiB")
    array = np.asarray(Interface(block))
    array[:] = 7
    if free:
        block.free()
        with pytest.raises(BlockFreed):
            block.free()
        with pytest.raises(BlockFreed):
            memoryview(block)
        with pytest.raises(BlockFreed):
            _ = block.__array_interface__
        assert block.freed
    del block
    assert arena.stats().used_bytes == 2**20
    with pytest.raises(ArenaExhausted):
        arena.alloc(1)
    assert (array == 7).all()
    del array
    assert arena.stats().used_bytes == 0


def test_the_array_interface_of_a_block_of_zero_bytes_is_empty(arena: PinnedArena) -> None:
    assert np.asarray(Interface(arena.alloc(0))).shape == (0,)


def test_a_block_is_on_the_cpu_for_dlpack(arena: PinnedArena) -> None:
    block = arena.alloc(64)
    assert block.__dlpack_device__() == (1, 0)
    assert from_dlpack(block).device.type == "cpu"
    assert from_dlpack(block).data_ptr() == block.address
    assert np.from_dlpack(block).ctypes.data == block.address
    assert np.from_dlpack(block).flags.writeable


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (2, 0)])
def test_a_capsule_is_of_a_version_that_the_consumer_knows(
    arena: PinnedArena, version: tuple[int, int] | None
) -> None:
    capsule = arena.alloc(64).__dlpack__(max_version=version)
    assert ("dltensor_versioned" in repr(capsule)) == (version is not None and version >= (1, 0))
    assert from_dlpack(capsule).shape == (64,)


def test_a_capsule_that_nobody_takes_gives_the_memory_back(arena: PinnedArena) -> None:
    block = arena.alloc(64)
    capsule = block.__dlpack__()
    block.free()
    assert arena.stats().blocks == 1
    del capsule
    assert arena.stats().blocks == 0


def test_a_copy_is_made_for_the_consumer_that_asks_for_one(arena: PinnedArena) -> None:
    block = arena.alloc(64)
    block.numpy()[:] = 5
    copied = from_dlpack(block, copy=True)
    block.numpy()[:] = 6
    assert (copied == 5).all()
    assert copied.data_ptr() != block.address
    assert (from_dlpack(block, copy=False) == 6).all()
    assert from_dlpack(block, device="cpu").data_ptr() == block.address


def test_numpy_before_versioned_capsules_exports_all_the_same(
    arena: PinnedArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlpack, "_KNOWS_VERSIONS", False)
    block = arena.alloc(64)
    block.numpy()[:] = 5
    assert "versioned" not in repr(block.__dlpack__(max_version=(1, 0)))
    assert from_dlpack(block).data_ptr() == block.address
    assert from_dlpack(block, copy=True).data_ptr() != block.address


@pytest.mark.parametrize(
    "request_", [{"stream": 1}, {"dl_device": (2, 0)}, {"dl_device": (1, 1)}], ids=str
)
def test_what_host_memory_has_not_is_refused(
    arena: PinnedArena, request_: dict[str, object]
) -> None:
    block = arena.alloc(64)
    with pytest.raises(CannotExport, match=next(iter(request_))) as caught:
        block.__dlpack__(**request_)  # type: ignore[arg-type]
    assert isinstance(caught.value, BufferError)


@pytest.mark.parametrize(
    "duplicate", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda each: each.__qualname__
)
def test_a_block_is_neither_pickled_nor_copied(arena: PinnedArena, duplicate: View) -> None:
    block = arena.alloc(64)
    with pytest.raises(NotCopyable, match=r"bytes\(block\)") as caught:
        duplicate(block)
    assert isinstance(caught.value, TypeError)
    assert arena.stats().blocks == 1


def test_two_blocks_of_equal_bytes_are_two_blocks(arena: PinnedArena) -> None:
    first, second = arena.alloc(64), arena.alloc(64)
    assert len({first, second, first}) == 2
    assert first != second
    before = hash(first)
    first.free()
    assert hash(first) == before


def test_a_weak_reference_tells_when_a_block_dies(arena: PinnedArena) -> None:
    block = arena.alloc(64)
    died: list[object] = []
    reference = weakref.ref(block, died.append)
    assert reference() is block
    del block
    assert reference() is None
    assert died == [reference]


@pytest.mark.parametrize("arguments", [(), (1,), (None,), ("block", 2)], ids=str)
def test_a_block_is_made_of_a_native_block_alone(arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        PinnedBlock(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        ((1, 64, 512), TypeError),
        (("arena", "64", 512), TypeError),
        ((None, 1, 1), TypeError),
        (("arena", -1, 512), OverflowError),
        (("arena", 64, 3), InvalidArgument),
        (("arena", 2**63, 512), None),
    ],
    ids=str,
)
def test_a_block_made_in_the_core_is_asked_for_with_sound_arguments(
    arena: PinnedArena, arguments: tuple[object, ...], error: type[Exception] | None
) -> None:
    given = [arena.native if each == "arena" else each for each in arguments]
    if error is None:
        assert PinnedBlock.try_allocate(*given) is None  # type: ignore[arg-type]
    else:
        with pytest.raises(error, match=r"\w"):
            PinnedBlock.try_allocate(*given)  # type: ignore[arg-type]
    assert arena.stats().blocks == 0


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("dl_device", 5),
        ("dl_device", "ab"),
        ("dl_device", (1,)),
        ("max_version", "x"),
        ("max_version", 1),
        ("max_version", (1, "0")),
        ("max_version", (2**70, 0)),
        ("copy", "x"),
        ("copy", 1),
    ],
)
def test_an_odd_wish_of_a_consumer_is_answered_as_the_protocol_says(
    arena: PinnedArena, argument: str, value: object
) -> None:
    block = arena.alloc(64)
    with pytest.raises(CannotExport, match=argument) as caught:
        block.__dlpack__(**{argument: value})  # type: ignore[arg-type]
    assert isinstance(caught.value, BufferError)


def test_the_native_block_of_a_block_is_one_object(arena: PinnedArena) -> None:
    block = arena.alloc(64)
    native = block.native
    assert block.native is native
    del block
    assert arena.stats().blocks == 1, "the native block holds the range too"
    assert native.nbytes == 64


def test_a_block_in_a_cycle_is_collected(arena: PinnedArena) -> None:
    holder: list[object] = [arena.alloc(64)]
    holder.append(holder)
    del holder
    gc.collect()
    assert arena.stats().blocks == 0


@pytest.mark.slow
@pytest.mark.skipif(
    available_host_bytes().available_bytes < 8 * GIB, reason="needs 8 GiB of available memory"
)
def test_every_view_reaches_beyond_4_gib() -> None:
    with PinnedArena("4.1GiB", device="cpu") as arena:
        block = arena.alloc(4 * GIB + 4096)
        last = block.nbytes - 1
        for mark, (name, view) in enumerate(VIEWS.items(), start=1):
            seen = view(block)
            assert len(seen) == block.nbytes, name  # type: ignore[arg-type]
            seen[last] = mark  # type: ignore[index]
            assert block.numpy()[last] == mark, name
            assert block.numpy()[last - 4 * GIB] == 0, name
            del seen
        assert np.asarray(Interface(block))[last] == len(VIEWS)
        del block
