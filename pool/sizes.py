"""Sizes as people write them."""

from __future__ import annotations

import contextlib
import operator
import re
from decimal import Decimal
from typing import SupportsIndex

from pinferry.errors import InvalidSize

__all__ = ["format_bytes", "parse_size"]

_UNITS = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
# Addresses have 47 bits in user space: no size beyond that can ever be mapped.
_LARGEST = 2**47
_MOST_DIGITS = 20


def parse_size(size: SupportsIndex | str) -> int:
    """Return `size` in bytes.

    Parameters
    ----------
    size
        Bytes, or text such as ``"8GiB"``, ``"1.5 GB"`` or ``"4096"``. ``GB`` is 10^9 bytes and
        ``GiB`` 2^30.

    Raises
    ------
    InvalidSize
        If it is negative, no number, has an unknown unit, or is beyond any address space.

    Examples
    --------
    >>> parse_size("8GiB")
    8589934592
    >>> parse_size("1.5 GB")
    1500000000
    """
    if type(size) is int and 0 <= size <= _LARGEST:  # what nearly every caller gives
        return size
    nbytes = _parse_text(size) if isinstance(size, str) else _index(size)
    if nbytes < 0:
        raise InvalidSize(
            f"a size cannot be negative, and {_told(size)} is", requested=max(nbytes, -(2**63))
        )
    if nbytes > _LARGEST:
        raise InvalidSize(
            f"{_told(size)} is beyond the {format_bytes(_LARGEST)} that a process can address; "
            "check the unit",
            requested=min(nbytes, 2**63 - 1),
        )
    return nbytes


def _told(size: object) -> str:
    try:
        return str(size)[:40]
    except ValueError:  # Python prints no integer of more than some thousand digits
        return "this number"


def _index(size: object) -> int:
    # Booleans count as integers for Python and PyTorch, but not for people.
    is_bool = isinstance(size, bool) or "bool" in str(getattr(size, "dtype", ""))
    if isinstance(size, SupportsIndex) and not is_bool:
        with contextlib.suppress(TypeError):  # a tensor of several elements
            return operator.index(size)
    kind = type(size).__name__
    raise InvalidSize(f"a size is a number of bytes or text such as '8GiB', not a {kind}")


def _parse_text(text: str) -> int:
    match = _PATTERN.fullmatch(text)
    unit = match and _UNITS.get(match[2].lower())
    if not match or unit is None:
        raise InvalidSize(
            f"{text[:40]!r} is no size; write bytes or a number with one of "
            "B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024)"
        )
    number = match[1]
    if len(number.partition(".")[0]) > _MOST_DIGITS:
        return _LARGEST + 1
    return round(Decimal(number) * unit) if "." in number else int(number) * unit


def format_bytes(nbytes: int) -> str:
    """Return `nbytes` for people, in powers of 1024.

    Examples
    --------
    >>> format_bytes(1610612736)
    '1.50 GiB'
    >>> format_bytes(12)
    '12 bytes'
    """
    value = float(abs(nbytes))
    sign = "-" if nbytes < 0 else ""
    if value < 1024:
        return f"{nbytes} bytes"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if round(value, 2) < 1024 or unit == "PiB":
            break
    return f"{sign}{value:.2f} {unit}"
