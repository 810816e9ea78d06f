"""NVML readings, against a stand-in for the `pynvml` module."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinferry.states import nvml
from pinferry.states.nvml import (
    DeviceMemoryReading,
    NvmlDevice,
    PcieLink,
    normalize_pci_bus_id,
    nvml_devices,
    nvml_driver_version,
    nvml_status,
    read_device_memory,
)

if TYPE_CHECKING:
    from collections.abc import Callable

UUID = "6f7a1c2e-0000-1111-2222-333344445555"
BUS_ID = "00000000:C1:00.0"
TOTAL, USED, FREE, RESERVED = 80_000, 30_000, 49_000, 1_000


class NVMLError(Exception):
    """What the binding raises for everything."""


@dataclass
class FakeBoard:
    """A GPU or a MIG instance as the fake library knows it."""

    uuid: str = f"GPU-{UUID}"
    bus_id: str = BUS_ID
    mig_mode: int = 0
    parent: FakeBoard | None = None
    processes: list[SimpleNamespace] = field(default_factory=list)
    second_version: bool = True


class FakeNvml(ModuleType):
    """The functions that are asked for. `lacking` holds those that raise NVMLError."""

    NVMLError = NVMLError

    def __init__(self, *boards: FakeBoard) -> None:
        super().__init__("pynvml")
        self.boards = boards
        self.lacking: set[str] = set()
        self.initialised = 0

    def __getattribute__(self, name: str) -> object:
        if name.startswith("nvml") and name in super().__getattribute__("lacking"):
            return _raise_not_supported
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:  # noqa: N802
        self.initialised += 1

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.82.07"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeBoard:  # noqa: N802
        return self.boards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeBoard:  # noqa: N802
        return self._find(lambda board: board.uuid == uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> FakeBoard:  # noqa: N802
        return self._find(lambda board: board.bus_id.lower() == bus_id.lower())

    def nvmlDeviceGetName(self, board: FakeBoard) -> str:  # noqa: N802
        return "Fake H200"

    def nvmlDeviceGetUUID(self, board: FakeBoard) -> bytes:  # noqa: N802
        return board.uuid.encode()

    def nvmlDeviceGetPciInfo(self, board: FakeBoard) -> SimpleNamespace:  # noqa: N802
        if board.parent is not None:
            raise NVMLError("not supported on an instance")
        return SimpleNamespace(busId=board.bus_id.encode())

    def nvmlDeviceGetMigMode(self, board: FakeBoard) -> list[int]:  # noqa: N802
        return [board.mig_mode, board.mig_mode]

    def nvmlDeviceIsMigDeviceHandle(self, board: FakeBoard) -> ctypes.c_uint:  # noqa: N802
        return ctypes.c_uint(board.parent is not None)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(  # noqa: N802
        self, board: FakeBoard
    ) -> FakeBoard | None:
        return board.parent

    def nvmlDeviceGetMemoryInfo(  # noqa: N802
        self, board: FakeBoard, version: int | None = None
    ) -> SimpleNamespace:
        if version is None:
            return SimpleNamespace(total=TOTAL, used=USED + RESERVED, free=FREE)
        if not board.second_version:
            raise NVMLError("function not found")
        return SimpleNamespace(total=TOTAL, used=USED, free=FREE, reserved=RESERVED)

    def nvmlDeviceGetComputeRunningProcesses(  # noqa: N802
        self, board: FakeBoard
    ) -> list[SimpleNamespace]:
        return board.processes

    def nvmlDeviceGetCurrPcieLinkGeneration(self, board: FakeBoard) -> int:  # noqa: N802
        return self._of_gpu(board, 1)

    def nvmlDeviceGetCurrPcieLinkWidth(self, board: FakeBoard) -> int:  # noqa: N802
        return self._of_gpu(board, 16)

    def nvmlDeviceGetMaxPcieLinkGeneration(self, board: FakeBoard) -> int:  # noqa: N802
        return self._of_gpu(board, 5)

    def nvmlDeviceGetMaxPcieLinkWidth(self, board: FakeBoard) -> int:  # noqa: N802
        return self._of_gpu(board, 16)

    def _find(self, fits: Callable[[FakeBoard], bool]) -> FakeBoard:
        for board in self.boards:
            if fits(board):
                return board
        raise NVMLError("not found")

    def _of_gpu(self, board: FakeBoard, value: int) -> int:
        if board.parent is not None:
            raise NVMLError("not supported on an instance")
        return value


def _raise_not_supported(*arguments: object) -> object:
    raise NVMLError("not supported")


ASKED = sorted(name for name in vars(FakeNvml) if name.startswith("nvml"))


@pytest.fixture
def board() -> FakeBoard:
    return FakeBoard()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, board: FakeBoard) -> FakeNvml:
    fake = FakeNvml(board)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(nvml, "_library", nvml._Library())
    return fake


def own(size_bytes: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=os.getpid(), usedGpuMemory=size_bytes)


@pytest.mark.parametrize("uuid", [UUID, f"GPU-{UUID}"])
def test_a_device_is_found_by_uuid_with_and_without_its_prefix(
    library: FakeNvml, uuid: str
) -> None:
    device = NvmlDevice.find(uuid)
    assert device is not None
    assert device.uuid() == f"GPU-{UUID}"


@pytest.mark.parametrize("bus_id", ["0000:c1:00.0", "00000000:C1:00.0", "C1:00.0", "0:c1:0"])
def test_a_device_is_found_by_every_spelling_of_its_bus_id(library: FakeNvml, bus_id: str) -> None:
    assert NvmlDevice.find(None, bus_id) is not None


def test_a_library_that_knows_bus_ids_of_4_digit_domains_is_asked_for_those_too(
    library: FakeNvml, board: FakeBoard
) -> None:
    board.bus_id = "0000:c1:00.0"
    assert NvmlDevice.find(None, "00000000:C1:00.0") is not None


def test_the_bus_id_serves_where_the_uuid_is_unknown(library: FakeNvml) -> None:
    assert read_device_memory("no-such-uuid", BUS_ID) is not None


def test_the_right_one_of_two_devices_is_found(library: FakeNvml, board: FakeBoard) -> None:
    library.boards = (FakeBoard(uuid="GPU-other", bus_id="00000000:02:00.0"), board)
    device = NvmlDevice.find(UUID)
    assert device is not None
    assert device.pci_bus_id() == "0000:c1:00.0"


@pytest.mark.parametrize(("uuid", "bus_id"), [(None, None), ("", ""), ("x", "not a bus id")])
def test_an_unknown_device_gives_no_reading(
    library: FakeNvml, uuid: str | None, bus_id: str | None
) -> None:
    assert read_device_memory(uuid, bus_id) is None
    assert nvml_status() == "ok"


def test_the_second_version_reports_reserved_memory_apart(library: FakeNvml) -> None:
    assert read_device_memory(UUID, None) == DeviceMemoryReading(
        TOTAL, USED, FREE, RESERVED, process_bytes=None
    )


def test_the_first_version_serves_where_there_is_no_second(
    library: FakeNvml, board: FakeBoard
) -> None:
    board.second_version = False
    assert read_device_memory(UUID, None) == DeviceMemoryReading(
        TOTAL, USED + RESERVED, FREE, reserved_bytes=None, process_bytes=None
    )


def test_the_second_version_is_asked_for_by_the_number_that_the_binding_uses() -> None:
    binding = pytest.importorskip("pynvml")
    assert binding.nvmlMemory_v2 == nvml._MEMORY_V2


def test_process_memory_is_the_sum_over_this_process_only(
    library: FakeNvml, board: FakeBoard
) -> None:
    board.processes = [own(300), SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=5), own(40)]
    reading = read_device_memory(UUID, None)
    assert reading is not None
    assert reading.process_bytes == 340


@pytest.mark.parametrize("size_bytes", [None, 2**64 - 1])
def test_process_memory_that_is_not_available_is_none_and_not_zero(
    library: FakeNvml, board: FakeBoard, size_bytes: int | None
) -> None:
    board.processes = [own(size_bytes)]
    reading = read_device_memory(UUID, None)
    assert reading is not None
    assert reading.process_bytes is None
    assert reading.used_bytes == USED


def test_a_mig_instance_is_found_by_uuid_and_has_the_link_of_its_gpu(
    library: FakeNvml, board: FakeBoard
) -> None:
    board.mig_mode = 1
    instance = FakeBoard(uuid="MIG-1234", bus_id="", mig_mode=1, parent=board)
    library.boards = (board, instance)
    for uuid in ("1234", "MIG-1234"):
        device = NvmlDevice.find(uuid)
        assert device is not None
        assert device.uuid() == "MIG-1234"
        assert device.pci_bus_id() == "0000:c1:00.0"
        assert device.link() == PcieLink(1, 16, 5, 16)
        assert not device.in_mig_mode()


def test_a_gpu_in_mig_mode_is_not_taken_for_one_of_its_instances(
    library: FakeNvml, board: FakeBoard
) -> None:
    board.mig_mode = 1
    assert read_device_memory(UUID, BUS_ID) is None
    assert nvml_devices()[0].in_mig_mode()


def test_a_link_says_what_it_is_and_what_it_could_be(library: FakeNvml) -> None:
    device = NvmlDevice.find(UUID)
    assert device is not None
    assert device.link() == PcieLink(generation=1, width=16, max_generation=5, max_width=16)


def test_names_and_versions_are_text_even_where_the_binding_gives_bytes(library: FakeNvml) -> None:
    assert nvml_driver_version() == "580.82.07"
    assert [device.name() for device in nvml_devices()] == ["Fake H200"]


@settings(deadline=None)
@given(lacking=st.sets(st.sampled_from(ASKED)))
def test_no_missing_function_makes_anything_raise(lacking: set[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fake = FakeNvml(FakeBoard(processes=[own(7)]))
        fake.lacking = lacking
        patch.setitem(sys.modules, "pynvml", fake)
        patch.setattr(nvml, "_library", nvml._Library())
        reading = read_device_memory(UUID, BUS_ID)
        for device in nvml_devices():
            device.name(), device.uuid(), device.pci_bus_id(), device.link(), device.in_mig_mode()
        nvml_driver_version()
        by_name = {"nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId"}
        if (
            "nvmlInit" in lacking
            or by_name <= lacking
            or {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses"} <= lacking
        ):
            assert reading is None
        else:
            assert reading is not None
            expected_total = None if "nvmlDeviceGetMemoryInfo" in lacking else TOTAL
            assert reading.total_bytes == expected_total
            listed = "nvmlDeviceGetComputeRunningProcesses" not in lacking
            assert reading.process_bytes == (7 if listed else None)


def test_a_binding_that_is_too_old_to_have_a_function_gives_none(
    library: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetMemoryInfo")
    assert read_device_memory(UUID, None) is None


def test_without_the_binding_there_is_a_reason_and_no_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(nvml, "_library", nvml._Library())
    assert read_device_memory(UUID, BUS_ID) is None
    assert nvml_devices() == []
    assert nvml_driver_version() is None
    assert "nvidia-ml-py" in nvml_status()


def test_without_a_driver_the_reason_is_that_of_the_library(library: FakeNvml) -> None:
    library.lacking = {"nvmlInit"}
    assert nvml_status() == "NVML cannot be initialised: not supported"
    assert read_device_memory(UUID, BUS_ID) is None


def test_nothing_is_initialised_before_the_first_question(library: FakeNvml) -> None:
    assert library.initialised == 0
    nvml_status()
    read_device_memory(UUID, None)
    nvml_devices()
    assert library.initialised == 1


class CountingLock:
    """A lock that tells once a number of threads have tried to take it."""

    def __init__(self, expected: int) -> None:
        self.all_tried = threading.Event()
        self._lock = threading.Lock()
        self._tried = itertools.count(1)
        self._expected = expected

    def __enter__(self) -> None:
        if next(self._tried) == self._expected:
            self.all_tried.set()
        self._lock.acquire()

    def __exit__(self, *details: object) -> None:
        self._lock.release()


def test_threads_that_ask_at_once_initialise_the_library_once(
    library: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    askers = 8
    lock = CountingLock(askers)
    answers: list[str] = []

    def initialise_once_all_have_come() -> None:
        assert lock.all_tried.wait(timeout=30)
        library.initialised += 1

    monkeypatch.setattr(nvml._library, "_lock", lock)
    monkeypatch.setattr(library, "nvmlInit", initialise_once_all_have_come)
    threads = [
        threading.Thread(target=lambda: answers.append(nvml_status())) for _ in range(askers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.initialised == 1
    assert answers == ["ok"] * askers


FORK = """
import os, signal, sys, types
sessions = []
sys.modules["pynvml"] = binding = types.ModuleType("pynvml")
binding.nvmlInit = lambda: sessions.append(os.getpid())
from pinferry.states import nvml
nvml.nvml_status()
with nvml._library._lock:
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that waits for the lock
        nvml.nvml_status()
        os._exit(0 if sessions == [os.getppid(), os.getpid()] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_forked_while_the_lock_is_held_starts_a_session_of_its_own() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=120)


@given(
    domain=st.integers(0, 2**32 - 1),
    bus=st.integers(0, 255),
    device=st.integers(0, 31),
    function=st.integers(0, 7),
)
def test_all_spellings_of_a_bus_id_become_the_one_of_the_kernel(
    domain: int, bus: int, device: int, function: int
) -> None:
    kernel = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    assert normalize_pci_bus_id(kernel) == kernel
    assert normalize_pci_bus_id(f"{domain:08X}:{bus:02X}:{device:02X}.{function}") == kernel


@pytest.mark.parametrize("text", ["", "gpu0", "0000:17", "0000:17:00.9", "17:00.0 extra"])
def test_what_is_not_a_bus_id_is_none(text: str) -> None:
    assert normalize_pci_bus_id(text) is None


@given(st.text())
def test_no_text_makes_the_reading_of_bus_ids_raise(text: str) -> None:
    normalized = normalize_pci_bus_id(text)
    assert normalized is None or normalize_pci_bus_id(normalized) == normalized
