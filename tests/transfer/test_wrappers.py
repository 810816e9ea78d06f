"""Tensor subclasses that wrap others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import UnsupportedStorage
from pinferry.transfer import inner_tensors
from tests.transfer.pair import Opaque, Pair

if TYPE_CHECKING:
    from pinferry import TransferEngine


def test_a_traceable_wrapper_moves_its_inner_tensors(
    engine: TransferEngine, torch_device: str
) -> None:
    left, right = torch.ones(8, device=torch_device), torch.full((3,), 2.0, device=torch_device)
    wrapper = Pair(left, right)
    assert engine.offload({"w": wrapper}).nbytes == 32 + 12
    assert engine.offloaded_names() == ("w.left", "w.right")
    with pytest.raises(RuntimeError, match=r"\Aw\.left is offloaded"):
        wrapper + 1
    with pytest.raises(RuntimeError, match=r"\Aw\.right is offloaded"):
        right.sum()
    assert wrapper.shape == (8,)
    engine.reload({"w": wrapper})
    assert [wrapper.left.sum().item(), wrapper.right.sum().item()] == [8, 6]
    assert wrapper.left is left


def test_wrappers_in_wrappers_are_opened_all_the_way(
    engine: TransferEngine, torch_device: str
) -> None:
    shared = torch.ones(8, device=torch_device)
    outer = Pair(Pair(shared, shared[2:]), torch.ones(2, device=torch_device))
    names = [name for name, _ in inner_tensors("w", outer)]
    assert names == ["w.left.left", "w.left.right", "w.right"]
    assert engine.offload({"w": outer}).nbytes == 40
    assert engine.offloaded_names() == ("w.left.left", "w.right")


def test_a_wrapper_that_hides_what_it_wraps_is_refused_by_name(
    engine: TransferEngine, torch_device: str
) -> None:
    hidden, good = (torch.ones(8, device=torch_device) for _ in range(2))
    with pytest.raises(UnsupportedStorage, match=r"\Aquantized\.weight .*wrapper"):
        engine.offload({"good": good, "quantized.weight": Opaque(hidden)})
    assert engine.offloaded_names() == ()
    assert [good.sum().item(), hidden.sum().item()] == [8, 8]
