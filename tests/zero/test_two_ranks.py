"""Two ranks, each a process: every kind of engine, and what ranks must do together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.zero.engines import WRAPPERS

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.device_count() < 2, reason="needs a GPU a rank"
)
def test_two_ranks_train_to_the_bit_and_refuse_together(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.zero.ranks", str(rank), "2", str(tmp_path / "meet")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=400) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (said, errors) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, errors[-3000:]
        assert said.count("equal") == len(WRAPPERS)
        assert "refused together" in said
        assert "sharded twice" in said
