"""From which size on copies go by DMA: what is chosen, and how it is kept."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import DriverCallFailed, InvalidArgument
from pinferry.transfer.calibration import Tuning, choose, choose_piece, measure_copies, tune
from tests.tiers import load_kernel
from tests.workbench import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fake_driver import FakeDriver

SIZES = [4, 16, 64]


@pytest.mark.parametrize(
    ("dma", "kernel", "threshold"),
    [
        ([90, 30, 10], [10, 10, 10], 64),
        ([90, 10.5, 10], [10, 10, 10], 16),
        ([1, 1, 1], [10, 10, 10], 4),
        ([90, 90, 90], [10, 10, 10], 128),
        # A size at which DMA happens to win does not count while a larger one loses.
        ([90, 1, 90], [10, 10, 10], 128),
    ],
)
def test_dma_takes_over_from_where_it_is_as_good_for_good(
    dma: list[float], kernel: list[float], threshold: int
) -> None:
    assert choose(SIZES, dma, {8: kernel}) == Tuning(threshold, 8)


@pytest.mark.parametrize(
    ("times", "blocks"),
    [({8: 30.0, 16: 20.0, 32: 19.5}, 16), ({8: 20.0, 16: 19.2}, 8), ({8: 40.0, 16: 20.0}, 16)],
)
def test_the_grid_is_the_smallest_that_is_nearly_the_fastest(
    times: dict[int, float], blocks: int
) -> None:
    chosen = choose(SIZES, [99, 99, 99], {grid: [time] * 3 for grid, time in times.items()})
    assert chosen.blocks == blocks


@pytest.fixture
def device(
    fake_gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> _native.CudaDevice:
    """Return a GPU of the fake driver with a kernel, never busy, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("pinferry.transfer.calibration._SAME", math.inf)
    device = _native.CudaDevice(0)
    load_kernel(device)
    return device


def tunings(device: _native.CudaDevice) -> dict[str, Tuning]:
    return {
        "to_host": Tuning(*device.copy_tuning(Direction.TO_HOST)),
        "to_device": Tuning(*device.copy_tuning(Direction.TO_DEVICE)),
    }


def kept(folder: Path) -> Path:
    [file] = folder.glob("pinferry/*")
    return file


def test_what_was_measured_on_a_busy_gpu_is_set_and_not_kept(
    device: _native.CudaDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pinferry.transfer.calibration._SAME", 0.0)
    measured = measure_copies(device)
    assert tunings(device) == measured
    assert not list(tmp_path.glob("pinferry/*"))


def test_what_was_measured_is_set_and_kept(device: _native.CudaDevice, tmp_path: Path) -> None:
    measured = measure_copies(device)
    assert tunings(device) == measured
    file = json.loads(kept(tmp_path).read_text())
    assert file["key"]["gpu"] == device.uuid
    assert {name: Tuning(**each) for name, each in file["tunings"].items()} == measured


def test_the_second_device_measures_nothing(
    device: _native.CudaDevice, fake_gpu: FakeDriver
) -> None:
    measured = measure_copies(device)
    other = _native.CudaDevice(0)
    load_kernel(other)
    fake_gpu.reset()
    tune(other)
    assert tunings(other) == measured
    assert fake_gpu.calls() <= 1  # for the version of the driver


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"key": {}, "tunings": {}}',
        "\0\0",
        "TUNINGS -1",
        "TUNINGS 1e3",
        "TUNINGS true",
        "TUNINGS null",
        "TUNINGS 99999999999999",
    ],
)
def test_a_kept_file_that_is_damaged_is_measured_anew(
    device: _native.CudaDevice, tmp_path: Path, text: str
) -> None:
    measure_copies(device)
    file = kept(tmp_path)
    good = json.loads(file.read_text())
    if text.startswith("TUNINGS"):
        good["tunings"]["to_host"]["threshold_nbytes"] = json.loads(text.split()[1])
        text = json.dumps(good)
    file.write_text(text)
    tune(device)
    assert kept(tmp_path) == file
    assert json.loads(file.read_text())["key"] == good["key"]
    assert all(each.blocks > 0 for each in tunings(device).values())


def test_a_cache_that_cannot_be_written_is_logged_and_harms_nothing(
    device: _native.CudaDevice,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    tune(device)
    assert "is not kept" in caplog.text
    assert blocked.read_text() == "no folder"


@pytest.mark.parametrize(
    "call", ["cuMemAlloc", "cuMemHostRegister", "cuLaunchKernel", "cuEventElapsedTime"]
)
def test_a_device_that_cannot_be_measured_keeps_what_it_had(
    device: _native.CudaDevice,
    fake_gpu: FakeDriver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:
    before = tunings(device)
    fake_gpu.fail_call(call)
    tune(device)
    assert "are not calibrated" in caplog.text
    with pytest.raises(DriverCallFailed if call != "cuMemHostRegister" else Exception, match=call):
        measure_copies(device)
    fake_gpu.reset()
    assert tunings(device) == before
    assert list(tmp_path.rglob("*.json")) == []


def test_without_a_kernel_there_is_nothing_to_calibrate(fake_gpu: FakeDriver) -> None:
    for device in (_native.HostDevice(), _native.CudaDevice(0)):
        with pytest.raises(InvalidArgument, match="without a kernel"):
            measure_copies(device)


@pytest.mark.parametrize(
    ("whole", "cut", "piece"),
    [
        (1.0, 1.0, 4),  # cuts cost nothing
        (1.0, 0.9, 4),  # noise
        (1.0, 1.1, 32),  # 1/150 of 16 MiB each: worth it in no piece
        (1.0, 1.029, 8),  # a bit less than 0.002, which is 0.4 % of 8 MiB
        (1.0, 9.0, 32),
    ],
)
def test_a_piece_is_the_smallest_that_costs_little(whole: float, cut: float, piece: int) -> None:
    assert choose_piece(whole, cut, 16) == piece * MIB
