"""Putting an offloader in the place of DeepSpeed's own methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.hooks import RemovableHandle

from pinferry.deepspeed.arguments import require_device_parameters
from pinferry.deepspeed.devices import tell_devices
from pinferry.deepspeed.guards import install_guards
from pinferry.deepspeed.helpers import HELPERS
from pinferry.deepspeed.offloader import DeepSpeedOffloader
from pinferry.deepspeed.patching import Patches
from pinferry.deepspeed.sizing import arena_for
from pinferry.deepspeed.survey import survey
from pinferry.deepspeed.versions import installed
from pinferry.errors import InvalidArgument, WrongDevice
from pinferry.pool import PinnedArena

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

    from pinferry.states.discovery import Survey

__all__ = ["attach"]

_ATTACHED = "_pinferry_offloader"
_ON_ACCESS = ("raise", "reload")


def attach(
    engine: DeepSpeedEngine,
    arena: PinnedArena | int | str | None = None,
    *,
    on_access: str = "raise",
) -> DeepSpeedOffloader:
    """Have ``offload_states`` and ``reload_states`` of `engine`, and of its optimizer, go here.

    They keep their signatures and take DeepSpeed's enums or text; ``reload_states`` takes an
    `include` too. Works for every ZeRO stage, with any optimizer, before the first step, and for
    engines that only infer. ``engine.destroy()`` detaches first.

    Parameters
    ----------
    engine
        What ``deepspeed.initialize`` returned.
    arena
        Where the bytes go: a `PinnedArena` on the engine's device, or the bytes of one to make,
        such as ``"64GiB"``. Default: one that holds all state, with two tensors for each
        weight where the optimizer has not stepped yet; it grows where that is too little. One that
        was made here is closed by `DeepSpeedOffloader.detach`.
    on_access
        What forward, backward, step and checkpointing do while what they need is away: ``"raise"``
        a `StateOffloaded`, or ``"reload"`` it first.

    Raises
    ------
    InvalidArgument
        If this is no DeepSpeedEngine, is attached already, or has states offloaded by DeepSpeed.
    PackageMissing
        If DeepSpeed is not installed.
    StaticOffload
        If it keeps its parameters on the host for good.
    UnsupportedVersion
        If this version of DeepSpeed does not hold state where pinferry looks for it.
    HostMemoryLimit
        If the host lacks memory for the arena.
    WrongDevice
        If the arena serves another device.
    """
    _require_engine(engine)
    if on_access not in _ON_ACCESS:
        raise InvalidArgument(f"on_access={on_access!r}: there is 'raise' and 'reload'")
    device = str(engine.device) if engine.device.type == "cuda" else "cpu"
    found = survey(engine, device)  # tells whether this version is known, too
    room = _open_arena(engine, arena, found, device)
    patches, hooks = Patches(), list[RemovableHandle]()

    def undo() -> None:
        for hook in hooks:
            hook.remove()
        patches.restore()
        HELPERS.remove(offloader)
        engine.__dict__.pop(_ATTACHED, None)
        if room is not arena:
            room.close()

    offloader = DeepSpeedOffloader(engine, room, on_access=on_access, on_detach=undo)
    try:
        setattr(engine, _ATTACHED, offloader)
        HELPERS.add(offloader)
        for holder in (engine, engine.optimizer):
            if holder is not None:
                patches.method(holder, "offload_states", offloader.offload_states)
                patches.method(holder, "reload_states", offloader.reload_states)
        tell_devices(engine.optimizer, patches)
        patches.before(engine, "destroy", offloader.detach)
        hooks += install_guards(engine, patches, offloader.need)
    except BaseException:
        undo()
        raise
    return offloader


def _require_engine(engine: object) -> None:
    installed()
    from deepspeed import DeepSpeedEngine

    if not isinstance(engine, DeepSpeedEngine):
        raise InvalidArgument(
            f"a {type(engine).__name__} is no DeepSpeedEngine; give the first of what "
            "deepspeed.initialize() returns"
        )
    if hasattr(engine, _ATTACHED):
        raise InvalidArgument(
            "this engine is attached already; use that offloader, or detach() it first"
        )
    if getattr(engine, "is_deepcompile_enabled", bool)():
        raise InvalidArgument(
            "this engine runs under DeepCompile, which keeps state where nothing else can find it; "
            "take compile.deepcompile out of its configuration"
        )
    require_device_parameters(engine)
    if getattr(engine.optimizer, "offloaded_states", None):
        raise InvalidArgument(
            "states of this engine were offloaded by DeepSpeed itself, and only that can bring "
            "them back; call engine.reload_states() first, and then attach()"
        )


def _open_arena(
    engine: DeepSpeedEngine, arena: PinnedArena | int | str | None, found: Survey, device: str
) -> PinnedArena:
    if arena is None:
        return arena_for(engine, found, device)
    if not isinstance(arena, PinnedArena):
        return PinnedArena(arena, device=device)
    serves = arena.device
    served = "cpu" if serves.kind == "cpu" else f"cuda:{serves.index}"
    if served != device:
        raise WrongDevice(
            f"the engine is on {device}, and this arena serves {served}; make one with "
            f"device={device!r}, or leave arena out"
        )
    return arena
