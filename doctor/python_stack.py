"""Checks of the Python packages that pinferry works with: PyTorch and CuPy."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pinferry.doctor.findings import Finding, Status, describe_exception
from pinferry.doctor.native import load_native

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_cupy", "check_torch"]


def check_torch() -> Iterator[Finding]:
    """Check that PyTorch imports, and sees the GPUs that the driver offers."""
    if find_spec("torch") is None:
        yield Finding(
            "PyTorch",
            Status.WARNING,
            "not installed",
            "Install torch to offload model and optimizer state; arenas work without it.",
        )
        return
    try:
        torch = import_module("torch")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        yield Finding(
            "PyTorch",
            Status.PROBLEM,
            f"installed, but cannot be imported: {describe_exception(error)}",
            "Repair or reinstall torch.",
        )
        return
    build = torch.version.cuda
    count = load_native().device_count()
    finding = f"torch {torch.__version__}, " + (f"built for CUDA {build}" if build else "CPU build")
    if not count:
        yield Finding("PyTorch", Status.OK, finding)
    elif not build:
        yield Finding(
            "PyTorch",
            Status.WARNING,
            f"{finding}, which cannot use this machine's GPU",
            "Install a build of torch for CUDA.",
        )
    elif not torch.cuda.is_available():
        yield Finding(
            "PyTorch",
            Status.PROBLEM,
            f"{finding}, does not see a GPU although the driver offers {count}",
            "Run `python -c 'import torch; torch.cuda.init()'` for the reason; usually this "
            "build needs a newer driver.",
        )
    else:
        yield Finding("PyTorch", Status.OK, f"{finding}, sees {torch.cuda.device_count()} GPU(s)")


def check_cupy() -> Iterator[Finding]:
    """Check that CuPy can compile the copy kernels for this driver."""
    native = load_native()
    count, version = native.device_count(), native.driver_version()
    major = version // 1000 if version else None
    package = f"cupy-cuda{major}x" if major else "cupy"
    if find_spec("cupy") is None:
        yield (
            Finding(
                "CuPy",
                Status.WARNING,
                "not installed: many small tensors move by batched copies, not by a kernel",
                f"pip install '{package}[ctk]'",
            )
            if count
            else Finding("CuPy", Status.OK, "not installed, and not needed without a GPU")
        )
        return
    try:
        cupy = import_module("cupy")
        built = int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
        # Loads the compiler's library, which CuPy's wheels do not contain.
        cupy.cuda.nvrtc.getVersion()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        yield Finding(
            "CuPy",
            Status.WARNING if count else Status.OK,
            f"installed, but cannot be used: {describe_exception(error)}",
            f"Install the CuPy that fits this driver: pip install '{package}[ctk]'"
            if count
            else "",
        )
        return
    finding = f"cupy {cupy.__version__} for CUDA {built}"
    if count and major is not None and built > major:
        yield Finding(
            "CuPy",
            Status.WARNING,
            f"{finding}, newer than the driver's CUDA {major}",
            f"pip install '{package}[ctk]', or install a newer driver",
        )
    else:
        yield Finding("CuPy", Status.OK, finding)
