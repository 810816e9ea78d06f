"""Ctrl-C amid a move is handled when the move is whole."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.transfer import moves
from pinferry.transfer.interrupts import Uninterrupted
from tests.workbench import LATE, SOON

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinferry import TransferEngine, _native

MOVER = "pinferry.transfer.mover"


def interrupted_after(call: Callable[..., object]) -> Callable[..., object]:
    """Press Ctrl-C between the end of `call` and what its caller does next."""

    def wrapper(*arguments: object, **options: object) -> object:
        result = call(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return result

    return wrapper


def run_with_a_handler(program: str) -> None:
    """Run a program that would hang if `interrupt`, once, found a lock that it holds itself."""
    text = """
import faulthandler, signal, torch
from pinferry import PinnedArena, Ticket, TransferEngine, _native
from pinferry.transfer.in_flight import IN_FLIGHT
faulthandler.dump_traceback_later(30, exit=True)

def handle(call):
    def handler(*_):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        call()
    signal.signal(signal.SIGUSR1, handler)

def interrupt():
    signal.raise_signal(signal.SIGUSR1)
"""
    done = subprocess.run(
        [sys.executable, "-c", text + program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_interrupt_amid_an_offload_leaves_all_of_it_away_and_known(
    engine: TransferEngine, torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(1000.0, device=torch_device)
    with monkeypatch.context() as patch:
        patch.setattr(f"{MOVER}.send", interrupted_after(moves.send))
        with pytest.raises(KeyboardInterrupt):
            engine.offload({"x": x})
    assert engine.offloaded_names() == ("x",)
    engine.reload()
    assert torch.equal(x.cpu(), torch.arange(1000.0))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP])
def test_a_scheduler_s_signal_amid_an_offload_does_not_part_it_either(
    engine: TransferEngine, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    x = torch.ones(8, device=torch.device(engine.device.kind))

    def stop(*_: object) -> None:
        sys.exit("the job ends")

    def send_amid(*arguments: object, **options: object) -> object:
        sent = moves.send(*arguments, **options)  # type: ignore[arg-type]
        signal.raise_signal(number)
        return sent

    before = signal.signal(number, stop)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(f"{MOVER}.send", send_amid)
            with pytest.raises(SystemExit):
                engine.offload({"x": x})
    finally:
        signal.signal(number, before)
    assert engine.offloaded_names() == ("x",)
    engine.reload()
    assert x.sum() == 8


def test_an_interrupt_amid_a_reload_brings_all_of_it_back(
    engine: TransferEngine, torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(1000.0, device=torch_device)
    engine.offload({"x": x})
    with monkeypatch.context() as patch:
        patch.setattr(f"{MOVER}.bring", interrupted_after(moves.bring))
        with pytest.raises(KeyboardInterrupt):
            engine.reload()
    assert engine.offloaded_names() == ()
    assert torch.equal(x.cpu(), torch.arange(1000.0))


def test_an_interrupt_amid_a_plan_s_offload_leaves_the_plan_knowing_it(
    engine: TransferEngine, torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(1000.0, device=torch_device)
    plan = engine.plan({"x": x})
    with monkeypatch.context() as patch:
        patch.setattr(f"{MOVER}.send", interrupted_after(moves.send))
        with pytest.raises(KeyboardInterrupt):
            plan.offload()
    assert plan.offloaded
    plan.reload()
    assert torch.equal(x.cpu(), torch.arange(1000.0))
    plan.close()


@pytest.mark.parametrize("timeout", [None, LATE])
@pytest.mark.parametrize("torch_device", ["cpu"], indirect=True)
def test_an_interrupt_ends_a_wait_for_copies_that_hang(
    engine: TransferEngine, stream: _native.Stream, torch_device: str, timeout: float | None
) -> None:
    x = torch.arange(1000.0, device=torch_device)
    stream.hold()
    ticket = engine.offload({"x": x}, streams=[stream])
    rescue = threading.Timer(LATE, stream.release)
    rescue.start()

    def press(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    try:
        signal.setitimer(signal.ITIMER_REAL, SOON)
        with pytest.raises(KeyboardInterrupt):
            ticket.synchronize(timeout)
        assert not ticket.done()
    finally:
        rescue.cancel()
        signal.signal(signal.SIGALRM, before)
    stream.release()
    engine.reload()
    assert torch.equal(x, torch.arange(1000.0))


def test_an_interrupt_as_a_deferred_reload_arrives_harms_no_later_wait(
    engine: TransferEngine, torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(1000.0, device=torch_device)
    engine.offload({"x": x})
    ticket = engine.reload(defer=True)
    with monkeypatch.context() as patch:
        arrivals = engine._arrivals
        patch.setattr(arrivals, "_on_landing", interrupted_after(arrivals._on_landing))
        with pytest.raises(KeyboardInterrupt):
            ticket.wait()
    ticket.wait()
    assert torch.equal(x.cpu(), torch.arange(1000.0))


def test_a_handler_may_wait_for_the_ticket_that_is_being_waited_for() -> None:
    run_with_a_handler("""
ticket = Ticket(_native.Ticket(), _native.HostDevice(), on_wait=interrupt)
handle(ticket.wait)
ticket.wait()
""")


def test_a_handler_may_reload_while_what_has_ended_is_looked_for() -> None:
    run_with_a_handler("""
class Ended(_native.Ticket):
    def done(self):
        interrupt()
        return True

with PinnedArena("1MiB", device="cpu") as arena, TransferEngine(arena) as engine:
    x = torch.ones(8)
    engine.offload(x)
    handle(engine.reload)
    IN_FLIGHT.hold(Ended(), None)
    IN_FLIGHT.reap()
    assert x.sum() == 8
""")


def test_handlers_are_as_before_and_are_called_once_each_in_order() -> None:
    seen: list[str] = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append("alarm"))
    try:
        with Uninterrupted():
            signal.raise_signal(signal.SIGALRM)
            seen.append("end of the scope")
        assert seen == ["end of the scope", "alarm"]
        signal.raise_signal(signal.SIGALRM)
        assert seen == ["end of the scope", "alarm", "alarm"]
    finally:
        signal.signal(signal.SIGALRM, before)
