"""Which bytes move: finding state, offloading it, proving that its memory came back."""

from __future__ import annotations

from pinferry.states.categories import Category
from pinferry.states.discovery import discover
from pinferry.states.offloader import StateOffloader
from pinferry.states.reclaim import ReclaimReport
from pinferry.states.state_set import StateEntry, StateSet

__all__ = ["Category", "ReclaimReport", "StateEntry", "StateOffloader", "StateSet", "discover"]
