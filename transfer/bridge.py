"""The bridge to PyTorch, built for the version that is installed.

It edits PyTorch's storages in place, so it fits one version of PyTorch only. It is built with
pinferry where PyTorch can be imported then. Otherwise, or after PyTorch was changed, it is built
once at first use, in some seconds, and kept in the user's cache folder.
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import TYPE_CHECKING

from pinferry.errors import BridgeUnavailable
from pinferry.transfer.bridge_build import build, cached_library, compiler, load

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["bridge_status", "load_bridge"]

_log = logging.getLogger("pinferry")


@functools.cache
def load_bridge() -> ModuleType:
    """Return the module ``pinferry._torch`` that fits the installed PyTorch.

    Blocks while it is built, at the first use after an install without PyTorch or a change of it.

    Raises
    ------
    BridgeUnavailable
        If PyTorch is missing, or the bridge must be built and there is no C++ compiler.
    """
    version = _torch_version()
    installed = _installed_bridge(version)
    if installed is not None:
        return installed
    library = cached_library(version)
    if not library.exists():
        _log.warning("building pinferry's bridge for PyTorch %s, once: some seconds", version)
        build(library, version)
    return load(library)


def bridge_status() -> tuple[str, str]:
    """Return ``"ok"``, ``"warning"`` or ``"problem"``, and what was found. Builds nothing."""
    try:
        version = _torch_version()
    except BridgeUnavailable as error:
        return "problem", str(error)
    if _installed_bridge(version) is not None:
        return "ok", f"built for PyTorch {version}"
    library = cached_library(version)
    if library.exists():
        return "ok", f"built for PyTorch {version} at first use, in {library.parent}"
    try:
        compiler()
    except BridgeUnavailable as error:
        return "problem", str(error)
    return "warning", f"not built for PyTorch {version} yet; it will be at first use"


def _torch_version() -> str:
    try:
        import torch
    except ImportError as error:
        raise BridgeUnavailable(
            f"offloading tensors needs PyTorch, which cannot be imported ({error}); "
            "pip install 'torch>=2.6'"
        ) from error
    return str(torch.__version__)


def _installed_bridge(version: str) -> ModuleType | None:
    try:
        bridge = import_module("pinferry._torch")
    except ImportError:  # not built, or linked against another PyTorch
        return None
    return bridge if version == bridge.TORCH_VERSION else None
