"""The arena as CuPy's pinned allocator: with a stand-in for CuPy, and with CuPy on a GPU."""

from __future__ import annotations

import ctypes
import gc
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pytest

from pinferry import PinnedArena
from pinferry.errors import ArenaClosed, ArenaExhausted, InvalidSize, PackageMissing

if TYPE_CHECKING:
    from collections.abc import Iterator


class Memory(Protocol):
    """What CuPy asks of the memory under a pointer."""

    ptr: int
    size: int


class PinnedMemoryPointer:
    """CuPy's pointer, as far as an allocator sees it."""

    def __init__(self, mem: Memory, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset

    def size(self) -> int:
        return self.mem.size - (self.ptr - self.mem.ptr)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a module with nothing but the pointer in CuPy's place."""
    package, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cuda.PinnedMemoryPointer = PinnedMemoryPointer  # type: ignore[attr-defined]
    package.cuda = cuda  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", package)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)


@pytest.mark.usefixtures("stand_in")
def test_a_pointer_is_to_a_block_of_the_arena(arena: PinnedArena) -> None:
    pointer = arena.cupy_allocator(1000)
    assert isinstance(pointer, PinnedMemoryPointer)
    assert pointer.size() == pointer.mem.size == 1000
    assert pointer.ptr == pointer.mem.ptr == int(pointer.mem)  # type: ignore[call-overload]
    assert arena.stats().used_bytes == 1024
    behind = arena.alloc(512)
    assert pointer.ptr == behind.address - behind.offset


@pytest.mark.usefixtures("stand_in")
def test_the_memory_comes_back_when_the_pointer_is_dropped(arena: PinnedArena) -> None:
    allocate = arena.cupy_allocator
    first, second = allocate(2**19), allocate(2**19)
    del first
    assert arena.stats().used_bytes == 2**19
    memory = second.mem
    del second
    assert arena.stats().used_bytes == 2**19
    del memory
    assert arena.stats().used_bytes == 0


@pytest.mark.usefixtures("stand_in")
def test_a_pointer_keeps_the_memory_when_the_arena_is_gone(torch_device: str) -> None:
    arena = PinnedArena("1MiB", device=torch_device)
    pointer = arena.cupy_allocator(2**20)
    arena.close(force=True)
    del arena
    shown = (ctypes.c_uint8 * 2**20).from_address(pointer.ptr)
    ctypes.memset(pointer.ptr, 7, 2**20)
    with PinnedArena("1MiB", device=torch_device) as other:
        other.alloc("1MiB").tensor().fill_(0xEE)
    assert bytes(shown) == b"\7" * 2**20


@pytest.mark.usefixtures("stand_in")
def test_memory_is_told_apart_by_identity_as_the_pool_of_cupy_needs_it(arena: PinnedArena) -> None:
    allocate = arena.cupy_allocator
    in_use = {allocate(512).mem for _ in range(3)}
    assert len(in_use) == 3
    in_use.remove(next(iter(in_use)))
    assert arena.stats().blocks == 2


@pytest.mark.usefixtures("stand_in")
def test_an_arena_that_is_full_says_so(arena: PinnedArena) -> None:
    kept = arena.cupy_allocator(2**20)
    with pytest.raises(ArenaExhausted):
        arena.cupy_allocator(1)
    assert kept.size() == 2**20


@pytest.mark.usefixtures("stand_in")
def test_an_arena_that_is_closed_says_so(arena: PinnedArena) -> None:
    allocate = arena.cupy_allocator
    arena.close()
    with pytest.raises(ArenaClosed):
        allocate(1)


@pytest.mark.usefixtures("stand_in")
def test_sizes_of_zero_and_below_are_handled(arena: PinnedArena) -> None:
    assert arena.cupy_allocator(0).size() == 0
    with pytest.raises(InvalidSize):
        arena.cupy_allocator(-1)
    assert arena.stats().used_bytes == 0


def test_without_cupy_the_error_says_what_to_install(
    arena: PinnedArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    allocate = arena.cupy_allocator
    assert "1.00 MiB" in repr(allocate)
    with pytest.raises(PackageMissing, match="cupy-cuda12x or cupy-cuda13x") as caught:
        allocate(512)
    assert isinstance(caught.value, ImportError)
    assert arena.stats().allocations == 0


@pytest.fixture
def gpu_arena() -> Iterator[PinnedArena]:
    """Make an arena CuPy's allocator for one test. CuPy that is there must work."""
    if find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    import cupy

    arena = PinnedArena("64MiB", device="cuda:0")
    cupy.cuda.set_pinned_memory_allocator(arena.cupy_allocator)
    yield arena
    cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)
    cupy.cuda.Device(0).synchronize()
    # CuPy lets go of the memory of copies that have ended when it is asked for more.
    cupy.cuda.alloc_pinned_memory(512)
    gc.collect()
    arena.close()


@pytest.mark.gpu
def test_cupy_copies_through_the_arena(gpu_arena: PinnedArena) -> None:
    import cupy

    before = gpu_arena.stats().allocations
    source = np.random.default_rng(0).random(2**20)
    there = cupy.asarray([source, source])  # several arrays: through a pinned buffer
    assert gpu_arena.stats().allocations > before
    assert (cupy.asnumpy(there) == np.stack([source, source])).all()


@pytest.mark.gpu
def test_a_pinned_array_of_cupy_lies_in_the_arena(gpu_arena: PinnedArena) -> None:
    import cupy
    import cupyx

    array = cupyx.empty_pinned((1000, 1000), np.float32)
    base = gpu_arena.alloc(0).address
    assert gpu_arena.stats().used_bytes == 4_000_256
    array[:] = 3
    with cupy.cuda.Stream(non_blocking=True) as stream:
        there = cupy.empty_like(array)
        there.set(array, stream=stream)
        back = there.get(stream=stream)
        stream.synchronize()
    assert (back == 3).all()
    assert abs(array.ctypes.data - base) < 2**26
    assert cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data).type == 1  # the host's
    view = array[5:]
    del array
    assert (view == 3).all()
    assert gpu_arena.stats().used_bytes == 4_000_256
    del view
    cupy.cuda.alloc_pinned_memory(0)  # CuPy lets go of what its copies used when it is asked
    assert gpu_arena.stats().used_bytes == 0


@pytest.mark.gpu
def test_cupy_passes_on_that_the_arena_is_full(gpu_arena: PinnedArena) -> None:
    import cupy

    with pytest.raises(ArenaExhausted):
        cupy.cuda.alloc_pinned_memory(2**26 + 1)


@pytest.mark.gpu
def test_the_pool_of_cupy_can_stand_on_the_arena(gpu_arena: PinnedArena) -> None:
    import cupy

    pool = cupy.cuda.PinnedMemoryPool(gpu_arena.cupy_allocator)
    first = pool.malloc(1000)
    address = first.ptr
    del first
    assert pool.n_free_blocks() == 1
    assert gpu_arena.stats().blocks == 1
    assert pool.malloc(1000).ptr == address
    pool.free_all_blocks()
    assert gpu_arena.stats().blocks == 0
