"""What is on a device still, by name: the other half of a reclaim report."""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING

import torch

from pinferry.errors import UnsupportedStorage
from pinferry.transfer import inner_tensors, storage_key, storage_of
from pinferry.transfer.parked import is_away

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry import _native
    from pinferry.states.state_set import StateSet

__all__ = ["leftovers"]


def leftovers(device: _native.Device, resident: StateSet) -> dict[str, int]:
    """Return what holds device memory still, by name, in bytes; the largest first.

    Parameters
    ----------
    device
        Where to look.
    resident
        The state that is there, which goes by its names.

    Other tensors that Python knows go by dtype and shape. On CUDA, the rest of what PyTorch's
    allocator counts is the last entry.
    """
    stays = Counter({entry.name: entry.nbytes for entry in resident})
    seen = {storage_key(entry.storage) for entry in resident}
    for tensor, storage in _tensors_on(torch.device(device.kind, max(device.index, 0))):
        key = storage_key(storage)
        if key not in seen and storage.nbytes() and not is_away(storage):
            seen.add(key)
            stays[f"{tensor.dtype} {tuple(tensor.shape)}"] += storage.nbytes()
    listed = dict(stays.most_common())
    if device.kind == "cuda":
        rest = torch.cuda.memory_allocated(device.index) - sum(listed.values())
        if rest > 0:
            listed["memory that no tensor in Python holds"] = rest
    return listed


def _tensors_on(device: torch.device) -> Iterator[tuple[torch.Tensor, torch.UntypedStorage]]:
    for candidate in gc.get_objects():
        # Not isinstance(): it asks proxies, which may do anything.
        if not issubclass(type(candidate), torch.Tensor):
            continue
        try:
            for _, tensor in inner_tensors("", candidate):
                storage = storage_of("", tensor)
                if storage.device.type == device.type and storage.device.index in (
                    None,
                    device.index,
                ):
                    yield tensor, storage
        except (UnsupportedStorage, RuntimeError):
            continue  # meta, sparse, functional, or dead already: no memory to name
