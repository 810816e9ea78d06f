"""One contiguous piece of an arena."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pinferry import _native
from pinferry.errors import InvalidArgument, NotCopyable
from pinferry.pool.dlpack import CPU, export

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, NoReturn

    import torch
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import CapsuleType, Self

__all__ = ["PinnedBlock"]


class PinnedBlock(_native.BlockHandle):
    """A contiguous range of a `PinnedArena`, from `PinnedArena.alloc`.

    Its memory returns to the arena when the block and every view of it are gone, and a copy that
    still uses it is complete. `free` only lets go of the block's own hold. Views stay valid until
    they die, even if the block was freed or the arena closed.

    Views are what `tensor`, `numpy` and `memoryview` return, and whatever else is made through the
    buffer protocol (``np.frombuffer(block)``, ``file.readinto(block)``) or DLPack
    (``torch.from_dlpack(block)``): writable bytes in one dimension. After `free`, each of them
    raises `BlockFreed`; in a forked child, `ForkedProcess`.

    Notes
    -----
    Who reads `__array_interface__` gets an address, and keeps nothing but this object alive. From
    then on the object itself holds the memory until it is collected, even after `free`.

    Examples
    --------
    >>> from pinferry import PinnedArena
    >>> arena = PinnedArena("1MiB", device="cpu")
    >>> block = arena.alloc(4)
    >>> memoryview(block)[:] = b"abcd"
    >>> view = np.from_dlpack(block)
    >>> block.free()
    >>> view.tobytes()
    b'abcd'
    """

    __slots__ = ()

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

    def memoryview(self) -> memoryview:
        """Return the bytes as a flat buffer that keeps the block's memory."""
        return memoryview(self)

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
        try:
            kind = np.dtype(dtype)
        except TypeError:
            raise InvalidArgument(f"{dtype!r} is no dtype of NumPy") from None
        if kind.itemsize == 0 or kind.hasobject:
            raise InvalidArgument(f"elements of {kind} do not lie in memory; choose another type")
        flat = self._bytes()
        dimensions = _dimensions(shape)
        return (
            self._cut(flat, kind.itemsize, dimensions, str(kind))
            .view(kind)
            .reshape(-1 if dimensions is None else dimensions)
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
        if not isinstance(kind, torch.dtype):
            raise InvalidArgument(
                f"{dtype!r} is no dtype of PyTorch; give one such as torch.float32"
            )
        flat = self._bytes()
        dimensions = _dimensions(shape)
        part = self._cut(flat, kind.itemsize, dimensions, str(kind))
        tensor = torch.from_numpy(part).view(kind)
        return tensor if dimensions is None else tensor.reshape(dimensions)

    @property
    def __array_interface__(self) -> dict[str, object]:
        """NumPy's array interface, version 3: bytes in one dimension."""
        native = self.native
        address = native.address
        self.keep_until_collected()
        return {
            "version": 3,
            "typestr": "|u1",
            "shape": (native.nbytes,),
            "data": (address, False),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return ``(kDLCPU, 0)``."""
        return CPU

    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Return a DLPack capsule of the bytes, which shares the memory and keeps it alive.

        Parameters are those of the array API standard. Nothing is waited for: order the copies
        that use the block first.

        Raises
        ------
        CannotExport
            If a stream, or a device other than the CPU, is asked for.
        """
        return export(
            self._bytes(), stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def _bytes(self) -> NDArray[np.uint8]:
        return np.asarray(memoryview(self))

    def _cut(
        self, flat: NDArray[np.uint8], itemsize: int, shape: tuple[int, ...] | None, dtype: str
    ) -> NDArray[np.uint8]:
        """Return the bytes that `shape` elements take."""
        if shape is None:
            if self.nbytes % itemsize:
                raise InvalidArgument(
                    f"a block of {self.nbytes} bytes is no whole number of {dtype} "
                    f"({itemsize} bytes each); give a shape, or allocate a multiple"
                )
            return flat
        wanted = math.prod(shape) * itemsize
        # Beside a dimension of 0 another one may still be more than anything can index.
        if min(shape, default=0) < 0 or max(shape, default=0) > _MOST or wanted > self.nbytes:
            raise InvalidArgument(
                f"shape {shape} of {dtype} takes {wanted} bytes; the block has {self.nbytes}"
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
        if not self.freed:
            self.free()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise NotCopyable(
            "a PinnedBlock stands for memory of this process and is neither pickled nor copied; "
            "take the bytes: bytes(block), block.numpy().copy() or block.tensor().clone()"
        )

    def __repr__(self) -> str:
        """Say where it lies."""
        if self.freed:
            return "<PinnedBlock freed>"
        return f"<PinnedBlock {self.nbytes} bytes at offset {self.offset}>"


_MOST = 2**47  # elements that a process can address


def _dimensions(shape: object) -> tuple[int, ...] | None:
    """Return a shape as integers, or None for everything."""
    if shape is None:
        return None
    try:
        if isinstance(shape, Iterable) and not isinstance(shape, str | bytes):
            return tuple(operator.index(each) for each in shape)
        return (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{shape!r} is no shape; give integers") from None
