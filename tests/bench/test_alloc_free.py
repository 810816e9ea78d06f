"""Timing allocations and frees."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from pinferry import PinnedArena, _native
from pinferry.bench import alloc_free
from pinferry.bench.alloc_free import arena_bytes, block_sizes, measure_alloc_free
from pinferry.bench.allocators import (
    Allocator,
    Churn,
    arena_allocator,
    cuda_host_allocator,
    cupy_pool_allocator,
    time_allocator,
)
from pinferry.bench.timing import Timing
from pinferry.errors import ArenaExhausted, InvalidArgument

SIZES = block_sizes(0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_each_count_of_live_blocks_has_a_median_and_a_p99(device: str) -> None:
    cases = dict(measure_alloc_free(device, 2, live={"few": 20, "more": 60}, pairs=200))
    keys = [
        f"alloc_free_{name}_{key}" for name in ("few", "more", "python") for key in ("us", "p99_us")
    ]
    assert list(cases)[:6] == keys
    for key in ("few", "more", "python"):
        median, worst = cases[f"alloc_free_{key}_us"], cases[f"alloc_free_{key}_p99_us"]
        assert 0 < median.ours <= worst.ours
        assert 0 < median.reference <= worst.reference
        assert median.spread is not None
        assert median.spread[0] <= median.ours <= median.spread[1]
    assert "60 live" in cases["alloc_free_more_us"].reference_is
    assert ("malloc" in cases["alloc_free_few_us"].reference_is) == (device == "cpu")


def test_the_core_allocates_and_frees_as_often_as_it_says() -> None:
    with PinnedArena(arena_bytes(30, SIZES), device="cpu") as arena:
        taken = _native.time_allocations(arena.native, live=30, pairs=100, sizes=SIZES, seed=0)
        stats = arena.stats()
    assert len(taken) == 100
    assert min(taken) > 0
    assert (stats.allocations, stats.blocks, stats.used_bytes) == (30 + 30 + 100, 0, 0)


def test_the_core_holds_one_block_more_than_the_live_ones_at_most() -> None:
    with PinnedArena(5 * 512, device="cpu") as arena:
        _native.time_allocations(arena.native, live=4, pairs=50, sizes=[512], seed=0)
        assert arena.stats().peak_bytes == 5 * 512
        with pytest.raises(ArenaExhausted):
            _native.time_allocations(arena.native, live=5, pairs=50, sizes=[512], seed=0)
        assert arena.stats().blocks == 0


@pytest.mark.parametrize(("live", "sizes"), [(0, [512]), (1, [])])
def test_nothing_to_time_is_refused(live: int, sizes: list[int]) -> None:
    with PinnedArena("1MiB", device="cpu") as arena, pytest.raises(InvalidArgument):
        _native.time_allocations(arena.native, live=live, pairs=1, sizes=sizes, seed=0)


def test_an_allocator_is_timed_with_so_many_blocks_alive() -> None:
    alive: set[int] = set()
    counts = []

    def allocate(nbytes: int) -> int:
        assert nbytes in SIZES
        counts.append(len(alive))
        alive.add(len(counts))
        return len(counts)

    timing = time_allocator(Allocator("made up", allocate, alive.remove), Churn(7, 20, SIZES, 0))
    assert len(timing.seconds) == 20
    assert counts == [*range(7), *[7] * (7 + 20)]
    assert alive == set()


def test_an_object_that_frees_by_dying_dies_under_the_clock() -> None:
    class Dying:
        alive = 0

        def __init__(self, nbytes: int) -> None:
            Dying.alive += 1
            assert Dying.alive <= 4

        def __del__(self) -> None:
            Dying.alive -= 1

    time_allocator(Allocator("made up", Dying), Churn(3, 20, SIZES, 0))
    assert Dying.alive == 0


def test_blocks_of_the_arena_are_freed() -> None:
    with PinnedArena(arena_bytes(10, SIZES), device="cpu") as arena:
        time_allocator(arena_allocator(arena), Churn(10, 30, SIZES, 0))
        assert (arena.stats().allocations, arena.stats().blocks) == (50, 0)


def test_sizes_are_small_and_the_same_for_a_seed() -> None:
    assert (min(SIZES) >= 512, max(SIZES) <= 16 * 2**10) == (True, True)
    assert block_sizes(0) == SIZES != block_sizes(1)


def test_a_hundred_thousand_blocks_need_less_than_2_gib() -> None:
    assert 100_000 * 512 < arena_bytes(100_000, SIZES) < 2**31


def test_99_of_100_are_no_longer_than_p99() -> None:
    timing = Timing(tuple(float(i) for i in reversed(range(1, 201))))
    assert (timing.median, timing.p99) == (100.5, 198.0)
    assert Timing((3.0,)).p99 == 3.0


def test_without_cupy_there_is_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert (cupy_pool_allocator(), cuda_host_allocator()) == (None, None)
    assert list(alloc_free._measure_rates(1.0, Churn(2, 2, SIZES, 0))) == []


class FakePool:
    def malloc(self, nbytes: int) -> object:
        return object()


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Put a stand-in in CuPy's place; return the addresses that it has not freed."""
    alive: set[int] = set()
    cupy, cuda, runtime = (ModuleType(name) for name in ("cupy", "cupy.cuda", "runtime"))

    def host_alloc(nbytes: int, flags: int) -> int:
        address = max(alive, default=0) + 512
        alive.add(address)
        return address

    vars(runtime).update(hostAlloc=host_alloc, freeHost=alive.remove)
    vars(cuda).update(PinnedMemoryPool=FakePool, runtime=runtime)
    vars(cupy).update(cuda=cuda)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return alive


@pytest.mark.parametrize(("ours_s", "faster"), [(1e-10, True), (10.0, False)])
def test_the_ratio_of_a_rate_is_the_speed_up(
    fake_cupy: set[int], ours_s: float, faster: bool
) -> None:
    cases = dict(alloc_free._measure_rates(ours_s, Churn(3, 5, SIZES, 0)))
    assert list(cases) == ["alloc_free_vs_cupy", "alloc_free_vs_cudahostalloc"]
    for case in cases.values():
        assert (case.ratio > 1) == faster
        assert (case.ours, case.unit) == (1 / ours_s, "ops/s")
    assert fake_cupy == set()
