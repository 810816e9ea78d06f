"""One set of storages out while another comes in, in the memory that the first one leaves."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from pinferry.transfer.cargo import Cargo
from pinferry.transfer.interrupts import Uninterrupted
from pinferry.transfer.options import Access, OffloadOptions, Release, ReloadOptions
from pinferry.transfer.streams import current_stream_id
from pinferry.transfer.swap_ticket import SwapTicket

if TYPE_CHECKING:
    from pinferry.transfer.cargo import Piece
    from pinferry.transfer.engine import TransferEngine
    from pinferry.transfer.layout import Place
    from pinferry.transfer.plan import TransferPlan
    from pinferry.transfer.ticket import Ticket

__all__ = ["swap"]

# Enough for the link's speed. More pieces of less would save device memory and cost host time.
_PIECE_BYTES = 128 * 2**20


def swap(
    engine: TransferEngine,
    out: TransferPlan,
    into: TransferPlan,
    *,
    slack: int,
    streams: tuple[object, ...] | None,
) -> SwapTicket:
    """Move the storages of `out` out and those of `into` in; see `TransferEngine.swap`.

    What comes in is allocated on the current stream, which has waited for the copies of what left
    before: so it may take that memory, and each copy in waits for the copies out that it needs and
    no others. After a failure everything goes back to where it was.
    """
    leaving = deque(out.pieces_here(_PIECE_BYTES))
    arriving = deque(into.pieces_away(_PIECE_BYTES))
    owners = [out.new_token()] if leaving else []
    departed: list[Piece] = []
    arrived: list[Piece] = []
    tickets: tuple[list[Ticket], list[Ticket]] = ([], [])
    budget = slack
    options = OffloadOptions(release=Release.ORDERED)
    with Uninterrupted():
        try:
            while leaving or arriving:
                if arriving and (arriving[0].nbytes <= budget or not leaving):
                    tickets[1].append(engine.fetch(arriving[0].cargo, ReloadOptions()))
                    arrived.append(arriving.popleft())
                    budget -= arrived[-1].nbytes
                    continue
                piece = leaving[0]
                # The first copy waits for the producers, and the others follow it.
                options = replace(options, streams=() if departed else streams)
                tickets[0].append(
                    engine.dispatch(
                        piece.cargo,
                        piece.cargo.require_held(),
                        owners,
                        options,
                        skip=out.copied(piece.places),
                    )
                )
                departed.append(leaving.popleft())
                budget += departed[-1].nbytes
        except BaseException:
            _undo(engine, out, departed, into, arrived)
            raise
        owners.clear()
        if departed:
            out.note_away(_places(departed))
        into.note_away([])
    return SwapTicket(*tickets)


def _undo(
    engine: TransferEngine,
    out: TransferPlan,
    departed: list[Piece],
    into: TransferPlan,
    arrived: list[Piece],
) -> None:
    """Put back what moved. The host still has the bytes of what came in, so that only goes."""
    out.note_away(_places(departed))  # whatever else fails here: they can be reloaded
    if arrived:
        token = into.new_token(into.access)
        readable = into.access is Access.READABLE
        for cargo in filter(None, map(_alive, arrived)):
            # The current stream has waited for the copies in.
            cargo.require_held().release(
                [token],
                current_stream_id(engine.device),
                cargo.host_addresses(engine.device) if readable else None,
            )
    while departed:
        left = _alive(departed[-1])
        if left is not None:
            engine.fetch(left, ReloadOptions())
        departed.pop()
        out.note_away(_places(departed))


def _alive(piece: Piece) -> Cargo | None:
    """Return the cargo of a piece without what has died meanwhile; None if nothing is left."""
    if piece.cargo.group.alive == len(piece.cargo.members):
        return piece.cargo
    places = [alive for place in piece.places if (alive := place.alive()) is not None]
    return Cargo(places) if places else None


def _places(pieces: list[Piece]) -> list[Place]:
    return [place for piece in pieces for place in piece.places]
