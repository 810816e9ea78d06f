"""Whether the offloaded run computed what the control run did, to the bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinferry.demo.phases import RunResult

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs, in words. Empty tuples: nothing."""

    losses: tuple[str, ...]
    texts: tuple[str, ...]
    state: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.losses or self.texts or self.state)

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that differs."""
        return self.losses + self.texts + self.state


def compare(control: RunResult, offloaded: RunResult) -> Comparison:
    """Compare two runs; the first difference of each kind is told in detail."""
    return Comparison(
        losses=_compare_losses(control.losses, offloaded.losses),
        texts=_compare_texts(control.texts, offloaded.texts),
        state=_compare_digests(control.digests, offloaded.digests),
    )


def _compare_losses(control: list[float], offloaded: list[float]) -> tuple[str, ...]:
    if len(control) != len(offloaded):
        return (f"the control run has {len(control)} losses, the other {len(offloaded)}",)
    # As hexadecimal text: equal text is equal bits, where nan != nan and 0.0 == -0.0.
    pairs = enumerate(zip(control, offloaded, strict=True), start=1)
    differing = [(i, a, b) for i, (a, b) in pairs if a.hex() != b.hex()]
    if not differing:
        return ()
    batch, expected, found = differing[0]
    count = f"{len(differing)} of {len(control)} losses differ, first that of batch {batch}: "
    return (
        f"{count}{found} ({found.hex()}), and {expected} ({expected.hex()}) in the control run",
    )


def _compare_texts(control: list[list[str]], offloaded: list[list[str]]) -> tuple[str, ...]:
    if len(control) != len(offloaded):
        return (f"the control run has texts of {len(control)} cycles, the other {len(offloaded)}",)
    pairs = enumerate(zip(control, offloaded, strict=True), start=1)
    differing = [str(cycle) for cycle, (expected, found) in pairs if expected != found]
    if not differing:
        return ()
    return (f"the texts generated in cycle {', '.join(differing)} differ",)


def _compare_digests(
    control: list[dict[str, str]], offloaded: list[dict[str, str]]
) -> tuple[str, ...]:
    if len(control) != len(offloaded):
        return (f"the control run has {len(control)} digests, the other {len(offloaded)}",)
    for cycle, (expected, found) in enumerate(zip(control, offloaded, strict=True), start=1):
        names = [*expected, *(name for name in found if name not in expected)]
        differing = [name for name in names if expected.get(name) != found.get(name)]
        if differing:
            when = "at the end" if cycle == len(control) else f"after the reload of cycle {cycle}"
            count = f"{len(differing)} of {len(names)} tensors differ"
            return (f"{count} {when}, first: {differing[0]}",)
    return ()
