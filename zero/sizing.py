"""How much host memory an engine's state takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinferry.deepspeed.wrappers import basic_optimizer
from pinferry.pool import PinnedArena
from pinferry.states.categories import Category
from pinferry.transfer import storage_key

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

    from pinferry.states.discovery import Survey

__all__ = ["arena_for", "room_for"]

_ALIGNMENT = 512
_STATES_PER_WEIGHT = 2  # Adam's, which most train with


def arena_for(engine: DeepSpeedEngine, found: Survey, device: str) -> PinnedArena:
    """Make an arena for all state of `engine`; it grows to twice that when it must."""
    room = max(room_for(engine, found), 1 << 20)
    return PinnedArena(room, device=device, max_capacity=2 * room)


def room_for(engine: DeepSpeedEngine, found: Survey) -> int:
    """Return the bytes of the state that is kept, with what an optimizer makes at its first step.

    That is taken to be two tensors for each master weight: right for Adam, more than enough for
    others.
    """
    kept = found.states.where(lambda entry: storage_key(entry.storage) not in found.scratch)
    room = sum(-entry.nbytes // _ALIGNMENT * -_ALIGNMENT for entry in kept)
    if basic_optimizer(engine.optimizer) is not None and not kept.nbytes(Category.OPTIM_STATES):
        stepped_on = kept.nbytes(Category.HP_PARAMS) or kept.nbytes(Category.LP_PARAMS)
        room += _STATES_PER_WEIGHT * (stepped_on + _ALIGNMENT * len(kept))
    return room
