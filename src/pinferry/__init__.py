"""Training state between GPUs and pinned host memory, at the speed of the link.

Names are imported when they are first used: the arena works without PyTorch, and ``pinferry
doctor`` starts where a native module is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinferry.errors import PinferryError
    from pinferry.loop import OffloadSchedule, StreamingOptimizer, offload_activations
    from pinferry.pool import ArenaStats, PinnedArena, PinnedBlock, default_device
    from pinferry.states import (
        Category,
        ReclaimReport,
        StateEntry,
        StateOffloader,
        StateSet,
        discover,
    )
    from pinferry.transfer import (
        Access,
        Release,
        Ticket,
        TransferEngine,
        TransferPlan,
        Verify,
        calibrate,
    )

__all__ = [
    "Access",
    "ArenaStats",
    "Category",
    "OffloadSchedule",
    "PinferryError",
    "PinnedArena",
    "PinnedBlock",
    "ReclaimReport",
    "Release",
    "StateEntry",
    "StateOffloader",
    "StateSet",
    "StreamingOptimizer",
    "Ticket",
    "TransferEngine",
    "TransferPlan",
    "Verify",
    "calibrate",
    "default_device",
    "discover",
    "offload_activations",
]

_ROOMS = {
    "errors": ("PinferryError",),
    "loop": ("OffloadSchedule", "StreamingOptimizer", "offload_activations"),
    "pool": ("ArenaStats", "PinnedArena", "PinnedBlock", "default_device"),
    "transfer": (
        "Access",
        "Release",
        "Ticket",
        "TransferEngine",
        "TransferPlan",
        "Verify",
        "calibrate",
    ),
    "states": (
        "Category",
        "ReclaimReport",
        "StateEntry",
        "StateOffloader",
        "StateSet",
        "discover",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the room of `name`."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'pinferry' has no attribute {name!r}")
    return getattr(import_module(f"pinferry.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted([*__all__, "__version__"])
