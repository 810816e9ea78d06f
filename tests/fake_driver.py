"""The fake CUDA driver of csrc/testing, built with g++ and steered through ctypes."""

from __future__ import annotations

import ctypes
import gc
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("csrc/testing/fake_driver.cpp", "csrc/native/host_stream.cpp", "csrc/native/process.cpp")
KINDS = ("context", "stream", "event", "registration", "host", "device", "blocked", "pageable")


def build_fake_driver(folder: Path) -> Path:
    """Compile the fake driver into `folder`, so that it always matches the sources under test."""
    library = folder / "libpinferry_fake_driver.so"
    options = ["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread"]
    built = subprocess.run(
        ["g++", *options, *SOURCES, "-o", str(library)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        raise RuntimeError(
            f"the fake driver does not build; try `make fake-driver`\n{built.stderr}"
        )
    return library


class FakeDriver:
    """Makes the fake driver's calls fail and counts what it keeps alive."""

    def __init__(self, library: Path) -> None:
        self.path = str(library)
        self._library = ctypes.CDLL(self.path)
        self._library.fake_live.restype = ctypes.c_long
        self._library.fake_calls.restype = ctypes.c_long
        self._library.fake_calls_of.restype = ctypes.c_long
        self._tolerated = self.live()

    def fail_nth(self, n: int, code: int = 999) -> None:
        """Let the n-th call from now fail; 1 is the next. Calls that free are not counted."""
        self._library.fake_fail_nth(ctypes.c_long(n), code)

    def fail_call(self, name: str, code: int = 999) -> None:
        """Let every call of `name` fail; code 0 ends it."""
        self._library.fake_fail_call(name.encode(), code)

    def hide(self, name: str) -> None:
        """Let a driver that is loaded from now on lack the entry point `name`."""
        self._library.fake_hide(name.encode(), True)

    def priority(self, stream: int) -> int:
        """Return the priority that a stream was made with: 0 at the least, -5 at the greatest."""
        return int(self._library.fake_priority(ctypes.c_size_t(stream)))

    def calls(self, name: str = "") -> int:
        """Return how many calls that can fail were made since reset(), of one name or of all."""
        if name:
            return int(self._library.fake_calls_of(name.encode()))
        return int(self._library.fake_calls())

    def reset(self) -> None:
        """Let nothing fail or be hidden any more, and count calls from 0."""
        self._library.fake_reset()

    def live(self) -> dict[str, int]:
        """Return how many objects of each kind are alive."""
        return {kind: int(self._library.fake_live(kind.encode())) for kind in KINDS}

    def alive(self, kind: str) -> int:
        """Return how many objects of a kind there are beyond those of earlier tests."""
        return self.live()[kind] - self._tolerated[kind]

    def tolerate_leaks(self) -> None:
        """Take what is alive now as given: for tests in which frees were made to fail."""
        gc.collect()
        self._tolerated = self.live()

    def tolerate(self, kind: str) -> None:
        """Take what is there now of one kind as given."""
        self._tolerated[kind] = self.live()[kind]

    def leaks(self) -> dict[str, int]:
        """Return what is alive beyond what was when the test began."""
        gc.collect()
        excess = {kind: n - self._tolerated[kind] for kind, n in self.live().items()}
        # What earlier tests left to the garbage collector may go amid this one.
        return {kind: n for kind, n in excess.items() if n > 0}
