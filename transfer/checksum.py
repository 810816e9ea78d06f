"""Checksums of memory, the same on every device."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["checksums", "memory_at"]

_WORD = 4
# Words at a time: a sum needs 16 MiB besides the memory itself.
_WORDS = 2**20
# An odd number, so that no word of an earlier part is lost when sums are joined.
_JOIN = 0x9E3779B97F4A7C15 - 2**64


def checksums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a number for the bytes of each tensor, queued on the current stream.

    Each word of four bytes counts times an odd factor of 64 bits of its place, modulo 2^64: a
    change of one word never goes unseen, and two words that changed places, or several changes at
    once, only by a rare chance. It is no protection against who means harm.

    Parameters
    ----------
    tensors
        ``uint8`` of one dimension, on one device, each at an address divisible by four.

    Returns
    -------
    torch.Tensor
        ``int64``, one for each tensor, on their device.

    Examples
    --------
    >>> import torch
    >>> a, b = checksums([torch.arange(20).byte(), torch.arange(20).byte().roll(1)])
    >>> bool(a == b)
    False
    """
    device = tensors[0].device
    factors = _factors(str(device))
    sums = torch.zeros(len(tensors), dtype=torch.int64, device=device)
    for index, tensor in enumerate(tensors):
        whole = len(tensor) // _WORD * _WORD
        parts = list(torch.split(tensor[:whole].view(torch.int32), _WORDS)) if whole else []
        if whole < len(tensor):
            tail = torch.zeros(_WORD, dtype=torch.uint8, device=device)
            tail[: len(tensor) - whole] = tensor[whole:]
            parts.append(tail.view(torch.int32))
        for part in parts:
            sums[index].mul_(_JOIN).add_((part * factors[: len(part)]).sum())
    return sums


def memory_at(device: torch.device, address: int, nbytes: int) -> torch.Tensor:
    """Return bytes of memory as a tensor that does not own them.

    Parameters
    ----------
    device
        Where the memory is. Pinned memory of the host is the CPU's.
    address
        Of the first byte.
    nbytes
        How many. Of none, the address means nothing.
    """
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8, device=device)
    if device.type == "cpu":
        buffer = (ctypes.c_uint8 * nbytes).from_address(address)
        return torch.frombuffer(buffer, dtype=torch.uint8)
    return torch.as_tensor(_Interface(address, nbytes), device=device)


class _Interface:
    """Memory of a GPU in the form that libraries take from each other."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,  # without a stream: the caller orders
        }


@lru_cache(maxsize=8)
def _factors(device: str) -> torch.Tensor:
    """Return an odd factor for each place of a part; the same on every device."""
    generator = torch.Generator("cpu").manual_seed(1)
    span = (-(2**63), 2**63 - 1)
    drawn = torch.randint(*span, (_WORDS,), generator=generator, dtype=torch.int64, device="cpu")
    return (drawn | 1).to(device)
