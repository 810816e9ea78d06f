"""Tensors of training state, by the sizes that real runs have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MIXED", "SMALL", "make_tensors"]

_LAYERS, _WIDTH, _HIDDEN, _KEYS = 16, 2048, 8192, 512
_FP32, _BF16 = 4, 2

#: Bytes of each of 2,672 storages, 104 MB: LoRA of rank 16 on seven projections of 16 layers with
#: two moments of Adam each, and 2,000 vectors such as norms and their moments, in fp32.
SMALL: tuple[int, ...] = (16 * _WIDTH * _FP32,) * (_LAYERS * 7 * 2 * 3) + (_WIDTH * _FP32,) * 2000

#: The same after the 144 weights of those layers in bf16: 2,816 storages, 2.05 GB.
MIXED: tuple[int, ...] = (
    tuple(
        numel * _BF16
        for _ in range(_LAYERS)
        for numel in (
            *(_WIDTH * _WIDTH,) * 2,  # queries and output
            *(_WIDTH * _KEYS,) * 2,  # keys and values, shared by four heads
            *(_WIDTH * _HIDDEN,) * 3,  # gate, up, down
            *(_WIDTH,) * 2,  # norms
        )
    )
    + SMALL
)


def make_tensors(sizes: Iterable[int], device: torch.device) -> dict[str, torch.Tensor]:
    """Return a tensor of random bytes for each size, by name."""
    return {
        f"state[{i}]": torch.empty(size, dtype=torch.uint8, device=device).random_()
        for i, size in enumerate(sizes)
    }
