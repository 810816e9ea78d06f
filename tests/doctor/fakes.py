"""Made-up machines for the survey, and what its tests share."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

from pinferry.states.nvml import DeviceMemoryReading, PcieLink

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from typing_extensions import Self

    from pinferry.doctor import Finding

GIB = 2**30
BUS_ID = "0000:17:00.0"


class FakeNative(ModuleType):
    """The native core on a machine with so many devices."""

    def __init__(self, devices: int = 0, status: str = "ok", version: int | None = 13000) -> None:
        super().__init__("pinferry._native")
        self.__version__ = "0.1.0"
        self.devices, self.status, self.version = devices, status, version

    def driver_status(self) -> str:
        return self.status

    def driver_version(self) -> int | None:
        return self.version

    def device_count(self) -> int:
        return self.devices


class FakeGpu:
    """A GPU as NVML describes it."""

    def __init__(self, *, link: PcieLink | None = None, mig: bool = False) -> None:
        self._link, self._mig = link or PcieLink(5, 16, 5, 16), mig

    def name(self) -> str:
        return "Fake H200"

    def uuid(self) -> str:
        return "GPU-1234"

    def pci_bus_id(self) -> str:
        return BUS_ID

    def in_mig_mode(self) -> bool:
        return self._mig

    def memory(self) -> DeviceMemoryReading:
        return DeviceMemoryReading(total_bytes=140 * GIB, free_bytes=100 * GIB)

    def link(self) -> PcieLink:
        return self._link


def module(name: str, **attributes: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(attributes)
    return made


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def fake_torch(build: str | None, sees: int = 0) -> ModuleType:
    return module(
        "torch",
        __version__="2.13.0",
        version=SimpleNamespace(cuda=build),
        cuda=SimpleNamespace(is_available=lambda: sees > 0, device_count=lambda: sees),
    )


def arena_class(backends: dict[str, tuple[str, str]]) -> type:
    """Make an arena class that knows the backend of each device, and fails on all others."""

    class PinnedArena:
        open_arenas = 0

        def __init__(self, capacity: int, *, device: str) -> None:
            if device not in backends:
                raise MemoryError(f"no memory for {device}")
            self.backend, self.backend_reason = backends[device]

        def __enter__(self) -> Self:
            type(self).open_arenas += 1
            return self

        def __exit__(self, *details: object) -> None:
            type(self).open_arenas -= 1

    return PinnedArena
