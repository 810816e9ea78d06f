"""Parts that the live display and the final report share."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pinferry.demo.device_name import device_name
from pinferry.pool import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pinferry.demo.options import Settings
    from pinferry.demo.phase_log import Phase
    from pinferry.demo.shape import ModelShape

__all__ = ["heading", "phase_table", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {"train": "green", "generate": "cyan", "offload": "yellow", "reload": "magenta"}


def heading(settings: Settings, shape: ModelShape) -> Text:
    """Say what is trained and where."""
    chosen = " (picked by the demo)" if settings.device_was_chosen else ""
    name = device_name(settings.device)
    return Text.assemble(
        ("pinferry demo", "bold"),
        f": {shape.parameters:,} parameters ({shape.layers} layers of width {shape.width}) on ",
        (settings.device, "bold"),
        f", {name}{chosen}",
    )


def phase_table(phases: Iterable[Phase], *, on_cuda: bool) -> Table:
    """Show phases: what moved, how fast, and the memory before and after."""
    memory = "GPU memory" if on_cuda else "resident"
    table = Table(box=None, pad_edge=False)
    table.add_column("cycle", justify="right", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    for title in ("moved", "GB/s", "seconds", f"{memory} before", "after"):
        table.add_column(title, justify="right", no_wrap=True)
    for phase in phases:
        before, after = phase.shown_bytes
        rate = phase.bandwidth_gb_s
        table.add_row(
            str(phase.cycle),
            Text(phase.kind, style=_STYLES[phase.kind]),
            format_bytes(phase.moved_bytes) if phase.moved_bytes else "",
            "" if rate is None else f"{rate:.1f}",
            f"{phase.seconds:.3f}",
            format_bytes(before),
            format_bytes(after),
        )
    return table


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Draw `values` in `width` characters at most, from the lowest to the highest.

    Examples
    --------
    >>> sparkline([4.0, 3.0, 2.0])
    '█▅▁'
    """
    if not values:
        return ""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    finite = [mean for mean in means if math.isfinite(mean)] or [0.0]
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    # A loss that is not a number has no height.
    heights = [(mean - low) / span if math.isfinite(mean) else 0.0 for mean in means]
    return "".join(_BARS[min(7, int(height * 7 + 0.5))] for height in heights)
