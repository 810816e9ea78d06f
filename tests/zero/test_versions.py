"""What a version of DeepSpeed does not have is named, and never left out silently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.deepspeed import attach
from pinferry.deepspeed.tables import TABLES
from pinferry.deepspeed.versions import SUPPORTED, installed
from pinferry.errors import UnsupportedVersion
from tests.zero.engines import WRAPPERS, engine_of
from tests.zero.model import train

if TYPE_CHECKING:
    from pinferry import PinnedArena

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / "build" / f"deepspeed-{SUPPORTED[0]}"


def needed(kind: str) -> list[str]:
    wrapper = {
        "plain": "",
        "unfused": "FP16_UnfusedOptimizer",
        "fused": "FP16_Optimizer",
        "bf16_optimizer": "BF16_Optimizer",
        "zero1": "DeepSpeedZeroOptimizer",
        "zero2": "DeepSpeedZeroOptimizer",
        "zero3": "DeepSpeedZeroOptimizer_Stage3",
    }[kind]
    if not wrapper:
        return []
    table = TABLES[wrapper]
    names = [each.name for each in table.attributes if not each.optional]
    return [*names, table.trainable, *(["ipg_buckets"] if table.buckets else []), "optimizer"]


EACH = [(kind, name) for kind in WRAPPERS for name in needed(kind)]


@pytest.mark.parametrize(("kind", "attribute"), EACH)
def test_an_attribute_that_is_missing_is_named_with_the_version(
    kind: str, attribute: str, arena: PinnedArena, device: str
) -> None:
    with engine_of(kind) as engine, attach(engine, arena) as offloader:
        wrapper = engine.optimizer
        held = getattr(wrapper, attribute)
        delattr(wrapper, attribute)
        try:
            with pytest.raises(UnsupportedVersion, match=attribute) as caught:
                engine.offload_states(["buffers"])
        finally:
            setattr(wrapper, attribute, held)
        assert caught.value.version == installed()
        assert installed() in str(caught.value)
        assert str(caught.value.attribute).endswith(attribute)
        assert not offloader.offloaded_states()
        train(engine, 1)


def test_a_wrapper_that_nobody_knows_is_refused(device: str) -> None:
    class NewOptimizer:
        pass

    with engine_of("plain") as engine:
        optimizer = engine.optimizer
        engine.optimizer = NewOptimizer()
        with pytest.raises(UnsupportedVersion, match="NewOptimizer"):
            attach(engine)
        engine.optimizer = optimizer


def test_the_newest_version_that_is_stated_is_the_one_tested() -> None:
    assert installed() == SUPPORTED[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the older release is put there by make")
@pytest.mark.parametrize("ranks", [1])
def test_the_oldest_version_that_is_stated_works(ranks: int, tmp_path: Path) -> None:
    assert OLDEST.is_dir(), "make pytest installs it"
    done = subprocess.run(
        [sys.executable, "-m", "tests.zero.ranks", "0", "1", str(tmp_path / "rendezvous")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{OLDEST}:{ROOT / 'src'}",
            # Under the same names it compiles other sources, while other tests compile theirs.
            "TORCH_EXTENSIONS_DIR": str(OLDEST / "operators"),
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"DeepSpeed {SUPPORTED[0]}" in done.stdout
    assert done.stdout.count("equal") == len(WRAPPERS)
