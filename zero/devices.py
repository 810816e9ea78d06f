"""Where DeepSpeed believes the parts of a parameter to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pinferry.deepspeed.versions import require
from pinferry.transfer.parked import is_away

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinferry.deepspeed.patching import Patches

__all__ = ["tell_devices"]


def tell_devices(wrapper: object, patches: Patches) -> None:
    """Have stage 3's ``get_hp_param_device`` say ``cpu`` of what is away.

    A tensor whose memory is away keeps its device.
    """
    original = getattr(wrapper, "get_hp_param_device", None)
    if original is None:
        return
    partition_of: Callable[..., tuple[torch.Tensor, object]] = require(  # type: ignore[assignment]
        wrapper, "_get_fp32_opt_state_partition"
    )

    def get_hp_param_device(
        param: torch.Tensor, optim_state_key: str | None = None
    ) -> torch.device | None:
        device: torch.device | None = original(param, optim_state_key)
        if device is None:  # a parameter that nothing steps on
            return None
        part, _ = partition_of(param, release_swap_buffers=True, optim_state_key=optim_state_key)
        return torch.device("cpu") if is_away(part.untyped_storage()) else device

    patches.method(wrapper, "get_hp_param_device", get_hp_param_device)
