"""Verifying engines: when they compare, what they refuse to do, and what goes on without them."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from pinferry import PinnedArena, TransferEngine, Verify
from pinferry.errors import ChecksumMismatch, InvalidArgument
from pinferry.transfer import checksum
from tests.transfer.host_copies import changed_byte, flip
from tests.transfer.storage_bits import random_bits, storage_bits

KIB = 1024
States = dict[str, torch.Tensor]
both_layouts = pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])


@pytest.fixture
def engine(engine: TransferEngine) -> TransferEngine:
    engine.verify = "checksum"
    return engine


def make_states(kind: str, count: int, device: str) -> States:
    return {
        f"{kind}{i}": random_bits(torch.uint8, 20 * KIB + 7 * i, device, seed=i)
        for i in range(count)
    }


@pytest.fixture
def states(torch_device: str) -> States:
    return make_states("s", 6, torch_device)


def bits(states: States) -> dict[str, bytes]:
    return {name: storage_bits(x) for name, x in states.items()}


@pytest.mark.parametrize("word", ["md5", "", "CHECKSUM", True, False, 1, [], object], ids=str)
def test_a_way_that_does_not_exist_is_refused_and_the_old_one_stays(
    arena: PinnedArena, engine: TransferEngine, word: object
) -> None:
    with pytest.raises(InvalidArgument, match="there is 'checksum'"):
        TransferEngine(arena, verify=word)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="there is 'checksum'"):
        engine.verify = word  # type: ignore[assignment]
    assert engine.verify is Verify.CHECKSUM


@pytest.mark.parametrize("way", ["checksum", Verify.CHECKSUM])
def test_an_engine_can_be_made_so(arena: PinnedArena, way: str) -> None:
    assert TransferEngine(arena).verify is None
    engine = TransferEngine(arena, verify=way)
    assert engine.verify is Verify.CHECKSUM
    engine.verify = None
    assert engine.verify is None


@both_layouts
def test_a_reload_that_is_verified_cannot_be_deferred(
    engine: TransferEngine, states: States, compact: bool
) -> None:
    before = bits(states)
    plan = engine.plan(states, compact=compact)
    plan.offload()
    with pytest.raises(InvalidArgument, match="cannot be deferred"):
        plan.reload(defer=True)
    assert plan.offloaded
    with pytest.raises(RuntimeError, match="s3 is offloaded"):
        states["s3"].sum()
    plan.reload()
    engine.offload(states)
    with pytest.raises(InvalidArgument, match="cannot be deferred"):
        engine.reload(defer=True)
    assert engine.offloaded_names() == tuple(states)
    engine.verify = None
    engine.reload(defer=True).wait()
    assert bits(states) == before


@both_layouts
def test_what_left_before_is_not_compared_and_what_leaves_later_is(
    engine: TransferEngine, states: States, compact: bool
) -> None:
    engine.verify = None
    plan = engine.plan(states, compact=compact)
    plan.offload().synchronize()
    flip(plan, "s2", 5)
    engine.verify = Verify.CHECKSUM
    plan.reload()
    plan.offload().synchronize()
    with changed_byte(plan, "s2", 5), pytest.raises(ChecksumMismatch):
        plan.reload()
    engine.verify = Verify.CHECKSUM  # is set already: what is known stays known
    with changed_byte(plan, "s2", 5), pytest.raises(ChecksumMismatch):
        plan.reload()
    plan.reload()
    plan.close()


@both_layouts
def test_what_dies_is_not_missed(engine: TransferEngine, states: States, compact: bool) -> None:
    plan = engine.plan(states, compact=compact, immutable=["s1", "s2"])
    for gone in ("s1", "s4"):
        plan.offload().synchronize()
        flip(plan, gone, 3)
        del states[gone]
        gc.collect()
        plan.reload()
    before = bits(states)
    plan.offload().synchronize()
    plan.reload()
    assert bits(states) == before
    plan.offload().synchronize()
    with changed_byte(plan, "s5", 3), pytest.raises(ChecksumMismatch, match=r"\As5 "):
        plan.reload()
    plan.reload()
    plan.close()


def test_a_new_storage_is_not_taken_for_one_that_died(
    engine: TransferEngine, torch_device: str
) -> None:
    for seed in range(30):
        x = random_bits(torch.uint8, 1000, torch_device, seed=seed)
        before = storage_bits(x)
        engine.offload({"x": x})
        if seed % 3:
            engine.reload()
            assert storage_bits(x) == before
        del x


@pytest.mark.parametrize("torch_device", ["cpu"], indirect=True)
def test_a_default_device_of_the_caller_s_changes_nothing(
    engine: TransferEngine, states: States
) -> None:
    before = bits(states)
    checksum._factors.cache_clear()
    with torch.device("meta"), torch.inference_mode():
        engine.offload(states)
        engine.reload()
    assert bits(states) == before
    engine.offload(states)
    engine.reload()
    assert bits(states) == before


def test_threads_verify_beside_each_other(engine: TransferEngine, torch_device: str) -> None:
    failures: list[BaseException] = []

    def cycle(seed: int) -> None:
        try:
            states = [random_bits(torch.uint8, 999, torch_device, seed=seed + i) for i in range(5)]
            with engine.plan(states, compact=True, immutable=bool(seed)) as plan:
                for _ in range(10):
                    before = [storage_bits(x) for x in states]
                    plan.offload()
                    plan.reload()
                    assert [storage_bits(x) for x in states] == before
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=cycle, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
