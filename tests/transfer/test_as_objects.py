"""Engines, plans and tickets as Python objects: shown, and never two of one."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import StateOffloader
from pinferry.errors import NotCopyable

if TYPE_CHECKING:
    from pinferry import TransferEngine


def test_none_is_copied_or_pickled(engine: TransferEngine, torch_device: str) -> None:
    x = torch.ones(8, device=torch_device)
    offloader = StateOffloader(torch.nn.Linear(2, 2).to(torch_device), engine=engine)
    with engine.plan({"x": x}) as plan:
        plan.offload()
        ticket = plan.reload(defer=True)  # a second one would hand the memory over twice
        for each in (engine, plan, ticket, offloader):
            for call in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(NotCopyable, match=f"a {type(each).__name__} stands for memory"):
                    call(each)
        ticket.wait()
    assert x.sum() == 8


def test_an_engine_says_what_is_away(engine: TransferEngine, torch_device: str) -> None:
    x = torch.ones(1024, device=torch_device)
    engine.offload({"x": x})
    assert repr(engine) == f"<TransferEngine for {torch_device}, 1 storages, 4.00 KiB, away>"
    engine.reload()
    engine.close()
    assert repr(engine) == f"<TransferEngine for {torch_device}, closed>"


def test_a_plan_says_where_its_storages_are(engine: TransferEngine, torch_device: str) -> None:
    x = torch.ones(1024, device=torch_device)
    plan = engine.plan({"x": x})
    assert repr(plan) == "<TransferPlan of 1 storages, 4.00 KiB, here>"
    plan.offload()
    assert repr(plan) == "<TransferPlan of 1 storages, 4.00 KiB, away>"
    plan.reload()
    plan.close()
    assert repr(plan) == "<TransferPlan of 0 storages, 0 bytes, closed>"
