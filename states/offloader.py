"""Offloading the state of a model and its optimizer by category."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING

from pinferry.errors import InvalidArgument
from pinferry.pool.options import check_flag
from pinferry.states.categories import COMPACTED, Category, parse_include
from pinferry.states.discovery import discover, survey
from pinferry.states.engines import device_name, engine_for
from pinferry.states.frozen import immutable_names
from pinferry.states.holders import check_holders
from pinferry.states.keeper import StateKeeper
from pinferry.transfer import Access, Release, TransferEngine
from pinferry.transfer.not_copied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from pinferry.pool import PinnedArena
    from pinferry.states.categories import Include
    from pinferry.states.frozen import Immutable
    from pinferry.states.reclaim import ReclaimReport
    from pinferry.states.state_set import StateSet
    from pinferry.transfer import Ticket, TransferPlan

__all__ = ["StateOffloader"]


class StateOffloader(NotCopied):
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
        check_holders(model, optimizer)
        if engine is not None and not isinstance(engine, TransferEngine):
            raise InvalidArgument(
                f"engine is a {type(engine).__name__}; give a TransferEngine, or arena= instead"
            )
        self._model = model
        self._optimizer = optimizer
        self._lock = threading.RLock()
        engine = engine if engine is not None else engine_for(arena)
        # Not a method: the keeper must not keep its owner alive.
        self._survey = partial(survey, model, optimizer, device=device_name(engine))
        self._keeper = StateKeeper(engine, self._survey, self._lock)

    @property
    def engine(self) -> TransferEngine:
        """The engine that moves the state."""
        return self._keeper.engine

    def discover(self) -> StateSet:
        """Return all state on the arena's device, wherever its bytes are now.

        Raises
        ------
        UnsupportedStorage
            If a tensor has no storage of its own (sparse or opaque).
        """
        return discover(self._model, self._optimizer, device=device_name(self.engine))

    def offload(
        self,
        include: Include = None,
        non_blocking: bool = True,
        *,
        release: Release | str = Release.RECORD_STREAM,
        access: Access | str = Access.RAISE,
    ) -> Ticket:
        """Copy state to the arena and give its device memory back to PyTorch's allocator.

        Parameters
        ----------
        include
            A category, several, or None for all.
        non_blocking
            Return once the copies are queued, behind the current stream. They are ordered before
            any reuse of the memory and before a reload. False waits for their end.
        release
            What orders them before any reuse; see `TransferEngine.offload`.
        access
            ``"readable"`` lets a checkpoint, say, read what is away; see `TransferEngine.offload`.

        Raises
        ------
        UnknownCategory
            If `include` names one that does not exist.
        ArenaExhausted, UnsupportedStorage, AlreadyOffloaded
            If something cannot be moved. Nothing was.
        """
        categories = parse_include(include)
        check_flag("non_blocking", non_blocking)
        ticket = self._keeper.offload(categories, release=release, access=access)
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
        check_flag("non_blocking", non_blocking)
        ticket = self._keeper.reload(categories)
        if not non_blocking:
            ticket.synchronize()
        return ticket

    def plan(
        self,
        include: Include = None,
        *,
        compact: Include = COMPACTED,
        immutable: Immutable = None,
    ) -> TransferPlan:
        """Fix the place of state in the arena, for moving it in every iteration.

        A plan moves what is found now, at a fraction of the host's time that `offload` takes, and
        follows it while it lives. What comes later, such as the state that an optimizer makes at
        its first step, needs a new plan. What the plan offloads is the plan's to reload: `reload`
        leaves it away, and `offloaded_states` does not list it.

        Parameters
        ----------
        include
            A category, several, or None for all.
        compact
            Categories whose small storages may share device memory; see `TransferEngine.plan`. By
            default what only the optimizer touches. ``()`` compacts nothing.
        immutable
            States that nobody writes to, so that they are copied to the arena once:
            ``"frozen"`` for the parameters that require no gradient and that the optimizer does not
            step on, or names as `discover` gives them; see `TransferEngine.plan`. Not for
            weights that adapters are merged into.

        Raises
        ------
        UnknownCategory
            If `include` or `compact` names one that does not exist.
        InvalidArgument
            If `immutable` names what is not in the plan.
        ArenaExhausted, UnsupportedStorage, AlreadyOffloaded
            If something cannot be moved, or is away.

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
        ...     with offloader.plan("optim_states") as plan:
        ...         for _ in range(3):
        ...             _ = plan.offload()
        ...             _ = plan.reload()
        ...         plan.names()[1]
        'optimizer.state[0].exp_avg'
        """
        categories, compacted = parse_include(include), parse_include(compact, argument="compact")
        with self._lock:
            found = self._survey()
            found.require_movable(categories)
            states = found.states.only(*categories)
            return self.engine.plan(
                states.storages(),
                compact=states.only(*compacted).names(),
                immutable=immutable_names(states, immutable, self._model, self._optimizer),
            )

    @contextlib.contextmanager
    def offloaded(self, *include: str) -> Iterator[StateOffloader]:
        """Offload on entry and reload on exit, after an error too.

        Parameters
        ----------
        *include
            Categories; none means all. What was away before stays away.
        """
        categories = parse_include(include or None)
        before = frozenset(self._keeper.away())
        try:
            self.offload(categories)
            yield self
        finally:
            self._keeper.reload(categories, before)

    def offloaded_states(self) -> frozenset[Category]:
        """Return the categories of which something is away."""
        return frozenset(self._keeper.away().values())

    def resident(self) -> frozenset[Category]:
        """Return the categories of which something is here."""
        return frozenset(entry.category for entry in self._keeper.resident())

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
        return self._keeper.reclaim()
