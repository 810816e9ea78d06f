"""The tree of errors: exported, picklable, and with the numbers as attributes."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from pinferry import errors
from pinferry.errors import PinferryError

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, PinferryError)
]
PARENTS = {
    "ArenaClosed": errors.ArenaError,
    "ArenaExhausted": errors.ArenaError,
    "ArenaInUse": errors.ArenaError,
    "BlockFreed": errors.ArenaError,
    "CannotExport": errors.ArenaError,
    "HostMemoryLimit": errors.ArenaError,
    "NotCopyable": errors.ArenaError,
    "RegistrationFailed": errors.ArenaError,
    "DeviceNotFound": errors.DeviceError,
    "DeviceOutOfMemory": errors.DeviceError,
    "DriverCallFailed": errors.DeviceError,
    "DriverUnavailable": errors.DeviceError,
    "AlreadyOffloaded": errors.TransferError,
    "EngineClosed": errors.TransferError,
    "NotOffloaded": errors.TransferError,
    "StorageChanged": errors.TransferError,
    "TransferTimeout": errors.TransferError,
    "UnsupportedStorage": errors.TransferError,
    "WrongDevice": errors.TransferError,
    "InvalidSize": errors.InvalidArgument,
    "UnknownCategory": errors.InvalidArgument,
    "UnknownDevice": errors.InvalidArgument,
}


def test_every_error_is_exported() -> None:
    assert sorted(each.__name__ for each in CLASSES) == sorted(errors.__all__)


@pytest.mark.parametrize("name", sorted(PARENTS))
def test_an_error_is_caught_by_its_branch(name: str) -> None:
    assert issubclass(getattr(errors, name), PARENTS[name])


def test_errors_are_caught_by_the_builtins_they_stand_for() -> None:
    assert issubclass(errors.InvalidArgument, ValueError)
    assert issubclass(errors.TransferTimeout, TimeoutError)
    assert issubclass(errors.NotCopyable, TypeError)
    assert issubclass(errors.CannotExport, BufferError)
    assert issubclass(errors.PackageMissing, ImportError)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("copied", ["pickle", "copy", "deepcopy"])
def test_an_error_travels_with_its_fields(kind: type[PinferryError], copied: str) -> None:
    error = kind("no room; ask for less", requested=2**40, call="cuMemAlloc", nothing=None)
    again: PinferryError
    if copied == "pickle":
        again = pickle.loads(pickle.dumps(error))
    else:
        again = copy.copy(error) if copied == "copy" else copy.deepcopy(error)
    assert type(again) is kind
    assert str(again) == "no room; ask for less"
    assert again.fields == {"requested": 2**40, "call": "cuMemAlloc", "nothing": None}
    assert (again.requested, again.call, again.nothing) == (2**40, "cuMemAlloc", None)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_field_that_is_not_known_is_no_attribute(kind: type[PinferryError]) -> None:
    error = kind("no room")
    assert error.fields == {}
    assert not hasattr(error, "requested")
    with pytest.raises(AttributeError, match=f"{kind.__name__} has no field 'requested'"):
        _ = error.requested
