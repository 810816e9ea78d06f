"""Where a figure was measured."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pinferry import _native
from pinferry.pool.device import numa_node_of
from pinferry.states.nvml import NvmlDevice, nvml_driver_version

if TYPE_CHECKING:
    from pinferry._native import Device

__all__ = ["describe_machine"]

_PACKAGES = (
    *("pinferry", "torch", "numpy", "nvidia-ml-py", "cupy-cuda13x", "cupy-cuda12x"),
    *("deepspeed", "transformers"),
)


def describe_machine(device: Device, command: str) -> dict[str, object]:
    """Return commit, GPU, driver, link, CPU, versions, command and time. Unknown is None."""
    gpu = NvmlDevice.find(device.uuid, device.pci_bus_id) if device.kind == "cuda" else None
    link = None if gpu is None else gpu.link()
    return {
        "commit": _commit(),
        "gpu": device.name if device.kind == "cuda" else None,
        "driver": nvml_driver_version(),
        "cuda": _native.driver_version(),
        "link": None if link is None else asdict(link),
        "cpu": {"model": _cpu_model(), "usable": len(os.sched_getaffinity(0))},
        "numa_node": numa_node_of(device),
        "versions": {
            "python": platform.python_version(),
            "linux": platform.release(),
            **_versions(),
        },
        "command": command,
        "when": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    # A copy without its history is told which commit it is.
    told = os.environ.get("PINFERRY_COMMIT")
    if told:
        return told
    here = str(Path(__file__).parent)
    command = ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def _versions() -> dict[str, str]:
    installed = {found.name.lower(): found.version for found in metadata.distributions()}
    return {package: installed[package] for package in _PACKAGES if package in installed}
