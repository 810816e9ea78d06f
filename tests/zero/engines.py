"""DeepSpeed engines of every kind, in this process."""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tests.zero.model import Toy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

BUILD = Path(__file__).parents[2] / "build" / "deepspeed"

#: By name: the configuration of DeepSpeed, and whether the model is in bf16.
KINDS: dict[str, tuple[dict[str, Any], torch.dtype]] = {
    "plain": ({}, torch.float32),
    "unfused": ({"bf16": {"enabled": True}}, torch.bfloat16),
    "bf16_optimizer": (
        {
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"},
            "zero_optimization": {"stage": 1},
        },
        torch.bfloat16,
    ),
    "zero1": ({"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}, torch.bfloat16),
    "zero2": ({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}, torch.bfloat16),
    "zero3": ({"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}, torch.bfloat16),
    "zero1_fp32": ({"zero_optimization": {"stage": 1}}, torch.float32),
    "zero2_fp32": ({"zero_optimization": {"stage": 2}}, torch.float32),
    "zero3_fp32": ({"zero_optimization": {"stage": 3}}, torch.float32),
}


def prepare_environment() -> None:
    """Say where DeepSpeed runs and compiles; before it is imported."""
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ.update(
        DS_ACCELERATOR=accelerator, DS_BUILD_OPS="0", TORCH_EXTENSIONS_DIR=str(BUILD)
    )
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("LOCAL_SIZE", os.environ["WORLD_SIZE"])


def start(rendezvous: Path) -> None:
    """Make this process a rank; `rendezvous` is a file that the ranks share."""
    prepare_environment()
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(
        backend,
        init_method=f"file://{rendezvous}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    import deepspeed

    deepspeed.init_distributed(backend)


def config_of(kind: str, accumulation: int, **extra: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a configuration of DeepSpeed with buckets that the toy model fills."""
    base, _ = KINDS[kind]
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.5,
        **base,
    }
    zero = {
        "reduce_bucket_size": 900,
        "allgather_bucket_size": 900,
        "stage3_prefetch_bucket_size": 900,
        "stage3_param_persistence_threshold": 60,
        "sub_group_size": 2000,
        **config.get("zero_optimization", {"stage": 0}),
        **extra.pop("zero_optimization", {}),
    }
    return {**config, "zero_optimization": zero, **extra}


def groups_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Return two groups of uneven sizes."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [{"params": trained[:1]}, {"params": trained[1:], "weight_decay": 0.1}]


@contextlib.contextmanager
def engine_of(
    kind: str,
    *,
    accumulation: int = 1,
    model: torch.nn.Module | None = None,
    optimizer: type[torch.optim.Optimizer] | None = torch.optim.AdamW,
    **extra: Any,  # noqa: ANN401
) -> Iterator[Any]:
    """Make an engine, and destroy it."""
    import deepspeed

    torch.manual_seed(3)
    made = (model or Toy()).to(KINDS[kind][1])
    # An engine's buffers follow it to the device.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DeepSpeed's own, of PyTorch's newer releases
        engine, *_ = deepspeed.initialize(
            model=made,
            optimizer=None if optimizer is None else optimizer(groups_of(made), lr=1e-2),
            config=config_of(kind, accumulation, **extra),
        )
    try:
        yield engine
    finally:
        engine.destroy()
