"""Swaps of an engine that verifies."""

from __future__ import annotations

import pytest
import torch

from pinferry import TransferEngine, Verify
from pinferry.errors import ChecksumMismatch
from tests.transfer.host_copies import changed_byte
from tests.transfer.storage_bits import random_bits, storage_bits

KIB = 1024
States = dict[str, torch.Tensor]

pytestmark = pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinferry.transfer.swap._PIECE_BYTES", 64 * KIB)
    monkeypatch.setattr("pinferry.transfer.layout._LARGEST_SLAB", 64 * KIB)


@pytest.fixture
def engine(engine: TransferEngine) -> TransferEngine:
    engine.verify = Verify.CHECKSUM
    return engine


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


@pytest.mark.parametrize("slack", [0, "70KiB", "1GiB"], ids=str)
@pytest.mark.parametrize("immutable", [False, True], ids=["mutable", "immutable"])
def test_two_sets_change_places_to_the_bit(
    engine: TransferEngine,
    sets: tuple[States, States],
    compact: bool,
    slack: int | str,
    immutable: bool,
) -> None:
    before = [bits(each) for each in sets]
    train, play = (engine.plan(each, compact=compact, immutable=immutable) for each in sets)
    play.offload()
    for _ in range(2):
        engine.swap(out=train, into=play, slack=slack)
        assert bits(sets[1]) == before[1]
        engine.swap(out=play, into=train, slack=slack)
        assert bits(sets[0]) == before[0]
    play.reload()


@pytest.mark.parametrize("name", ["play0", "play4", "play8"])
@pytest.mark.parametrize("slack", [0, "1GiB"], ids=str)
def test_a_changed_byte_of_what_comes_in_undoes_the_swap(
    engine: TransferEngine, sets: tuple[States, States], compact: bool, slack: int | str, name: str
) -> None:
    before = [bits(each) for each in sets]
    train, play = (engine.plan(each, compact=compact) for each in sets)
    play.offload().synchronize()
    with changed_byte(play, name, -1):
        with pytest.raises(ChecksumMismatch, match="changed there") as caught:
            engine.swap(out=train, into=play, slack=slack)
        assert caught.value.name == name
        assert (train.offloaded, play.offloaded) == (False, True)
        assert bits(sets[0]) == before[0]
        with pytest.raises(RuntimeError, match="play1 is offloaded"):
            sets[1]["play1"].sum()
    engine.swap(out=train, into=play, slack=slack)
    assert bits(sets[1]) == before[1]
    train.reload()
    assert [bits(each) for each in sets] == before


@pytest.mark.parametrize("name", ["train0", "train5", "train11"])
def test_what_was_written_though_immutable_undoes_the_swap(
    engine: TransferEngine, sets: tuple[States, States], compact: bool, name: str
) -> None:
    train, play = (engine.plan(each, compact=compact, immutable=True) for each in sets)
    play.offload()
    train.offload()
    train.reload()
    sets[0][name][0] += 1
    before = bits(sets[0])
    with pytest.raises(ChecksumMismatch, match="declared immutable") as caught:
        engine.swap(out=train, into=play, slack=0)
    assert caught.value.name == name
    assert (train.offloaded, play.offloaded) == (False, True)
    assert bits(sets[0]) == before
    sets[0][name][0] -= 1
    engine.swap(out=train, into=play, slack=0)
    train.reload()
