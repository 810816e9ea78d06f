"""Offloading the state of a DeepSpeed engine."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import torch

from pinferry import _native
from pinferry.deepspeed import arguments
from pinferry.deepspeed.keepers import Keepers
from pinferry.deepspeed.side_streams import catch_up, let_wait
from pinferry.deepspeed.survey import survey
from pinferry.errors import EngineClosed, StateOffloaded
from pinferry.pool.options import check_flag
from pinferry.states.categories import Category
from pinferry.states.engines import device_name
from pinferry.transfer import JoinedTicket, Ticket, storage_key
from pinferry.transfer.not_copied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import TracebackType

    from deepspeed import DeepSpeedEngine
    from typing_extensions import Self

    from pinferry.pool import PinnedArena
    from pinferry.states.categories import Include
    from pinferry.states.reclaim import ReclaimReport
    from pinferry.states.state_set import StateSet
    from pinferry.transfer import TransferEngine

__all__ = ["DeepSpeedOffloader"]

_WEIGHTS = frozenset({Category.LP_PARAMS, Category.FROZEN_PARAMS})


class DeepSpeedOffloader(NotCopied):
    """Offloads and reloads the state of a DeepSpeed engine, by category; made by `attach`.

    State is found anew at every call. Idempotent: what is away stays away, and only what is away
    comes back. All-or-nothing: an offload that fails has moved nothing.

    Parameters
    ----------
    engine
        The engine of DeepSpeed.
    arena
        Where the bytes go.
    on_access
        What an operation does that needs what is away: ``"raise"`` or ``"reload"``.
    on_detach
        Called when the offloader gives the engine back.
    """

    def __init__(
        self,
        engine: DeepSpeedEngine,
        arena: PinnedArena,
        *,
        on_access: str,
        on_detach: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._on_access = on_access
        self._on_detach = on_detach
        self._attached = True
        self._parameters: frozenset[int] = frozenset()  # by id
        # Not a method: the keepers must not keep their owner alive.
        device = "cpu" if arena.device.kind == "cpu" else f"cuda:{arena.device.index}"
        self._keepers = Keepers(arena, partial(survey, engine, device))

    @property
    def engine(self) -> TransferEngine:
        """The transfer engine that moves the state."""
        return self._keepers.pinned.engine

    @property
    def arena(self) -> PinnedArena:
        """Where the bytes go."""
        return self.engine.arena

    @property
    def on_access(self) -> str:
        """What an operation does that needs what is away: ``"raise"`` or ``"reload"``."""
        return self._on_access

    @property
    def attached(self) -> bool:
        """Whether the engine's ``offload_states`` still comes here."""
        return self._attached

    def discover(self) -> StateSet:
        """Return all state on the arena's device, wherever its bytes are now.

        Raises
        ------
        UnsupportedVersion
            If this version of DeepSpeed does not hold state where pinferry looks for it.
        """
        return self._keepers.survey().states

    def offload_states(
        self,
        include: Include = None,
        device: object = "cpu",
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> Ticket | JoinedTicket:
        """Copy state to the host and give its device memory back to PyTorch's allocator.

        Parameters
        ----------
        include
            Categories, as text or as DeepSpeed's ``OffloadStateTypeEnum``; None for all, buffers
            and frozen parameters too. Buckets that are empty are dropped and made anew.
        device
            ``"cpu"``, or DeepSpeed's ``OffloadDeviceEnum.cpu``.
        pin_memory
            False takes pageable memory instead of the arena's.
        non_blocking
            Return once the copies are queued, behind the current stream and DeepSpeed's own. They
            are ordered before any reuse of the memory and before a reload. False waits for their
            end.

        Raises
        ------
        UnknownCategory, InvalidArgument
            If there is no such category, or if the device is not the host.
        StaticOffload
            If DeepSpeed keeps what is to move on the host for good.
        ArenaExhausted
            If the arena lacks room, with what each category needs. Nothing was moved.
        UnsupportedVersion
            If this version of DeepSpeed does not hold state where pinferry looks for it.
        """
        check_flag("pin_memory", pin_memory)
        check_flag("non_blocking", non_blocking)
        categories = arguments.categories_to_offload(self._engine, include)
        self._require_attached()
        if not arguments.goes_to_host(device):
            return Ticket(_native.Ticket(), self.engine.device)
        wrapper = self._engine.optimizer
        with self._keepers.lock:
            catch_up(wrapper)
            if categories & _WEIGHTS and hasattr(wrapper, "empty_partition_cache"):
                wrapper.empty_partition_cache()  # what stage 3 has gathered
            ticket = self._keepers.offload(categories, pinned=pin_memory)
            self._parameters = frozenset(map(id, self._engine.module.parameters()))
            self._tell_deepspeed()
        if not non_blocking:
            ticket.synchronize()
        return ticket

    def reload_states(
        self, non_blocking: bool = False, include: Include = None
    ) -> Ticket | JoinedTicket:
        """Bring back what is away.

        Parameters
        ----------
        non_blocking
            Return once the copies are queued: the current stream and DeepSpeed's own wait for
            them, the host does not. False waits for their end.
        include
            Categories; None for all. What is not away is left alone.

        Raises
        ------
        UnknownCategory
            If there is no such category.
        DeviceOutOfMemory
            If the device lacks memory. What has not come back stays offloaded and intact.
        """
        check_flag("non_blocking", non_blocking)
        return self._reload(arguments.parse_categories(include), non_blocking)

    def recall(self, include: Include = None) -> Ticket | JoinedTicket:
        """Begin to bring back what is away, ahead of its use.

        As ``reload_states(non_blocking=True)``, but no stream waits yet, so that other work runs
        beside the copies: the states arrive when `Ticket.wait` is called. Any access before that
        raises.

        Parameters
        ----------
        include
            Categories; None for all.

        Raises
        ------
        UnknownCategory
            If there is no such category.
        DeviceOutOfMemory
            If the device lacks memory. What has not come back stays offloaded and intact.
        """
        categories = arguments.parse_categories(include)
        self._require_attached()
        with self._keepers.lock:
            ticket = self._keepers.reload(categories, defer=True)
            self._tell_deepspeed()
        return ticket

    def _reload(
        self, categories: Collection[Category], non_blocking: bool, leave: Collection[int] = ()
    ) -> Ticket | JoinedTicket:
        self._require_attached()
        with self._keepers.lock:
            ticket = self._keepers.reload(categories, leave)
            let_wait(self._engine.optimizer, ticket)
            self._tell_deepspeed()
        if not non_blocking:
            ticket.synchronize()
        return ticket

    @contextlib.contextmanager
    def offloaded(self, *include: str) -> Iterator[Self]:
        """Offload on entry and reload on exit, after an error too.

        Parameters
        ----------
        *include
            Categories; none means all. What was away before stays away.
        """
        before = frozenset(self._keepers.away())
        try:
            self.offload_states(include or None, non_blocking=True)
            yield self
        finally:
            if self._attached:  # detach() has reloaded everything
                self._reload(arguments.parse_categories(include or None), True, before)

    def offloaded_states(self) -> frozenset[Category]:
        """Return the categories of which something is away."""
        return frozenset(self._keepers.away().values())

    def resident(self) -> frozenset[Category]:
        """Return the categories of which something is here."""
        return frozenset(entry.category for entry in self._keepers.resident())

    def state_devices(self, category: str) -> set[torch.device]:
        """Return where the bytes of a category are; those of buckets that were dropped, nowhere."""
        (wanted,) = arguments.parse_categories([category])
        away, given_up = self._keepers.away(), self._keepers.given_up()
        found = {
            storage_key(entry.storage): entry.device
            for entry in self._keepers.survey().states
            if away.get(storage_key(entry.storage), entry.category) is wanted
        }
        return {
            torch.device("cpu") if key in away else device
            for key, device in found.items()
            if key not in given_up
        }

    def reclaim(self) -> ReclaimReport:
        """Measure how much device memory the last offload gave back; see `StateOffloader.reclaim`.

        Raises
        ------
        NotOffloaded
            If nothing was offloaded yet.
        """
        return self._keepers.reclaim()

    def serves(self, engine: object) -> bool:
        """Return whether this is its engine."""
        return engine is self._engine

    def owns(self, parameter: torch.Tensor) -> bool:
        """Return whether it was a parameter of its engine when something last left."""
        return id(parameter) in self._parameters

    def missing(self, categories: Collection[Category]) -> frozenset[Category]:
        """Return those of `categories` of which something is away."""
        return self._keepers.away_of(categories)

    def need(self, categories: Collection[Category], operation: str) -> None:
        """Raise, or reload, if some of these categories are away that `operation` needs.

        Raises
        ------
        StateOffloaded
            If ``on_access`` is ``"raise"``. The operation has not begun.
        """
        missing = self.missing(categories)
        if not missing:
            return
        if self._on_access == "reload":
            self._reload(missing, non_blocking=True)
            return
        raise StateOffloaded(
            f"{operation} needs {', '.join(sorted(missing))}, offloaded to the host; call "
            "engine.reload_states() first, or attach with on_access='reload'. Nothing was begun"
        )

    def detach(self) -> None:
        """Reload everything, and give the engine its own methods back; the second time, nothing.

        Raises
        ------
        DeviceOutOfMemory
            If the device lacks memory. Then the engine stays attached.
        ArenaInUse
            If somebody has moved something else by `engine`. Then it stays attached, too.
        """
        with self._keepers.lock:
            if not self._attached:
                return
            self._reload(arguments.ALL, non_blocking=False)
            self._keepers.close()
            self._attached = False
            self._on_detach()

    def _tell_deepspeed(self) -> None:
        """Keep ``optimizer.offloaded_states`` true, for those who read it."""
        told = getattr(self._engine.optimizer, "offloaded_states", None)
        if not isinstance(told, set):
            return
        from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum

        away = self.offloaded_states()
        told.clear()
        told.update(each for each in OffloadStateTypeEnum if each.value in away)

    def _require_attached(self) -> None:
        if not self._attached:
            raise EngineClosed("this offloader was detached from its engine; attach it again")

    def __repr__(self) -> str:
        """Say what is away."""
        if not self._attached:
            return "<DeepSpeedOffloader, detached>"
        away = ", ".join(sorted(self.offloaded_states())) or "nothing"
        return f"<DeepSpeedOffloader on {device_name(self.engine)}, {away} offloaded>"

    def __enter__(self) -> Self:
        """Return the offloader."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Detach."""
        self.detach()
