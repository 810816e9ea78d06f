"""From which size on copies go by DMA, in which pieces, and the kernel's grid: measured once a GPU.

The figures are kept in the user's cache folder, by GPU, driver, pinferry and kernel.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pinferry import _native
from pinferry._native import Direction
from pinferry.errors import InvalidArgument, PinferryError, TransferTimeout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["KERNEL_SOURCE", "Tuning", "choose", "choose_piece", "measure_copies", "tune"]

#: The kernel, in an installed package as well as in a checkout.
KERNEL_SOURCE = Path(__file__).parent.parent / "csrc" / "kernels" / "gather.cu"

_SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
_GRIDS = (8, 16, 32, 64, 128)
_TOTAL = 16 << 20  # bytes of each trial: the launch of a kernel is little beside them
# A piece is the smallest for which the cuts cost no more of the link than this.
_PIECES = (4 << 20, 8 << 20, 16 << 20, 32 << 20)
_WORTH_A_CUT = 0.004
_GAP = 512  # between ranges on the device, so that they are not joined
_TRIALS = 3  # the fastest counts; the first one warms up
_TRIAL_S = 2.0  # a trial that takes longer is stuck behind something
_DIRECTIONS = {"to_host": Direction.TO_HOST, "to_device": Direction.TO_DEVICE}
# A kernel takes room from what else the GPU computes, and a DMA does not, so the kernel must be
# faster than DMA by this factor, and a larger grid than a smaller one.
_WORTH_A_KERNEL = 1.1
_WORTH_A_LARGER_GRID = 1.05
# Before and after, the same copies take as long on an idle GPU; else the figures are not kept.
_SAME = 1.25

_log = logging.getLogger("pinferry")


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the copies of one direction are split.

    Attributes
    ----------
    threshold_nbytes
        Ranges of this size and larger ones go by DMA, smaller ones by the kernel.
    blocks
        Thread blocks of the kernel.
    piece_nbytes
        What is larger goes in pieces of this size, between which urgent copies go.
    """

    threshold_nbytes: int
    blocks: int
    piece_nbytes: int = _PIECES[-1]


def tune(device: _native.CudaDevice) -> None:
    """Set `device` to what was measured on it, now if it never was.

    Blocks for some tenths of a second if it must measure. Where that fails, the core's own figures
    stay, and the log says why.
    """
    tunings = _read(device)
    if tunings is not None:
        _apply(device, tunings)
        return
    try:
        measure_copies(device)
    except Exception as error:  # noqa: BLE001 -- whatever it is, copies work without
        # As text here and below: a handler may keep the error, and with it all that it holds.
        _log.warning("copies on cuda:%d are not calibrated: %s", device.index, str(error))


def measure_copies(device: _native.Device) -> dict[str, Tuning]:
    """Measure copies by DMA and by the kernel, set `device` to the result, and keep it.

    Blocks for some tenths of a second. Best called while the GPU has nothing else to do. Meanwhile
    it takes 18 MiB of the GPU's memory and 16 MiB of pinned memory. Only what was measured on an
    idle GPU is kept for later processes.

    Returns
    -------
    dict[str, Tuning]
        For ``"to_host"`` and ``"to_device"``.

    Raises
    ------
    InvalidArgument
        If the device copies without a kernel: there is nothing to choose.
    DeviceOutOfMemory, RegistrationFailed, HostMemoryLimit, DriverCallFailed, TransferTimeout
        If it cannot be measured. The device is left as it was.
    """
    if not isinstance(device, _native.CudaDevice) or device.copy_tier != "kernel":
        raise InvalidArgument(
            f"{device.name} copies without a kernel, so there is nothing to calibrate; "
            "see `pinferry doctor` for the reason"
        )
    before = {name: Tuning(*device.copy_tuning(way)) for name, way in _DIRECTIONS.items()}
    try:
        trial = _Trial(device)
        first = trial.time_dma()
        tunings = {name: trial.choose(way) for name, way in _DIRECTIONS.items()}
        last = trial.time_dma()
    except BaseException:
        _apply(device, before)
        raise
    _apply(device, tunings)
    _log.info("copies on cuda:%d were measured: %s", device.index, tunings)
    if max(first, last) <= min(first, last) * _SAME:
        _write(device, tunings)
    else:
        _log.warning("cuda:%d was busy, so the calibration of its copies is not kept", device.index)
    return tunings


def choose(
    sizes: Sequence[int], dma: Sequence[float], kernel: Mapping[int, Sequence[float]]
) -> Tuning:
    """Choose by times of equal amounts of bytes.

    Parameters
    ----------
    sizes
        Bytes of a range, rising.
    dma
        Time by DMA for each size.
    kernel
        For each number of blocks, the time by the kernel for each size.
    """
    totals = {blocks: sum(times) for blocks, times in kernel.items()}
    enough = min(totals.values()) * _WORTH_A_LARGER_GRID
    blocks = min(blocks for blocks, total in totals.items() if total <= enough)
    threshold = 2 * sizes[-1]
    for size, by_dma, by_kernel in reversed(list(zip(sizes, dma, kernel[blocks], strict=True))):
        if by_dma > by_kernel * _WORTH_A_KERNEL:
            break
        threshold = size
    return Tuning(threshold, blocks)


def choose_piece(whole: float, cut: float, pieces: int) -> int:
    """Choose the size of pieces by the times of `_TOTAL` bytes in one and in many `pieces`."""
    a_cut = max(cut - whole, 0.0) / (pieces - 1)
    for size in _PIECES:
        if a_cut <= _WORTH_A_CUT * whole * size / _TOTAL:
            return size
    return _PIECES[-1]


class _Trial:
    """Copies of each size, on memory of their own."""

    def __init__(self, device: _native.CudaDevice) -> None:
        self._device = device
        self._memory = device.allocate(_TOTAL + _TOTAL // _SIZES[0] * _GAP)
        self._arena = _native.Arena(
            device=device,
            nbytes=_TOTAL,
            chunk_nbytes=_TOTAL,
            numa_node=None,
            huge_pages=False,
            threads=1,
        )

    def choose(self, direction: Direction) -> Tuning:
        dma: list[float] = []
        kernel: dict[int, list[float]] = {blocks: [] for blocks in _GRIDS}
        for size in _SIZES:
            pieces = self._pieces(size)
            dma.append(self._time(direction, pieces, Tuning(0, _GRIDS[0])))
            for blocks, times in kernel.items():
                times.append(self._time(direction, pieces, Tuning(size + 1, blocks)))
            del pieces  # the blocks of the next size take their place
        return replace(choose(_SIZES, dma, kernel), piece_nbytes=self._choose_piece(direction))

    def _choose_piece(self, direction: Direction) -> int:
        """Compare one copy of all bytes with the same in many pieces."""
        pieces = self._pieces(_TOTAL)
        whole_ms = self._time(direction, pieces, Tuning(0, _GRIDS[0], _TOTAL))
        cut_ms = self._time(direction, pieces, Tuning(0, _GRIDS[0], _SIZES[-1]))
        return choose_piece(whole_ms, cut_ms, _TOTAL // _SIZES[-1])

    def time_dma(self) -> float:
        """Return the milliseconds of large copies, both ways."""
        size = _SIZES[-1]
        pieces = self._pieces(size)
        return sum(self._time(way, pieces, Tuning(0, _GRIDS[0])) for way in _DIRECTIONS.values())

    def _pieces(self, size: int) -> list[_native.Piece]:
        dealt = self._arena.allocate_extents([size] * (_TOTAL // size), _TRIAL_S)
        return [
            _native.Piece(block, self._memory.address + i * (size + _GAP))
            for i, [block] in enumerate(dealt)
        ]

    def _time(self, direction: Direction, pieces: list[_native.Piece], tuning: Tuning) -> float:
        self._device.tune_copies(
            direction,
            threshold_nbytes=tuning.threshold_nbytes,
            blocks=tuning.blocks,
            piece_nbytes=tuning.piece_nbytes,
        )
        times = []
        for _ in range(_TRIALS):
            ticket = _native.submit(
                device=self._device, direction=direction, pieces=pieces, streams=[]
            )
            elapsed_ms = ticket.elapsed_ms if ticket.synchronize(_TRIAL_S) else None
            if elapsed_ms is None:
                raise TransferTimeout(f"a trial did not end within {_TRIAL_S} s; the GPU is busy")
            times.append(elapsed_ms)
        return min(times)


def _apply(device: _native.CudaDevice, tunings: Mapping[str, Tuning]) -> None:
    for name, tuning in tunings.items():
        device.tune_copies(
            _DIRECTIONS[name],
            threshold_nbytes=tuning.threshold_nbytes,
            blocks=tuning.blocks,
            piece_nbytes=tuning.piece_nbytes,
        )


def _key(device: _native.CudaDevice) -> dict[str, str]:
    """Return what the figures hold for."""
    import pinferry

    return {
        "gpu": device.uuid,
        "driver": str(_native.driver_version()),
        "pinferry": pinferry.__version__,
        "format": "2",
        "kernel": hashlib.sha256(KERNEL_SOURCE.read_bytes()).hexdigest()[:16],
    }


def _file(key: Mapping[str, str]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache / "pinferry" / f"copies-{digest[:16]}.json"


def _read(device: _native.CudaDevice) -> dict[str, Tuning] | None:
    """Return what was kept, or None for nothing and for anything odd."""
    try:
        key = _key(device)
        kept = json.loads(_file(key).read_text(encoding="utf-8"))
        if kept["key"] != key:
            return None
        return {name: _parse(kept["tunings"][name]) for name in _DIRECTIONS}
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, PinferryError) as error:
        _log.warning("the kept calibration of cuda:%d is not usable: %s", device.index, repr(error))
        return None


def _parse(kept: Mapping[str, object]) -> Tuning:
    threshold, blocks, piece = kept["threshold_nbytes"], kept["blocks"], kept["piece_nbytes"]
    if type(threshold) is not int or type(blocks) is not int or type(piece) is not int:
        raise TypeError("sizes and blocks are whole numbers")
    if not (0 <= threshold <= 2 * _SIZES[-1] and blocks in _GRIDS and piece in _PIECES):
        raise ValueError(
            f"{threshold} bytes, {blocks} blocks and pieces of {piece} bytes are nothing that is "
            "measured"
        )
    return Tuning(threshold, blocks, piece)


def _write(device: _native.CudaDevice, tunings: Mapping[str, Tuning]) -> None:
    try:
        key = _key(device)
        file = _file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {"key": key, "tunings": {name: asdict(each) for name, each in tunings.items()}}
        )
        # Processes may write at the same time; each puts a whole file in place.
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder, file.name)
            made.write_text(text, encoding="utf-8")
            made.replace(file)
    except (OSError, RuntimeError, PinferryError) as error:
        _log.warning("the calibration of cuda:%d is not kept: %s", device.index, str(error))
