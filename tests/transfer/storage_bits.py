"""Tensors compared by every byte of their storage, so that NaN payloads count too."""

from __future__ import annotations

import torch

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def storage_bits(tensor: torch.Tensor) -> bytes:
    """Return all bytes of the storage of `tensor`."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    everything = flat.set_(tensor.detach().untyped_storage())
    return everything.clone().cpu().numpy().tobytes()  # numpy() makes what it shares unresizable


def random_bits(dtype: torch.dtype, numel: int, device: str, *, seed: int = 0) -> torch.Tensor:
    """Return a tensor of random bit patterns: NaNs of all payloads, infinities, denormals."""
    generator = torch.Generator().manual_seed(seed)
    top = 2 if dtype == torch.bool else 256
    raw = torch.randint(top, (numel * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    # A clone of the view owns memory from the device's own allocator.
    return raw.view(dtype).clone().to(device)
