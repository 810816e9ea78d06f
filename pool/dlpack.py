"""DLPack: arrays handed to other libraries without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pinferry.errors import CannotExport

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import CapsuleType

__all__ = ["CPU", "export"]

# kDLCPU and its only ordinal. DLPack has a type for pinned memory too, kDLCUDAHost, which not every
# consumer of host memory knows.
CPU = (1, 0)

# Since then NumPy's own exporter knows the version, device and copy of the array API standard.
_KNOWS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


def export(
    array: NDArray[np.uint8],
    *,
    stream: object,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> CapsuleType:
    """Return a capsule of `array` that keeps it alive.

    Parameters
    ----------
    array
        What to export.
    stream, max_version, dl_device, copy
        As in the array API standard's ``__dlpack__``. The copy that a consumer asks for lies in
        ordinary memory. With NumPy before 2.1 the capsule is unversioned; the standard allows that.

    Raises
    ------
    CannotExport
        If a stream, or a device other than the CPU, is asked for.
    """
    if stream is not None:
        raise CannotExport(f"stream={stream!r}: host memory has no stream; pass None")
    if dl_device is not None and tuple(dl_device) != CPU:
        raise CannotExport(
            f"dl_device={tuple(dl_device)}: a block is host memory, DLPack device {CPU}; "
            "import it there and move the result"
        )
    if _KNOWS_VERSIONS:
        return array.__dlpack__(max_version=max_version, copy=copy)
    return (array.copy() if copy else array).__dlpack__()
