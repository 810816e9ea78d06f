"""What counts as copied after an offload or a swap that failed, and swaps of immutable storages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pinferry.errors import DeviceOutOfMemory, PinferryError, StorageChanged
from tests.transfer.storage_bits import random_bits, storage_bits

if TYPE_CHECKING:
    from pinferry import TransferEngine
    from pinferry.transfer import TransferPlan

KIB = 1024
States = dict[str, torch.Tensor]
both_layouts = pytest.mark.parametrize("compact", [False, True], ids=["apart", "slab"])


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinferry.transfer.swap._PIECE_BYTES", 64 * KIB)
    monkeypatch.setattr("pinferry.transfer.layout._LARGEST_SLAB", 64 * KIB)


def make_states(kind: str, count: int, device: str) -> States:
    return {
        f"{kind}{i}": random_bits(torch.uint8, 20 * KIB + 7 * i, device, seed=i)
        for i in range(count)
    }


def bits(states: States) -> dict[str, bytes]:
    return {name: storage_bits(x) for name, x in states.items()}


def nbytes(states: States) -> int:
    return sum(x.numel() for x in states.values())


def frozen_names(states: States) -> list[str]:
    return list(states)[::2]


class Failing:
    """Raises at one of the calls, and passes the others on."""

    def __init__(self, call: object, *, at: int, error: BaseException) -> None:
        self._call = call
        self._error = error
        self._left = at

    def __call__(self, *arguments: object, **options: object) -> object:
        self._left -= 1
        if self._left == 0:
            raise self._error
        return self._call(*arguments, **options)  # type: ignore[operator]


@both_layouts
@pytest.mark.parametrize(
    "error",
    [StorageChanged("meanwhile"), MemoryError(), KeyboardInterrupt(), PinferryError("lost")],
    ids=lambda error: type(error).__name__,
)
def test_an_offload_that_fails_has_copied_nothing(
    engine: TransferEngine,
    torch_device: str,
    monkeypatch: pytest.MonkeyPatch,
    compact: bool,
    error: BaseException,
) -> None:
    states = make_states("s", 6, torch_device)
    plan = engine.plan(states, compact=compact, immutable=True)
    with monkeypatch.context() as patch:
        patch.setattr("pinferry.transfer.mover.send", Failing(None, at=1, error=error))
        with pytest.raises(type(error)):
            plan.offload()
    assert not plan.offloaded
    states["s3"].fill_(9)  # it may be written to until it has been copied
    before = bits(states)
    assert plan.offload().nbytes == nbytes(states)
    plan.reload()
    assert bits(states) == before
    assert plan.offload().nbytes == 0
    plan.reload()
    assert bits(states) == before
    plan.close()


def test_an_offload_that_fails_later_leaves_the_copies_that_there_are(
    engine: TransferEngine, torch_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = make_states("s", 4, torch_device)
    before = bits(states)
    with engine.plan(states, immutable=True) as plan:
        plan.offload()
        plan.reload()
        with monkeypatch.context() as patch:
            patch.setattr("pinferry.transfer.mover.send", Failing(None, at=1, error=MemoryError()))
            with pytest.raises(MemoryError):
                plan.offload()
        assert plan.offload().nbytes == 0
        plan.reload()
        assert bits(states) == before


@both_layouts
@pytest.mark.parametrize("slack", [0, "70KiB", "1GiB"], ids=str)
@pytest.mark.parametrize("first_by", ["offload", "swap"])
def test_a_swap_copies_them_out_once(
    engine: TransferEngine, torch_device: str, compact: bool, slack: int | str, first_by: str
) -> None:
    sets = make_states("train", 12, torch_device), make_states("play", 9, torch_device)
    train, play = (
        engine.plan(each, compact=compact, immutable=frozen_names(each)) for each in sets
    )
    expected = bits(sets[1])
    mutable = [x for name, x in sets[0].items() if name not in frozen_names(sets[0])]
    if first_by == "offload":
        train.offload()
        train.reload()
    play.offload()
    for cycle in range(3):
        for x in mutable:
            x.fill_(cycle)
        before = bits(sets[0])
        out = engine.swap(out=train, into=play, slack=slack).nbytes_out
        once = cycle > 0 or first_by == "offload"
        assert out < nbytes(sets[0]) if once else out >= nbytes(sets[0])
        assert bits(sets[1]) == expected
        back = engine.swap(out=play, into=train, slack=slack)
        assert back.nbytes_out < nbytes(sets[1])
        assert back.nbytes_in >= nbytes(sets[0])
        assert bits(sets[0]) == before
    play.reload()
    assert bits(sets[1]) == expected


def test_where_all_is_immutable_a_swap_copies_only_in(
    engine: TransferEngine, torch_device: str
) -> None:
    sets = make_states("train", 12, torch_device), make_states("play", 9, torch_device)
    before = [bits(each) for each in sets]
    train, play = (engine.plan(each, immutable=True) for each in sets)
    play.offload()
    engine.swap(out=train, into=play)
    for _ in range(2):
        ticket = engine.swap(out=play, into=train)
        assert (ticket.nbytes_out, ticket.nbytes_in) == (0, nbytes(sets[0]))
        ticket = engine.swap(out=train, into=play)
        assert (ticket.nbytes_out, ticket.nbytes_in) == (0, nbytes(sets[1]))
        assert bits(sets[1]) == before[1]
    train.reload()
    assert [bits(each) for each in sets] == before


def put_back(engine: TransferEngine, plan: TransferPlan, states: States) -> None:
    expected = bits(states)
    for _ in range(2):
        plan.offload()
        plan.reload()
        assert bits(states) == expected
    assert plan.offload().nbytes < nbytes(states)
    plan.reload()


@both_layouts
@pytest.mark.parametrize(
    "fails", [(call, at) for call in ("fetch", "dispatch") for at in (1, 2, 3)]
)
def test_an_undone_swap_keeps_every_bit_of_every_sort(
    engine: TransferEngine,
    torch_device: str,
    monkeypatch: pytest.MonkeyPatch,
    compact: bool,
    fails: tuple[str, int],
) -> None:
    sets = make_states("train", 12, torch_device), make_states("play", 9, torch_device)
    before = [bits(each) for each in sets]
    train, play = (
        engine.plan(each, compact=compact, immutable=frozen_names(each)) for each in sets
    )
    play.offload()
    (call, at), error = fails, DeviceOutOfMemory("no room", requested=1)
    with monkeypatch.context() as patch:
        patch.setattr(engine, call, Failing(getattr(engine, call), at=at, error=error))
        with pytest.raises(DeviceOutOfMemory):
            engine.swap(out=train, into=play, slack="70KiB")
    assert (train.offloaded, play.offloaded) == (False, True)
    assert bits(sets[0]) == before[0]
    play.reload()
    assert bits(sets[1]) == before[1]
    for plan, states in zip((train, play), sets, strict=True):
        put_back(engine, plan, states)
        plan.close()
