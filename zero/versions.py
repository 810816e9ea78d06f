"""Which DeepSpeed is installed, and whether it has what is relied on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from pinferry.errors import PackageMissing, UnsupportedVersion

__all__ = ["SUPPORTED", "installed", "missing", "require"]

#: The oldest and the newest release that the tests run against.
SUPPORTED = ("0.17.6", "0.19.8")


def installed() -> str:
    """Return the version of DeepSpeed.

    Raises
    ------
    PackageMissing
        If there is none.
    """
    try:
        return version("deepspeed")
    except PackageNotFoundError:
        raise PackageMissing(
            "DeepSpeed is not installed: pip install 'pinferry[deepspeed]'"
        ) from None


def require(holder: object, attribute: str) -> object:
    """Return an attribute, or raise `UnsupportedVersion`."""
    try:
        return getattr(holder, attribute)
    except AttributeError:
        raise missing(f"{type(holder).__name__}.{attribute}") from None


def missing(attribute: str) -> UnsupportedVersion:
    """Return the error for what this version of DeepSpeed does not have."""
    oldest, newest = SUPPORTED
    return UnsupportedVersion(
        f"DeepSpeed {installed()} has no {attribute}, where pinferry looks for state. Nothing was "
        f"moved, lest something be left out; pinferry knows DeepSpeed {oldest} to {newest}",
        package="deepspeed",
        version=installed(),
        attribute=attribute,
    )
