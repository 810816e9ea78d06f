"""Checks of the native modules, and of what an arena gets on each device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from pinferry.doctor.findings import Finding, Status, describe_exception

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "NativeModule",
    "check_arenas",
    "check_bridge",
    "check_copies",
    "check_native",
    "load_native",
]

_TRIAL_BYTES = 4 * 2**20


class NativeModule(Protocol):
    """What the checks ask of `pinferry._native`."""

    def driver_status(self) -> str:
        """Say ``"ok"``, or why the CUDA driver cannot be used."""

    def driver_version(self) -> int | None:
        """Give the CUDA version that the driver supports, such as 13000."""

    def device_count(self) -> int:
        """Count the CUDA devices that this process may use."""


def load_native() -> NativeModule:
    """Import the native core. At the time of the check, so that its failure is a finding."""
    return cast("NativeModule", import_module("pinferry._native"))


def check_native() -> Iterator[Finding]:
    """Check that the native core is built and loads."""
    try:
        native = load_native()
    except ImportError as error:
        yield Finding(
            "native core",
            Status.PROBLEM,
            f"pinferry._native cannot be imported: {error}",
            "Reinstall pinferry; from a source tree, build it with `pip install -e .`.",
        )
        return
    version = getattr(native, "__version__", None)
    yield Finding("native core", Status.OK, f"pinferry._native {version or 'loads'}")


def check_bridge() -> Iterator[Finding]:
    """Check that the bridge fits the installed PyTorch."""
    from pinferry.transfer.bridge import bridge_status

    status, finding = bridge_status()
    yield Finding(
        "PyTorch bridge",
        Status(status),
        finding,
        ""
        if Status(status) is Status.OK
        else "The bridge is built at first use where there is a C++ compiler. To build it ahead, "
        "reinstall pinferry with --no-build-isolation beside this PyTorch.",
    )


def check_arenas() -> Iterator[Finding]:
    """Make a small arena on each device and report how its memory was pinned."""
    count = load_native().device_count()
    for device in [f"cuda:{index}" for index in range(count)] or ["cpu"]:
        yield _try_arena(device)


def check_copies() -> Iterator[Finding]:
    """Say how each GPU copies many small tensors, and why not by the kernel."""
    for index in range(load_native().device_count()):
        from pinferry.transfer.kernels import copies_status

        status, finding = copies_status(f"cuda:{index}")
        yield Finding(
            f"small copies on cuda:{index}",
            Status(status),
            finding,
            ""
            if Status(status) is Status.OK
            else "Thousands of small tensors move faster by a kernel, compiled by CuPy.",
        )


def _try_arena(device: str) -> Finding:
    check = f"arena on {device}"
    try:
        from pinferry.pool import PinnedArena

        with PinnedArena(_TRIAL_BYTES, device=device) as arena:
            backend, reason = arena.backend, arena.backend_reason
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Finding(
            check,
            Status.PROBLEM,
            f"an arena of {_TRIAL_BYTES >> 20} MiB cannot be made: {describe_exception(error)}",
            "Nothing can be offloaded from this device until this is solved.",
        )
    finding = f"{backend}: {reason}" if reason else backend
    expected = "unpinned" if device == "cpu" else "registered"
    if backend == expected:
        return Finding(check, Status.OK, finding)
    advice = (
        "The driver allocates the memory itself: copies are as fast, arenas are slower to create."
        if backend == "driver"
        else "Copies from unpinned memory are slow and not asynchronous; see the reason."
    )
    return Finding(check, Status.WARNING, finding, advice)
