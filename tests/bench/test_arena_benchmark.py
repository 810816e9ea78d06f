"""``pinferry bench arena``, and arenas that are opened again and again."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from pinferry import PinnedArena, _native, cli
from pinferry.bench import BENCHMARKS, arena, reopening
from pinferry.bench.alloc_free import measure_alloc_free
from pinferry.bench.fragmentation import measure_fragmentation
from pinferry.bench.reopening import measure_reopening
from pinferry.states.memory import MemoryReading

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fake_driver import FakeDriver

MIB = 2**20


def test_the_command_writes_every_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few = {"1k": 10, "10k": 20, "100k": 30}
    monkeypatch.setattr(
        arena, "measure_alloc_free", partial(measure_alloc_free, live=few, pairs=100)
    )
    monkeypatch.setattr(arena, "measure_fragmentation", partial(measure_fragmentation, cycles=20))
    monkeypatch.setattr(
        arena, "measure_reopening", partial(measure_reopening, nbytes=MIB, warm_up=1)
    )
    file = tmp_path / "out.json"
    words = ["bench", "arena", "--device", "cpu", "--repeats", "1", "--json", str(file)]
    done = CliRunner().invoke(cli.app, words)
    assert (done.exit_code, done.exception) == (0, None)
    cases = json.loads(file.read_text())["cases"]
    timed = [f"alloc_free_{name}" for name in ("1k", "10k", "100k", "python")]
    assert set(cases) == {
        *[f"{key}_us" for key in timed],
        *[f"{key}_p99_us" for key in timed],
        *[f"fragmentation_{name}" for name in ("llama_lora", "moe", "zero", "peak")],
        "fragmentation_peak_three_quarters",
        "extents_failures",
        "arenas_200_rss_growth_mib",
    }
    assert "fragmentation" in done.output


def test_the_help_names_every_benchmark() -> None:
    done = CliRunner().invoke(cli.app, ["bench", "--help"], env={"COLUMNS": "200"})
    assert all(f"'{name}'" in done.output for name in BENCHMARKS)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_arenas_that_are_closed_leave_less_than_one_of_them(device: str) -> None:
    [(key, case)] = measure_reopening(device, arenas=10, nbytes=8 * MIB, warm_up=3)
    assert (key, case.unit, case.reference) == ("arenas_10_rss_growth_mib", "MiB", 8)
    assert case.ratio < 1


def test_arenas_that_stay_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []

    def keep(nbytes: int, *, device: object) -> PinnedArena:
        kept.append(PinnedArena(nbytes, device=device))
        return PinnedArena(nbytes, device=device)

    monkeypatch.setattr(reopening, "PinnedArena", keep)
    [(_, case)] = measure_reopening("cpu", arenas=5, nbytes=8 * MIB, warm_up=1)
    assert case.ratio > 4


def no_memory(device: object) -> MemoryReading:
    return MemoryReading(None, None, None, 0)


def test_arenas_on_a_gpu_are_pinned_and_unpinned(
    monkeypatch: pytest.MonkeyPatch, fake_gpu: FakeDriver
) -> None:
    monkeypatch.setattr(reopening, "read_memory", no_memory)
    before = fake_gpu.live()["registration"]
    device = _native.CudaDevice(0)
    list(measure_reopening(device, arenas=3, nbytes=MIB, warm_up=1))
    assert fake_gpu.live()["registration"] == before


def test_an_arena_on_a_gpu_that_is_not_pinned_stops_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, fake_gpu: FakeDriver
) -> None:
    def unpinned(nbytes: int, *, device: object) -> PinnedArena:
        return PinnedArena(nbytes, device="cpu")

    monkeypatch.setattr(reopening, "read_memory", no_memory)
    monkeypatch.setattr(reopening, "PinnedArena", unpinned)
    with pytest.raises(AssertionError, match=f"arena 0 has 0 of {MIB} bytes pinned"):
        list(measure_reopening(_native.CudaDevice(0), arenas=3, nbytes=MIB, warm_up=1))
