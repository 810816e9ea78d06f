"""Swaps of plans that are away and readable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import DeviceOutOfMemory
from tests.transfer.storage_bits import random_bits, storage_bits

if TYPE_CHECKING:
    from pinferry import TransferEngine

KIB = 1024
States = dict[str, torch.Tensor]

pytestmark = pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinferry.transfer.swap._PIECE_BYTES", 64 * KIB)
    monkeypatch.setattr("pinferry.transfer.layout._LARGEST_SLAB", 64 * KIB)


@pytest.fixture
def sets(torch_device: str) -> tuple[States, States]:
    def make(kind: str, count: int) -> States:
        return {
            f"{kind}{i}": random_bits(torch.uint8, 20 * KIB + 7 * i, torch_device, seed=i)
            for i in range(count)
        }

    return make("train", 12), make("play", 9)


def bits(states: States) -> dict[str, bytes]:
    return {name: storage_bits(x) for name, x in states.items()}


@pytest.mark.parametrize("slack", [0, "100KiB", "1GiB"], ids=str)
def test_what_was_readable_comes_in_with_what_was_written_to_it(
    engine: TransferEngine, sets: tuple[States, States], compact: bool, slack: int | str
) -> None:
    train, play = sets
    first, second = (engine.plan(each, compact=compact) for each in sets)
    second.offload(access="readable")
    for cycle in range(3):
        play["play4"].fill_(cycle)
        before = bits(train), bits(play)
        engine.swap(out=first, into=second, slack=slack)
        assert bits(play) == before[1]
        with pytest.raises(RuntimeError, match="train3 is offloaded"):
            train["train3"].sum()
        engine.swap(out=second, into=first, slack=slack)
        assert bits(train) == before[0]
        with pytest.raises(RuntimeError, match="play4 is offloaded"):
            play["play4"].sum()
        second.reload()
        second.offload(access="readable")
    second.reload()


def test_what_is_out_and_readable_already_stays_so(
    engine: TransferEngine, sets: tuple[States, States], compact: bool
) -> None:
    first, second = (engine.plan(each, compact=compact) for each in sets)
    before = bits(sets[0]), bits(sets[1])
    first.offload(access="readable")
    second.offload()
    ticket = engine.swap(out=first, into=second)
    assert ticket.nbytes_out == 0
    assert (bits(sets[0]), bits(sets[1])) == before
    assert first.offloaded
    first.reload()


def test_what_was_resized_while_readable_is_left_out(
    engine: TransferEngine, sets: tuple[States, States], compact: bool
) -> None:
    train, play = sets
    first, second = (engine.plan(each, compact=compact) for each in sets)
    second.offload(access="readable")
    play["play2"].untyped_storage().resize_(100)
    before = bits(train), bits(play)
    engine.swap(out=first, into=second, slack=0)
    assert bits(play) == before[1]
    engine.swap(out=second, into=first, slack=0)
    assert bits(train) == before[0]
    second.reload()
    assert bits(play) == before[1]


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_swap_that_fails_leaves_what_was_readable_readable(
    engine: TransferEngine,
    sets: tuple[States, States],
    compact: bool,
    monkeypatch: pytest.MonkeyPatch,
    fails_at: int,
) -> None:
    train, play = sets
    first, second = (engine.plan(each, compact=compact) for each in sets)
    second.offload(access="readable")
    play["play0"].fill_(3)
    before = bits(train), bits(play)
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
    assert (bits(train), bits(play)) == before
    play["play1"].fill_(4)
    before = bits(train), bits(play)
    second.reload()
    assert (bits(train), bits(play)) == before
