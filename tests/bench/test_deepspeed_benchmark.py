"""``pinferry bench deepspeed``, at a size that says nothing about speed."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

from pinferry import cli
from pinferry.bench import deepspeed as suite
from pinferry.bench import run, zero_task
from pinferry.bench.deepspeed import measure_deepspeed
from pinferry.bench.llama import Shape, make_llama
from pinferry.bench.results import Results, SpeedUp
from pinferry.bench.zero_task import Measured, Task, run_task
from pinferry.errors import PackageMissing
from tests.zero.engines import operators

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CPU = torch.device("cpu")
OURS = Measured(
    model="a model",
    optimizer="an optimizer",
    state_bytes=2**20,
    locked_bytes=2**20,
    attach_s=1.0,
    first_s=0.25,
    offload_s=(0.5, 0.5),
    reload_s=(0.5, 0.5),
    emptied_first_s=0.5,
    emptied_offload_s=(0.5, 0.25, 1.0),
    emptied_reload_s=(0.5, 0.5),
)
THEIRS = Measured(first_s=3.0, offload_s=(2.0, 2.0), reload_s=(1.0, 1.0), locked_bytes=2**21)


@pytest.fixture
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what DeepSpeed compiles at first use, which takes it more than a minute."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(operators()))


def answers(monkeypatch: pytest.MonkeyPatch, theirs: Measured) -> None:
    monkeypatch.setattr(suite, "run_task", lambda task: OURS if task.side == "ours" else theirs)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_an_engine_is_measured_each_way(built_once: None, stage: int) -> None:
    cases = dict(measure_deepspeed(CPU, 12 * 2**19, 2, stages=(stage,), growth_cycles=3))
    moves = [f"zero{stage}_{move}" for move in ("offload_first", "offload", "reload")]
    assert set(cases) == {
        *moves,
        *[f"{move}_vs_deepspeed" for move in moves],
        f"zero{stage}_attach_first_vs_deepspeed",
        f"zero{stage}_locked_bytes",
        f"zero{stage}_locked_beside_deepspeed",
        "cycles_3_rss_growth_mib",
    }
    assert all("memory copies on the CPU" in cases[move].reference_is for move in moves)
    assert all(cases[f"{move}_vs_deepspeed"].ratio > 0 for move in moves)
    assert cases[f"zero{stage}_locked_bytes"].ratio <= 1.01
    assert math.isnan(cases[f"zero{stage}_locked_beside_deepspeed"].reference)


@pytest.mark.gpu
@pytest.mark.slow
def test_an_engine_on_a_gpu_is_measured_each_way(built_once: None) -> None:
    device = torch.device("cuda:0")
    cases = dict(measure_deepspeed(device, 2**28, 2, stages=(2,), growth_cycles=3))
    assert cases["zero2_locked_bytes"].ratio <= 1.01
    assert cases["zero2_locked_beside_deepspeed"].reference > 0
    assert cases["cycles_3_device_growth_bytes"].ours == 0


def test_durations_are_compared_by_how_much_shorter_ours_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers(monkeypatch, THEIRS)
    cases = dict(measure_deepspeed(CPU, 2**20, 1, stages=(1,), growth_cycles=0))
    case = cases["zero1_offload_vs_deepspeed"]
    assert isinstance(case, SpeedUp)
    assert (case.ours, case.reference, case.ratio, case.unit) == (0.5, 2.0, 4.0, "s")
    assert case.spread == (0.25, 1.0)
    assert cases["zero1_attach_first_vs_deepspeed"].ratio == 2.0
    assert cases["zero1_locked_beside_deepspeed"].ratio == 0.5


def test_what_could_not_be_measured_is_null_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers(monkeypatch, Measured(failed="AssertionError: only for FusedAdam"))
    cases = dict(measure_deepspeed(CPU, 2**20, 1, stages=(3,), growth_cycles=0))
    file = tmp_path / "out.json"
    Results({}, cases).write(file)
    written = json.loads(file.read_text())["cases"]
    for key in ("zero3_offload_vs_deepspeed", "zero3_locked_beside_deepspeed"):
        assert written[key]["reference"] is written[key]["ratio"] is None
        assert "only for FusedAdam" in written[key]["reference_is"]
    assert written["zero3_offload"]["ratio"] > 0


@pytest.mark.parametrize("side", ["ours", "deepspeed"])
def test_a_process_that_dies_is_told_of(monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    # No such device: it dies before it can write anything.
    monkeypatch.setattr(zero_task, "_environment", lambda device: {"PYTHONPATH": "src"})
    task = Task(side, 2, "nothing", 10, 1, 0)
    if side == "deepspeed":
        failed = run_task(task).failed
        assert failed is not None
        assert failed.startswith("it ended with exit code 1; RuntimeError")
    else:
        with pytest.raises(RuntimeError, match="was not measured: it ended with exit code 1"):
            run_task(task)


@pytest.mark.parametrize("parameters", [10**6, 22_000_000, 10**9])
def test_a_model_has_about_the_parameters_it_was_asked_for(parameters: int) -> None:
    model, _ = make_llama(Shape.of(parameters), torch.device("meta"))
    found = sum(parameter.numel() for parameter in model.parameters())
    assert 0.9 * parameters <= found <= parameters


def test_without_deepspeed_the_benchmark_is_refused_by_name_and_left_out_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> str:
        raise PackageMissing("DeepSpeed is not installed")

    def nothing(*_: object) -> Iterator[tuple[str, object]]:
        return iter(())

    monkeypatch.setattr(run, "installed", missing)
    monkeypatch.setattr(run, "BENCHMARKS", dict.fromkeys(run.BENCHMARKS, nothing))
    runner = CliRunner()
    refused = runner.invoke(cli.app, ["bench", "deepspeed", "--device", "cpu"])
    assert isinstance(refused.exception, PackageMissing)
    done = runner.invoke(cli.app, ["bench", "--device", "cpu"])
    assert (done.exit_code, done.exception) == (0, None)
    assert "without the benchmark 'deepspeed'" in done.output
