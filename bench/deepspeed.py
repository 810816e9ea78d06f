"""DeepSpeed's own way to offload an engine, and ours, on engines of the same model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pinferry.bench.raw import time_raw
from pinferry.bench.results import Case, SpeedUp
from pinferry.bench.timing import Timing
from pinferry.bench.zero_task import Measured, Task, run_task
from pinferry.deepspeed.versions import installed
from pinferry.pool import open_device
from pinferry.states.memory import give_back_cached

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

__all__ = ["measure_deepspeed"]

_OPTIMIZER_BYTES = 12  # a parameter: master weight and two moments in fp32
_MIB = 2**20


def measure_deepspeed(
    device: torch.device,
    nbytes: int,
    repeats: int,
    *,
    stages: Sequence[int] = (1, 2, 3),
    growth_cycles: int = 50,
) -> Iterator[tuple[str, Case]]:
    """Compare ``offload_states()`` and ``reload_states()`` as they come with what `attach` makes.

    Each side has an engine in a process of its own that has trained for one step, ours first, in
    case the host's memory costs more when it is used for the first time. All states move, and the
    host waits for the end. Growth is watched on the last stage.

    Parameters
    ----------
    device
        Of the engines. On the CPU all of this is memory copied to memory, which shows that it works
        and says nothing of a GPU.
    nbytes
        Of master weights and moments; parameters, and gradients on stage 3, come on top of it.
    repeats
        Cycles after the first, of each kind.
    stages
        Of ZeRO.
    growth_cycles
        Over how many cycles growth is watched.

    Raises
    ------
    PackageMissing
        If DeepSpeed is not installed.
    """
    release = installed()
    for stage in stages:
        cycles = growth_cycles if stage == stages[-1] else 0
        ours, theirs = (
            run_task(Task(side, stage, str(device), nbytes // _OPTIMIZER_BYTES, repeats, watched))
            for side, watched in (("ours", cycles), ("deepspeed", 0))
        )
        where = "memory copies on the CPU: " if device.type == "cpu" else ""
        noted = " (which leaves out copies on the CPU)" if where else ""
        own = f"{where}DeepSpeed {release}'s own{noted}, {ours.model}, {ours.optimizer}"
        yield from _rates(stage, ours, device, repeats, where)
        yield from _speed_ups(stage, ours, theirs, own)
        yield from _locked(stage, ours, theirs, own, device)
        yield from _growth(stage, ours, cycles)


def _rates(
    stage: int, ours: Measured, device: torch.device, repeats: int, where: str
) -> Iterator[tuple[str, Case]]:
    """Compare with a raw copy of the state that is kept: buckets that are dropped do not count."""
    size = ours.state_bytes
    raw_out, raw_in = time_raw(size, device, repeats)
    give_back_cached(open_device(str(device)))  # for the next engine
    what = f"{where}one raw copy between the device and pinned memory, {size} bytes of state"
    for name, seconds, raw in (
        ("offload_first", (ours.first_s,), raw_out),
        ("offload", ours.offload_s, raw_out),
        ("reload", ours.reload_s, raw_in),
    ):
        timing = Timing(tuple(seconds))
        spread = timing.rate_spread(size) if len(seconds) > 1 else None
        rates = timing.rate_gb_s(size), raw.rate_gb_s(size)
        yield f"zero{stage}_{name}", Case(*rates, "GB/s", what, spread)


def _speed_ups(
    stage: int, ours: Measured, theirs: Measured, own: str
) -> Iterator[tuple[str, Case]]:
    """Compare with DeepSpeed's own: both sides give device memory back to the driver.

    Its offload runs Python's collector, too, to be rid of views of what it has moved; ours has no
    need of that, so that time is its own.
    """
    for name, here, there, also in (
        ("offload_first", (ours.emptied_first_s,), (theirs.first_s,), ""),
        (
            "attach_first",
            (ours.attach_s + ours.emptied_first_s,),
            (theirs.first_s,),
            "; ours with the time to make the arena",
        ),
        ("offload", ours.emptied_offload_s, theirs.offload_s, ""),
        ("reload", ours.emptied_reload_s, theirs.reload_s, ""),
    ):
        reference, what = math.nan, f"missing ({theirs.failed}): {own}"
        if theirs.failed is None:
            reference = Timing(tuple(there)).median
            low, high = min(there), max(there)
            what = own + (f", {low:.3g} to {high:.3g} s" if len(there) > 1 else "") + also
        spread = (min(here), max(here)) if len(here) > 1 else None
        case = SpeedUp(Timing(tuple(here)).median, reference, "s", what, spread)
        yield f"zero{stage}_{name}_vs_deepspeed", case


def _locked(
    stage: int, ours: Measured, theirs: Measured, own: str, device: torch.device
) -> Iterator[tuple[str, Case]]:
    """Compare the host memory that is pinned with the bytes of state, and with DeepSpeed's."""
    if ours.locked_bytes is None:
        raise AssertionError("the arena did not tell what it has pinned")
    what = "bytes of state" if device.type == "cuda" else "bytes of state; ours is the arena's size"
    yield f"zero{stage}_locked_bytes", Case(ours.locked_bytes, ours.state_bytes, "bytes", what)
    reference, what = math.nan, f"missing ({theirs.failed}): {own}"
    if theirs.failed is None:
        what = f"missing (nothing tells what is pinned here): {own}"
    if theirs.failed is None and theirs.locked_bytes is not None:
        reference = theirs.locked_bytes
        what = f"{own}: all that PyTorch has pinned for it; {ours.state_bytes} bytes of state"
    yield f"zero{stage}_locked_beside_deepspeed", Case(ours.locked_bytes, reference, "bytes", what)


def _growth(stage: int, ours: Measured, cycles: int) -> Iterator[tuple[str, Case]]:
    """Compare what was in use after many cycles with before. On the CPU resident memory is all."""
    size = ours.state_bytes
    what = f"the state that went out and back each time, by ZeRO-{stage}"
    if ours.device_growth_bytes is not None:
        grown = ours.device_growth_bytes
        yield f"cycles_{cycles}_device_growth_bytes", Case(grown, size, "bytes", what)
    if ours.rss_growth_bytes is not None:
        grown_mib = ours.rss_growth_bytes / _MIB
        yield f"cycles_{cycles}_rss_growth_mib", Case(grown_mib, size / _MIB, "MiB", what)
