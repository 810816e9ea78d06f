"""Arguments that make no sense end in an exception, never in a crash or a hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pinferry

SOURCES = Path(pinferry.__file__).parents[1]

PREAMBLE = """
import sys
from pinferry import _native
from pinferry.errors import PinferryError
_native._use_driver_library(sys.argv[1])
host, gpu = _native.HostDevice(), _native.CudaDevice(0)
def make_arena(device, nbytes=1 << 20, chunk_nbytes=2 << 20):
    return _native.Arena(device=device, nbytes=nbytes, chunk_nbytes=chunk_nbytes, numa_node=None,
                         huge_pages=False, threads=1)
def submit(device, block, address):
    return _native.submit(device=device, direction=_native.Direction.TO_HOST,
                          pieces=[_native.Piece(block, address)], streams=[])
def submit_nothing(device):
    return _native.submit(device=device, direction=_native.Direction.TO_HOST, pieces=[], streams=[])
def run_first_on_the_host():
    block = make_arena(host).allocate(512, 0.0)
    memory = host.allocate(512)
    submit(host, block, memory.address)
    return submit(gpu, block, gpu.allocate(512).address)
try:
    {expression}
except (PinferryError, TypeError, ValueError) as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("_native.Piece(None, 0)", "TypeError"),
        ("make_arena(None)", "TypeError"),
        ("submit_nothing(None)", "TypeError"),
        ("make_arena(host, chunk_nbytes=0)", "InvalidSize"),
        ("make_arena(gpu, chunk_nbytes=0)", "InvalidSize"),
        ("make_arena(host, chunk_nbytes=1000)", "InvalidSize"),
        ("make_arena(gpu, chunk_nbytes=1000)", "InvalidSize"),
        ("make_arena(host, 2**64 - 1, 2**62)", "InvalidSize"),
        ("make_arena(gpu, 2**63, 2**62)", "InvalidSize"),
        ("run_first_on_the_host()", "WrongDevice"),
    ],
)
def test_what_makes_no_sense_raises(fake_driver_library: Path, expression: str, error: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PREAMBLE.replace("{expression}", expression),
            str(fake_driver_library),
        ],
        env={"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{error}\n")
