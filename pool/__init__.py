"""Where bytes live on the host: the pinned arena and its blocks."""

from __future__ import annotations

from pinferry.pool.arena import PinnedArena
from pinferry.pool.block import PinnedBlock
from pinferry.pool.device import default_device, open_device
from pinferry.pool.sizes import format_bytes, parse_size
from pinferry.pool.stats import ArenaStats

__all__ = [
    "ArenaStats",
    "PinnedArena",
    "PinnedBlock",
    "default_device",
    "format_bytes",
    "open_device",
    "parse_size",
]
