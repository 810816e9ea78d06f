"""What an engine takes: names, iterables, storages, duplicates, nothing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from pinferry import PinnedArena, TransferEngine
from pinferry.errors import ArenaClosed, EngineClosed, InvalidArgument, NotOffloaded
from tests.transfer.pair import Pair
from tests.transfer.storage_bits import DTYPES, random_bits, storage_bits

if TYPE_CHECKING:
    from pinferry.transfer.storages import States


def test_a_mapping_gives_the_names(engine: TransferEngine, torch_device: str) -> None:
    a, b = (torch.ones(10, device=torch_device) for _ in range(2))
    ticket = engine.offload({"first": a, "second": b})
    assert engine.offloaded_names() == ("first", "second")
    assert ticket.nbytes == engine.offloaded_bytes == 80
    with pytest.raises(RuntimeError, match=r"\Asecond is offloaded"):
        b.sum()


@pytest.mark.parametrize("kind", ["list", "tuple", "generator", "storages", "module"])
def test_an_iterable_is_numbered(engine: TransferEngine, torch_device: str, kind: str) -> None:
    layer = nn.Linear(4, 4, device=torch_device)
    parameters = list(layer.parameters())
    made: dict[str, States] = {
        "list": parameters,
        "tuple": tuple(parameters),
        "generator": (each for each in parameters),
        "storages": [each.untyped_storage() for each in parameters],
        "module": layer.parameters(),
    }
    states = made[kind]
    assert engine.offload(states).nbytes == 80
    assert engine.offloaded_names() == ("tensors[0]", "tensors[1]")
    engine.reload(parameters)
    assert engine.offloaded_names() == ()


def test_one_tensor_or_storage_goes_alone(engine: TransferEngine, torch_device: str) -> None:
    x = torch.arange(6.0, device=torch_device)
    engine.offload(x)
    assert engine.offloaded_names() == ("tensor",)
    engine.reload(x.untyped_storage())
    engine.offload(x.untyped_storage())
    engine.reload(x[2:4])
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_views_of_one_storage_move_once_under_the_first_name(
    engine: TransferEngine, torch_device: str
) -> None:
    flat = torch.arange(100.0, device=torch_device)
    states = {"head": flat[:10], "tail": flat[90:], "all": flat, "again": flat.view(10, 10)}
    assert engine.offload(states).nbytes == 400
    assert engine.offloaded_names() == ("head",)
    assert engine.reload(states).nbytes == 400
    assert flat.sum() == 4950


def test_a_batch_of_all_dtypes_comes_back(engine: TransferEngine, torch_device: str) -> None:
    states = {str(dtype): random_bits(dtype, 33, torch_device) for dtype in DTYPES}
    before = {name: storage_bits(x) for name, x in states.items()}
    assert engine.offload(states).nbytes == sum(map(len, before.values()))
    engine.reload({name: states[name] for name in reversed(states)})
    assert {name: storage_bits(x) for name, x in states.items()} == before


@pytest.mark.parametrize("states", [[], {}, ()], ids=repr)
def test_nothing_is_fine(engine: TransferEngine, states: list[torch.Tensor]) -> None:
    for ticket in (engine.offload(states), engine.reload(states), engine.reload()):
        assert ticket.done()
        assert ticket.nbytes == 0
        assert ticket.elapsed_ms == 0.0
        ticket.wait()
        ticket.synchronize(0.0)


def test_a_storage_of_zero_bytes_stays_and_is_no_error(
    engine: TransferEngine, torch_device: str
) -> None:
    empty, x = torch.empty(0, device=torch_device), torch.ones(4, device=torch_device)
    assert engine.offload({"empty": empty, "x": x}).nbytes == 16
    assert engine.offloaded_names() == ("x",)
    assert empty.sum() == 0
    assert engine.reload({"empty": empty, "x": x}).nbytes == 16
    assert engine.reload(empty).nbytes == 0


def test_an_offload_of_what_is_away_does_nothing(engine: TransferEngine, torch_device: str) -> None:
    a, b = (torch.full((10,), value, device=torch_device) for value in (1.0, 2.0))
    engine.offload({"a": a})
    again = engine.offload({"other name": a})
    assert again.nbytes == 0
    assert again.done()
    assert engine.offload({"x": a, "b": b}).nbytes == 40
    assert engine.offloaded_names() == ("a", "b")
    engine.reload()
    assert (a + b).tolist() == [3.0] * 10


def test_a_reload_of_what_is_here_is_refused_and_moves_nothing(
    engine: TransferEngine, torch_device: str
) -> None:
    a, b = (torch.ones(10, device=torch_device) for _ in range(2))
    engine.offload({"a": a})
    with pytest.raises(NotOffloaded, match=r"\Ab cannot be reloaded"):
        engine.reload({"a": a, "b": b})
    assert engine.offloaded_names() == ("a",)
    engine.reload({"a": a})
    with pytest.raises(NotOffloaded, match=r"\Aa and 1 more cannot be reloaded"):
        engine.reload({"a": a, "b": b})


def test_every_name_of_a_mapping_moves_though_a_wrapper_s_inner_name_equals_one(
    engine: TransferEngine, torch_device: str
) -> None:
    plain = torch.ones(100, device=torch_device)
    wrapper = Pair(torch.ones(4, device=torch_device), torch.ones(4, device=torch_device))
    ticket = engine.offload({"w.left": plain, "w": wrapper})
    assert ticket.nbytes == 432, "a storage was left out without a word"


@pytest.mark.parametrize("call", ["offload", "reload", "plan"])
@pytest.mark.parametrize(
    "states",
    [3, 1.5, "weight", b"weight", [[torch.ones(1)]], {"a": None}, {"a": [1.0]}, [1, 2], [None]],
    ids=lambda value: repr(value)[:20],
)
def test_what_holds_no_bytes_is_refused(engine: TransferEngine, call: str, states: object) -> None:
    with pytest.raises(InvalidArgument):
        getattr(engine, call)(states)


@pytest.mark.parametrize("bad", ["stream", 1.5, None, True], ids=repr)
def test_what_is_no_stream_is_refused_before_anything_moves(
    engine: TransferEngine, torch_device: str, bad: object
) -> None:
    x = torch.arange(10.0, device=torch_device)
    with pytest.raises(InvalidArgument, match="is no stream"):
        engine.offload(x, streams=[bad])
    assert engine.offloaded_bytes == engine.arena.stats().used_bytes == 0
    engine.offload(x)
    with pytest.raises(InvalidArgument, match="is no stream"):
        engine.reload(streams=[bad])
    assert engine.offloaded_bytes == 40
    engine.reload()
    assert x.sum() == 45


def test_a_closed_engine_refuses_work(arena: PinnedArena, torch_device: str) -> None:
    x = torch.ones(4, device=torch_device)
    with TransferEngine(arena) as engine:
        pass
    engine.close()
    for call in (lambda: engine.offload(x), engine.reload, lambda: engine.plan(x)):
        with pytest.raises(EngineClosed):
            call()
    with pytest.raises(EngineClosed), engine:
        pass
    assert x.sum() == 4


def test_an_engine_needs_an_open_arena(arena: PinnedArena) -> None:
    arena.close()
    with pytest.raises(ArenaClosed):
        TransferEngine(arena)


def test_is_offloaded_knows_only_this_engine_s_storages(
    engine: TransferEngine, torch_device: str
) -> None:
    a, b = torch.ones(4, device=torch_device), torch.ones(4, device=torch_device)
    engine.offload(a)
    assert engine.is_offloaded(a.untyped_storage())
    assert not engine.is_offloaded(b.untyped_storage())
    engine.reload()
    assert not engine.is_offloaded(a.untyped_storage())


def test_quantized_and_nested_tensors_move_too(engine: TransferEngine) -> None:
    if engine.device.kind != "cpu":
        pytest.skip("made of CPU tensors")
    nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged)
    before = [each.tolist() for each in nested.unbind()]
    engine.offload({"nested": nested})
    assert engine.offloaded_names() == ("nested._values", "nested._offsets")
    with pytest.raises(RuntimeError, match=r"\Anested\._values is offloaded"):
        nested.values().sum()
    engine.reload({"nested": nested})
    assert [each.tolist() for each in nested.unbind()] == before
    assert np.isfinite(nested.values().numpy()).all()
