"""Ctrl-C amid a move is handled when the move is whole."""

from __future__ import annotations

import signal
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
