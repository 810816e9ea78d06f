"""Activations that wait in host memory between forward and backward."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

import torch

from pinferry.errors import ArenaExhausted, InvalidArgument, StateOffloaded
from pinferry.loop.saved import Packed, Saved
from pinferry.pool.sizes import parse_size
from pinferry.transfer import TransferEngine
from pinferry.transfer.streams import current_stream

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["OffloadedActivations", "offload_activations"]

_log = logging.getLogger("pinferry")

_LOOK_BACK = 1000
_ALIGNMENT = 16  # of the beginning of a range: no type of PyTorch's is larger


def offload_activations(
    engine: TransferEngine,
    *,
    min_bytes: int | str = "1MiB",
    ahead: int | str = "256MiB",
) -> OffloadedActivations:
    """Copy what autograd saves in a forward to the arena, and bring it back in the backward.

    Use it around the forward. Parameters stay; a storage that is saved several times, by whatever
    views, is copied once. What the arena has no room for stays on the device.

    Parameters
    ----------
    engine
        What moves it; its arena takes the bytes until the backward is done with them.
    min_bytes
        Smaller tensors stay on the device.
    ahead
        Bytes that may be on their way at once. On the way out, the current stream waits where there
        are more; on the way back, so many are fetched before they are asked for, in reverse order.

    Raises
    ------
    InvalidArgument
        If `engine` is none, or a size is none.

    Examples
    --------
    >>> import torch
    >>> from pinferry import PinnedArena, TransferEngine, offload_activations
    >>> layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    >>> with PinnedArena("4MiB", device="cpu") as arena, TransferEngine(arena) as engine:
    ...     with offload_activations(engine, min_bytes=0) as activations:
    ...         loss = layers(torch.ones(16, 64)).sum()
    ...     activations.offloaded_bytes > 0
    ...     loss.backward()
    True
    """
    if not isinstance(engine, TransferEngine):
        raise InvalidArgument(
            f"a {type(engine).__name__} is no TransferEngine; make one: TransferEngine(arena)"
        )
    return OffloadedActivations(engine, parse_size(min_bytes), parse_size(ahead))


class OffloadedActivations:
    """The block of `offload_activations`; may be entered again for the next step.

    Attributes
    ----------
    offloaded_bytes
        Bytes copied to the arena so far.
    left_bytes
        Bytes that stayed on the device because the arena had no room.
    """

    def __init__(self, engine: TransferEngine, min_bytes: int, ahead: int) -> None:
        engine.require_open()
        self.offloaded_bytes = 0
        self.left_bytes = 0
        self._engine = engine
        self._min_bytes = min_bytes
        self._ahead = ahead
        self._lock = threading.RLock()
        self._number = 0
        self._alive: weakref.WeakValueDictionary[int, Saved] = weakref.WeakValueDictionary()
        self._of_storage: dict[int, list[weakref.ref[Saved]]] = {}
        self._first = 0  # that was saved since the block was entered last
        self._leaving: deque[tuple[weakref.ref[Saved], int]] = deque()
        self._leaving_bytes = 0
        self._hooks: list[torch.autograd.graph.saved_tensors_hooks] = []

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | Packed:
        if not self._wanted(tensor):
            return tensor
        with self._lock:
            self._let_go()
            saved = self._find(tensor) or self._save(tensor)
            if saved is None:
                return tensor
            saved.packed += 1
        return Packed(saved, tensor)

    def _unpack(self, packed: torch.Tensor | Packed) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        with self._lock:
            saved = packed.saved
            source = saved.source
            if saved.spoiled or (source is not None and source._version != saved.version):  # noqa: SLF001
                raise StateOffloaded(
                    "a tensor that backward needs was changed in place while it was being copied "
                    "to the host; leave that operation out, or offload_activations around it"
                )
            tensor = packed.unpack()
            self._fetch_before(saved.number)
        return tensor

    def _wanted(self, tensor: torch.Tensor) -> bool:
        base = tensor._base if tensor._base is not None else tensor  # noqa: SLF001
        return (
            type(tensor) is torch.Tensor
            and tensor.layout is torch.strided
            and self._is_on_device(tensor.device)
            and tensor.nbytes >= max(self._min_bytes, 1)
            and not isinstance(base, torch.nn.Parameter)
            and not (base.is_leaf and base.requires_grad)
            and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
        )

    def _is_on_device(self, device: torch.device) -> bool:
        own = self._engine.device
        return device.type == own.kind and (own.kind == "cpu" or device.index == own.index)

    def _find(self, tensor: torch.Tensor) -> Saved | None:
        """Return what has the bytes of `tensor` already, as they are now."""
        start, end = _range_of(tensor)
        kept = self._of_storage.get(tensor.untyped_storage()._cdata, [])  # noqa: SLF001
        for saved in (reference() for reference in kept):
            if (
                saved is not None
                and not saved.gone()  # the address may be another storage's by now
                and saved.version == tensor._version  # noqa: SLF001
                and saved.start <= start
                and end <= saved.start + saved.nbytes
            ):
                return saved
        return None

    def _save(self, tensor: torch.Tensor) -> Saved | None:
        start, end = _range_of(tensor)
        try:
            (blocks,) = self._engine.arena.deal([end - start])
        except ArenaExhausted as error:
            if not self.left_bytes:
                _log.warning("activations stay on the device: %s", error)
            self.left_bytes += end - start
            return None
        saved = Saved(self._engine.device, self._number, tensor.detach(), start, blocks)
        self._number += 1
        self._alive[saved.number] = saved
        key = tensor.untyped_storage()._cdata  # noqa: SLF001
        self._of_storage.setdefault(key, []).append(weakref.ref(saved))
        self._leaving.append((weakref.ref(saved), saved.nbytes))
        self._leaving_bytes += saved.nbytes
        self.offloaded_bytes += saved.nbytes
        return saved

    def _let_go(self) -> None:
        """Give up storages that were copied; where too much is on its way, wait for the oldest."""
        while self._leaving:
            reference, nbytes = self._leaving[0]
            saved = reference()
            if saved is not None and not saved.out.done():
                if self._leaving_bytes <= self._ahead:
                    return
                saved.out.wait(current_stream(self._engine.device))
            self._leaving.popleft()
            self._leaving_bytes -= nbytes
            if saved is not None:
                saved.let_go()

    def _fetch_before(self, number: int) -> None:
        """Begin to bring back what was saved before, which backward will ask for next."""
        left = self._ahead
        for earlier in range(number - 1, max(self._first, number - _LOOK_BACK) - 1, -1):
            saved = self._alive.get(earlier)
            if saved is None:
                continue
            left -= saved.nbytes
            if left < 0:
                return
            saved.fetch()

    def __enter__(self) -> Self:
        """Begin to copy what autograd saves."""
        with self._lock:
            self._first = self._number
            self._of_storage = {
                key: alive
                for key, kept in self._of_storage.items()
                if (alive := [each for each in kept if each() is not None])
            }
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        hooks.__enter__()
        self._hooks.append(hooks)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Copy nothing more; what was copied comes back when backward asks for it."""
        self._hooks.pop().__exit__(kind, error, traceback)


def _range_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where in its storage the bytes of `tensor` begin, aligned, and end."""
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    last = sum((int(size) - 1) * int(step) for size, step in steps)
    start = int(tensor.storage_offset()) * tensor.element_size()
    end = start + (last + 1) * tensor.element_size()
    return start // _ALIGNMENT * _ALIGNMENT, end
