"""The engine that a holder of state moves it with."""

from __future__ import annotations

from pinferry.errors import InvalidArgument, WrongDevice
from pinferry.pool import PinnedArena
from pinferry.transfer import TransferEngine

__all__ = ["arena_on", "device_name", "engine_for"]


def arena_on(device: str, arena: PinnedArena | int | str | None, room: int) -> PinnedArena:
    """Return `arena`, or make one on `device`: of that size or, for None, of `room` bytes.

    The latter grows to twice that when it must.

    Raises
    ------
    WrongDevice
        If the arena serves another device.
    """
    if arena is None:
        room = max(room, 1 << 20)
        return PinnedArena(room, device=device, max_capacity=2 * room)
    if not isinstance(arena, PinnedArena):
        return PinnedArena(arena, device=device)
    serves = arena.device
    served = "cpu" if serves.kind == "cpu" else f"{serves.kind}:{serves.index}"
    if served != device:
        raise WrongDevice(
            f"the state is on {device}, and this arena serves {served}; make one with "
            f"device={device!r}, or leave arena out"
        )
    return arena


def engine_for(arena: PinnedArena | None) -> TransferEngine:
    """Return an engine on `arena`: one that holds bytes there, so that they can be brought back."""
    if arena is None:
        raise InvalidArgument("give an arena or an engine: where should the state go?")
    return TransferEngine.holding(arena) or TransferEngine(arena)


def device_name(engine: TransferEngine) -> str:
    """Return the name of its device, as PyTorch spells it."""
    device = engine.device
    return "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"
