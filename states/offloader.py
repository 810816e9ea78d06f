"""Offloading the state of a model and its optimizer by category."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from pinferry.errors import InvalidArgument, NotOffloaded
from pinferry.states.categories import Category, parse_include
from pinferry.states.discovery import discover
from pinferry.states.memory import MemoryReading, read_memory
from pinferry.states.reclaim import ReclaimReport, measure_reclaim
from pinferry.transfer import TransferEngine, storage_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from pinferry.pool import PinnedArena
    from pinferry.states.categories import Include
    from pinferry.states.state_set import StateSet
    from pinferry.transfer import Ticket

__all__ = ["StateOffloader"]


class StateOffloader:
    """Offloads and reloads the state of a model and its optimizer, by category.

    State is found anew at every call. Idempotent: what is away stays away, and only what is away
    comes back. All-or-nothing: a call that fails has moved nothing.

    Parameters
    ----------
    model
        Its parameters, gradients and buffers. May be None.
    optimizer
        Its state and master weights. May be None; may not have stepped yet.
    arena
        Where the bytes go. Only state on the arena's device moves.
    engine
        An engine to share, in place of `arena`.

    Examples
    --------
    >>> import torch
    >>> from pinferry import PinnedArena, StateOffloader
    >>> model = torch.nn.Linear(256, 256)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> model(torch.ones(1, 256)).sum().backward()
    >>> optimizer.step()
    >>> with PinnedArena("4MiB", device="cpu") as arena:
    ...     offloader = StateOffloader(model, optimizer, arena=arena)
    ...     with offloader.offloaded("optim_states", "lp_grads"):
    ...         sorted(str(category) for category in offloader.offloaded_states())
    ['lp_grads', 'optim_states']
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        arena: PinnedArena | None = None,
        engine: TransferEngine | None = None,
    ) -> None:
        if (arena is None) == (engine is None):
            raise InvalidArgument("give either an arena or an engine: where should the state go?")
        if model is None and optimizer is None:
            raise InvalidArgument("nothing to offload: give a model, an optimizer, or both")
        self._model = model
        self._optimizer = optimizer
        self._engine = engine if engine is not None else TransferEngine(arena)  # type: ignore[arg-type]
        self._lock = threading.RLock()
        self._last: tuple[StateSet, MemoryReading, Ticket] | None = None

    @property
    def engine(self) -> TransferEngine:
        """The engine that moves the state."""
        return self._engine

    def discover(self) -> StateSet:
        """Return all state on the arena's device, wherever its bytes are now."""
        device = self._engine.device
        name = "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"
        return discover(self._model, self._optimizer, device=name)

    def offload(self, include: Include = None, non_blocking: bool = True) -> Ticket:
        """Copy state to the arena and give its device memory back to PyTorch's allocator.

        Parameters
        ----------
        include
            A category, several, or None for all.
        non_blocking
            Return once the copies are queued, behind the current stream. They are ordered before
            any reuse of the memory and before a reload. False waits for their end.

        Raises
        ------
        UnknownCategory
            If `include` names one that does not exist.
        ArenaExhausted, UnsupportedStorage, AlreadyOffloaded
            If something cannot be moved. Nothing was.
        """
        categories = parse_include(include)
        with self._lock:
            wanted = self.discover().only(*categories)
            moving = wanted.where(lambda entry: not self._engine.is_offloaded(entry.storage))
            before = read_memory(self._engine.device)
            ticket = self._engine.offload(wanted.storages())
            if ticket.nbytes:
                self._last = (moving, before, ticket)
        if not non_blocking:
            ticket.synchronize()
        return ticket

    def reload(self, include: Include = None, non_blocking: bool = True) -> Ticket:
        """Bring back what is away.

        Parameters
        ----------
        include
            A category, several, or None for all. What is not away is left alone.
        non_blocking
            Return once the copies are queued: the current stream waits for them, the host does not.
            False waits for their end.

        Raises
        ------
        UnknownCategory
            If `include` names one that does not exist.
        DeviceOutOfMemory
            If the device lacks memory. Everything stays offloaded and intact.
        """
        categories = parse_include(include)
        with self._lock:
            away = self._away().only(*categories)
            ticket = self._engine.reload(away.storages())
        if not non_blocking:
            ticket.synchronize()
        return ticket

    @contextlib.contextmanager
    def offloaded(self, *include: str) -> Iterator[StateOffloader]:
        """Offload on entry and reload on exit, after an error too.

        Parameters
        ----------
        *include
            Categories; none means all. What was away before stays away.
        """
        categories = parse_include(include or None)
        with self._lock:
            before = {storage_key(entry.storage) for entry in self._away()}
            self.offload(categories)
        try:
            yield self
        finally:
            with self._lock:
                back = self._away().only(*categories)
                self._engine.reload(
                    back.where(lambda entry: storage_key(entry.storage) not in before).storages()
                )

    def offloaded_states(self) -> frozenset[Category]:
        """Return the categories of which something is away."""
        return frozenset(entry.category for entry in self._away())

    def resident(self) -> frozenset[Category]:
        """Return the categories of which something is here."""
        return frozenset(
            entry.category
            for entry in self.discover()
            if entry.nbytes and not self._engine.is_offloaded(entry.storage)
        )

    def reclaim(self) -> ReclaimReport:
        """Measure how much device memory the last offload really gave back.

        Waits for its copies, gives what PyTorch's allocator keeps for reuse back to the device (on
        the CPU: what the C library keeps, to the system), and compares with the moment before it.
        Do not call it in a tight loop: memory given back must be asked for again.

        Raises
        ------
        NotOffloaded
            If nothing was offloaded yet.
        """
        with self._lock:
            if self._last is None:
                raise NotOffloaded("nothing was offloaded yet, so there is nothing to measure")
            moved, before, ticket = self._last
        ticket.synchronize()
        return measure_reclaim(self._engine.device, moved, before)

    def _away(self) -> StateSet:
        return self.discover().where(lambda entry: self._engine.is_offloaded(entry.storage))
