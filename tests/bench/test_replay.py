"""Replaying offloads and reloads on the free list."""

from __future__ import annotations

import random

import pytest

from pinferry import _native
from pinferry.bench.fragmentation import measure_fragmentation
from pinferry.bench.model_sizes import ModelStorages, Storage
from pinferry.bench.replay import Replay, random_toggles, replay
from pinferry.errors import InvalidArgument

CHANCE = random.Random(5)
STORAGES = tuple(
    Storage(category, layer, CHANCE.randrange(1, 100_000))
    for category in ("lp_params", "hp_params", "optim_states")
    for layer in range(12)
)
SIZES = [storage.nbytes for storage in STORAGES]
EVERYTHING = sum(-(-size // 512) * 512 for size in SIZES)


def toggles(seed: int = 0, capacity: int = EVERYTHING, cycles: int = 300) -> list[int]:
    return random_toggles(STORAGES, cycles, capacity=capacity, seed=seed)


def free_list(capacity: int) -> _native.FreeList:
    return _native.FreeList(capacity=capacity, chunk=capacity, alignment=512)


def test_a_seed_gives_the_same_sequence_again() -> None:
    assert toggles(1) == toggles(1)
    assert toggles(1) != toggles(2)


def test_the_same_sequence_comes_to_the_same() -> None:
    assert replay(SIZES, toggles()) == replay(SIZES, toggles())


@pytest.mark.parametrize("capacity", [EVERYTHING, EVERYTHING // 2])
def test_never_more_is_away_than_the_capacity(capacity: int) -> None:
    away: set[int] = set()
    most = 0
    for index in toggles(capacity=capacity):
        away ^= {index}
        most = max(most, sum(-(-SIZES[i] // 512) * 512 for i in away))
    assert 0.9 * capacity < most <= capacity


def test_the_core_replays_as_a_loop_over_the_free_list_does() -> None:
    free = free_list(4 * EVERYTHING)
    held: dict[int, tuple[int, int]] = {}
    highest = peak = requests = 0
    for index in toggles():
        if index in held:
            free.release(*held.pop(index))
            continue
        block = free.allocate(SIZES[index])
        assert block is not None
        held[index] = block
        highest = max(highest, sum(block))
        peak = max(peak, sum(SIZES[i] for i in held))
        requests += 1
    played = replay(SIZES, toggles())
    assert played == Replay(peak, highest, requests, 0)
    assert played.fragmentation == highest / peak >= 1


@pytest.mark.parametrize("seed", range(20))
def test_pieces_never_fail_where_the_bytes_suffice(seed: int) -> None:
    played = replay(SIZES, toggles(seed, EVERYTHING * 3 // 4))
    assert played.requests > 100
    assert played.failures == 0


def test_whole_blocks_do_fail_in_an_arena_that_has_just_the_bytes() -> None:
    outcome = _native.replay_storages(
        free_list(EVERYTHING // 512 * 512), sizes=SIZES, toggles=toggles(), extents=False
    )
    assert outcome.failures > 0


def test_what_is_refused_for_lack_of_bytes_is_no_failure() -> None:
    free = free_list(1024)
    outcome = _native.replay_storages(free, sizes=[512, 1024], toggles=[0, 1, 1], extents=True)
    assert (outcome.requests, outcome.failures, outcome.highest_end) == (2, 0, 512)
    assert (outcome.peak_bytes, outcome.peak_rounded_bytes) == (1536, 1536)


def test_a_replay_gives_everything_back() -> None:
    free = free_list(2 * EVERYTHING)
    _native.replay_storages(free, sizes=SIZES, toggles=range(len(SIZES)), extents=False)
    assert (free.free_bytes, free.free_ranges) == (free.capacity_bytes, 1)


def test_a_toggle_without_a_storage_is_refused_and_nothing_is_taken() -> None:
    free = free_list(1024)
    with pytest.raises(InvalidArgument, match="there are 2"):
        _native.replay_storages(free, sizes=[512, 512], toggles=[0, 2], extents=True)
    assert free.free_bytes == 1024


def test_the_cases_name_every_model_and_the_worst() -> None:
    models = [ModelStorages("a", 1, STORAGES), ModelStorages("b", 1, STORAGES[:20])]
    cases = dict(measure_fragmentation(models, cycles=100))
    assert list(cases) == [
        "fragmentation_a",
        "fragmentation_b",
        "fragmentation_peak",
        "fragmentation_peak_three_quarters",
        "extents_failures",
    ]
    worst = max(cases["fragmentation_a"].ours, cases["fragmentation_b"].ours)
    assert cases["fragmentation_peak"].ratio == worst >= 1
    assert cases["extents_failures"].ours == 0
    assert cases["extents_failures"].reference > 400


def test_three_quarters_of_the_state_are_a_sequence_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capacities: list[int] = []

    def record(storages: object, cycles: int, *, capacity: int, seed: int) -> list[int]:
        capacities.append(capacity)
        return toggles(capacity=capacity)

    monkeypatch.setattr("pinferry.bench.fragmentation.random_toggles", record)
    cases = dict(measure_fragmentation([ModelStorages("a", 1, STORAGES)]))
    whole, partial = capacities
    assert EVERYTHING <= whole < 1.02 * EVERYTHING
    assert partial == whole * 3 // 4
    expected = replay(SIZES, toggles(capacity=partial)).fragmentation
    assert cases["fragmentation_peak_three_quarters"].ours == expected
    assert cases["fragmentation_peak"].ours != expected


def test_a_failure_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pinferry.bench.fragmentation.replay", lambda sizes, toggles: Replay(1, 1, 5, 3)
    )
    with pytest.raises(AssertionError, match="3 of 5 storages of a found no room"):
        list(measure_fragmentation([ModelStorages("a", 1, STORAGES)], cycles=1))
