"""Reloads that run beside other work: guarded until somebody waits."""

from __future__ import annotations

import contextlib
import gc
import threading

import pytest
import torch

from pinferry import PinnedArena, Ticket, TransferEngine, _native
from pinferry.errors import NotOffloaded
from tests.transfer.storage_bits import random_bits, storage_bits


def assert_arriving(x: torch.Tensor, name: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        x.sum()
    first = str(caught.value).splitlines()[0]
    assert first == f"{name} is being reloaded; call wait() on its ticket first"


@pytest.mark.parametrize("how", ["wait", "synchronize"])
def test_a_deferred_reload_is_guarded_until_its_ticket_is_waited_for(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, how: str
) -> None:
    x = random_bits(torch.float32, 5000, torch_device)
    before = storage_bits(x)
    stream.hold()
    engine.offload({"x": x}, streams=[stream])
    ticket = engine.reload({"x": x}, defer=True)
    assert not ticket.done()
    assert ticket.nbytes == 20000
    assert ticket.elapsed_ms is None
    assert_arriving(x, "x")
    stream.release()
    while not ticket.done():  # done is not waited for
        pass
    assert_arriving(x, "x")
    getattr(ticket, how)()
    assert storage_bits(x) == before
    getattr(ticket, how)()
    assert storage_bits(x) == before


def test_each_ticket_brings_its_own(engine: TransferEngine, torch_device: str) -> None:
    a, b = torch.ones(8, device=torch_device), torch.full((8,), 2.0, device=torch_device)
    engine.offload({"a": a, "b": b})
    first = engine.reload({"a": a}, defer=True)
    second = engine.reload({"b": b}, defer=True)
    second.wait()
    assert b.sum() == 16
    assert_arriving(a, "a")
    first.wait()
    assert a.sum() == 8


def test_an_offload_of_what_is_arriving_takes_the_arrived_bytes(
    engine: TransferEngine, torch_device: str
) -> None:
    x = random_bits(torch.float32, 5000, torch_device)
    before = storage_bits(x)
    for _ in range(3):
        engine.offload({"x": x})
        engine.reload(defer=True)
    assert engine.offload({"x": x}).nbytes == 20000
    engine.reload()
    assert storage_bits(x) == before


def test_a_plan_of_what_is_arriving_lets_it_arrive(
    engine: TransferEngine, torch_device: str
) -> None:
    x = random_bits(torch.float32, 100, torch_device)
    before = storage_bits(x)
    engine.offload({"x": x})
    engine.reload(defer=True)
    with engine.plan({"x": x}) as plan:
        plan.offload()
        plan.reload()
    assert storage_bits(x) == before


def test_a_reload_by_name_of_what_is_arriving_lets_it_arrive(
    engine: TransferEngine, torch_device: str
) -> None:
    x = torch.ones(8, device=torch_device)
    engine.offload({"x": x})
    engine.reload(defer=True)
    with contextlib.suppress(NotOffloaded):
        engine.reload({"x": x})
    assert x.sum() == 8


def test_a_reload_of_everything_brings_what_is_arriving(
    engine: TransferEngine, torch_device: str
) -> None:
    x = torch.ones(8, device=torch_device)
    engine.offload({"x": x})
    engine.reload(defer=True)  # the ticket is dropped
    engine.reload()
    assert x.sum() == 8


@pytest.mark.parametrize("how", ["settle", "close"])
def test_a_dropped_ticket_s_states_arrive_with_the_engine(
    engine: TransferEngine, torch_device: str, how: str
) -> None:
    x = torch.ones(8, device=torch_device)
    engine.offload({"x": x})
    engine.reload(defer=True)
    gc.collect()
    assert_arriving(x, "x")
    getattr(engine, how)()
    assert x.sum() == 8


def test_a_storage_that_dies_while_arriving_harms_nobody(
    arena: PinnedArena, engine: TransferEngine, stream: _native.Stream, torch_device: str
) -> None:
    x, y = torch.ones(2**18, device=torch_device), torch.full((8,), 2.0, device=torch_device)
    stream.hold()
    engine.offload({"x": x, "y": y}, streams=[stream])
    ticket = engine.reload(defer=True)
    del x
    gc.collect()
    stream.release()
    ticket.synchronize(30.0)
    assert y.sum() == 16
    assert arena.stats().used_bytes == 0


def test_a_wait_does_not_return_before_another_thread_s_wait_has_installed() -> None:
    device = _native.HostDevice()
    installing, may_finish, returned = (threading.Event() for _ in range(3))

    def install() -> None:
        installing.set()
        may_finish.wait(30.0)

    ticket = Ticket(_native.Ticket(), device, on_wait=install)

    def wait_second() -> None:
        ticket.wait()
        returned.set()

    first, second = threading.Thread(target=ticket.wait), threading.Thread(target=wait_second)
    first.start()
    assert installing.wait(30.0)
    second.start()
    early = returned.wait(0.2)  # only a fault returns early; nothing is timed otherwise
    may_finish.set()
    first.join()
    second.join()
    assert not early, "the states were still guarded when the second wait returned"
