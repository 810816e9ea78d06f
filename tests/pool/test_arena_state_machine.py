"""Hypothesis plays the arena against a naive model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from pinferry import PinnedArena, PinnedBlock
from pinferry.errors import ArenaExhausted
from tests.pool.free_ranges import UNIT, FreeRanges

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIB = 2**20


@dataclass(eq=False)
class Held:
    """A block that the machine holds, or after a free only its view."""

    offset: int
    nbytes: int
    view: NDArray[np.uint8]
    block: PinnedBlock | None
    pattern: int


class ArenaMachine(RuleBasedStateMachine):
    """Deal out, fill, free and drop blocks; no block may ever see another one's bytes."""

    capacity = 0
    growth: tuple[int, ...] = ()  # chunks that may follow
    largest_request = 0

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.arena = PinnedArena(
            self.capacity,
            device="cpu",
            chunk="2MiB",
            threads=1,
            max_capacity=self.capacity + sum(self.growth),
        )
        self.model = FreeRanges(self.arena.capacity_bytes, 2 * MIB, self.growth)
        self.live: list[Held] = []
        self.patterns = 0
        self.peak = self.allocations = self.failures = 0

    def size(self, raw: int) -> int:
        """Bring a drawn number into the range of this machine."""
        return raw % (self.largest_request + 1)

    def hold(self, block: PinnedBlock) -> Held:
        """Enter a block that the arena dealt out into the model."""
        assert block.offset + block.nbytes <= len(self.model.taken) * UNIT
        self.patterns = self.patterns % 255 + 1
        entry = Held(block.offset, block.nbytes, block.numpy(), block, self.patterns)
        entry.view[:] = entry.pattern
        self.live.append(entry)
        self.allocations += 1
        self.peak = max(self.peak, self.model.capacity_bytes - self.model.free_bytes)
        return entry

    def hold_contiguous(self, block: PinnedBlock, nbytes: int) -> Held:
        """Check a contiguous block against the model."""
        assert block.nbytes == nbytes
        best = self.model.best_fit(nbytes)
        if nbytes:
            home = self.model.take(block.offset, nbytes)
            assert home == best, f"a run of {home} units was cut where one of {best} was free"
        return self.hold(block)

    @rule(target=held, raw=st.integers(0, 2**24))
    def alloc(self, raw: int) -> object:
        nbytes = self.size(raw)
        if nbytes:
            self.model.grow_for(nbytes, contiguous=True)
        if nbytes and self.model.best_fit(nbytes) is None:
            with pytest.raises(ArenaExhausted) as caught:
                self.arena.alloc(nbytes)
            assert caught.value.requested == nbytes
            assert caught.value.free == self.model.free_bytes
            assert caught.value.largest_free == self.model.largest_bytes
            assert caught.value.in_flight == 0
            self.failures += 1
            return multiple()
        return self.hold_contiguous(self.arena.alloc(nbytes), nbytes)

    @rule(target=held, raw=st.integers(0, 2**24))
    def try_alloc(self, raw: int) -> object:
        nbytes = self.size(raw)
        block = self.arena.try_alloc(nbytes)
        fits = nbytes == 0 or self.model.best_fit(nbytes) is not None
        assert (block is not None) == fits
        if block is None:
            return multiple()
        return self.hold_contiguous(block, nbytes)

    @rule(target=held, raw=st.integers(0, 2**25))
    def alloc_extents(self, raw: int) -> object:
        nbytes = raw % (2 * self.largest_request + 1)
        self.model.grow_for(nbytes, contiguous=False)
        fewest = self.model.fewest_pieces(nbytes)
        if fewest is None:
            with pytest.raises(ArenaExhausted) as caught:
                self.arena.alloc_extents(nbytes)
            assert caught.value.requested == nbytes
            self.failures += 1
            return multiple()
        blocks = self.arena.alloc_extents(nbytes)
        assert len(blocks) == max(fewest, 1)
        assert sum(block.nbytes for block in blocks) == nbytes
        for block in blocks:
            if block.nbytes:
                self.model.take(block.offset, block.nbytes)
        return multiple(*[self.hold(block) for block in blocks])

    @rule(entry=held, pattern=st.integers(0, 255))
    def write(self, entry: Held, pattern: int) -> None:
        entry.view[:] = pattern
        entry.pattern = pattern
        self.check_bytes()

    @rule(entry=held)
    def free_but_keep_the_view(self, entry: Held) -> None:
        if entry.block is not None:
            entry.block.free()
            entry.block = None

    @rule(entry=consumes(held), explicitly=st.booleans())
    def free_or_drop(self, entry: Held, explicitly: bool) -> None:
        self.check_bytes()
        self.live.remove(entry)
        if explicitly and entry.block is not None:
            entry.block.free()
        entry.block = None
        entry.view = np.empty(0, np.uint8)
        if entry.nbytes:
            self.model.give(entry.offset, entry.nbytes)

    def check_bytes(self) -> None:
        """Compare every block with the pattern that was written to it last."""
        for entry in self.live:
            assert (entry.view == entry.pattern).all(), f"block at {entry.offset} was overwritten"

    @invariant()
    def stats_agree(self) -> None:
        stats = self.arena.stats()
        free = self.model.free_bytes
        assert stats.capacity_bytes == self.model.capacity_bytes
        assert stats.free_bytes == free
        assert stats.used_bytes == stats.capacity_bytes - free
        assert stats.largest_free_bytes == self.model.largest_bytes
        assert stats.peak_bytes == self.peak
        assert stats.retired_bytes == 0
        assert (stats.blocks, stats.allocations) == (len(self.live), self.allocations)
        assert stats.failures == self.failures
        expected = 1 - stats.largest_free_bytes / free if free else 0.0
        assert stats.fragmentation == expected

    @invariant()
    def the_layout_agrees(self) -> None:
        # Neighbouring blocks are one run to the model.
        assert joined(self.arena.native.layout()) == self.model.regions()

    def teardown(self) -> None:
        self.check_bytes()
        self.live.clear()
        self.arena.close(force=True)


def joined(regions: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Join neighbouring regions of a kind within a chunk."""
    found: list[tuple[str, int, int]] = []
    for kind, offset, nbytes in regions:
        last = found[-1] if found else ("", 0, 0)
        if (kind, offset) == (last[0], last[1] + last[2]) and offset % (2 * MIB):
            found[-1] = (kind, last[1], last[2] + nbytes)
        else:
            found.append((kind, offset, nbytes))
    return found


class OneChunkMachine(ArenaMachine):
    """Small blocks in an arena that ends in the middle of its only chunk."""

    capacity = 64 * 1024 + 700
    largest_request = 12 * 1024


class SeveralChunksMachine(ArenaMachine):
    """Blocks up to a chunk and more, in three chunks and a part of one."""

    capacity = 7 * MIB - 512
    largest_request = 2 * MIB + 4096


class GrowingMachine(ArenaMachine):
    """An arena of half a chunk that grows to three and a half, and is trimmed."""

    capacity = MIB
    growth = (2 * MIB, 2 * MIB, MIB + 512)
    largest_request = 2 * MIB + 4096

    @rule(keep=st.integers(0, 7 * MIB))
    def trim(self, keep: int) -> None:
        assert self.arena.trim(keep) == self.model.trim(keep)
        self.check_bytes()


OneChunkMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None)
SeveralChunksMachine.TestCase.settings = settings(stateful_step_count=25, deadline=None)

GrowingMachine.TestCase.settings = settings(stateful_step_count=25, deadline=None)

TestOneChunk = OneChunkMachine.TestCase
TestSeveralChunks = SeveralChunksMachine.TestCase
TestGrowing = GrowingMachine.TestCase
