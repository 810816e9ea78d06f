"""One set out while another comes in."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch

from pinferry import PinnedArena, TransferEngine, _native
from pinferry.errors import DeviceOutOfMemory, EngineClosed, InvalidArgument, InvalidSize
from tests.transfer.storage_bits import random_bits, storage_bits
from tests.workbench import LATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinferry.transfer import TransferPlan
    from pinferry.transfer.cargo import Cargo
    from pinferry.transfer.options import ReloadOptions

KIB = 1024
PIECE = 64 * KIB

States = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinferry.transfer.swap._PIECE_BYTES", PIECE)
    monkeypatch.setattr("pinferry.transfer.layout._LARGEST_SLAB", PIECE)


def make_states(kind: str, count: int, device: str) -> States:
    return {
        f"{kind}{i}": random_bits(torch.uint8, 20 * KIB + 7 * i, device, seed=i)
        for i in range(count)
    }


def bits(states: States) -> dict[str, bytes]:
    return {name: storage_bits(x) for name, x in states.items()}


@pytest.fixture
def sets(torch_device: str) -> tuple[States, States]:
    return make_states("train", 12, torch_device), make_states("play", 9, torch_device)


@pytest.fixture(params=[False, True], ids=["apart", "slab"])
def plans(
    request: pytest.FixtureRequest, engine: TransferEngine, sets: tuple[States, States]
) -> Iterator[tuple[TransferPlan, TransferPlan]]:
    """Yield a plan that is here and one that is away."""
    train, play = (engine.plan(each, compact=request.param) for each in sets)
    play.offload()
    yield train, play
    for plan in (train, play):
        plan.reload()


@pytest.mark.parametrize("slack", [0, "16KiB", "100KiB", "1GiB"], ids=str)
def test_two_sets_change_places_to_the_bit(
    engine: TransferEngine,
    sets: tuple[States, States],
    plans: tuple[TransferPlan, TransferPlan],
    slack: int | str,
) -> None:
    (train, play), (first, second) = sets, plans
    second.reload()
    before = bits(train), bits(play)
    second.offload()
    for _ in range(3):
        ticket = engine.swap(out=first, into=second, slack=slack)
        assert (first.offloaded, second.offloaded) == (True, False)
        with pytest.raises(RuntimeError, match="train3 is offloaded"):
            train["train3"].sum()
        assert bits(play) == before[1]
        ticket.synchronize(LATE)
        assert ticket.done()
        assert ticket.nbytes_out >= first.nbytes
        assert ticket.nbytes_in >= second.nbytes
        engine.swap(out=second, into=first, slack=slack).wait()
        assert bits(train) == before[0]
        assert (first.offloaded, second.offloaded) == (False, True)


def test_what_is_done_already_is_not_done_again(
    engine: TransferEngine, plans: tuple[TransferPlan, TransferPlan], arena: PinnedArena
) -> None:
    first, second = plans
    engine.swap(out=first, into=second)
    again = engine.swap(out=first, into=second)
    assert (again.nbytes_out, again.nbytes_in) == (0, 0)
    assert again.done()
    assert "done" in repr(again)
    first.reload()
    only_out = engine.swap(out=first, into=second)
    assert (only_out.nbytes_in, first.offloaded) == (0, True)
    second.offload()
    only_in = engine.swap(out=first, into=second)
    assert (only_in.nbytes_out, second.offloaded) == (0, False)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_swap_that_fails_puts_everything_back(
    engine: TransferEngine,
    sets: tuple[States, States],
    plans: tuple[TransferPlan, TransferPlan],
    monkeypatch: pytest.MonkeyPatch,
    fails_at: int,
) -> None:
    (train, play), (first, second) = sets, plans
    before = bits(train)
    second.reload()
    expected = bits(play)
    second.offload()
    calls = 0
    fetch = engine.fetch

    def failing(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise DeviceOutOfMemory("no room", requested=1)
        return fetch(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "fetch", failing)
    with pytest.raises(DeviceOutOfMemory):
        engine.swap(out=first, into=second, slack="70KiB")
    monkeypatch.undo()
    assert (first.offloaded, second.offloaded) == (False, True)
    assert bits(train) == before
    with pytest.raises(RuntimeError, match="play0 is offloaded"):
        play["play0"].sum()
    second.reload()
    assert bits(play) == expected


def test_what_dies_amid_a_swap_that_fails_keeps_nothing_from_going_back(
    engine: TransferEngine,
    sets: tuple[States, States],
    plans: tuple[TransferPlan, TransferPlan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (train, play), (first, second) = sets, plans
    arrived: list[frozenset[int]] = []
    fetch = engine.fetch

    def failing(cargo: Cargo, options: ReloadOptions) -> object:
        if not train.keys().isdisjoint(cargo.names) or len(arrived) < 2:
            arrived.append(cargo.keys)
            return fetch(cargo, options)
        del train["train0"], play["play0"]  # the first of those that are out and in
        gc.collect()
        raise DeviceOutOfMemory("no room", requested=1)

    before = {name: each for name, each in bits(train).items() if name != "train0"}
    second.reload()
    expected = {name: each for name, each in bits(play).items() if name != "play0"}
    second.offload()
    monkeypatch.setattr(engine, "fetch", failing)
    with pytest.raises(DeviceOutOfMemory):
        engine.swap(out=first, into=second, slack="70KiB")
    monkeypatch.undo()
    assert (first.offloaded, second.offloaded) == (False, True)
    assert bits(train) == before
    second.reload()
    assert bits(play) == expected


def test_what_cannot_be_put_back_yet_can_be_reloaded_later(
    engine: TransferEngine,
    sets: tuple[States, States],
    plans: tuple[TransferPlan, TransferPlan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (train, play), (first, second) = sets, plans
    before = bits(train)
    second.reload()
    expected = bits(play)
    second.offload()
    calls = 0
    fetch = engine.fetch

    def failing(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls >= 2:
            raise DeviceOutOfMemory("no room", requested=1)
        return fetch(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "fetch", failing)
    with pytest.raises(DeviceOutOfMemory):
        engine.swap(out=first, into=second, slack="70KiB")
    monkeypatch.undo()
    assert first.offloaded
    first.reload()
    assert bits(train) == before
    second.reload()
    assert bits(play) == expected


def test_storages_that_die_meanwhile_are_left_out(
    engine: TransferEngine, sets: tuple[States, States], plans: tuple[TransferPlan, TransferPlan]
) -> None:
    (train, play), (first, second) = sets, plans
    del train["train0"], train["train5"], play["play1"]
    gc.collect()
    before = bits(train)
    engine.swap(out=first, into=second, slack=0)
    assert "play1" not in second.names()
    engine.swap(out=second, into=first, slack=0)
    assert bits(train) == before


def test_a_copy_out_waits_for_its_producer_and_a_copy_in_for_what_it_replaces(
    engine: TransferEngine,
    stream: _native.Stream,
    sets: tuple[States, States],
    plans: tuple[TransferPlan, TransferPlan],
    torch_device: str,
) -> None:
    if torch_device == "cpu":
        pytest.skip("the calling thread waits there, and could not release the stream")
    (train, play), (first, second) = sets, plans
    second.reload()
    expected = bits(play)
    second.offload()
    torch.cuda.synchronize()
    stream.hold()
    stream.fill(train["train0"].data_ptr(), 7, 20 * KIB)
    ticket = engine.swap(out=first, into=second, slack=0, streams=[stream])
    assert not ticket.done()
    stream.release()
    ticket.synchronize(LATE)
    assert bits(play) == expected
    engine.swap(out=second, into=first)
    assert bool((train["train0"] == 7).all())


@pytest.mark.gpu
@pytest.mark.parametrize("torch_device", ["cuda:0"], indirect=True)
def test_no_more_than_the_slack_is_taken(
    torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mib = 2**20
    monkeypatch.setattr("pinferry.transfer.swap._PIECE_BYTES", 4 * mib)
    sets = [
        {
            f"{kind}{i}": torch.zeros(4 * mib, dtype=torch.uint8, device=torch_device)
            for i in range(16)
        }
        for kind in ("a", "b")
    ]
    with (
        PinnedArena("160MiB", device=torch_device) as arena,
        TransferEngine(arena) as engine,
        engine.plan(sets[0]) as first,
        engine.plan(sets[1]) as second,
    ):
        second.offload().synchronize(LATE)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        here = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        engine.swap(out=first, into=second, slack=8 * mib)
        assert torch.cuda.max_memory_allocated() - here <= 8 * mib
        engine.swap(out=second, into=first, slack=8 * mib)
        assert torch.cuda.max_memory_allocated() - here <= 8 * mib
        second.reload()


def test_bad_arguments_move_nothing(
    engine: TransferEngine,
    arena: PinnedArena,
    sets: tuple[States, States],
    plans: tuple[TransferPlan, TransferPlan],
) -> None:
    first, second = plans
    stranger = TransferEngine(arena).plan({})
    before = bits(sets[0])
    for out, into in ((first, first), (first, stranger), (stranger, second), (first, sets[1])):
        with pytest.raises(InvalidArgument, match="plans"):
            engine.swap(out=out, into=into)  # type: ignore[arg-type]
    for slack in (-1, "much"):
        with pytest.raises(InvalidSize):
            engine.swap(out=first, into=second, slack=slack)
    closed = engine.plan({"x": torch.ones(1, device=sets[0]["train0"].device)})
    closed.close()
    with pytest.raises(EngineClosed, match="plan is closed"):
        engine.swap(out=first, into=closed)
    assert (first.offloaded, second.offloaded) == (False, True)
    assert bits(sets[0]) == before
