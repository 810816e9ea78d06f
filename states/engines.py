"""The engine that a holder of state moves it with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.errors import InvalidArgument
from pinferry.transfer import TransferEngine

if TYPE_CHECKING:
    from pinferry.pool import PinnedArena

__all__ = ["device_name", "engine_for"]


def engine_for(arena: PinnedArena | None) -> TransferEngine:
    """Return an engine on `arena`: one that holds bytes there, so that they can be brought back."""
    if arena is None:
        raise InvalidArgument("give an arena or an engine: where should the state go?")
    return TransferEngine.holding(arena) or TransferEngine(arena)


def device_name(engine: TransferEngine) -> str:
    """Return the name of its device, as PyTorch spells it."""
    device = engine.device
    return "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"
