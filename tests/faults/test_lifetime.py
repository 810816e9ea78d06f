"""Objects that die, and interpreters that exit, while copies are held or under way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pinferry
from pinferry import _native

if TYPE_CHECKING:
    from tests.fake_driver import FakeDriver

SOURCES = Path(pinferry.__file__).parents[1]

PREAMBLE = """
import gc, sys
from pinferry import _native
if sys.argv[1] == "fake":
    _native._use_driver_library(sys.argv[2])
NBYTES = 32 << 20
device = _native.HostDevice() if sys.argv[1] == "host" else _native.CudaDevice(0)
arena = _native.Arena(device=device, nbytes=NBYTES, chunk_nbytes=NBYTES, numa_node=None,
                      huge_pages=False, threads=1)
block = arena.allocate(NBYTES, 0.0)
memory = device.allocate(NBYTES)
stream = device.create_stream()
stream.fill(memory.address, 1, NBYTES)
stream.synchronize()
def submit(direction):
    return _native.submit(device=device, direction=direction,
                          pieces=[_native.Piece(block, memory.address)], streams=[stream.handle])
"""

devices = pytest.mark.parametrize(
    "kind", ["host", "fake", pytest.param("cuda", marks=pytest.mark.gpu)]
)
directions = pytest.mark.parametrize("direction", ["TO_HOST", "TO_DEVICE"])


def run(script: str, kind: str, fake_driver_library: Path, *, within_s: float = 8) -> None:
    """Run `script` in an interpreter of its own, which must end well and soon."""
    try:
        done = subprocess.run(
            [sys.executable, "-", kind, str(fake_driver_library)],
            input=PREAMBLE + script,
            env={"PYTHONPATH": str(SOURCES)},
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired as hung:
        pytest.fail(f"the interpreter hangs; it had printed {hung.stdout!r}")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "end of script\n")


@devices
@pytest.mark.parametrize("held", [False, True], ids=["running", "held"])
@pytest.mark.parametrize(
    "order",
    ["device arena block memory stream ticket", "stream block ticket memory device arena"],
)
def test_an_interpreter_exits_with_copies_in_flight(
    fake_driver_library: Path, kind: str, held: bool, order: str
) -> None:
    """A list lets go of its last element first."""
    script = f"""
if {held}: stream.hold()
ticket = submit(_native.Direction.TO_HOST)
objects = [globals().pop(name) for name in reversed({order.split()})]
print("end of script", flush=True)
"""
    run(script, kind, fake_driver_library)


@devices
@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "calling"])
def test_an_interpreter_exits_with_callbacks_to_come(
    fake_driver_library: Path, kind: str, busy: bool
) -> None:
    """One that is called when the interpreter ends is waited for a moment, not for ever."""
    script = f"""
import threading
from pinferry import Ticket
called = threading.Event()
def stay(_):
    called.set()
    threading.Event().wait()
stream.hold()
Ticket(submit(_native.Direction.TO_HOST), device).add_done_callback(stay)
if {busy}:
    stream.release()
    called.wait()
print("end of script", flush=True)
"""
    run(script, kind, fake_driver_library, within_s=60)  # PyTorch comes and goes with it


@devices
@directions
def test_every_reference_may_be_dropped_right_after_submission(
    fake_driver_library: Path, kind: str, direction: str
) -> None:
    """Only the latch is kept, and the device memory, whose owner must outlive the copies."""
    script = f"""
stream.hold()
memoryview(block)[:] = b"\\x05" * NBYTES
submit(_native.Direction.{direction})
spare = device
del block, arena, device
gc.collect()
stream.release()
device = spare
arena = _native.Arena(device=device, nbytes=NBYTES, chunk_nbytes=NBYTES, numa_node=None,
                      huge_pages=False, threads=1)
block = arena.allocate(NBYTES, 0.0)
assert submit(_native.Direction.TO_HOST).synchronize(10.0)
expected = 5 if "{direction}" == "TO_DEVICE" else 1
assert bytes(memoryview(block)) == bytes([expected]) * NBYTES
print("end of script", flush=True)
"""
    run(script, kind, fake_driver_library)


@devices
def test_device_memory_that_dies_under_a_copy_is_given_back_after_it(
    fake_driver_library: Path, kind: str
) -> None:
    """As cuMemFree does it, which waits for the device."""
    script = """
ticket = submit(_native.Direction.TO_HOST)
del memory
assert ticket.synchronize(10.0)
assert bytes(memoryview(block)) == b"\\x01" * NBYTES
print("end of script", flush=True)
"""
    run(script, kind, fake_driver_library)


def test_pinned_memory_of_an_arena_that_died_under_a_copy_comes_back_before_more_is_pinned(
    fake_gpu: FakeDriver,
) -> None:
    device = _native.CudaDevice(0)

    def make_arena() -> _native.Arena:
        return _native.Arena(
            device=device,
            nbytes=4 << 20,
            chunk_nbytes=2 << 20,
            numa_node=None,
            huge_pages=False,
            threads=1,
        )

    arena, memory, stream = make_arena(), device.allocate(512), device.create_stream()
    before = fake_gpu.live()["registration"]
    stream.hold()
    ticket = _native.submit(
        device=device,
        direction=_native.Direction.TO_HOST,
        pieces=[_native.Piece(arena.allocate(512, 0.0), memory.address)],
        streams=[stream.handle],
    )
    del arena
    assert fake_gpu.live()["registration"] == before
    stream.release()
    assert ticket.synchronize(10.0)
    arena = make_arena()
    assert fake_gpu.live()["registration"] == before
    assert arena.stats().locked_bytes == 4 << 20
