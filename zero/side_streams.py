"""The streams on which DeepSpeed works beside the current one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pinferry.transfer import JoinedTicket, Ticket

__all__ = ["catch_up", "let_wait"]

_OF_THE_WRAPPER = ("reduction_stream", "reduce_and_partition_stream")
_OF_THE_COORDINATOR = "_PartitionedParameterCoordinator__allgather_stream"


def catch_up(wrapper: object) -> None:
    """Make the current stream wait for what DeepSpeed has queued on its own streams."""
    for stream in _side_streams(wrapper):
        torch.cuda.current_stream(stream.device).wait_stream(stream)


def let_wait(wrapper: object, ticket: Ticket | JoinedTicket) -> None:
    """Make DeepSpeed's own streams wait for copies."""
    for stream in _side_streams(wrapper):
        ticket.wait(stream)


def _side_streams(wrapper: object) -> list[torch.cuda.Stream]:
    # Without overlap some are None; on the CPU there are none.
    streams = [getattr(wrapper, name, None) for name in _OF_THE_WRAPPER]
    holder = getattr(wrapper, "parameter_offload", wrapper)
    coordinator = getattr(holder, "param_coordinator", None)
    streams.append(getattr(coordinator, _OF_THE_COORDINATOR, None))
    return [stream for stream in streams if isinstance(stream, torch.cuda.Stream)]
