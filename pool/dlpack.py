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
        If a stream, or a device other than the CPU, is asked for, or something that makes no sense.
    """
    if stream is not None:
        raise CannotExport(f"stream={stream!r}: host memory has no stream; pass None")
    if dl_device is not None and not (_is_pair(dl_device) and tuple(dl_device) == CPU):
        raise CannotExport(
            f"dl_device={dl_device!r}: a block is host memory, DLPack device {CPU}; "
            "import it there and move the result"
        )
    if max_version is not None and not _is_pair(max_version):
        raise CannotExport(f"max_version={max_version!r}: give a pair such as (1, 0), or None")
    if copy is not None and not isinstance(copy, bool):
        raise CannotExport(f"copy={copy!r}: give True, False or None")
    if _KNOWS_VERSIONS:
        return array.__dlpack__(max_version=max_version, copy=copy)
    return (array.copy() if copy else array).__dlpack__()


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(number, int) and 0 <= number < 2**31 for number in value)
    )
