"""Running benchmarks and showing what came out."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Column, Table

from pinferry.bench.arena import measure_arena
from pinferry.bench.deepspeed import measure_deepspeed
from pinferry.bench.large import measure_large
from pinferry.bench.machine import describe_machine
from pinferry.bench.pinning import measure_pinning
from pinferry.bench.results import Case, Results
from pinferry.bench.transfer import measure_transfer
from pinferry.deepspeed.versions import installed
from pinferry.errors import InvalidArgument, InvalidSize, PackageMissing
from pinferry.pool import default_device, open_device, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["BENCHMARKS", "run_benchmarks"]

BENCHMARKS: dict[str, Callable[[str, int, int], Iterator[tuple[str, Case]]]] = {
    "pinning": measure_pinning,
    "large": lambda device, nbytes, repeats: measure_large(torch.device(device), nbytes, repeats),
    "transfer": lambda device, nbytes, repeats: measure_transfer(
        torch.device(device), nbytes, repeats
    ),
    "arena": lambda device, _, repeats: measure_arena(device, repeats),
    "deepspeed": lambda device, nbytes, repeats: measure_deepspeed(
        torch.device(device), nbytes, repeats
    ),
}
_DEFAULT_SIZE = {"cuda": "12GB", "cpu": "256MiB"}
_SMALLEST = 16 * 2**20


def run_benchmarks(
    names: Sequence[str],
    *,
    device: str = "auto",
    size: str | int | None = None,
    repeats: int = 5,
    json: str | Path | None = None,
) -> Results:
    """Run benchmarks, print a table, and write JSON if asked to.

    Parameters
    ----------
    names
        Which; none means all, but for ``"deepspeed"`` where DeepSpeed is not installed.
    device
        ``"cuda:N"``, ``"cpu"``, or ``"auto"`` for the first GPU where there is one.
    size
        Bytes to move or to pin, or text. Default: 12 GB on a GPU, 256 MiB on the CPU. The benchmark
        of the arena takes what it needs instead; that of DeepSpeed takes it for the optimizer's
        part of the state, twelve bytes a parameter.
    repeats
        Runs after the first one.
    json
        File for the results; ``"-"`` is standard output, and people read standard error.
    """
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise InvalidArgument(
            f"{unknown[0]!r} is no benchmark; choose from {', '.join(BENCHMARKS)}"
        )
    if repeats < 1:
        raise InvalidArgument(f"repeats={repeats}: at least one run is needed")
    if "deepspeed" in names:
        installed()
    _require_writable(json)
    opened = open_device(default_device() if device == "auto" else device)
    nbytes = parse_size(_DEFAULT_SIZE[opened.kind] if size is None else size)
    if nbytes < _SMALLEST:
        raise InvalidSize(f"{nbytes} bytes are too few to time; take 16 MiB or more")
    name = "cpu" if opened.kind == "cpu" else f"cuda:{opened.index}"
    console = Console(stderr=str(json) == "-")
    console.print(f"device {name} ({opened.name}), {nbytes} bytes, {repeats} runs")
    words = [*names, "--device", name, "--size", str(nbytes), "--repeats", str(repeats)]
    chosen_ones = list(names) or _all_that_can_run(console)
    results = Results(describe_machine(opened, shlex.join(["pinferry", "bench", *words])))
    with console.status("measuring") as status:
        for chosen in chosen_ones:
            status.update(chosen)
            for key, case in BENCHMARKS[chosen](name, nbytes, repeats):
                results.cases[key] = case
                status.update(f"{chosen}, past {key}")
    console.print(_table(results))
    if json is not None:
        results.write(Path(json))
        if str(json) != "-":
            console.print(f"written to {json}")
    return results


def _all_that_can_run(console: Console) -> list[str]:
    try:
        installed()
    except PackageMissing as error:
        console.print(f"without the benchmark 'deepspeed': {error}", markup=False)
        return [name for name in BENCHMARKS if name != "deepspeed"]
    return list(BENCHMARKS)


def _require_writable(json: str | Path | None) -> None:
    """Refuse at once what the results could not be written to after minutes of measuring."""
    if json is None or str(json) == "-":
        return
    path = Path(json)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise InvalidArgument(
            f"the results cannot be written to {path}: {error.strerror}; name another file"
        ) from error


def _table(results: Results) -> Table:
    table = Table(
        Column("case", no_wrap=True),  # a key of the JSON: read whole or of no use
        *("ours", "reference", "ratio", "unit"),
        Column("reference is", overflow="fold"),
    )
    for key, case in results.cases.items():
        digits = ",.0f" if case.unit == "bytes" else ",.4g"
        table.add_row(
            key,
            _number(case.ours, digits),
            _number(case.reference, digits),
            _number(case.ratio, ".4f"),
            case.unit,
            case.reference_is,
        )
    return table


def _number(number: float, digits: str) -> str:
    return "-" if math.isnan(number) else format(number, digits)
