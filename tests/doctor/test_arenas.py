"""What is said of the arenas that can be made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinferry.doctor import Status
from pinferry.doctor.native import check_arenas
from tests.doctor.fakes import FakeNative, arena_class, module, only

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


@pytest.mark.parametrize(
    ("device", "backend", "status"),
    [
        ("cpu", "unpinned", Status.OK),
        ("cuda:0", "registered", Status.OK),
        ("cuda:0", "driver", Status.WARNING),
        ("cuda:0", "unpinned", Status.WARNING),
    ],
)
def test_an_arena_is_reported_with_its_backend_and_the_reason_for_it(
    install: Callable[[ModuleType], None], device: str, backend: str, status: Status
) -> None:
    install(FakeNative(0 if device == "cpu" else 1))
    install(module("pinferry.pool", PinnedArena=arena_class({device: (backend, "error 801")})))
    finding = only(check_arenas())
    assert finding.status is status
    assert finding.check == f"arena on {device}"
    assert finding.finding == f"{backend}: error 801"


def test_a_device_on_which_no_arena_can_be_made_does_not_hide_the_others(
    install: Callable[[ModuleType], None],
) -> None:
    arena = arena_class({"cuda:0": ("registered", ""), "cuda:2": ("registered", "")})
    install(FakeNative(3))
    install(module("pinferry.pool", PinnedArena=arena))
    first, second, third = check_arenas()
    assert (first.status, third.status) == (Status.OK, Status.OK)
    assert second.status is Status.PROBLEM
    assert "MemoryError: no memory for cuda:1" in second.finding
    assert vars(arena)["open_arenas"] == 0
