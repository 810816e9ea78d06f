"""Engines, plans and offloaders that are dropped, shared or used by several threads at once."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest
import torch

from pinferry import PinnedArena, StateOffloader, TransferEngine, _native
from pinferry.errors import ArenaInUse, InvalidArgument


def run(program: str) -> None:
    """Run a program that a fault would end by a signal."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-1000:])


def test_memory_under_a_copy_outlives_the_engine_and_the_tensor() -> None:
    run("""
import gc, torch
from pinferry import PinnedArena, TransferEngine
arena = PinnedArena("64MiB", device="cpu")
stream = arena.device.create_stream()
stream.hold()
def forget():
    x = torch.ones(2**23)
    TransferEngine(arena).offload(x, streams=[stream])
forget()
gc.collect()
others = [torch.zeros(2**23) for _ in range(3)]
stream.release()
stream.synchronize()
""")


def test_what_is_discarded_amid_its_reload_outlives_the_copy() -> None:
    run("""
import torch
from pinferry import PinnedArena, TransferEngine
arena = PinnedArena("1MiB", device="cpu")
producer, consumer = arena.device.create_stream(), arena.device.create_stream()
engine = TransferEngine(arena)
x = torch.full((8192,), 5, dtype=torch.uint8)
producer.hold()
engine.offload(x, streams=[producer])
ticket = engine.reload(streams=[consumer])
engine.discard(x)
others = [torch.full((8192,), 7, dtype=torch.uint8) for _ in range(8)]
producer.release()
ticket.synchronize()
assert all((other == 7).all() for other in others)
""")


def test_a_deferred_reload_of_a_dropped_plan_arrives(arena: PinnedArena, torch_device: str) -> None:
    x = torch.arange(1000.0, device=torch_device)
    engine = TransferEngine(arena)
    plan = engine.plan({"x": x})
    plan.offload()
    plan.reload(defer=True)
    plan.close()
    del plan, engine
    gc.collect()
    assert torch.equal(x.cpu(), torch.arange(1000.0))


def test_a_plan_whose_storages_all_died_gives_its_room_back(
    arena: PinnedArena, torch_device: str
) -> None:
    x = torch.ones(1000, device=torch_device)
    engine = TransferEngine(arena)
    plan = engine.plan({"x": x})
    plan.offload().synchronize()
    del x, plan, engine
    gc.collect()
    assert arena.stats().used_bytes == 0


def test_an_engine_that_takes_one_storage_as_another_dies_is_kept(
    arena: PinnedArena, torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TransferEngine(arena)
    dying, taken = (torch.ones(8, device=torch_device) for _ in range(2))

    class Owners(set[TransferEngine]):
        """Lets another thread in before it forgets an engine."""

        def discard(self, owner: object) -> None:
            taker = threading.Thread(target=engine.offload, args=({"taken": taken},))
            taker.start()
            taker.join()
            super().discard(owner)

    monkeypatch.setattr("pinferry.transfer.engine._holding", Owners())
    engine.offload({"dying": dying}).synchronize()
    del dying
    assert TransferEngine.holding(arena) is engine
    monkeypatch.undo()
    engine.reload()
    assert taken.sum() == 8


def test_two_threads_may_use_one_plan(engine: TransferEngine, torch_device: str) -> None:
    x = torch.arange(1000.0, device=torch_device)
    plan = engine.plan({"x": x})
    failures: list[BaseException] = []

    def play(move: str) -> None:
        try:
            for _ in range(200):
                getattr(plan, move)()
        except BaseException as error:  # noqa: BLE001  -- shown by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=play, args=(move,)) for move in ("offload", "reload")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    plan.reload()
    assert torch.equal(x.cpu(), torch.arange(1000.0))
    plan.close()


def test_a_plan_that_is_closed_by_another_thread_amid_an_offload_stays_open(
    engine: TransferEngine, torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(1000.0, device=torch_device)
    plan = engine.plan({"x": x})
    refused: list[ArenaInUse] = []
    decided = threading.Event()

    def close() -> None:
        try:
            plan.close()
        except ArenaInUse as error:
            refused.append(error)
        decided.set()

    closer = threading.Thread(target=close)
    dispatch = engine.dispatch

    def dispatch_amid(*arguments: object, **options: object) -> object:
        ticket = dispatch(*arguments, **options)  # type: ignore[arg-type]
        closer.start()
        decided.wait(0.2)  # only a fault decides now; nothing is timed otherwise
        return ticket

    with monkeypatch.context() as patch:
        patch.setattr(engine, "dispatch", dispatch_amid)
        plan.offload()
    closer.join()
    assert len(refused) == 1
    plan.reload()
    assert torch.equal(x.cpu(), torch.arange(1000.0))
    plan.close()


def test_a_new_offloader_finds_what_a_dropped_one_has_taken_away(
    arena: PinnedArena, torch_device: str
) -> None:
    model = torch.nn.Linear(8, 8, device=torch_device)
    StateOffloader(model, arena=arena).offload()
    gc.collect()
    again = StateOffloader(model, arena=arena)
    assert again.resident() == frozenset()
    assert again.offloaded_states() == {"lp_params"}
    again.reload()
    assert model.weight.sum().isfinite()


@pytest.mark.parametrize("stream", [12345, -1])
def test_a_number_that_names_no_stream_is_refused(stream: int) -> None:
    x = torch.ones(8)
    with PinnedArena("1MiB", device=_native.HostDevice()) as arena:
        engine = TransferEngine(arena)
        with pytest.raises((InvalidArgument, TypeError)):
            engine.offload(x, streams=[stream])
        assert x.sum() == 8
