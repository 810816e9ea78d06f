"""Replacing methods and functions of others, and putting them back."""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["Patches"]

_MISSING = object()


class Patches:
    """What was replaced. Only what is still ours is put back: others may have replaced it since."""

    def __init__(self) -> None:
        self._undo: list[tuple[object, str, object, object]] = []

    def method(self, holder: object, name: str, function: Callable[..., object]) -> None:
        """Make `function` the method `name` of this one object; it is not handed the object."""

        def method(_: object, *args: object, **kwargs: object) -> object:
            return function(*args, **kwargs)

        functools.update_wrapper(method, function)
        self._replace(holder, name, types.MethodType(method, holder))

    def before(self, holder: object, name: str, check: Callable[[], None]) -> None:
        """Call `check` before each call of the method `name` of this one object."""
        original = getattr(holder, name)

        # Wraps the function, for those who look at a method's (PyTorch's schedulers do).
        @functools.wraps(getattr(original, "__func__", original))
        def checked(_: object, *args: object, **kwargs: object) -> object:
            check()
            return original(*args, **kwargs)

        self._replace(holder, name, types.MethodType(checked, holder))

    def function(
        self,
        module: ModuleType,
        name: str,
        wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        """Replace a function in its module, and in every module that has imported it by name."""
        original = getattr(module, name)
        replacement = functools.wraps(original)(wrap(original))
        for each in list(sys.modules.values()):
            if getattr(each, "__dict__", {}).get(name) is original:
                self._replace(each, name, replacement)

    def restore(self) -> None:
        """Put everything back, the last one first."""
        while self._undo:
            holder, name, ours, before = self._undo.pop()
            if vars(holder).get(name) is not ours:
                continue
            if before is _MISSING:
                delattr(holder, name)
            else:
                setattr(holder, name, before)

    def _replace(self, holder: object, name: str, ours: object) -> None:
        before = vars(holder).get(name, _MISSING)
        setattr(holder, name, ours)
        self._undo.append((holder, name, ours, before))
