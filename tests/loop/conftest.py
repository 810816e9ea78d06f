"""Fixtures for the loop: a device, and an arena for it."""

from __future__ import annotations

from tests.states.fixtures import arena, device

__all__ = ["arena", "device"]
