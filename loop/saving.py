"""The state of a streamed optimizer as a dictionary on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pinferry.loop.piece import Piece
    from pinferry.loop.pipeline import Pipeline

__all__ = ["MASTERS", "save_pieces"]

#: What master weights are saved as; PyTorch's optimizers pass over it.
MASTERS = "master_weights"


def save_pieces(
    pipeline: Pipeline,
    pieces: Sequence[Piece],
    described: Mapping[str, Any],
) -> dict[str, Any]:
    """Return `described`, a ``state_dict`` of what is away, with copies of the tensors instead."""
    states = dict(described["state"])
    masters: dict[int, torch.Tensor] = {}
    for piece in pieces:
        with pipeline.here(piece):
            for member in piece.members:
                if member.index in states:
                    states[member.index] = _on_cpu(states[member.index])
                if member.mixed:
                    masters[member.index] = member.stepped_on.detach().cpu().clone()
    saved = {**described, "state": states}
    return {**saved, MASTERS: masters} if masters else saved


def _on_cpu(value: Any) -> Any:  # noqa: ANN401 -- whatever an optimizer keeps
    if isinstance(value, torch.Tensor):
        return value.detach().cpu() if value.device.type != "cpu" else value.detach().clone()
    if isinstance(value, dict):
        return {key: _on_cpu(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(inner) for inner in value)
    return value
