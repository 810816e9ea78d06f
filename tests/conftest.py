"""Devices for every test: the CPU, the fake CUDA driver, and a real GPU where there is one."""

from __future__ import annotations

import functools
import gc
import os
import sys
import tempfile
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import _native
from pinferry.pool.device import open_device
from pinferry.transfer.kernels import prepare_kernels
from tests.fake_driver import FakeDriver, build_fake_driver
from tests.tiers import TIERS, make_tiered
from tests.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FAILED = pytest.StashKey[bool]()


@functools.cache
def load_kernels() -> None:
    """Use, for the first time in this process, what tests run on PyTorch while a stream is held."""
    for dtype in (torch.uint8, torch.float32):
        torch.full((8,), 9, dtype=dtype, device="cuda:0")
        torch.zeros(8, dtype=dtype, device="cuda:0")
        torch.ones(8, dtype=dtype, device="cuda:0")
    torch.cuda.synchronize("cuda:0")
    prepare_kernels(open_device("cuda:0"))


def pytest_configure(config: pytest.Config) -> None:
    """Keep what tests measure and build out of the user's cache folder.

    The processes of a run that starts several share one folder, which is the first one's.
    """
    if "PINFERRY_TESTS_CACHE" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="pinferry-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["PINFERRY_TESTS_CACHE"] = os.environ["XDG_CACHE_HOME"] = folder.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where the real driver offers none."""
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if needy and _native.device_count() == 0:
        for item in needy:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {_native.driver_status()}"))


@pytest.fixture(autouse=True)
def _nothing_waits_for_the_whole_gpu(request: pytest.FixtureRequest) -> None:
    """Before a test may hold a stream of a GPU, do what waits until the whole GPU is idle.

    Such a wait would last until the test lets the stream go, and the test would wait for it: the
    unpinning of an arena that the collector finds (a traceback that somebody keeps may keep one),
    and the first use of a kernel, which CUDA loads only then.
    """
    if request.node.get_closest_marker("gpu"):
        gc.collect()
        load_kernels()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember failures: the traceback of a failed test keeps its objects alive."""
    item.stash[FAILED] = item.stash.get(FAILED, False) or call.excinfo is not None
    return (yield)


@pytest.fixture(scope="session")
def fake_driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the fake driver, built for this run."""
    return build_fake_driver(tmp_path_factory.mktemp("fake_driver"))


@pytest.fixture
def fake_gpu(request: pytest.FixtureRequest, fake_driver_library: Path) -> Iterator[FakeDriver]:
    """Put the fake driver in the place of libcuda, and see that the test leaves nothing in it."""
    # Where a debugger would find the last failure, which keeps the objects of that test alive.
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        sys.__dict__.pop(name, None)
    gc.collect()
    fake = FakeDriver(fake_driver_library)
    fake.reset()
    _native._use_driver_library(fake.path)
    yield fake
    _native._use_driver_library("")
    fake.reset()
    if not request.node.stash.get(FAILED, False):
        # pytest holds the values of fixtures that are torn down already.
        request.node.funcargs.clear()
        assert fake.leaks() == {}


@pytest.fixture(
    params=["host", "fake", pytest.param("cuda", marks=pytest.mark.gpu)],
)
def make_device(request: pytest.FixtureRequest) -> Callable[[], _native.Device]:
    """Make devices of one sort; every contract test runs over all of them."""
    if request.param == "host":
        return _native.HostDevice
    if request.param == "fake":
        request.getfixturevalue("fake_gpu")
    return partial(_native.CudaDevice, 0)


@pytest.fixture
def device(make_device: Callable[[], _native.Device]) -> _native.Device:
    """Return one device of that sort."""
    return make_device()


@pytest.fixture(params=TIERS)
def tiered(request: pytest.FixtureRequest) -> Iterator[Workbench]:
    """Return what `workbench` does, on a device for each way to copy many small ranges."""
    sort, _, tier = str(request.param).partition("-")
    fake = request.getfixturevalue("fake_gpu") if sort == "fake" else None
    aside = _native.HostDevice() if sort == "host" else _native.CudaDevice(0)
    bench = Workbench(make_tiered(sort, tier, fake), aside)
    yield bench
    bench.close()


@pytest.fixture
def workbench(make_device: Callable[[], _native.Device]) -> Iterator[Workbench]:
    """Return a device with what a test needs around it."""
    bench = Workbench(make_device(), make_device())
    yield bench
    bench.close()
