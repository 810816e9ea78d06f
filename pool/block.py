"""One contiguous piece of an arena."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pinferry.errors import BlockFreed, InvalidArgument

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    import torch
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self

    from pinferry import _native

__all__ = ["PinnedBlock"]


class PinnedBlock:
    """A contiguous range of a `PinnedArena`, from `PinnedArena.alloc`.

    Its memory returns to the arena when the block and every view of it (`tensor`, `numpy`,
    `memoryview`) are gone, and a copy that still uses it is complete. `free` only lets go of the
    block's own hold. Views stay valid until they die, even if the block was freed or the arena
    closed.
    """

    __slots__ = ("__weakref__", "_native")

    def __init__(self, native: _native.Block) -> None:
        self._native: _native.Block | None = native

    @property
    def native(self) -> _native.Block:
        """The block of the core, for the transfer engine."""
        if self._native is None:
            raise BlockFreed("this block was freed; allocate a new one")
        return self._native

    @property
    def nbytes(self) -> int:
        """Size in bytes, as asked for."""
        return self.native.nbytes

    @property
    def offset(self) -> int:
        """Bytes from the start of the arena; a multiple of 512."""
        return self.native.offset

    @property
    def address(self) -> int:
        """Host address; a multiple of 512."""
        return self.native.address

    def free(self) -> None:
        """Let go of the memory.

        Raises
        ------
        BlockFreed
            If it was freed before.
        """
        if self._native is None:
            raise BlockFreed("this block was freed already; free it once")
        self._native = None

    def memoryview(self) -> memoryview:
        """Return the bytes as a flat buffer that keeps the block's memory."""
        return self._bytes().data

    def numpy(
        self, dtype: DTypeLike = np.uint8, shape: Sequence[int] | int | None = None
    ) -> NDArray[Any]:
        """Return the block as an array that shares its memory and keeps it alive.

        Parameters
        ----------
        dtype
            Element type; the block holds a whole number of them.
        shape
            Default: one dimension with everything. A smaller shape takes the first elements.

        Raises
        ------
        InvalidArgument
            If the block does not hold that.
        """
        kind = np.dtype(dtype)
        if kind.itemsize == 0 or kind.hasobject:
            raise InvalidArgument(f"elements of {kind} do not lie in memory; choose another type")
        flat = self._bytes()
        return (
            self._cut(flat, kind.itemsize, shape, str(kind))
            .view(kind)
            .reshape(-1 if shape is None else shape)
        )

    def tensor(
        self, dtype: torch.dtype | None = None, shape: Sequence[int] | int | None = None
    ) -> torch.Tensor:
        """Return the block as a CPU tensor that shares its memory and keeps it alive.

        Parameters
        ----------
        dtype
            Element type, default `torch.uint8`; the block holds a whole number of them.
        shape
            Default: one dimension with everything. A smaller shape takes the first elements.

        Raises
        ------
        InvalidArgument
            If the block does not hold that.
        """
        import torch

        kind = torch.uint8 if dtype is None else dtype
        flat = self._bytes()
        part = self._cut(flat, kind.itemsize, shape, str(kind))
        tensor = torch.from_numpy(part).view(kind)
        return tensor if shape is None else tensor.reshape(shape)

    def _bytes(self) -> NDArray[np.uint8]:
        native = self.native
        _ = (
            native.address
        )  # refuses in a forked child by name; memoryview hides that as BufferError
        return np.asarray(memoryview(native))

    def _cut(
        self, flat: NDArray[np.uint8], itemsize: int, shape: Sequence[int] | int | None, dtype: str
    ) -> NDArray[np.uint8]:
        """Return the bytes that `shape` elements take."""
        if shape is None:
            if self.nbytes % itemsize:
                raise InvalidArgument(
                    f"a block of {self.nbytes} bytes is no whole number of {dtype} "
                    f"({itemsize} bytes each); give a shape, or allocate a multiple"
                )
            return flat
        dimensions = tuple(shape) if isinstance(shape, Sequence) else (operator.index(shape),)
        wanted = math.prod(dimensions) * itemsize
        if min(dimensions, default=0) < 0 or wanted > self.nbytes:
            raise InvalidArgument(
                f"shape {dimensions} of {dtype} takes {wanted} bytes; the block has {self.nbytes}"
            )
        return flat[:wanted]

    def __enter__(self) -> Self:
        """Return the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the block unless the body did."""
        self._native = None

    def __repr__(self) -> str:
        """Say where it lies."""
        if self._native is None:
            return "<PinnedBlock freed>"
        return f"<PinnedBlock {self.nbytes} bytes at offset {self.offset}>"
