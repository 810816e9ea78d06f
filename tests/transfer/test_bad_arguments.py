"""What is no argument is one clear error, and nothing moves or waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena, TransferEngine
from pinferry.errors import InvalidArgument, TransferTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinferry import _native

INFINITY = float("inf")


def assert_whole(engine: TransferEngine, x: torch.Tensor, used_bytes: int = 0) -> None:
    assert engine.offloaded_names() == ()
    assert engine.arena.stats().used_bytes == used_bytes
    assert x.sum() == 8


@pytest.mark.parametrize("streams", [[-1], [2**64], [2**70], [True], [None], ["x"], 5, [0.0], []])
def test_streams_that_are_none_are_refused_and_nothing_moves(
    engine: TransferEngine, torch_device: str, streams: list[object]
) -> None:
    x = torch.ones(8, device=torch_device)
    planned = torch.ones(8, device=torch_device)
    plan = engine.plan({"planned": planned})
    used = engine.arena.stats().used_bytes
    with pytest.raises(InvalidArgument, match=r"no stream|several streams|names none"):
        engine.offload({"x": x}, streams=streams)
    with pytest.raises(InvalidArgument, match=r"no stream|several streams|names none"):
        plan.offload(streams=streams)
    assert planned.sum() == 8
    assert_whole(engine, x, used)
    engine.offload({"x": x})
    with pytest.raises(InvalidArgument, match=r"no stream|several streams|names none"):
        engine.reload(streams=streams)
    assert engine.offloaded_names() == ("x",)
    engine.reload()
    assert_whole(engine, x, used)


@pytest.mark.parametrize("stream", [-1, 2**64, True, "x"])
def test_a_ticket_refuses_to_order_what_is_no_stream(
    engine: TransferEngine, torch_device: str, stream: object
) -> None:
    ticket = engine.offload(torch.ones(8, device=torch_device))
    with pytest.raises(InvalidArgument, match="no stream"):
        ticket.wait(stream)


@pytest.mark.parametrize("timeout", ["x", [], float("nan"), -INFINITY, True, 10**400])
def test_a_ticket_refuses_a_timeout_that_is_no_number_of_seconds(
    engine: TransferEngine, torch_device: str, timeout: float
) -> None:
    ticket = engine.offload(torch.ones(8, device=torch_device))
    with pytest.raises(InvalidArgument, match="timeout="):
        ticket.synchronize(timeout)


@pytest.mark.parametrize("callback", [None, 3, "print"])
def test_a_ticket_refuses_a_callback_that_cannot_be_called(
    engine: TransferEngine, torch_device: str, callback: Callable[[object], None]
) -> None:
    ticket = engine.offload(torch.ones(8, device=torch_device))
    with pytest.raises(InvalidArgument, match="callback"):
        ticket.add_done_callback(callback)


def test_a_deadline_that_has_passed_is_no_wait(
    engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x = torch.ones(8, device=torch_device)
    stream.hold()
    ticket = engine.offload(x, streams=[stream])
    for timeout in (0, -0.5, -1e300):
        with pytest.raises(TransferTimeout):
            ticket.synchronize(timeout)
    stream.release()
    ticket.synchronize(INFINITY)
    ticket.synchronize(-1)


@pytest.mark.parametrize("defer", ["x", 1, None])
def test_a_reload_is_deferred_or_not(
    engine: TransferEngine, torch_device: str, defer: bool
) -> None:
    x, planned = torch.ones(8, device=torch_device), torch.ones(8, device=torch_device)
    plan = engine.plan({"planned": planned})
    plan.offload()
    engine.offload({"x": x})
    for each in (plan, engine):
        with pytest.raises(InvalidArgument, match="defer="):
            each.reload(defer=defer)
    assert plan.offloaded
    assert engine.offloaded_names() == ("x",)
    plan.reload()


@pytest.mark.parametrize("name", [5, None, torch.ones(2)])
def test_names_of_states_are_text(engine: TransferEngine, torch_device: str, name: str) -> None:
    x = torch.ones(8, device=torch_device)
    for call in (engine.offload, engine.reload, engine.plan):
        with pytest.raises(InvalidArgument, match="no name"):
            call({name: x})
    assert_whole(engine, x)


def test_only_a_storage_is_asked_after(engine: TransferEngine, torch_device: str) -> None:
    for each in (3, None, torch.ones(8, device=torch_device)):
        with pytest.raises(InvalidArgument, match="untyped_storage"):
            engine.is_offloaded(each)  # type: ignore[arg-type]


def test_what_is_to_be_compacted_is_named(engine: TransferEngine) -> None:
    with pytest.raises(InvalidArgument, match="compact"):
        engine.plan({"x": torch.ones(1)}, compact=[[]])  # type: ignore[list-item]


def test_an_engine_wants_an_arena() -> None:
    with PinnedArena("1MiB", device="cpu") as arena:
        for given in (None, 5, "x", arena.native, PinnedArena):
            with pytest.raises(InvalidArgument, match="PinnedArena"):
                TransferEngine(given)  # type: ignore[arg-type]
