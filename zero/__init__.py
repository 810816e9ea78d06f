"""DeepSpeed engines: `attach` puts pinferry behind their ``offload_states``."""

from __future__ import annotations

from pinferry.deepspeed.attach import attach
from pinferry.deepspeed.offloader import DeepSpeedOffloader

__all__ = ["DeepSpeedOffloader", "attach"]
