"""What one process measures of one DeepSpeed engine, and how it is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import pinferry

__all__ = ["Measured", "Task", "run_task"]

_AT_MOST_S = 900
_TAIL = 30


@dataclass(frozen=True, slots=True)
class Task:
    """What a process is to measure.

    Attributes
    ----------
    side
        ``"ours"``, or ``"deepspeed"`` for its own way.
    stage
        Of ZeRO.
    device
        ``"cuda:N"`` or ``"cpu"``.
    parameters
        Of the model, about.
    repeats
        Cycles after the first.
    growth_cycles
        Cycles over which growth is watched; 0 for none.
    """

    side: str
    stage: int
    device: str
    parameters: int
    repeats: int
    growth_cycles: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What it measured. Seconds are from an idle device until all work has ended.

    Attributes
    ----------
    model, optimizer
        What they are, in words.
    state_bytes
        The state that was kept while away. Buckets that are dropped do not count; ours only.
    locked_bytes
        Host memory pinned for it; None where nothing tells.
    attach_s
        What making the arena took, with all that `attach` does; ours only.
    first_s, offload_s, reload_s
        The first offload, and the later cycles.
    emptied_first_s, emptied_offload_s, emptied_reload_s
        The same where the offload ends with an ``empty_cache()``, as DeepSpeed's own always does,
        so that memory goes back to the driver and comes from there again; ours only.
    device_growth_bytes, rss_growth_bytes
        What was more in use after the cycles that were watched than before.
    failed
        Why there is nothing of this.
    """

    model: str = ""
    optimizer: str = ""
    state_bytes: int = 0
    locked_bytes: int | None = None
    attach_s: float = 0.0
    first_s: float = 0.0
    offload_s: tuple[float, ...] = ()
    reload_s: tuple[float, ...] = ()
    emptied_first_s: float = 0.0
    emptied_offload_s: tuple[float, ...] = ()
    emptied_reload_s: tuple[float, ...] = ()
    device_growth_bytes: int | None = None
    rss_growth_bytes: int | None = None
    failed: str | None = None


def run_task(task: Task) -> Measured:
    """Measure in a new process, whose output is shown to nobody unless it fails.

    Raises
    ------
    RuntimeError
        If our side fails. DeepSpeed's own may: then `Measured.failed` says why.
    """
    with tempfile.TemporaryDirectory(prefix="pinferry-bench-") as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log.txt"
        words = [
            sys.executable,
            "-m",
            "pinferry.bench.zero_child",
            json.dumps(asdict(task)),
            folder,
        ]
        with log.open("w") as output:
            try:
                code = subprocess.run(
                    words,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_environment(task.device),
                    timeout=_AT_MOST_S,
                    check=False,
                ).returncode
                ended = f"it ended with exit code {code}"
            except subprocess.TimeoutExpired:
                ended = f"it took more than {_AT_MOST_S} s"
        # Written last: what comes after it, at the exit, says nothing about the figures.
        if result.exists():
            return Measured(**json.loads(result.read_text()))
        lines = log.read_text(errors="replace").splitlines()[-_TAIL:]
    if task.side == "deepspeed":
        said = next((line for line in reversed(lines) if "Error" in line), "")
        return Measured(failed=f"{ended}; {said}" if said else ended)
    raise RuntimeError("\n".join([f"{task} was not measured: {ended}", *lines]))


def _environment(device: str) -> dict[str, str]:
    kind, _, index = device.partition(":")
    rank = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1", "LOCAL_RANK": index or "0"}
    # The process finds the same packages, and the ninja that was installed beside this Python.
    package = str(Path(pinferry.__file__).parent.parent)
    paths = [package, *(path for path in (os.environ.get("PYTHONPATH"),) if path)]
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "DS_PIN_MEMORY_BACKEND"  # PyTorch's pinned memory, which is the default
    }
    # FusedAdam is compiled at first use; PyTorch itself refuses compilers of another major release.
    kept.setdefault("DS_SKIP_CUDA_CHECK", "1")
    found = {"DS_ACCELERATOR": kind, "PYTHONPATH": os.pathsep.join(paths), "PATH": tools}
    return {**kept, **rank, **found}
