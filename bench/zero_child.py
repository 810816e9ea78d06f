"""The process that measures one engine: ``python -m pinferry.bench.zero_child TASK FOLDER``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from pinferry.bench.zero_ours import measure_ours
from pinferry.bench.zero_task import Measured, Task
from pinferry.bench.zero_theirs import measure_theirs
from pinferry.bench.zero_world import make_engine, start_world

__all__ = ["main"]


def main() -> None:
    """Measure, and write the result into the folder when everything is known."""
    task, folder = Task(**json.loads(sys.argv[1])), Path(sys.argv[2])
    start_world(torch.device(task.device), folder)
    measured = _measure(task)
    # In one go, so that what is there is whole.
    partial = folder / "result.partial"
    partial.write_text(json.dumps(asdict(measured)))
    partial.rename(folder / "result.json")
    torch.distributed.destroy_process_group()


def _measure(task: Task) -> Measured:
    device = torch.device(task.device)
    engine, model, optimizer = make_engine(task.stage, task.parameters, device)
    if task.side == "ours":
        found = measure_ours(engine, device, task.repeats, task.growth_cycles)
    else:
        try:
            found = measure_theirs(engine, device, task.repeats)
        except Exception as error:  # noqa: BLE001 -- to be told beside the figures
            found = Measured(failed=f"{type(error).__name__}: {error}")
    return replace(found, model=model, optimizer=optimizer)


if __name__ == "__main__":
    main()
