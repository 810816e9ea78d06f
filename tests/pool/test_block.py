"""One block: its views, its errors and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from pinferry.errors import BlockFreed, InvalidArgument

if TYPE_CHECKING:
    from pinferry import PinnedArena

TORCH_DTYPES = [
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_a_tensor_of_a_block_has_the_dtype_and_everything(
    arena: PinnedArena, dtype: torch.dtype
) -> None:
    tensor = arena.alloc(96).tensor(dtype)
    assert tensor.dtype == dtype
    assert tensor.device.type == "cpu"
    assert tensor.shape == (96 // dtype.itemsize,)


@pytest.mark.parametrize("dtype", ["u1", "<i2", ">f4", "f8", "c16", "?", "M8[ns]"])
def test_an_array_of_a_block_has_the_dtype_and_everything(arena: PinnedArena, dtype: str) -> None:
    array = arena.alloc(96).numpy(dtype)
    assert array.dtype == np.dtype(dtype)
    assert array.shape == (96 // np.dtype(dtype).itemsize,)
    assert array.flags.writeable


@pytest.mark.parametrize("shape", [(), (0,), (6,), (2, 3), (3, 0, 5), (24,), (4, 6), 5, [2, 2]])
def test_a_shape_takes_the_first_elements(
    arena: PinnedArena, shape: int | tuple[int, ...] | list[int]
) -> None:
    block = arena.alloc(96)
    block.numpy(np.float32)[:] = np.arange(24)
    tensor = block.tensor(torch.float32, shape)
    array = block.numpy(np.float32, shape)
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    assert tensor.shape == array.shape == wanted
    assert tensor.flatten().tolist() == array.ravel().tolist() == list(range(array.size))


def test_tensor_array_and_address_are_the_same_memory(arena: PinnedArena) -> None:
    block = arena.alloc(1000)
    tensor, array = block.tensor(), block.numpy()
    tensor.fill_(3)
    assert (array == 3).all()
    array[7] = 9
    assert tensor[7] == 9
    assert tensor.data_ptr() == array.ctypes.data == block.address
    assert block.address % 512 == block.offset % 512 == 0


def test_a_block_offers_the_buffer_protocol(arena: PinnedArena) -> None:
    block = arena.alloc(64)
    memory = block.memoryview()
    assert (memory.nbytes, memory.readonly) == (64, False)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float32", None),
        ("float32", (25,)),
        ("float32", (-1,)),
        ("float32", (-1, -1)),
        ("uint8", (2**40, 2**40)),
    ],
)
def test_a_view_that_does_not_fit_is_refused(
    arena: PinnedArena, dtype: str, shape: tuple[int, ...] | None
) -> None:
    block = arena.alloc(99)
    with pytest.raises(InvalidArgument):
        block.numpy(dtype, shape)
    with pytest.raises(InvalidArgument):
        block.tensor(getattr(torch, dtype), shape)


@pytest.mark.parametrize("dtype", ["U", "S", "V0", object], ids=str)
def test_a_numpy_dtype_that_memory_cannot_hold_is_refused(
    arena: PinnedArena, dtype: str | type
) -> None:
    with pytest.raises((InvalidArgument, TypeError)):
        arena.alloc(64).numpy(dtype)


def test_a_block_of_zero_bytes_gives_empty_views(arena: PinnedArena) -> None:
    block = arena.alloc(0)
    assert block.nbytes == 0
    assert block.tensor(torch.float64).shape == (0,)
    assert block.numpy(np.float64, (0, 5)).shape == (0, 5)
    assert arena.stats().used_bytes == 0
    assert arena.stats().blocks == 1
    block.free()
    assert arena.stats().blocks == 0


def test_freeing_twice_is_an_error(arena: PinnedArena) -> None:
    block = arena.alloc(64)
    block.free()
    with pytest.raises(BlockFreed):
        block.free()
    assert arena.stats().used_bytes == 0


def test_every_use_after_free_is_an_error(arena: PinnedArena) -> None:
    block = arena.alloc(64)
    block.free()
    for use in (
        lambda: block.nbytes,
        lambda: block.offset,
        lambda: block.address,
        lambda: block.native,
        block.tensor,
        block.numpy,
    ):
        with pytest.raises(BlockFreed):
            use()
    assert "freed" in repr(block)


def test_with_frees_the_block_and_tolerates_a_free_in_the_body(arena: PinnedArena) -> None:
    with arena.alloc(64) as block:
        assert "64 bytes" in repr(block)
    with pytest.raises(BlockFreed):
        block.free()
    with arena.alloc(64) as block:
        block.free()
    assert arena.stats().blocks == 0


def test_with_frees_the_block_and_lets_an_error_through(arena: PinnedArena) -> None:
    with pytest.raises(KeyError, match="body"), arena.alloc(64):
        raise KeyError("body")
    assert arena.stats().blocks == 0
