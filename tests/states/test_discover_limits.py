"""Tensors of unusual kinds, and those that live elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from pinferry import discover
from pinferry.errors import UnsupportedStorage
from tests.states.training import Training


def test_a_sparse_gradient_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    model(torch.tensor([1, 3])).sum().backward()
    with pytest.raises(UnsupportedStorage, match=r"model\.0\.weight\.grad .*sparse"):
        discover(model)


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_in_compressed_rows_is_refused_by_name() -> None:
    model = nn.Module()
    rows = torch.sparse_csr_tensor([0, 1], [0], torch.ones(1), (1, 1))
    model.register_buffer("mask", rows)
    with pytest.raises(UnsupportedStorage, match=r"model\.mask"):
        discover(model)


@pytest.mark.filterwarnings("ignore")
def test_a_parameter_whose_shape_is_not_known_yet_does_not_stop_discovery() -> None:
    lazy = nn.LazyLinear(3)
    model = nn.Sequential(nn.Linear(2, 2), lazy)
    assert "model.0.weight" in discover(model).names()


def test_the_inner_tensors_of_a_wrapper_are_what_is_found() -> None:
    model = nn.Module()
    wrapper = TwoTensor(torch.zeros(3), torch.ones(3))  # type: ignore[no-untyped-call]
    model.weight = nn.Parameter(wrapper)
    assert discover(model).names() == ("model.weight.a", "model.weight.b")


def test_a_tensor_without_elements_is_found_with_no_bytes() -> None:
    model = nn.Module()
    model.nothing = nn.Parameter(torch.empty(0, 3))
    [entry] = discover(model)
    assert (entry.nbytes, entry.shape) == (0, (0, 3))


def test_what_lives_on_another_device_is_left_out_when_asked() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("elsewhere", torch.empty(4, device="meta"))
    assert "model.elsewhere" in discover(model).names()
    assert discover(model, device="cpu").names() == ("model.weight", "model.bias")
    assert discover(model, device=torch.device("meta")).names() == ("model.elsewhere",)


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["cuda:0", "cuda", torch.device("cuda")])
def test_step_counters_on_the_host_are_no_state_of_the_gpu(where: object) -> None:
    run = Training("cuda:0").until_gradients()
    found = discover(run.model, run.optimizer, device=where).only("optim_states")
    assert len(found) == 10
    assert not any(name.endswith("step") for name in found.names())
