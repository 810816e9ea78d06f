"""Every way to see a block's bytes, as functions from a block to what shares its memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

if TYPE_CHECKING:
    from pinferry import PinnedBlock

View = Callable[["PinnedBlock"], object]


def _numpy_from_dlpack(block: PinnedBlock) -> object:
    return np.from_dlpack(block)


def _numpy_from_buffer(block: PinnedBlock) -> object:
    # NumPy's stubs know only the buffers of the standard library.
    return np.frombuffer(block, np.uint8)  # type: ignore[call-overload]


def _torch_from_buffer(block: PinnedBlock) -> object:
    # A buffer of no bytes is refused by PyTorch itself.
    return torch.frombuffer(block, dtype=torch.uint8) if block.nbytes else block.tensor()


def _ctypes_array(block: PinnedBlock) -> object:
    return (ctypes.c_uint8 * block.nbytes).from_buffer(block)


VIEWS: dict[str, View] = {
    "memoryview": memoryview,
    "block.memoryview": lambda block: block.memoryview(),
    "block.numpy": lambda block: block.numpy(),
    "block.tensor": lambda block: block.tensor(),
    "np.frombuffer": _numpy_from_buffer,
    "np.asarray": np.asarray,
    "np.from_dlpack": _numpy_from_dlpack,
    "torch.from_dlpack": from_dlpack,
    "torch.frombuffer": _torch_from_buffer,
    "ctypes": _ctypes_array,
}


def content(view: object) -> bytes:
    """Return the bytes that a view shows."""
    return bytes(view.numpy() if isinstance(view, torch.Tensor) else view)  # type: ignore[call-overload, no-any-return]


def write(view: object, data: bytes) -> None:
    """Put `data` where a view points."""
    memoryview(view.numpy() if isinstance(view, torch.Tensor) else view).cast("B")[:] = data  # type: ignore[arg-type]
