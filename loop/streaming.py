"""An optimizer whose state lives in host memory, and is on the device only while it is used."""

from __future__ import annotations

import contextlib
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from pinferry.errors import (
    ArenaExhausted,
    EngineClosed,
    InvalidArgument,
    PinferryError,
    WrongDevice,
)
from pinferry.loop.interruption import interrupted
from pinferry.loop.loading import load_pieces, require_fitting
from pinferry.loop.masters import (
    drop_gradients,
    give_gradients,
    make_masters,
    members_of,
    take_weights,
)
from pinferry.loop.piece import Piece, cut
from pinferry.loop.pipeline import PIECES_IN_WINDOW, Pipeline
from pinferry.loop.saving import save_pieces
from pinferry.loop.supported import device_of, require_per_parameter
from pinferry.loop.window import window_for
from pinferry.pool import format_bytes
from pinferry.pool.options import check_flag
from pinferry.states.engines import arena_on
from pinferry.transfer import TransferEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from pinferry.loop.piece import Member
    from pinferry.pool import PinnedArena

__all__ = ["StreamingOptimizer"]


class StreamingOptimizer(torch.optim.Optimizer):
    """Keeps the state of an optimizer in host memory, and streams it through `step`.

    The state of a few parameters at a time, a piece, is on the device: one piece comes in while
    another is updated and the one before goes out, so both directions of the link run at once. The
    update is the optimizer's own, and equal to the bit. Takes the place of the optimizer: learning
    rate schedulers, ``GradScaler``, ``zero_grad`` and parameter groups work as ever.

    Parameters
    ----------
    optimizer
        One of ``torch.optim`` but LBFGS and SparseAdam. What state it has is moved out. Use it
        through this one from now on.
    arena
        Where the state lives: a `PinnedArena` on the parameters' device, or the bytes of one to
        make. Default: one for two tensors a parameter, as Adam has, and master weights; it grows.
    window
        Bytes of device memory that state may take, or text, about: four pieces. Default: a
        fortieth of all, and at least room for the largest parameter.
    master_weights
        Keep parameters of less than 32 bits in fp32 too, beside the state, and let the optimizer
        step on these.
    per_parameter
        Of an optimizer that is not PyTorch's: that it updates each parameter by itself, and keeps
        its state in ``optimizer.state[parameter]``.

    Raises
    ------
    InvalidArgument
        If the optimizer cannot be streamed, or the window is too small.
    WrongDevice
        If parameters are on several devices, or the arena serves another one.
    ArenaExhausted, HostMemoryLimit
        If the host lacks room.

    Examples
    --------
    >>> import torch
    >>> from pinferry import StreamingOptimizer
    >>> model = torch.nn.Linear(256, 256)
    >>> optimizer = StreamingOptimizer(torch.optim.AdamW(model.parameters()))
    >>> model(torch.ones(1, 256)).sum().backward()
    >>> optimizer.step()
    >>> optimizer.resident_bytes
    0
    >>> optimizer.close()
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        arena: PinnedArena | int | str | None = None,
        *,
        window: int | str | None = None,
        master_weights: bool = False,
        per_parameter: bool = False,
    ) -> None:
        self._masters = check_flag("master_weights", master_weights)
        require_per_parameter(optimizer, vouched=check_flag("per_parameter", per_parameter))
        members = list(members_of(optimizer.param_groups, masters=master_weights))
        device = device_of(members)
        self._window = window_for(members, window)
        self._arena = arena_on(str(device), arena, sum(member.nbytes for member in members))
        self._owns_arena = self._arena is not arena
        self._pipeline = Pipeline(TransferEngine(self._arena), device)
        self._inner = optimizer
        self._pieces: list[Piece] = []
        self._closed = False
        self._ready = False
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._ready = True
        self._share()
        try:
            self._take(members)
        except BaseException:
            self.close()
            raise

    @property
    def window_bytes(self) -> int:
        """Bytes of device memory that state may take, about."""
        return self._window

    @property
    def arena(self) -> PinnedArena:
        """Where the state lives."""
        return self._arena

    @property
    def resident_bytes(self) -> int:
        """Bytes of state and master weights that are on the device now."""
        return sum(
            storage.nbytes()
            for piece in self._pieces
            if piece.plan is None or not piece.plan.offloaded
            for storage in piece.named(self.state, self._pipeline.device).values()
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 -- whatever the closure returns
        """Update the parameters that have gradients, piece by piece.

        Queues everything and does not wait for it, as any optimizer on a GPU.

        Parameters
        ----------
        closure
            Called once, with gradients enabled, before anything is updated; returns the loss.

        Raises
        ------
        InvalidArgument
            If a gradient is sparse. Nothing was updated.
        StepInterrupted
            If something failed amid the update: says which parameters are updated.
        DeviceOutOfMemory
            If the device has no room for the first piece. Nothing was updated.
        ArenaExhausted
            If the optimizer has made more state than the arena has room for. All parameters are
            updated, and what found no room stays on the device; the next step tries again.
        """
        self._require_open()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        pieces = [piece for piece in self._pieces if _has_gradients(piece)]
        updated: list[Member] = []
        doubtful: list[Member] = []

        def update(piece: Piece) -> None:
            doubtful[:] = piece.members
            give_gradients(piece.members)
            try:
                with self._only(piece):
                    self._inner.step()
                take_weights(piece.members)
            finally:
                drop_gradients(piece.members)
            updated.extend(piece.members)
            doubtful.clear()

        try:
            self._pipeline.run(pieces, self.state, update)
        except ArenaExhausted:
            raise
        except Exception as error:
            if updated or doubtful:
                raise interrupted(error, updated, doubtful) from error
            raise
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, as the optimizer itself would, with tensors on the CPU.

        Any optimizer of its kind loads it, on any device. Master weights are in it as
        ``"master_weights"``, which others pass over. Brings one piece at a time to the device.
        """
        self._require_open()
        with self._only(None):
            described = self._inner.state_dict()
        return save_pieces(self._pipeline, self._pieces, described)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what an optimizer of this kind has saved, streamed or not, one piece at a time.

        Master weights that are not in it are made of the parameters as they are now.

        Raises
        ------
        InvalidArgument
            If it has other groups, or master weights of other shapes. Nothing was loaded.
        """
        self._require_open()
        require_fitting(state_dict, self.param_groups, self._pieces)
        load_pieces(self._pipeline, self._pieces, self._inner, self._only, state_dict)
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, whose state streams like that of the others.

        Raises
        ------
        InvalidArgument
            If one of its parameters has no room in the window, or is on another device.
        """
        first_index = sum(len(piece.members) for piece in getattr(self, "_pieces", ()))
        super().add_param_group(param_group)
        if not self._ready:
            return
        number = len(self.param_groups) - 1
        try:
            members = list(
                members_of(
                    [param_group],
                    masters=self._masters,
                    first_group=number,
                    first_index=first_index,
                )
            )
            if device_of(members) != self._pipeline.device:
                raise WrongDevice(f"the other parameters are on {self._pipeline.device}")
            window_for(members, self._window)
        except PinferryError:
            self.param_groups.pop()
            raise
        self._take(members)

    def close(self) -> None:
        """Bring all state back to the device, and the optimizer with it to its own ways.

        Where there are master weights, it steps on those from then on. Closing twice is harmless.
        """
        if self._closed:
            return
        for piece in self._pieces:
            self._pipeline.bring(piece)
        for piece in self._pieces:
            piece.forget()
        self._closed = True
        self._pipeline.close()
        if self._owns_arena:
            self._arena.close()
        if self._masters:
            for group, params in zip(self.param_groups, self._stepped_on(), strict=True):
                group["params"] = params

    def _take(self, members: Sequence[Member]) -> None:
        """Make pieces of new members, and send away what state there is."""
        for piece in cut(members, self._window // PIECES_IN_WINDOW):
            make_masters(piece.members, self.state)
            self._pieces.append(piece)
            self._pipeline.park(piece, self.state)

    def _share(self) -> None:
        """Have the same groups and the same state as the optimizer."""
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def _stepped_on(self) -> list[list[torch.Tensor]]:
        groups: list[list[torch.Tensor]] = [[] for _ in self.param_groups]
        for member in chain.from_iterable(piece.members for piece in self._pieces):
            groups[member.group].append(member.stepped_on)
        return groups

    @contextlib.contextmanager
    def _only(self, piece: Piece | None) -> Iterator[None]:
        """Show the optimizer what it steps on: of one piece, or of all."""
        groups = self._inner.param_groups
        params = [group["params"] for group in groups]
        shown = self._stepped_on() if piece is None else _by_group(piece, len(groups))
        try:
            for group, chosen in zip(groups, shown, strict=True):
                group["params"] = chosen
            self._inner.param_groups = [group for group in groups if group["params"]]
            yield
        finally:
            self._inner.param_groups = groups
            for group, before in zip(groups, params, strict=True):
                group["params"] = before

    def _require_open(self) -> None:
        if self._closed:
            raise EngineClosed("this optimizer was closed; use the one that it was made of")

    def __repr__(self) -> str:
        """Say what streams, and how."""
        count = sum(len(piece.members) for piece in self._pieces)
        return (
            f"<StreamingOptimizer of {type(self._inner).__name__}, {count} parameters in "
            f"{len(self._pieces)} pieces, window {format_bytes(self._window)}>"
        )

    def __enter__(self) -> Self:
        """Return the optimizer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


def _by_group(piece: Piece, groups: int) -> list[list[torch.Tensor]]:
    chosen: list[list[torch.Tensor]] = [[] for _ in range(groups)]
    for member in piece.members:
        chosen[member.group].append(member.stepped_on)
    return chosen


def _has_gradients(piece: Piece) -> bool:
    """Return whether there is anything to update.

    Raises
    ------
    InvalidArgument
        If a gradient is sparse.
    """
    for member in piece.members:
        gradient = member.parameter.grad
        if gradient is not None and gradient.layout is not torch.strided:
            raise InvalidArgument(
                f"{member.name} has a sparse gradient, which cannot be streamed; make it dense "
                "(sparse=False in its embedding). Nothing was updated"
            )
    return any(member.parameter.grad is not None for member in piece.members)
