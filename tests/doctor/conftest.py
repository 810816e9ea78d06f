"""Fixtures of the survey's tests."""

from __future__ import annotations

import importlib.machinery
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], None]:
    """Give a function that puts a module where imports find it."""

    def put(module: ModuleType) -> None:
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, loader=None)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return put
