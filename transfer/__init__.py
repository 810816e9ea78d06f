"""How bytes move: the engine, its plans and its tickets."""

from __future__ import annotations

from pinferry.transfer.engine import TransferEngine
from pinferry.transfer.joined_ticket import JoinedTicket
from pinferry.transfer.kernels import calibrate
from pinferry.transfer.options import Access, Release, Verify
from pinferry.transfer.plan import TransferPlan
from pinferry.transfer.storages import inner_tensors, named_storages, storage_key, storage_of
from pinferry.transfer.swap_ticket import SwapTicket
from pinferry.transfer.ticket import Ticket
from pinferry.transfer.trace import Trace

__all__ = [
    "Access",
    "JoinedTicket",
    "Release",
    "SwapTicket",
    "Ticket",
    "Trace",
    "TransferEngine",
    "TransferPlan",
    "Verify",
    "calibrate",
    "inner_tensors",
    "named_storages",
    "storage_key",
    "storage_of",
]
