"""Whether the memory really came back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pinferry.errors import ReclaimShortfall
from pinferry.pool import format_bytes, parse_size
from pinferry.states.memory import MemoryReading, give_back_cached, read_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pinferry._native import Device
    from pinferry.states.categories import Category

__all__ = ["ReclaimReport", "measure_reclaim"]

# Allocators hand memory back in segments (2 and 20 MiB for PyTorch on CUDA), which what stays may
# share; the C library likewise in pages of its heap.
_CUDA_TOLERANCE_BYTES = 64 * 2**20
_CPU_TOLERANCE_BYTES = 4 * 2**20
_TOLERANCE = 0.02
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ReclaimReport:
    """What an offload was to free, and what every count says came back. Sizes are bytes.

    Attributes
    ----------
    device
        ``cuda:N`` or ``cpu``.
    expected_bytes
        Size of the storages that were offloaded.
    by_category
        The same for each category.
    before, after
        The counts before the offload and after its end, cached memory given back.
    stays
        What holds memory there still, by name: state that was not offloaded, then other tensors.
    notes
        Where bytes did not come back: why, as far as the counts tell.
    """

    device: str
    expected_bytes: int
    by_category: dict[str, int]
    before: MemoryReading
    after: MemoryReading
    stays: dict[str, int]
    notes: tuple[str, ...]

    @property
    def allocator_bytes(self) -> int | None:
        """What came back by PyTorch's CUDA allocator; None on the CPU."""
        return _fall(self.before.allocated_bytes, self.after.allocated_bytes)

    @property
    def nvml_bytes(self) -> int | None:
        """What came back by NVML; None on the CPU and where NVML does not answer."""
        return _fall(self.before.nvml_bytes, self.after.nvml_bytes)

    @property
    def rss_bytes(self) -> int | None:
        """What came back by resident memory; None on CUDA, where device memory is not resident."""
        return _fall(self.before.rss_bytes, self.after.rss_bytes) if self.device == "cpu" else None

    @property
    def tolerance_bytes(self) -> int:
        """What may be missing by NVML or resident memory: 2 %, at least 64 MiB (CPU: 4 MiB)."""
        least = _CPU_TOLERANCE_BYTES if self.device == "cpu" else _CUDA_TOLERANCE_BYTES
        return max(least, int(self.expected_bytes * _TOLERANCE))

    def verify(self, tolerance_bytes: int | str | None = None) -> None:
        """Raise `ReclaimShortfall` unless the memory came back.

        The allocator must have fallen by all of it, NVML (or resident memory on the CPU) by all but
        the tolerance.

        Parameters
        ----------
        tolerance_bytes
            In place of `ReclaimReport.tolerance_bytes`; a number, or text such as ``"64MiB"``.

        Raises
        ------
        ReclaimShortfall
            If a count fell by less.
        InvalidSize
            If the tolerance is no size.
        """
        allowed = self.tolerance_bytes if tolerance_bytes is None else parse_size(tolerance_bytes)
        counts = (
            ("PyTorch's allocator", self.allocator_bytes, 0),
            ("NVML", self.nvml_bytes, allowed),
            ("resident memory", self.rss_bytes, allowed),
        )
        for count, fell, missing in counts:
            if fell is not None and fell < self.expected_bytes - missing:
                raise ReclaimShortfall(
                    f"{format_bytes(self.expected_bytes)} were offloaded from {self.device}, but "
                    f"{count} fell by only {format_bytes(fell)} (allowed to miss: "
                    f"{format_bytes(missing)}). {' '.join(self.notes)}".rstrip(),
                    expected=self.expected_bytes,
                    allocator=self.allocator_bytes,
                    nvml=self.nvml_bytes,
                    rss=self.rss_bytes,
                )

    def to_dict(self) -> dict[str, object]:
        """Return all of it for a dashboard."""
        return {
            **asdict(self),
            "allocator_bytes": self.allocator_bytes,
            "nvml_bytes": self.nvml_bytes,
            "rss_bytes": self.rss_bytes,
        }

    def __str__(self) -> str:
        """Say it in a few lines."""
        lines = [f"offloaded from {self.device}: {format_bytes(self.expected_bytes)}"]
        lines += [f"  {name}: {format_bytes(size)}" for name, size in self.by_category.items()]
        counts = (
            ("PyTorch's allocator", self.allocator_bytes),
            ("NVML", self.nvml_bytes),
            ("resident memory", self.rss_bytes),
        )
        for count, fell in counts:
            if fell is not None:
                lines.append(f"came back by {count}: {format_bytes(fell)}")
        lines += [f"stays: {name}, {format_bytes(size)}" for name, size in self._largest()]
        return "\n".join([*lines, *self.notes])

    def _largest(self) -> list[tuple[str, int]]:
        """Return the first few of what stays, and the rest as one."""
        items = list(self.stays.items())
        shown, rest = items[:_SHOWN], items[_SHOWN:]
        if rest:
            shown.append((f"{len(rest)} others", sum(size for _, size in rest)))
        return shown


def measure_reclaim(
    device: Device,
    sizes: Mapping[Category, int],
    before: MemoryReading,
    name_what_stays: Callable[[], dict[str, int]],
) -> ReclaimReport:
    """Give cached memory back and compare the counts with those `before`. Blocks.

    `sizes` are the bytes offloaded, by category; `name_what_stays` is asked once memory was read.
    """
    give_back_cached(device)
    after = read_memory(device)
    expected = sum(sizes.values())
    return ReclaimReport(
        device="cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}",
        expected_bytes=expected,
        by_category={str(category): size for category, size in sizes.items()},
        before=before,
        after=after,
        stays=name_what_stays(),  # takes memory itself
        notes=tuple(_notes(device, expected, before, after)),
    )


def _fall(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else before - after


def _notes(device: Device, expected: int, before: MemoryReading, after: MemoryReading) -> list[str]:
    if device.kind == "cpu":
        return []
    notes = []
    allocated = _fall(before.allocated_bytes, after.allocated_bytes) or 0
    if allocated < expected:
        grown = format_bytes(expected - allocated)
        notes.append(f"{grown} were allocated since the offload began.")
    shared = (after.reserved_bytes or 0) - (after.allocated_bytes or 0)
    if shared > 0:
        notes.append(
            f"{format_bytes(shared)} stay reserved by PyTorch in segments that hold live tensors."
        )
    reserved = _fall(before.reserved_bytes, after.reserved_bytes) or 0
    by_nvml = _fall(before.nvml_bytes, after.nvml_bytes)
    if by_nvml is None:
        notes.append("NVML does not tell this device's memory.")
    elif by_nvml < reserved:
        notes.append(
            f"{format_bytes(reserved - by_nvml)} were taken on the device meanwhile by another "
            "process, or by a library outside PyTorch's allocator."
        )
    return notes
