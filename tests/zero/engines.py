"""DeepSpeed engines of every kind, in this process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
import torch

from tests.zero.model import Toy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

BUILD = Path(__file__).parents[2] / "build" / "deepspeed"

_BF16: dict[str, Any] = {"bf16": {"enabled": True}}
_FP16: dict[str, Any] = {"fp16": {"enabled": True, "initial_scale_power": 8}}
_STAGE: dict[int, dict[str, Any]] = {
    stage: {"zero_optimization": {"stage": stage}} for stage in (1, 2, 3)
}

#: By name: the configuration of DeepSpeed, and the type of the model. One for each of its wrappers.
WRAPPERS: dict[str, tuple[dict[str, Any], torch.dtype]] = {
    "plain": ({}, torch.float32),
    "unfused": (_BF16, torch.bfloat16),
    "fused": (_BF16, torch.bfloat16),
    "bf16_optimizer": (
        {**_BF16, **_STAGE[1], "data_types": {"grad_accum_dtype": "fp32"}},
        torch.bfloat16,
    ),
    "zero1": ({**_BF16, **_STAGE[1]}, torch.bfloat16),
    "zero2": ({**_BF16, **_STAGE[2]}, torch.bfloat16),
    "zero3": ({**_BF16, **_STAGE[3]}, torch.bfloat16),
}

#: The same in other types; DeepSpeed refuses fp16 on the CPU.
KINDS: dict[str, tuple[dict[str, Any], torch.dtype]] = {
    **WRAPPERS,
    **{f"zero{stage}_fp32": (_STAGE[stage], torch.float32) for stage in _STAGE},
    **{f"zero{stage}_fp16": ({**_FP16, **_STAGE[stage]}, torch.float16) for stage in _STAGE},
}


def prepare_environment() -> None:
    """Say where DeepSpeed runs and compiles; before it is imported."""
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ.update(DS_ACCELERATOR=accelerator, DS_BUILD_OPS="0")
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(BUILD))
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
    from deepspeed.runtime import bf16_optimizer

    deepspeed.init_distributed(backend)
    # It collects garbage, half a second in a process of many tests, to print what nobody reads.
    bf16_optimizer.see_memory_usage = lambda *_, **__: None


def config_of(kind: str, accumulation: int, **extra: Any) -> dict[str, Any]:
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
    client: Callable[..., torch.optim.Optimizer] | None = torch.optim.AdamW,
    **extra: Any,
) -> Iterator[Any]:
    """Make an engine, and destroy it. What is left over goes into its configuration."""
    import deepspeed

    if KINDS[kind][1] is torch.float16 and not torch.cuda.is_available():
        pytest.skip("DeepSpeed refuses fp16 on the CPU")
    torch.manual_seed(3)
    made = (model or Toy()).to(KINDS[kind][1])
    # It takes every Adam for its own FusedAdam, whose kernels a CPU does not have.
    fused = torch.optim.Adam if kind == "fused" else deepspeed.runtime.engine.FusedAdam
    # Stage 3 replaces linear() for the whole process, with one that rounds otherwise.
    linear = torch.nn.functional.linear
    with patch("deepspeed.runtime.engine.FusedAdam", fused):
        engine, *_ = deepspeed.initialize(
            model=made,
            optimizer=None if client is None else client(groups_of(made), lr=1e-2),
            model_parameters=list(made.parameters()) if "optimizer" in extra else None,
            config=config_of(kind, accumulation, **extra),
        )
    try:
        yield engine
    finally:
        engine.destroy()
        torch.nn.functional.linear = linear
