"""Pieces through a window: one comes in while another is used and a third goes out."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from pinferry.errors import ArenaExhausted, DeviceOutOfMemory, PinferryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pinferry.loop.piece import Piece
    from pinferry.transfer import Ticket, TransferEngine

__all__ = ["PIECES_IN_WINDOW", "Pipeline"]

_log = logging.getLogger("pinferry")

#: One on its way in, one in use, one on its way out, and one whose memory is not free yet.
PIECES_IN_WINDOW = 4


class Pipeline:
    """Brings the state of pieces to the device, one ahead, and takes it away again.

    Parameters
    ----------
    engine
        What moves it.
    device
        Where the state is used.
    """

    def __init__(self, engine: TransferEngine, device: torch.device) -> None:
        self._engine = engine
        self._device = device

    def run(
        self,
        pieces: Sequence[Piece],
        state: Mapping[Any, Any],
        use: Callable[[Piece], None],
    ) -> None:
        """Call `use` with each piece in turn, on the current stream, while its state is here.

        Whatever happens, state that is here by then goes back, but for what finds no room.

        Raises
        ------
        DeviceOutOfMemory
            If the device lacks memory for a piece, after PyTorch's cache was given back too.
        ArenaExhausted
            If the arena lacks room for state that was made meanwhile. All pieces were used; what
            found no room is on the device.
        """
        coming: deque[tuple[Piece, Ticket | None]] = deque()
        waiting = deque(pieces)
        homeless: ArenaExhausted | None = None
        try:
            while coming or waiting:
                while waiting and len(coming) < 2:  # this one and the next
                    coming.append((waiting[0], self._bring(waiting[0], coming)))
                    waiting.popleft()
                piece, ticket = coming[0]
                if ticket is not None:
                    ticket.wait()
                use(piece)
                homeless = self._park(piece, state) or homeless
                coming.popleft()
        except BaseException:
            self._park_all([piece for piece, _ in coming], state)
            raise
        if homeless is not None:
            raise homeless

    @property
    def device(self) -> torch.device:
        """Where the state is used."""
        return self._device

    @contextlib.contextmanager
    def here(self, piece: Piece) -> Iterator[None]:
        """Have the state of one piece here; what is here already stays."""
        plan = piece.plan if piece.plan is not None and piece.plan.offloaded else None
        if plan is not None:
            plan.reload()
        try:
            yield
        finally:
            if plan is not None:
                plan.offload()

    def close(self) -> None:
        """Let go of the engine; no state is away."""
        self._engine.close()

    def park(self, piece: Piece, state: Mapping[Any, Any]) -> None:
        """Take the state of a piece away.

        Raises
        ------
        ArenaExhausted
            If the arena lacks room. The state stays here.
        """
        error = self._park(piece, state)
        if error is not None:
            raise error

    def bring(self, piece: Piece) -> None:
        """Bring the state of a piece here."""
        if piece.plan is not None:
            piece.plan.reload()

    def _bring(self, piece: Piece, coming: Sequence[tuple[Piece, Ticket | None]]) -> Ticket | None:
        if piece.plan is None:
            return None
        try:
            return piece.plan.reload(defer=True)
        except DeviceOutOfMemory:
            if self._device.type != "cuda":
                raise
        # What is on its way out is free after that, and what PyTorch keeps in odd sizes.
        torch.cuda.synchronize(self._device)
        for _, ticket in coming:
            if ticket is not None:
                ticket.wait()
        torch.cuda.empty_cache()
        return piece.plan.reload(defer=True)

    def _park(self, piece: Piece, state: Mapping[Any, Any]) -> ArenaExhausted | None:
        try:
            piece.replan(self._engine, state, self._device)
        except ArenaExhausted as error:
            return error
        if piece.plan is not None:
            piece.plan.offload()
        return None

    def _park_all(self, pieces: Sequence[Piece], state: Mapping[Any, Any]) -> None:
        """Take away what can be, amid an error that counts more than those that this may have."""
        for piece in pieces:
            try:
                self._park(piece, state)
            except PinferryError as error:  # noqa: PERF203 -- there are two at most
                _log.warning("the state of some parameters stays on the device: %s", error)
