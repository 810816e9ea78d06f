"""Plans that several threads use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from pinferry.errors import ArenaInUse, PinferryError
from tests.workbench import LATE, SOON

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pinferry import Ticket, TransferEngine


def test_a_plan_is_not_closed_amid_the_offload_of_another_thread(
    engine: TransferEngine, torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(100.0, device=torch_device)
    plan = engine.plan({"x": x})
    dispatch: Callable[..., Ticket] = engine.dispatch
    errors: list[PinferryError] = []

    def close() -> None:
        try:
            plan.close()
        except PinferryError as error:
            errors.append(error)

    closing = threading.Thread(target=close)

    def dispatch_amid_a_close(*arguments: object, **options: object) -> Ticket:
        closing.start()
        closing.join(SOON)
        return dispatch(*arguments, **options)

    monkeypatch.setattr(engine, "dispatch", dispatch_amid_a_close)
    plan.offload()
    closing.join(LATE)
    assert [type(error) for error in errors] == [ArenaInUse]
    assert plan.offloaded
    plan.reload()
    assert x.sum() == 4950
    plan.close()
