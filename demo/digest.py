"""A checksum of every tensor of training state, computed where the tensor lives."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["checksum", "digest_of", "state_digest"]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Bounds the temporaries at 256 MiB each, whatever the size of the model.
_PIECE = 1 << 25


def state_digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return a checksum for each parameter, gradient, buffer and tensor of the optimizer.

    Two digests are equal if every bit is: a change to a single element always shows.
    """
    return {name: f"{checksum(tensor):016x}" for name, tensor in _named_state(model, optimizer)}


def digest_of(checksums: dict[str, str]) -> str:
    """Return one digest for names and checksums, to show or to compare elsewhere."""
    return sha256(json.dumps(checksums).encode()).hexdigest()


@torch.no_grad()
def checksum(tensor: torch.Tensor) -> int:
    """Return the sum of the elements' bits, each times an odd number of its position, mod 2^64.

    Integers add up alike in any order, unlike floats; an odd factor maps no change to zero.
    """
    bits = tensor.detach().reshape(-1).view(_INTEGERS[tensor.element_size()])
    total = 0
    for start in range(0, bits.numel(), _PIECE):
        piece = bits[start : start + _PIECE].long()
        position = torch.arange(start, start + piece.numel(), device=bits.device)
        total += int((piece * (2 * position + 1)).sum().item())
    return total % 2**64


def _named_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        yield f"parameter {name}", parameter
        if parameter.grad is not None:
            yield f"gradient of {name}", parameter.grad
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                yield f"{key} of {name}", value
    for name, buffer in model.named_buffers():
        yield f"buffer {name}", buffer
