"""Checks of the GPUs: driver, NVML, memory, PCIe link, NUMA node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pinferry.doctor.findings import Finding, Status
from pinferry.doctor.native import load_native

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_devices", "check_driver", "check_numa", "check_nvml", "parse_processor_list"]

_SYSTEM_ROOT = Path("/")


def check_driver(*, root: Path = _SYSTEM_ROOT) -> Iterator[Finding]:
    """Check that the CUDA driver loads, and count the devices that it lets this process use."""
    native = load_native()
    status = native.driver_status()
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    remark = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden!r})"
    if status == "ok":
        version, count = native.driver_version(), native.device_count()
        devices = f"{count} device{'' if count == 1 else 's'}"
        yield Finding(
            "CUDA driver",
            Status.OK if count else Status.WARNING,
            f"CUDA {_version(version)} driver, {devices}{remark}",
            "" if count else "The device `cpu` works; for a GPU, see CUDA_VISIBLE_DEVICES.",
        )
    elif hidden is None and any(root.glob("dev/nvidia[0-9]*")):
        yield Finding(
            "CUDA driver",
            Status.PROBLEM,
            f"an NVIDIA GPU is present, but its driver cannot be used: {status}",
            "Make libcuda.so.1 of the running kernel driver visible to this process; in a "
            "container, allow the driver capability `compute`.",
        )
    else:
        yield Finding(
            "CUDA driver",
            Status.WARNING,
            f"no CUDA driver to use{remark}: {status}",
            "Nothing to do on a machine without a GPU: the device `cpu` works.",
        )


def check_nvml() -> Iterator[Finding]:
    """Check that NVML can be asked."""
    from pinferry.states.nvml import nvml_driver_version, nvml_status

    status = nvml_status()
    if status == "ok":
        version = nvml_driver_version() or "of unknown version"
        yield Finding("NVML", Status.OK, f"available, NVIDIA driver {version}")
    elif load_native().device_count():
        yield Finding(
            "NVML",
            Status.WARNING,
            status,
            "Reclaim reports lack the device's own figures, and the checks of links and NUMA "
            "nodes are left out, until NVML is available.",
        )
    else:
        yield Finding("NVML", Status.OK, f"not available, and no GPU to ask about: {status}")


def check_devices() -> Iterator[Finding]:
    """Report each GPU's memory and PCIe link."""
    from pinferry.states.nvml import DeviceMemoryReading, nvml_devices

    for device in nvml_devices():
        identity = f"{device.name() or 'unnamed GPU'} {device.uuid() or '(UUID not available)'}"
        if device.in_mig_mode():
            identity += " in MIG mode"
        memory = device.memory() or DeviceMemoryReading()
        yield Finding(
            "GPU",
            Status.OK,
            f"{identity}: {_gib(memory.free_bytes)} free of {_gib(memory.total_bytes)}",
        )
        link = device.link()
        finding = (
            f"{device.pci_bus_id() or 'bus id not available'}: "
            f"generation {_known(link.generation)} of {_known(link.max_generation)}, "
            f"x{_known(link.width)} of x{_known(link.max_width)}"
        )
        if link.width and link.max_width and link.width < link.max_width:
            yield Finding(
                "PCIe link",
                Status.WARNING,
                finding,
                "The link has fewer lanes than it could: copies are slower by as much. "
                "Check the slot and its settings.",
            )
        elif link.generation and link.max_generation and link.generation < link.max_generation:
            yield Finding(
                "PCIe link",
                Status.OK,
                f"{finding}; an idle link lowers its generation to save power",
                "Nothing, unless it stays low while copies run.",
            )
        else:
            yield Finding("PCIe link", Status.OK, finding)


def check_numa(*, root: Path = _SYSTEM_ROOT) -> Iterator[Finding]:
    """Compare each GPU's NUMA node with the processors that this process may use."""
    from pinferry.states.nvml import nvml_devices

    usable = os.sched_getaffinity(0)
    for bus_id in filter(None, (device.pci_bus_id() for device in nvml_devices())):
        node = _read(root / f"sys/bus/pci/devices/{bus_id}/numa_node")
        if node is None or int(node) < 0:
            yield Finding("NUMA", Status.OK, f"{bus_id}: the system names no NUMA node for it")
            continue
        listed = _read(root / f"sys/devices/system/node/node{node}/cpulist")
        local = parse_processor_list(listed or "")
        near = len(usable & local)
        finding = f"{bus_id} is on node {node}; {near} of {len(usable)} usable processors are too"
        if local and not near:
            yield Finding(
                "NUMA",
                Status.WARNING,
                finding,
                f"Copies cross the processors' interconnect. Run under `numactl "
                f"--cpunodebind={node}` or allow this process processors {listed}.",
            )
        else:
            yield Finding("NUMA", Status.OK, finding)


def parse_processor_list(text: str) -> frozenset[int]:
    """Read the kernel's list notation.

    Examples
    --------
    >>> sorted(parse_processor_list("0-2,8"))
    [0, 1, 2, 8]
    """
    processors: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        processors.update(range(int(first), int(last or first) + 1))
    return frozenset(processors)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return None


def _version(version: int | None) -> str:
    return "of unknown version" if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _gib(size_bytes: int | None) -> str:
    return "an unknown amount" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)
