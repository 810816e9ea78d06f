"""Tensor subclasses that wrap others, with and without saying what they wrap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Opaque", "Pair"]


class Opaque(torch.Tensor):
    """Wraps a tensor and keeps it to itself."""

    left: torch.Tensor

    def __new__(cls, left: torch.Tensor, *_: torch.Tensor) -> Opaque:  # noqa: PYI034
        made: Opaque = torch.Tensor._make_wrapper_subclass(
            cls, left.shape, dtype=left.dtype, device=left.device
        )
        made.left = left
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # Tensor's own says nothing of `func`
        cls,
        func: Callable[..., object],
        _types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        args, kwargs = tree_map_only(Opaque, lambda each: each.left, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class Pair(Opaque):
    """Wraps two tensors and is traceable; operations see the left one."""

    right: torch.Tensor

    def __init__(self, _left: torch.Tensor, right: torch.Tensor) -> None:
        self.right = right

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["left", "right"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], _context: None, _size: object, _stride: object
    ) -> Pair:
        return Pair(inner["left"], inner["right"])
