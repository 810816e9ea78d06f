"""A DeepSpeed engine that has trained, alone in its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pinferry.bench.llama import Shape, make_llama
from pinferry.bench.timing import synchronize

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from deepspeed import DeepSpeedEngine

__all__ = ["make_engine", "start_world"]

_BUCKET = 50_000_000  # elements, where DeepSpeed's default is ten times as much
_TOKENS = 64


def start_world(device: torch.device, folder: Path) -> None:
    """Make this process the only rank of its world; the ranks meet in `folder`."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    meeting = f"file://{folder.resolve() / 'rendezvous'}"
    torch.distributed.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
    import deepspeed

    deepspeed.init_distributed(backend)


def make_engine(
    stage: int, parameters: int, device: torch.device
) -> tuple[DeepSpeedEngine, str, str]:
    """Return an engine after one step, what its model is, and what its optimizer is."""
    import deepspeed

    torch.manual_seed(0)
    shape = Shape.of(parameters)
    model, model_is = make_llama(shape, device)
    optimizer, optimizer_is = _make_optimizer(model)
    bucket = min(_BUCKET, parameters)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "stage3_prefetch_bucket_size": bucket,
        },
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    loss = engine(torch.randint(0, shape.tokens, (1, _TOKENS), device=device))
    engine.backward(loss)
    engine.step()
    synchronize(device)
    return engine, model_is, optimizer_is


def _make_optimizer(model: torch.nn.Module) -> tuple[torch.optim.Optimizer, str]:
    """Return DeepSpeed's FusedAdam, or PyTorch's AdamW where that cannot be built, and why."""
    parameters = list(model.parameters())
    try:
        from deepspeed.ops.adam import FusedAdam

        fused: torch.optim.Optimizer = FusedAdam(parameters, lr=1e-4)
    # Whatever a compiler, or what looks for one, runs into.
    except Exception as error:  # noqa: BLE001
        first = (str(error).strip().splitlines() or [""])[0]
        why = f"{type(error).__name__}: {first}"
        adam = torch.optim.AdamW(parameters, lr=1e-4)
        return adam, f"torch.optim.AdamW (FusedAdam could not be built: {why})"
    return fused, "DeepSpeed's FusedAdam"
