"""Compiling the bridge at first use."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pinferry.errors import BridgeUnavailable

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["build", "cached_library", "compiler", "load"]

_SOURCES = Path(__file__).parent.parent / "csrc"
# The first PyTorch whose headers are C++20.
_FIRST_CXX20 = (2, 12)


def cached_library(version: str) -> Path:
    """Return where the bridge for this PyTorch, Python and source is kept, built or not."""
    digest = hashlib.sha256(f"{version} {sys.implementation.cache_tag}".encode())
    for source in sorted(_SOURCES.glob("*/*pp")):
        digest.update(source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return cache / "pinferry" / f"bridge-{digest.hexdigest()[:16]}" / f"_torch{suffix}"


def compiler() -> str:
    """Return the C++ compiler, or raise `BridgeUnavailable` where there is none."""
    wanted = os.environ.get("CXX") or "g++"
    found = shutil.which(wanted)
    if found is None:
        raise BridgeUnavailable(
            f"pinferry's bridge is not built for the installed PyTorch, and there is no {wanted} "
            "to build it; install g++ (or set CXX), or reinstall pinferry with --no-build-isolation"
        )
    return found


def build(library: Path, version: str) -> None:
    """Compile the bridge for PyTorch `version` to `library`."""
    command = _compile_command(compiler(), version)
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        output = Path(folder, library.name)
        command += ["-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BridgeUnavailable(
                f"building pinferry's bridge for PyTorch {version} failed:\n{done.stderr[-4000:]}\n"
                f"command: {' '.join(command)}"
            )
        # Processes may build at the same time; each puts a whole file in place.
        output.replace(library)


def _compile_command(cxx: str, version: str) -> list[str]:
    import torch
    from torch.utils import cpp_extension

    major, minor = (int(part) for part in version.split(".")[:2])
    return [
        cxx,
        "-shared",
        "-fPIC",
        "-O2",
        "-fvisibility=hidden",
        "-std=c++20" if (major, minor) >= _FIRST_CXX20 else "-std=c++17",
        f'-DPINFERRY_TORCH_VERSION="{version}"',
        "-DTORCH_EXTENSION_NAME=_torch",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",  # noqa: SLF001
        *(f"-isystem{folder}" for folder in cpp_extension.include_paths()),
        f"-isystem{sysconfig.get_path('include')}",
        *(str(source) for source in sorted((_SOURCES / "bridge").glob("*.cpp"))),
        *(f"-L{folder}" for folder in cpp_extension.library_paths()),
        "-Wl,--as-needed",
        "-lc10",
        "-ltorch_cpu",
        "-ltorch_python",
    ]


def load(library: Path) -> ModuleType:
    """Import the bridge from a file."""
    # A name of its own: pybind11 keeps modules by name, and the installed one may be loaded.
    spec = importlib.util.spec_from_file_location("pinferry.built._torch", library)
    if spec is None or spec.loader is None:
        raise BridgeUnavailable(f"{library} cannot be loaded; delete its folder and try again")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BridgeUnavailable(
            f"{library} cannot be loaded ({error}); delete its folder, and it will be built anew"
        ) from error
    return module
