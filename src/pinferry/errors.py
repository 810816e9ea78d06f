"""Every error that pinferry raises on purpose.

::

    PinferryError
    ├── InvalidArgument (also ValueError)
    │   ├── InvalidSize
    │   ├── UnknownCategory
    │   └── UnknownDevice
    ├── ArenaError
    │   ├── ArenaExhausted        requested, free, largest_free, in_flight
    │   ├── HostMemoryLimit       requested, available, limit
    │   ├── RegistrationFailed    code, requested
    │   ├── ArenaClosed
    │   ├── ArenaInUse            blocks, used
    │   ├── BlockFreed
    │   ├── NotCopyable (also TypeError)
    │   └── CannotExport (also BufferError)
    ├── DeviceError
    │   ├── DriverUnavailable
    │   ├── DeviceNotFound        index, count
    │   ├── DriverCallFailed      code
    │   └── DeviceOutOfMemory     requested
    ├── TransferError
    │   ├── WrongDevice
    │   ├── NotOffloaded
    │   ├── AlreadyOffloaded
    │   ├── UnsupportedStorage
    │   ├── StorageChanged
    │   ├── ChecksumMismatch      name
    │   ├── StateOffloaded (also RuntimeError)
    │   ├── EngineClosed
    │   └── TransferTimeout (also TimeoutError)
    ├── ReclaimShortfall          expected, allocator, nvml, rss
    ├── StepInterrupted           updated, doubtful
    ├── StaticOffload (also AssertionError)
    ├── UnsupportedVersion        package, version, attribute
    ├── ForkedProcess
    ├── BridgeUnavailable
    └── PackageMissing (also ImportError)

Numbers are bytes. An attribute that the failing call could not know is missing from ``fields``.
"""

from __future__ import annotations

__all__ = [
    "AlreadyOffloaded",
    "ArenaClosed",
    "ArenaError",
    "ArenaExhausted",
    "ArenaInUse",
    "BlockFreed",
    "BridgeUnavailable",
    "CannotExport",
    "ChecksumMismatch",
    "DeviceError",
    "DeviceNotFound",
    "DeviceOutOfMemory",
    "DriverCallFailed",
    "DriverUnavailable",
    "EngineClosed",
    "ForkedProcess",
    "HostMemoryLimit",
    "InvalidArgument",
    "InvalidSize",
    "NotCopyable",
    "NotOffloaded",
    "PackageMissing",
    "PinferryError",
    "ReclaimShortfall",
    "RegistrationFailed",
    "StateOffloaded",
    "StaticOffload",
    "StepInterrupted",
    "StorageChanged",
    "TransferError",
    "TransferTimeout",
    "UnknownCategory",
    "UnknownDevice",
    "UnsupportedStorage",
    "UnsupportedVersion",
    "WrongDevice",
]


class PinferryError(Exception):
    """The root of the tree.

    Parameters
    ----------
    message
        What happened, the numbers, and what to do next.
    **fields
        The numbers again, to compute with. Each is an attribute of the error.
    """

    def __init__(self, message: str, **fields: int | str | None) -> None:
        super().__init__(message)
        self.fields = fields

    def __getattr__(self, name: str) -> int | str | None:
        """Return the field `name`."""
        # `fields` itself is missing while an error is being unpickled.
        fields = self.__dict__.get("fields", {})
        if name in fields:
            value: int | str | None = fields[name]
            return value
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the fields, so that errors cross process boundaries whole."""
        return (_rebuild, (type(self), str(self), self.fields))


def _rebuild(
    kind: type[PinferryError], message: str, fields: dict[str, int | str | None]
) -> PinferryError:
    return kind(message, **fields)


class InvalidArgument(PinferryError, ValueError):
    """An argument makes no sense; nothing was done."""


class InvalidSize(InvalidArgument):
    """A size is negative, no number, or larger than any memory."""


class UnknownCategory(InvalidArgument):
    """A category of state that does not exist."""


class UnknownDevice(InvalidArgument):
    """A device name that is neither ``cpu`` nor ``cuda:N``."""


class ArenaError(PinferryError):
    """Something about the pinned host arena."""


class ArenaExhausted(ArenaError):
    """The arena has too little room; nothing was moved."""


class HostMemoryLimit(ArenaError):
    """The host could not give this much without running out of memory."""


class RegistrationFailed(ArenaError):
    """The driver refused to pin the memory; every part was rolled back."""


class ArenaClosed(ArenaError):
    """The arena was closed."""


class ArenaInUse(ArenaError):
    """The arena still holds blocks and was not closed."""


class BlockFreed(ArenaError):
    """The block was freed before."""


class NotCopyable(ArenaError, TypeError):
    """An object that stands for memory of this process was to be pickled or copied."""


class CannotExport(ArenaError, BufferError):
    """A consumer asked for memory in a way that it cannot be had."""


class DeviceError(PinferryError):
    """Something about a device or its driver."""


class DriverUnavailable(DeviceError):
    """There is no usable CUDA driver."""


class DeviceNotFound(DeviceError):
    """There is no such GPU."""


class DriverCallFailed(DeviceError):
    """A call of the CUDA driver failed."""


class DeviceOutOfMemory(DeviceError):
    """The device has too little memory; everything stays where it was."""


class TransferError(PinferryError):
    """Something about moving bytes."""


class WrongDevice(TransferError):
    """A tensor lives on another device than the arena serves."""


class NotOffloaded(TransferError):
    """A tensor to be reloaded is not offloaded."""


class AlreadyOffloaded(TransferError):
    """A tensor was offloaded by somebody else."""


class UnsupportedStorage(TransferError):
    """A tensor's memory cannot be given back and made again."""


class StorageChanged(TransferError):
    """A storage was resized or replaced while it was offloaded."""


class ChecksumMismatch(TransferError):
    """A storage is not what it was when it left, by its checksum."""


class StateOffloaded(TransferError, RuntimeError):
    """An operation needs state that is offloaded; it has not begun."""


class EngineClosed(TransferError):
    """The engine was closed."""


class TransferTimeout(TransferError, TimeoutError):
    """A transfer did not end in time; it still runs."""


class ReclaimShortfall(PinferryError):
    """Less memory came back than was offloaded."""


class StepInterrupted(PinferryError):
    """A step has updated some parameters and not others; the fields count them."""


class StaticOffload(PinferryError, AssertionError):
    """State that its framework keeps on the host for good was to be moved."""


class UnsupportedVersion(PinferryError):
    """A package in this version lacks what pinferry relies on."""


class ForkedProcess(PinferryError):
    """An object of the parent process was used after a fork."""


class BridgeUnavailable(PinferryError):
    """The bridge to PyTorch is not built and cannot be built here."""


class PackageMissing(PinferryError, ImportError):
    """An optional package is not installed, or cannot be imported."""
