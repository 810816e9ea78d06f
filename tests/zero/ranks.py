"""What a rank of several does: ``python -m tests.zero.ranks RANK RANKS RENDEZVOUS``.

Prints a line for each kind of engine whose losses were equal, and fails where one was not.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest
import torch


def main(rank: int, ranks: int, rendezvous: Path) -> None:
    """Train every kind of engine with and without offload, and compare."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
    from tests.zero.engines import WRAPPERS, start

    start(rendezvous)
    import deepspeed

    print(f"DeepSpeed {deepspeed.__version__}")
    for kind in WRAPPERS:
        compare(kind)
    if ranks > 1:
        refuse_together()
        shard_twice()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def compare(kind: str) -> None:
    """Train with a cycle between any two parts of a step: everything, and each category in turn."""
    from pinferry import Category
    from pinferry.deepspeed import attach
    from tests.zero.engines import engine_of
    from tests.zero.model import train

    with engine_of(kind, accumulation=2) as engine:
        expected = train(engine, 20)
    for includes in ([None], [*Category]):
        with engine_of(kind, accumulation=2) as engine, attach(engine) as offloader:
            turns = itertools.cycle(includes)

            def cycle(moment: str, step: int) -> None:
                include = next(turns)  # noqa: B023 -- called in this turn of the loop only
                engine.offload_states(include, non_blocking=step % 2 == 0)
                assert not offloader.resident() & set(Category if include is None else [include])
                engine.reload_states(non_blocking=step % 3 == 0)

            assert train(engine, 20, cycle) == expected, (kind, includes)
    print(f"{kind} equal")


def refuse_together() -> None:
    """A rank that holds no part of a parameter refuses like the others, and waits for nobody."""
    from deepspeed import utils

    from pinferry.deepspeed import attach
    from pinferry.errors import StateOffloaded
    from tests.zero.engines import engine_of
    from tests.zero.model import train

    for kind in ("bf16_optimizer", "zero1", "zero2", "zero3"):
        with engine_of(kind) as engine, attach(engine):
            train(engine, 2)
            trained = [each for each in engine.module.parameters() if each.requires_grad]
            before = [utils.safe_get_full_fp32_param(each) for each in trained]
            engine.offload_states()
            for parameter in trained:
                with pytest.raises(StateOffloaded):
                    utils.safe_get_full_fp32_param(parameter)
            engine.reload_states()
            after = [utils.safe_get_full_fp32_param(each) for each in trained]
            assert all(map(torch.equal, after, before)), kind
    print("refused together")


def shard_twice() -> None:
    """Secondary shards of hpZ leave with the weights, and gathering what is away harms nothing."""
    from deepspeed.runtime.zero import GatheredParameters

    from pinferry.deepspeed import attach
    from tests.zero.engines import engine_of
    from tests.zero.model import train

    hpz = {"zero_hpz_partition_size": torch.distributed.get_world_size()}
    with engine_of("zero3", zero_optimization=hpz) as engine:
        expected = train(engine, 6)
    with engine_of("zero3", zero_optimization=hpz) as engine, attach(engine) as offloader:
        losses = train(engine, 3)
        assert any("ds_secondary_tensor" in name for name in names(offloader.discover()))
        engine.offload_states(["lp_params", "frozen_params"])
        assert not {"lp_params", "frozen_params"} & offloader.resident()
        parameters = list(engine.module.parameters())
        with pytest.raises(RuntimeError, match="offloaded"), GatheredParameters(parameters):
            parameters[0].sum()
        engine.reload_states()
        assert losses + train(engine, 3, first=3) == expected
    print("sharded twice")


def names(states: object) -> list[str]:
    """Return every name that leads to a state."""
    return [
        name
        for entry in states  # type: ignore[attr-defined]
        for name in (entry.name, *entry.aliases)
    ]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
