"""The course of a run: train, move state away, generate, move it back, and so on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pinferry.demo.digest import state_digest

if TYPE_CHECKING:
    from pinferry.demo.options import Settings
    from pinferry.demo.phase_log import PhaseLog
    from pinferry.demo.training import Trainee

__all__ = ["RunResult", "StateMover", "StayPut", "run_phases"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run leaves behind. Two runs that computed the same are equal.

    Attributes
    ----------
    losses
        One for each batch.
    texts
        Those of each cycle.
    digests
        All state after each cycle's reload, then at the end. Not only at the end: a change to a
        last bit may vanish in the rounding of the next step.
    """

    losses: list[float]
    texts: list[list[str]]
    digests: list[dict[str, str]]

    @property
    def sample(self) -> str:
        """The first of the texts that were generated last."""
        return self.texts[-1][0]


class StateMover(Protocol):
    """Who moves the training state around the generating."""

    def leave(self, cycle: int) -> None:
        """Move away what generating does not need."""

    def come_back(self, cycle: int) -> None:
        """Move it back."""

    def leave_and_come_back(self, cycle: int) -> None:
        """Move everything away, and back again."""


class StayPut:
    """The control run's mover: all state stays where it is."""

    def leave(self, cycle: int) -> None:
        """Do nothing."""

    def come_back(self, cycle: int) -> None:
        """Do nothing."""

    def leave_and_come_back(self, cycle: int) -> None:
        """Do nothing."""


def run_phases(
    name: str, trainee: Trainee, settings: Settings, mover: StateMover, log: PhaseLog
) -> RunResult:
    """Take `trainee` through all cycles, then through one more step and a last text.

    The step after the last cycle uses every category of state, hence shows whether all came back.
    """
    losses: list[float] = []
    texts: list[list[str]] = []
    digests: list[dict[str, str]] = []
    log.observer.run_started(name, settings.cycles * (settings.steps + 1) + 2)
    for cycle in range(1, settings.cycles + 1):
        with log.phase(cycle, "train"):
            losses += trainee.train(settings.steps, log.observer.loss)
        mover.leave(cycle)
        with log.phase(cycle, "generate"):
            texts.append(trainee.generate(log.observer.token))
        mover.come_back(cycle)
        digests.append(state_digest(trainee.model, trainee.optimizer))
    closing = settings.cycles + 1
    mover.leave_and_come_back(closing)
    digests.append(state_digest(trainee.model, trainee.optimizer))
    with log.phase(closing, "train"):
        losses += trainee.train(1, log.observer.loss)
    with log.phase(closing, "generate"):
        texts.append(trainee.generate(log.observer.token))
    digests.append(state_digest(trainee.model, trainee.optimizer))
    return RunResult(losses, texts, digests)
