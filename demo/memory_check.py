"""Whether a model's training state fits, asked before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pinferry.errors import InvalidArgument
from pinferry.pool import format_bytes
from pinferry.pool.host_memory import available_host_bytes

if TYPE_CHECKING:
    from pinferry.demo.options import Settings
    from pinferry.demo.shape import ModelShape

__all__ = ["require_memory"]

# fp32 weights, gradients and the two moments of AdamW; on a GPU also weights cast to bf16.
_STATE_BYTES_PER_PARAMETER = 16
_CAST_BYTES_PER_PARAMETER = 2


def require_memory(settings: Settings, shape: ModelShape) -> None:
    """Refuse a model whose state fits neither the device nor the host, before anything is built.

    Raises
    ------
    InvalidArgument
        With the bytes that are needed and the bytes that are there.
    """
    on_device = _STATE_BYTES_PER_PARAMETER
    in_arena = _STATE_BYTES_PER_PARAMETER
    free_on_host = available_host_bytes().available_bytes
    if settings.on_cuda:
        free_on_device, _ = torch.cuda.mem_get_info(settings.device)
        on_device += _CAST_BYTES_PER_PARAMETER
        _require_room(settings.device, shape.parameters, on_device, free_on_device)
        _require_room("the host", shape.parameters, in_arena, free_on_host)
    else:
        _require_room("the host", shape.parameters, on_device + in_arena, free_on_host)


def _require_room(place: str, params: int, bytes_per_parameter: int, free_bytes: int) -> None:
    needed_bytes = params * bytes_per_parameter
    if needed_bytes > free_bytes:
        # A tenth is left for activations and everybody else.
        fitting = free_bytes * 9 // 10 // bytes_per_parameter
        raise InvalidArgument(
            f"the training state of {params} parameters takes {format_bytes(needed_bytes)} and "
            f"{place} has {format_bytes(free_bytes)} free; pass params={fitting} or fewer",
            requested=needed_bytes,
            available=free_bytes,
        )
