"""Pinned memory of an arena for CuPy's own transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.errors import PackageMissing

if TYPE_CHECKING:
    import cupy

    from pinferry.pool.arena import PinnedArena
    from pinferry.pool.block import PinnedBlock

__all__ = ["CupyAllocator", "CupyMemory"]


class CupyMemory:
    """What `cupy.cuda.PinnedMemoryPointer` holds: a block, by the names that CuPy knows.

    Attributes
    ----------
    ptr
        Host address.
    size
        Bytes.
    """

    __slots__ = ("_block", "ptr", "size")

    def __init__(self, block: PinnedBlock) -> None:
        self._block = block
        self.ptr = block.address
        self.size = block.nbytes

    def __int__(self) -> int:
        """Return the address."""
        return self.ptr


class CupyAllocator:
    """Deals out an arena to CuPy; see `PinnedArena.cupy_allocator`."""

    __slots__ = ("_arena",)

    def __init__(self, arena: PinnedArena) -> None:
        self._arena = arena

    def __call__(self, nbytes: int) -> cupy.cuda.PinnedMemoryPointer:
        """Return `nbytes` of the arena, which come back when CuPy drops the pointer.

        Raises
        ------
        PackageMissing
            If CuPy cannot be imported.
        ArenaExhausted, ArenaClosed
            As for `PinnedArena.alloc`; CuPy passes them on.
        """
        try:
            from cupy.cuda import PinnedMemoryPointer
        except ImportError as error:
            raise PackageMissing(
                f"CuPy cannot be imported ({error}); install cupy-cuda12x or cupy-cuda13x, "
                "whichever is the CUDA of your driver, or pinferry[cuda12] or pinferry[cuda13]"
            ) from error
        return PinnedMemoryPointer(CupyMemory(self._arena.alloc(nbytes)), 0)

    def __repr__(self) -> str:
        """Name the arena."""
        return f"<CupyAllocator of {self._arena!r}>"
