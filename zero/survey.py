"""What an engine's state is made of, and which of it nobody needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pinferry.deepspeed.holders import of_engine
from pinferry.deepspeed.versions import require
from pinferry.deepspeed.wrappers import buckets_of
from pinferry.states.categories import Category
from pinferry.states.discovery import Survey, collect
from pinferry.states.holders import tensors_in
from pinferry.transfer import storage_key

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

__all__ = ["survey"]


def survey(engine: DeepSpeedEngine, device: str) -> Survey:
    """Find the state of `engine` that lies on `device`, and the buckets that are empty.

    Raises
    ------
    UnsupportedVersion
        If this version of DeepSpeed lacks one of the holders.
    """
    found = collect(of_engine(engine), device=device)
    idle = {
        storage_key(tensor.untyped_storage())
        for bucket in buckets_of(engine.optimizer)
        if require(bucket, "elements") == 0
        for _, tensor in tensors_in("", require(bucket, "buffer"))
    }
    # Gradients may be views of a bucket that is empty; their category came first.
    scratch = frozenset(
        storage_key(entry.storage)
        for entry in found.states.only(Category.CONTIGUOUS_GRAD_BUFFER)
        if storage_key(entry.storage) in idle
    )
    # A parameter of stage 3 that is not gathered has no bytes of its own.
    states = found.states.where(lambda entry: entry.nbytes > 0)
    return replace(found, states=states, scratch=scratch)
