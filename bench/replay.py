"""Random cycles of offload and reload over a model's storages, played on the free list alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinferry import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinferry.bench.model_sizes import Storage

__all__ = ["Replay", "random_toggles", "replay"]

_ALIGNMENT = 512  # that of the arena's blocks


@dataclass(frozen=True, slots=True)
class Replay:
    """What one sequence of offloads and reloads came to.

    Attributes
    ----------
    peak_bytes
        The most that was away at one time.
    highest_end
        The highest end that one block for each storage reached in an arena without end, in bytes.
    requests
        Storages offloaded.
    failures
        Storages that found no room, in pieces, in an arena of exactly the peak's rounded bytes,
        although as many bytes were free.
    """

    peak_bytes: int
    highest_end: int
    requests: int
    failures: int

    @property
    def fragmentation(self) -> float:
        """Address space that blocks need, over the bytes asked for: 1 or more."""
        return self.highest_end / self.peak_bytes


def random_toggles(
    storages: Sequence[Storage], cycles: int, *, capacity: int, seed: int
) -> list[int]:
    """Return indices of storages in the order in which they go away or come back.

    A cycle offloads or reloads some categories, or some layers, drawn at random. Only what is on
    the device is offloaded and only what is away is reloaded, and a storage whose block would not
    fit into `capacity` bytes beside the others that are away stays.
    """
    chance = random.Random(seed)  # noqa: S311 -- nothing secret
    sizes = [_rounded(storage.nbytes) for storage in storages]
    groupings = [
        _group([storage.category for storage in storages]),
        _group([storage.layer for storage in storages]),
    ]
    away = [False] * len(storages)
    held = 0
    toggles: list[int] = []
    for _ in range(cycles):
        groups = chance.choice(groupings)
        offload = chance.random() < 0.5
        for group in chance.sample(groups, chance.randint(1, len(groups))):
            for index in group:
                if away[index] == offload or (offload and held + sizes[index] > capacity):
                    continue
                held += sizes[index] if offload else -sizes[index]
                away[index] = offload
                toggles.append(index)
    return toggles


def _group(keys: Sequence[object]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def replay(sizes: Sequence[int], toggles: Sequence[int]) -> Replay:
    """Play `toggles` as blocks in an arena without end, then as pieces in one of the peak's size.

    The arenas deal in offsets; no memory is touched.
    """
    endless = 64 * sum(map(_rounded, sizes))
    blocks = _native.replay_storages(
        _free_list(endless), sizes=sizes, toggles=toggles, extents=False
    )
    if blocks.failures:
        raise AssertionError("an arena of 64 times what there is was too small")
    exact = _free_list(blocks.peak_rounded_bytes)
    extents = _native.replay_storages(exact, sizes=sizes, toggles=toggles, extents=True)
    return Replay(blocks.peak_bytes, blocks.highest_end, extents.requests, extents.failures)


def _free_list(capacity: int) -> _native.FreeList:
    # One chunk, as an arena of less than 64 GiB is.
    return _native.FreeList(capacity=capacity, chunk=_rounded(capacity), alignment=_ALIGNMENT)
