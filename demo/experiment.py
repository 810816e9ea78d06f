"""The experiment: one run without offload, one with, and what came of both."""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pinferry.demo.comparison import Comparison, compare
from pinferry.demo.determinism import deterministic_algorithms, threads_for
from pinferry.demo.memory_check import require_memory
from pinferry.demo.offloading import OffloadedState
from pinferry.demo.phase_log import Observer, Phase, PhaseLog
from pinferry.demo.phases import RunResult, StayPut, run_phases
from pinferry.demo.shape import ModelShape, choose_shape
from pinferry.demo.text import Corpus, load_corpus
from pinferry.demo.training import PROMPTS, Trainee

if TYPE_CHECKING:
    from pinferry.demo.access import AccessCheck
    from pinferry.demo.offloading import Reclaim
    from pinferry.demo.options import Settings
    from pinferry.pool import ArenaStats

__all__ = ["ArenaFacts", "Outcome", "prepare", "run_experiment"]


@dataclass(frozen=True, slots=True)
class ArenaFacts:
    """The arena that held the state; `state_bytes` is what was found, by category."""

    backend: str
    backend_reason: str
    stats: ArenaStats
    state_bytes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was found.

    Attributes
    ----------
    phases
        Those of the offloaded run.
    """

    settings: Settings
    shape: ModelShape
    control: RunResult
    offloaded: RunResult
    comparison: Comparison
    phases: tuple[Phase, ...]
    reclaims: tuple[Reclaim, ...]
    accesses: tuple[AccessCheck, ...]
    arena: ArenaFacts
    seconds: float

    @property
    def failures(self) -> tuple[str, ...]:
        """What went wrong, in words; empty if all is well."""
        accesses = [check.failure for check in self.accesses if check.failure is not None]
        reclaims = [
            f"after the offload of cycle {reclaim.cycle}: {reclaim.shortfall}"
            for reclaim in self.reclaims
            if reclaim.shortfall is not None
        ]
        return (*self.comparison.failures, *accesses, *reclaims)


def prepare(settings: Settings) -> tuple[Corpus, ModelShape]:
    """Read the text and pick the model's shape.

    Raises
    ------
    InvalidArgument
        If no model has that size, or its state fits neither the device nor the host.
    """
    scale = settings.scale
    corpus = load_corpus(scale.text_bytes)
    shape = choose_shape(
        settings.params,
        vocabulary=len(corpus.characters),
        context=scale.context,
        positions=max(scale.context, len(PROMPTS[0]) + scale.new_tokens),
    )
    require_memory(settings, shape)
    return corpus, shape


def run_experiment(
    settings: Settings, corpus: Corpus, shape: ModelShape, observer: Observer
) -> Outcome:
    """Run both, the control run first, and compare them.

    Never holds both models at once. Blocks the host throughout.

    Raises
    ------
    PinferryError
        If state cannot be moved, as when the arena is too small. A difference is no exception:
        see `Outcome.failures`.
    """
    began = time.perf_counter()
    chosen = torch.cuda.device(settings.device) if settings.on_cuda else nullcontext()
    with deterministic_algorithms(), threads_for(shape.parameters), chosen:
        control = _run_control(settings, corpus, shape, observer)
        _free_memory(settings)
        log = PhaseLog(settings.device, observer)
        trainee = Trainee(settings, shape, corpus)
        state = OffloadedState(trainee, settings, log)
        try:
            offloaded = run_phases("offloaded run", trainee, settings, state, log)
            arena = ArenaFacts(
                backend=state.arena.backend,
                backend_reason=state.arena.backend_reason,
                stats=state.arena.stats(),
                state_bytes=state.state_bytes,
            )
        except BaseException:
            state.close(force=True)
            raise
        state.close()
    return Outcome(
        settings=settings,
        shape=shape,
        control=control,
        offloaded=offloaded,
        comparison=compare(control, offloaded),
        phases=tuple(log.phases),
        reclaims=tuple(state.reclaims),
        accesses=tuple(state.accesses),
        arena=arena,
        seconds=time.perf_counter() - began,
    )


def _run_control(
    settings: Settings, corpus: Corpus, shape: ModelShape, observer: Observer
) -> RunResult:
    log = PhaseLog(settings.device, observer)
    trainee = Trainee(settings, shape, corpus)
    return run_phases("control run", trainee, settings, StayPut(), log)


def _free_memory(settings: Settings) -> None:
    gc.collect()
    if settings.on_cuda:
        torch.cuda.empty_cache()
