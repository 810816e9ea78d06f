"""The bridge, built at first use for a PyTorch that it was not installed with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pinferry.errors import BridgeUnavailable
from pinferry.transfer import bridge
from pinferry.transfer.bridge_build import cached_library

MOVE = """
import torch
from pinferry import PinnedArena, TransferEngine
from pinferry.transfer.bridge import load_bridge
x = torch.arange(1000.0)
with PinnedArena("1MiB", device="cpu") as arena, TransferEngine(arena) as engine:
    engine.offload({"x": x})
    try:
        x.sum()
    except RuntimeError as error:
        assert str(error).startswith("x is offloaded")
    else:
        raise SystemExit("no guard")
    engine.reload()
assert torch.equal(x, torch.arange(1000.0))
print(load_bridge().__file__)
"""
NOT_INSTALLED = "import sys; sys.modules['pinferry._torch'] = None\n"
OTHER_VERSION = "import torch, pinferry._torch as old; old.TORCH_VERSION = '2.0.0'\n"


def run(program: str, cache: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache folder with a bridge that was built at first use."""
    cache = tmp_path_factory.mktemp("cache")
    library = run(NOT_INSTALLED + MOVE, cache)
    assert Path(library).is_relative_to(cache)
    assert os.listdir(Path(library).parent) == [Path(library).name]  # noqa: PTH208
    return cache


@pytest.mark.slow
def test_the_second_process_needs_no_compiler(built: Path) -> None:
    library = run(NOT_INSTALLED + MOVE, built, CXX="/no/compiler")
    assert Path(library).is_relative_to(built)


@pytest.mark.slow
def test_a_bridge_installed_for_another_version_gives_way_to_the_built_one(built: Path) -> None:
    library = run(OTHER_VERSION + MOVE, built, CXX="/no/compiler")
    assert Path(library).is_relative_to(built)


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide the installed bridge and return an empty cache."""
    monkeypatch.setattr(bridge, "_installed_bridge", lambda _version: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_without_a_compiler_the_error_says_what_to_do(
    not_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BridgeUnavailable, match=r"no-such-compiler.*install g\+\+"):
        bridge.load_bridge.__wrapped__()
    status, text = bridge.bridge_status()
    assert status == "problem"
    assert "no-such-compiler" in text
    assert list(not_installed.rglob("*.so")) == []


def test_a_compiler_that_fails_leaves_no_library(
    not_installed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BridgeUnavailable, match=rf"for PyTorch {torch.__version__[:3]}.* failed"):
        bridge.load_bridge.__wrapped__()
    assert "building pinferry's bridge" in caplog.text
    assert list(not_installed.rglob("*.so")) == []
    assert list(not_installed.rglob("tmp*")) == []


def test_the_status_says_that_a_build_is_due_and_builds_nothing(
    not_installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "true")
    assert bridge.bridge_status()[0] == "warning"
    assert list(not_installed.rglob("*")) == []
    assert cached_library("2.9.0").is_relative_to(not_installed)
    assert cached_library("2.9.0") != cached_library("2.9.1")


def test_the_installed_bridge_is_used_and_reported() -> None:
    assert bridge.load_bridge() is bridge.load_bridge()
    assert torch.__version__ == bridge.load_bridge().TORCH_VERSION
    assert bridge.bridge_status()[0] == "ok"
