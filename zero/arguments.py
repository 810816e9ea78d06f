"""The arguments of DeepSpeed's ``offload_states``, checked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pinferry.deepspeed.versions import require
from pinferry.errors import InvalidArgument, StaticOffload
from pinferry.states.categories import Category, parse_include

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

    from pinferry.states.categories import Include

__all__ = ["ALL", "categories_to_offload", "goes_to_host", "parse_categories"]

_log = logging.getLogger("pinferry")

#: What ``include=None`` means.
ALL = tuple(Category)


def parse_categories(include: Include) -> frozenset[Category]:
    """Return the categories that `include` names, as DeepSpeed's enum or as text; None names all.

    Raises
    ------
    UnknownCategory
        If a name is none of them.
    """
    return parse_include(include, ALL)


def goes_to_host(device: object) -> bool:
    """Return whether states are to move at all: not to the device ``none``, as in DeepSpeed.

    Raises
    ------
    InvalidArgument
        If it is a device other than the host.
    """
    name = getattr(device, "value", device)  # DeepSpeed's enum, torch.device or text
    if str(name) == "none":
        _log.warning("offload_states(device='none') moves nothing; leave device out, or give 'cpu'")
        return False
    if str(name) != "cpu":
        raise InvalidArgument(
            f"states cannot be offloaded to {str(name)!r}; the host is 'cpu'. Nothing was moved"
        )
    return True


def categories_to_offload(engine: DeepSpeedEngine, include: Include) -> frozenset[Category]:
    """Return the categories to move off the device: without those that live on the host for good.

    Raises
    ------
    StaticOffload
        If parameters do, or if `include` names a category that does.
    UnknownCategory
        If `include` names one that does not exist.
    """
    categories = parse_categories(include)
    require_device_parameters(engine)
    static = _held_by_the_host(engine)
    if include is not None and categories & static:
        raise StaticOffload(
            f"this engine keeps {', '.join(sorted(categories & static))} on the host already "
            "(zero_optimization.offload_optimizer), and there is nothing to offload; leave it out "
            "of include. Nothing was moved"
        )
    return categories - static


def require_device_parameters(engine: DeepSpeedEngine) -> None:
    """Raise `StaticOffload` for an engine that keeps its parameters on the host."""
    if _is_static(require(engine, "zero_offload_param")()):  # type: ignore[operator]
        raise StaticOffload(
            "this engine keeps its parameters on the host already "
            "(zero_optimization.offload_param), and fetches them by itself; take that out of its "
            "configuration to move states by phase. Nothing was moved"
        )


def _held_by_the_host(engine: DeepSpeedEngine) -> frozenset[Category]:
    if not require(engine, "zero_use_cpu_optimizer")():  # type: ignore[operator]
        return frozenset()
    held = {Category.HP_PARAMS, Category.OPTIM_STATES}
    if require(engine, "zero_optimization_partition_weights")():  # type: ignore[operator]
        held.add(Category.LP_GRADS)
    return frozenset(held)


def _is_static(configuration: object) -> bool:
    device = getattr(configuration, "device", None)
    return str(getattr(device, "value", device)) not in ("None", "none")
