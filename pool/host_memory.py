"""What the host can give, found before a page is touched.

Touching and registering past a limit ends the process, so the arena asks here first and refuses
with numbers. Two kinds of limit count: what the kernel says is available on the whole machine,
and the memory limits of the control groups that this process is in, versions 1 and 2.
`RLIMIT_MEMLOCK` is not one of them: the driver's registration is not subject to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pinferry.errors import ArenaError, HostMemoryLimit, InvalidSize
from pinferry.pool.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HostHeadroom", "available_host_bytes", "cgroup_directories", "require_host_bytes"]

_SYSTEM_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class HostHeadroom:
    """How many more bytes this process can take, and what stops it there.

    Attributes
    ----------
    available_bytes
        Bytes that can still be taken, never negative.
    limited_by
        The tightest limit: ``"MemAvailable"``, or the control group's file and path, such as
        ``"cgroup memory.max of /user.slice"``.
    total_bytes
        What that limit allows in all: the machine's memory, or the control group's limit.
    """

    available_bytes: int
    limited_by: str
    total_bytes: int


@dataclass(frozen=True, slots=True)
class _MemoryFiles:
    """Where one control group version keeps its limit, its usage and its page cache."""

    controller: str
    limit: str
    usage: str
    # Version 1 keeps a group's own figure beside the hierarchical one; the limit is hierarchical.
    reclaimable: tuple[str, ...]


_CGROUP_VERSIONS = (
    _MemoryFiles("", "memory.max", "memory.current", ("inactive_file",)),
    _MemoryFiles(
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "inactive_file"),
    ),
)


def available_host_bytes(*, root: Path = _SYSTEM_ROOT) -> HostHeadroom:
    """Find the tightest limit on the memory that this process can still take.

    Parameters
    ----------
    root
        Directory that holds ``proc`` and ``sys``.

    Returns
    -------
    HostHeadroom
        The limit that leaves the fewest bytes; on a tie, the machine's own.

    Raises
    ------
    ArenaError
        ``/proc/meminfo`` cannot be read, so that nothing is known.

    Notes
    -----
    A control group leaves its limit less its usage, where inactive page cache does not count as
    usage, because the kernel drops it first. Every ancestor is asked: the tightest one ends the
    process, whichever it is. Swap never counts: pinned pages cannot be swapped out.
    """
    headrooms = [_machine_headroom(root)]
    for files in _CGROUP_VERSIONS:
        for path, directory in cgroup_directories(files.controller, root=root):
            headroom = _cgroup_headroom(files, path, directory)
            if headroom is not None:
                headrooms.append(headroom)
    return min(headrooms, key=lambda headroom: headroom.available_bytes)


def require_host_bytes(
    requested: int, reserve: int = 0, *, root: Path = _SYSTEM_ROOT
) -> HostHeadroom:
    """Refuse a request that the host cannot serve.

    Parameters
    ----------
    requested
        Bytes about to be touched.
    reserve
        Bytes that have to remain available afterwards.
    root
        Directory that holds ``proc`` and ``sys``.

    Returns
    -------
    HostHeadroom
        What was available when asked. Others may take memory at any time, hence `reserve`.

    Raises
    ------
    HostMemoryLimit
        `requested` and `reserve` together are more than is available.
    InvalidSize
        `requested` or `reserve` is negative.
    """
    if requested < 0 or reserve < 0:
        raise InvalidSize(
            f"requested ({requested}) and reserve ({reserve}) must be 0 bytes or more; "
            "pass sizes in bytes"
        )
    headroom = available_host_bytes(root=root)
    if requested + reserve > headroom.available_bytes:
        kept = f" and keep {format_bytes(reserve)} in reserve" if reserve else ""
        most = max(0, headroom.available_bytes - reserve)
        raise HostMemoryLimit(
            f"cannot take {format_bytes(requested)} of host memory{kept}: "
            f"{format_bytes(headroom.available_bytes)} of {format_bytes(headroom.total_bytes)} are "
            f"available, limited by {headroom.limited_by}. "
            f"Ask for at most {format_bytes(most)}, free host memory or raise that limit.",
            requested=requested,
            available=headroom.available_bytes,
            limit=headroom.total_bytes,
        )
    return headroom


def cgroup_directories(controller: str, *, root: Path = _SYSTEM_ROOT) -> Iterator[tuple[str, Path]]:
    """Walk the control groups of this process, from its own to the topmost one in sight.

    Parameters
    ----------
    controller
        A version 1 controller such as ``"memory"``; empty for the unified hierarchy (version 2).
    root
        Directory that holds ``proc`` and ``sys``.

    Yields
    ------
    tuple[str, Path]
        The group's path within its hierarchy, and the directory that holds its files.
    """
    own = _own_path(controller, root)
    mount = _mount(controller, root)
    if own is None or mount is None:
        return
    top, directory = mount
    # A container may see only its own subtree, mounted as the root, or be told a path outside it.
    below = own.relative_to(top) if own.is_relative_to(top) else PurePosixPath()
    if ".." in below.parts:
        below = PurePosixPath()
    for group in (below, *below.parents):
        yield str(top / group), directory / group


def _machine_headroom(root: Path) -> HostHeadroom:
    """Read what the kernel says is available on the machine."""
    path = root / "proc/meminfo"
    fields = _read_counters(path)
    total, available = fields.get("MemTotal:"), fields.get("MemAvailable:")
    if total is None or available is None:
        raise ArenaError(
            f"{path} gives no MemTotal and MemAvailable, so the memory that is left is not known; "
            "make sure that /proc is mounted"
        )
    return HostHeadroom(available * 1024, "MemAvailable", total * 1024)


def _cgroup_headroom(files: _MemoryFiles, path: str, directory: Path) -> HostHeadroom | None:
    """Read what one control group leaves, or None where it sets no limit."""
    limit = _read_number(directory / files.limit)
    if limit is None:
        return None
    used = _read_number(directory / files.usage) or 0
    statistics = _read_counters(directory / "memory.stat")
    cache = next((statistics[key] for key in files.reclaimable if key in statistics), 0)
    left = limit - max(0, used - cache)
    return HostHeadroom(max(0, left), f"cgroup {files.limit} of {path}", limit)


def _own_path(controller: str, root: Path) -> PurePosixPath | None:
    """Find this process's path in the hierarchy of `controller`."""
    for line in _read_lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") and path.startswith("/"):
            return PurePosixPath(path)
    return None


def _mount(controller: str, root: Path) -> tuple[PurePosixPath, Path] | None:
    """Find where the hierarchy of `controller` is mounted, and which group is its root there."""
    for line in _read_lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        mount, kind = before.split(), after.split()
        if len(mount) < 5 or len(kind) < 3:
            continue
        unified = not controller and kind[0] == "cgroup2"
        if unified or (kind[0] == "cgroup" and controller in kind[2].split(",")):
            top, point = _unescape(mount[3]), _unescape(mount[4])
            return PurePosixPath(top), root / point.lstrip("/")
    return None


def _unescape(field: str) -> str:
    """Undo the octal escapes that mountinfo uses for white space."""
    for escaped, plain in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        field = field.replace(escaped, plain)
    return field


def _read_lines(path: Path) -> list[str]:
    """Read a file's lines; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except OSError:
        return []


def _read_counters(path: Path) -> dict[str, int]:
    """Read a file of names and numbers, one pair a line."""
    pairs = (line.split() for line in _read_lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdecimal()}


def _read_number(path: Path) -> int | None:
    """Read a file of one number; None where it is missing or says ``max``."""
    lines = _read_lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else None
