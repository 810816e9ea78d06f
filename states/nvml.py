"""What NVML says about a device: its memory, its link, its name.

Everything here may be missing: the library, the device, the process, any single field. What is
missing is None and never an exception, since a report must not fail over a figure it lacks.
Devices are found by UUID or PCI bus id, never by index: CUDA numbers devices in another order and
leaves out those that are hidden from the process.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "DeviceMemoryReading",
    "NvmlDevice",
    "PcieLink",
    "normalize_pci_bus_id",
    "nvml_devices",
    "nvml_driver_version",
    "nvml_status",
    "read_device_memory",
]

_PCI_BUS_ID = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})"
    r"(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)
# Size of the second version of the memory query's structure, and its version, as NVML packs them.
_MEMORY_V2 = 40 | 2 << 24
# NVML marks a field without a value by all ones, in 32 or 64 bits as the field is wide.
_NOT_AVAILABLE = frozenset({2**32 - 1, 2**64 - 1})


@dataclass(frozen=True, slots=True)
class DeviceMemoryReading:
    """One reading of a device's memory, in bytes, each field as NVML gives it.

    Attributes
    ----------
    total_bytes, used_bytes, free_bytes
        The whole device's (or MIG instance's), over all processes.
    reserved_bytes
        What the driver and firmware keep. Only NVML's second version of this query knows it; in
        the first, it is part of `used_bytes`.
    process_bytes
        What this process holds, its context included. None where NVML does not list this process,
        which is usual in containers, where process ids differ.
    """

    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PcieLink:
    """A device's PCIe link, now and at best. An idle link may show a lower generation."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None


class _Library:
    """The NVML library, loaded and initialised once, at first use."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew, as a forked child has to: its session and its lock are of no use."""
        self._lock = threading.Lock()
        self._loaded = False
        self._module: ModuleType | None = None
        self._status = "not asked yet"

    def module(self) -> ModuleType | None:
        """Load and initialise NVML if that was not tried before; None where it cannot be had."""
        with self._lock:
            if not self._loaded:
                self._module, self._status = _load()
                self._loaded = True
            return self._module

    def status(self) -> str:
        self.module()
        return self._status

    def call(self, function: str, *arguments: object) -> object | None:
        """Call one function of NVML; None where the library, it or its answer is missing."""
        module = self.module()
        if module is None:
            return None
        try:
            answer: object = getattr(module, function)(*arguments)
        except Exception:  # noqa: BLE001 - older bindings also lack functions and parameters
            return None
        return answer


def _load() -> tuple[ModuleType | None, str]:
    try:
        module = importlib.import_module("pynvml")
    except Exception as error:  # noqa: BLE001 - no reading is worth a failure
        return None, f"pynvml cannot be imported ({error}); install nvidia-ml-py"
    try:
        module.nvmlInit()
    except Exception as error:  # noqa: BLE001 - no reading is worth a failure
        # The binding appends "None" where it knows no further details.
        return None, f"NVML cannot be initialised: {str(error).removesuffix(' None')}"
    # Never shut down: other users of the binding in this process share its session.
    return module, "ok"


_library = _Library()
os.register_at_fork(after_in_child=_library.forget)


class NvmlDevice:
    """A device as NVML knows it: a GPU or a MIG instance.

    Made by `find` or `nvml_devices`, not directly. Every method answers None for what NVML does
    not tell, and may be called from any thread. None of them touches CUDA or waits for a stream.
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: object) -> None:
        self._handle = handle

    @classmethod
    def find(
        cls, device_uuid: str | None = None, pci_bus_id: str | None = None
    ) -> NvmlDevice | None:
        """Find a device by UUID or, failing that, by PCI bus id.

        Parameters
        ----------
        device_uuid
            With or without the prefix ``GPU-`` or ``MIG-``; PyTorch gives it without.
        pci_bus_id
            Such as ``0000:17:00.0`` or ``00000000:17:00.0``.

        Returns
        -------
        NvmlDevice or None
            None where NVML is missing or knows no such device. A GPU in MIG mode is not found,
            by neither name: CUDA runs on its instances only, and its memory is not theirs.
        """
        for name in _uuid_forms(device_uuid):
            handle = _library.call("nvmlDeviceGetHandleByUUID", name)
            if handle is not None and not cls(handle).in_mig_mode():
                return cls(handle)
        for name in _bus_id_forms(pci_bus_id):
            handle = _library.call("nvmlDeviceGetHandleByPciBusId", name)
            if handle is not None and not cls(handle).in_mig_mode():
                return cls(handle)
        return None

    def name(self) -> str | None:
        """Give the product's name."""
        return _text(_library.call("nvmlDeviceGetName", self._handle))

    def uuid(self) -> str | None:
        """Give the UUID with its prefix, ``GPU-`` or ``MIG-``."""
        return _text(_library.call("nvmlDeviceGetUUID", self._handle))

    def pci_bus_id(self) -> str | None:
        """Give the PCI bus id as ``/sys/bus/pci/devices`` spells it, a MIG instance its GPU's."""
        gpu = self._gpu_handle()
        text = _text(getattr(_library.call("nvmlDeviceGetPciInfo", gpu), "busId", None))
        return None if text is None else normalize_pci_bus_id(text)

    def in_mig_mode(self) -> bool:
        """Tell whether this is a GPU that is split into MIG instances."""
        modes = _library.call("nvmlDeviceGetMigMode", self._handle)
        current = modes[0] if isinstance(modes, (list, tuple)) and modes else None
        return _number(current) == 1 and not self._is_mig_instance()

    def memory(self) -> DeviceMemoryReading | None:
        """Read the device's memory; None where NVML gives none of it.

        NVML counts what allocators keep cached as used: it sees memory come back only after
        ``torch.cuda.empty_cache()``.
        """
        figures = _library.call("nvmlDeviceGetMemoryInfo", self._handle, _MEMORY_V2)
        if figures is None:
            figures = _library.call("nvmlDeviceGetMemoryInfo", self._handle)
        reading = DeviceMemoryReading(
            total_bytes=_number(getattr(figures, "total", None)),
            used_bytes=_number(getattr(figures, "used", None)),
            free_bytes=_number(getattr(figures, "free", None)),
            reserved_bytes=_number(getattr(figures, "reserved", None)),
            process_bytes=self._process_bytes(),
        )
        return None if reading == DeviceMemoryReading() else reading

    def link(self) -> PcieLink:
        """Read the PCIe link; a MIG instance has its GPU's."""
        gpu = self._gpu_handle()
        return PcieLink(
            generation=_number(_library.call("nvmlDeviceGetCurrPcieLinkGeneration", gpu)),
            width=_number(_library.call("nvmlDeviceGetCurrPcieLinkWidth", gpu)),
            max_generation=_number(_library.call("nvmlDeviceGetMaxPcieLinkGeneration", gpu)),
            max_width=_number(_library.call("nvmlDeviceGetMaxPcieLinkWidth", gpu)),
        )

    def _process_bytes(self) -> int | None:
        """Sum what NVML lists for this process; it may list one process several times."""
        processes = _library.call("nvmlDeviceGetComputeRunningProcesses", self._handle)
        own = [
            _number(getattr(process, "usedGpuMemory", None))
            for process in (processes if isinstance(processes, list) else ())
            if getattr(process, "pid", None) == os.getpid()
        ]
        known = [size_bytes for size_bytes in own if size_bytes is not None]
        return sum(known) if known else None

    def _is_mig_instance(self) -> bool:
        return _number(_library.call("nvmlDeviceIsMigDeviceHandle", self._handle)) == 1

    def _gpu_handle(self) -> object:
        """Give the GPU's own handle, which a MIG instance needs for questions about the board."""
        if not self._is_mig_instance():
            return self._handle
        parent = _library.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", self._handle)
        return self._handle if parent is None else parent


def read_device_memory(
    device_uuid: str | None, pci_bus_id: str | None
) -> DeviceMemoryReading | None:
    """Read the memory of one device.

    Parameters
    ----------
    device_uuid
        With or without the prefix ``GPU-`` or ``MIG-``.
    pci_bus_id
        Used where no device has that UUID.

    Returns
    -------
    DeviceMemoryReading or None
        None where NVML is missing (`nvml_status` says why), knows no such device, or tells nothing.
    """
    device = NvmlDevice.find(device_uuid, pci_bus_id)
    return None if device is None else device.memory()


def nvml_status() -> str:
    """Say ``"ok"``, or why NVML cannot be used."""
    return _library.status()


def nvml_driver_version() -> str | None:
    """Give the driver's own version, such as ``"580.82.07"``."""
    return _text(_library.call("nvmlSystemGetDriverVersion"))


def nvml_devices() -> list[NvmlDevice]:
    """List the GPUs that NVML sees, for a survey of the machine; their order means nothing."""
    count = _number(_library.call("nvmlDeviceGetCount")) or 0
    handles = (_library.call("nvmlDeviceGetHandleByIndex", index) for index in range(count))
    return [NvmlDevice(handle) for handle in handles if handle is not None]


def normalize_pci_bus_id(pci_bus_id: str) -> str | None:
    """Spell a PCI bus id as the kernel does, or give None for what is not one.

    Parameters
    ----------
    pci_bus_id
        With a domain of up to 8 digits or none, in either case, with or without a function.

    Returns
    -------
    str or None
        Such as ``0000:17:00.0``: a domain of at least 4 digits, in lower case.

    Examples
    --------
    >>> normalize_pci_bus_id("00000000:C1:00.0")
    '0000:c1:00.0'
    """
    match = _PCI_BUS_ID.fullmatch(pci_bus_id.strip())
    if match is None:
        return None
    domain, bus, device, function = (
        int(match[part] or "0", 16) for part in ("domain", "bus", "device", "function")
    )
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def _uuid_forms(device_uuid: str | None) -> list[str]:
    """List the spellings under which NVML may know a UUID."""
    if not device_uuid:
        return []
    if device_uuid.upper().startswith(("GPU-", "MIG-")):
        return [device_uuid]
    return [f"GPU-{device_uuid}", f"MIG-{device_uuid}"]


def _bus_id_forms(pci_bus_id: str | None) -> list[str]:
    """List the spellings under which NVML may know a PCI bus id, its own first."""
    plain = normalize_pci_bus_id(pci_bus_id) if pci_bus_id else None
    if plain is None:
        return []
    domain, _, rest = plain.partition(":")
    return [f"{int(domain, 16):08x}:{rest}", plain]


def _number(value: object) -> int | None:
    """Unwrap a plain or ctypes integer; None for anything else and for "not available"."""
    value = getattr(value, "value", value)
    return value if isinstance(value, int) and value not in _NOT_AVAILABLE else None


def _text(value: object) -> str | None:
    """Decode a name; older bindings give bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None
