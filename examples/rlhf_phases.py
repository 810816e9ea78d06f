"""The phases of RLHF over DeepSpeed: state that generation does not need is away meanwhile.

The calls are OpenRLHF's: offload right after initialization, when the optimizer has no state yet;
then, in each phase, reload, train, offload and generate with the weights, which stay. The one line
for pinferry is ``attach(engine)``.

Run it with ``python examples/rlhf_phases.py``, or on several ranks with ``torchrun`` or
``deepspeed``; it picks a GPU where there is one. ``--help`` lists the options.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import os
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from pinferry.deepspeed import attach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deepspeed import DeepSpeedEngine

    from pinferry import Ticket
    from pinferry.deepspeed import DeepSpeedOffloader

VOCABULARY, LAYERS, HEAD = 512, 4, 64
BATCH, LENGTH, STEPS, NEW_TOKENS = 4, 32, 4, 4
BAR = 14


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Attend to what came before, then think about each position."""
        rows, length, width = hidden.shape
        qkv = self.qkv(self.norms[0](hidden)).view(rows, length, 3, width // HEAD, HEAD)
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        return hidden + torch.as_tensor(self.mlp(self.norms[1](hidden)))


class Policy(nn.Module):
    """A causal language model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(LENGTH + NEW_TOKENS, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(LAYERS)))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token at each position."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits: torch.Tensor = self.head(
            self.blocks(self.embedding(tokens) + self.positions(places))
        )
        return logits


@contextlib.contextmanager
def world(local_rank: int) -> Iterator[None]:
    """Make this process a rank: of the launcher's world, or the only one of its own."""
    rendezvous = tempfile.TemporaryDirectory()
    where = "env://"
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1")
        where = f"file://{rendezvous.name}/ranks"
    device = None
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.setdefault("LOCAL_RANK", str(local_rank))))
        torch.cuda.set_device(device)
    os.environ.setdefault("DS_ACCELERATOR", "cpu" if device is None else "cuda")
    torch.distributed.init_process_group(
        "gloo" if device is None else "nccl",
        init_method=where,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        device_id=device,
    )
    try:
        yield
        torch.distributed.barrier()  # none leaves while another still needs it
    finally:
        torch.distributed.destroy_process_group()
        rendezvous.cleanup()


def initialize(stage: int, width: int) -> DeepSpeedEngine:
    """Make the engine, as a trainer does."""
    # DeepSpeed calls what newer releases of PyTorch deprecate, and prints what it compiles.
    warnings.simplefilter("ignore", FutureWarning)
    with contextlib.redirect_stdout(io.StringIO()):
        import deepspeed

        deepspeed.init_distributed()
        torch.manual_seed(0)
        policy = Policy(width).to(torch.bfloat16)
        config = {
            "train_micro_batch_size_per_gpu": BATCH,
            "bf16": {"enabled": True},
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 5e-4, "torch_adam": True}},
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 4 * width * width},
        }
        engine: DeepSpeedEngine = deepspeed.initialize(
            model=policy, model_parameters=policy.parameters(), config=config
        )[0]
    return engine


def offload(engine: DeepSpeedEngine) -> Ticket:
    """Give the device memory up that generation does not need: OpenRLHF's call, word for word."""
    from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum

    ticket: Ticket = engine.optimizer.offload_states(
        include=[
            OffloadStateTypeEnum.optim_states,
            OffloadStateTypeEnum.contiguous_grad_buffer,
            OffloadStateTypeEnum.hp_params,
            OffloadStateTypeEnum.lp_grads,
        ],
        device=OffloadDeviceEnum.cpu,
        pin_memory=True,
        non_blocking=True,
    )
    engine.empty_partition_cache()
    settle(ticket)
    return ticket


def reload(engine: DeepSpeedEngine) -> Ticket:
    """Bring back what is away."""
    ticket: Ticket = engine.reload_states(non_blocking=True)
    settle(ticket)
    return ticket


def settle(ticket: Ticket) -> None:
    """Wait until this rank's copies have ended, and the other ranks' too."""
    ticket.synchronize()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    torch.distributed.barrier()


def train(engine: DeepSpeedEngine) -> str:
    """Take some steps towards counting, and say what became of the loss."""
    engine.train()
    losses = []
    for step in range(STEPS):
        starts = torch.randint(
            VOCABULARY, (BATCH, 1), generator=torch.Generator().manual_seed(step)
        ).to(engine.device)
        tokens = (starts + torch.arange(LENGTH, device=engine.device)) % VOCABULARY
        logits = engine(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return f"train, mean loss {sum(losses) / STEPS:.2f}"


@torch.no_grad()
def generate(engine: DeepSpeedEngine) -> str:
    """Let the policy count on from 0 to 3, greedily, and say what it says."""
    engine.eval()
    tokens = torch.arange(4, device=engine.device)[None]
    for _ in range(NEW_TOKENS):
        tokens = torch.cat([tokens, engine(tokens)[:, -1:].argmax(-1)], dim=1)
    return f"generate {' '.join(map(str, tokens[0, -NEW_TOKENS:].tolist()))}"


@dataclass(frozen=True, slots=True)
class Digests:
    """What the parameters are, to the bit."""

    weights: str
    masters: str


def weights_of(engine: DeepSpeedEngine) -> str:
    """Return a digest of the weights, gathered where they are in shards."""
    import deepspeed

    digest = hashlib.sha256()
    for parameter in engine.module.parameters():
        with deepspeed.zero.GatheredParameters(parameter):
            digest.update(parameter.detach().cpu().view(torch.uint8).numpy())
    return digest.hexdigest()


def digests_of(engine: DeepSpeedEngine) -> Digests:
    """Return digests of the weights and of the master weights that the optimizer steps on."""
    from deepspeed.utils import safe_get_full_fp32_param

    digest = hashlib.sha256()
    for parameter in engine.module.parameters():
        digest.update(safe_get_full_fp32_param(parameter).cpu().view(torch.uint8).numpy())
    return Digests(weights_of(engine), digest.hexdigest())


def require_equal(before: object, after: object) -> None:
    """Raise unless two digests are equal."""
    if before != after:
        raise RuntimeError(f"offloading has changed the weights: {before} became {after}")


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the time line. Times are seconds, sizes bytes."""

    phase: str
    what: str
    at: float
    took: float
    here: int
    away: int
    moved: int | None = None
    freed: int | None = None


class TimeLine:
    """What happened when, and where the training state was after it."""

    def __init__(self, offloader: DeepSpeedOffloader) -> None:
        self._offloader = offloader
        self._events: list[Event] = []
        self._began = time.perf_counter()

    def move(self, phase: str, what: str, move: Callable[[], Ticket]) -> None:
        """Move state; note the bytes that were copied and those that came free."""
        began = time.perf_counter()
        ticket = move()
        event = self._event(phase, what, began)
        freed = None
        if self._offloader.offloaded_states():
            report = self._offloader.reclaim()
            freed = report.rss_bytes if report.device == "cpu" else report.allocator_bytes
        self._events.append(replace(event, moved=ticket.nbytes, freed=freed))

    def work(self, phase: str, work: Callable[[], str]) -> None:
        """Do something else; it returns what it did."""
        began = time.perf_counter()
        what = work()
        self._events.append(self._event(phase, what, began))

    def _event(self, phase: str, what: str, began: float) -> Event:
        ended = time.perf_counter()
        away = self._offloader.engine.offloaded_bytes
        here = self._offloader.discover().nbytes() - away
        return Event(phase, what, began - self._began, ended - began, here, away)

    def print(self, console: Console) -> None:
        """Print it."""
        most = max(event.here + event.away for event in self._events)
        table = Table(box=None, pad_edge=False)
        for name in ("at s", "phase", "what", "ms", "moved", "freed"):
            side: Literal["left", "right"] = "left" if name in ("phase", "what") else "right"
            table.add_column(name, justify=side, no_wrap=True)
        table.add_column("on device █, host ░", no_wrap=True)
        phase = ""
        for event in self._events:
            if phase not in ("", event.phase):
                table.add_row()
            here, away = (round(BAR * part / most) for part in (event.here, event.away))
            table.add_row(
                f"{event.at:.2f}",
                event.phase if event.phase != phase else "",
                event.what,
                f"{event.took * 1e3:.1f}",
                megabytes(event.moved),
                megabytes(event.freed),
                f"{'█' * here}{'░' * away}".ljust(BAR) + f" {megabytes(event.here)}",
            )
            phase = event.phase
        console.print(table)


def megabytes(nbytes: int | None) -> str:
    """Say it in millions of bytes."""
    return "" if nbytes is None else f"{nbytes / 1e6:.1f}"


def run(engine: DeepSpeedEngine, line: TimeLine, phases: int) -> None:
    """Go through the phases, and raise if weights or master weights change in between."""

    def leave(phase: str) -> Digests:
        digests = digests_of(engine)
        line.move(phase, "offload", lambda: offload(engine))
        require_equal(digests.weights, weights_of(engine))  # they are here
        return digests

    def come_back(phase: str, digests: Digests) -> None:
        line.move(phase, "reload", lambda: reload(engine))
        require_equal(digests, digests_of(engine))

    digests = leave("init")
    for number in range(1, phases + 1):
        phase = str(number)
        come_back(phase, digests)
        line.work(phase, lambda: train(engine))
        digests = leave(phase)
        line.work(phase, lambda: generate(engine))
    come_back("end", digests)


def session(console: Console, stage: int, width: int, phases: int) -> None:
    """Train and generate with an engine, and print what happened."""
    engine = initialize(stage, width)
    with attach(engine) as offloader:
        line = TimeLine(offloader)
        run(engine, line, phases)
    engine.destroy()
    parameters = sum(getattr(each, "ds_numel", each.numel()) for each in engine.parameters())
    console.print(
        f"ZeRO-{stage} on {engine.device}, {torch.distributed.get_world_size()} rank(s), "
        f"{parameters / 1e6:.1f} million parameters; sizes in MB\n"
    )
    line.print(console)
    counted = "PyTorch's allocator"
    if engine.device.type == "cpu":
        counted = "resident memory, with what the C library had kept"
    console.print(f"\nfreed: by {counted}")
    console.print("equal to the bit before and after each offload and reload: weights")
    console.print("equal to the bit before each offload and after its reload: master weights")


def main(
    size: Annotated[float, typer.Option(help="Parameters of the policy, in millions.")] = 4,
    phases: Annotated[int, typer.Option(help="Phases of training and generating.")] = 3,
    stage: Annotated[int, typer.Option(min=1, max=3, help="DeepSpeed's ZeRO stage.")] = 3,
    local_rank: Annotated[int, typer.Option("--local_rank", hidden=True)] = 0,
) -> None:
    """Train and generate in phases, with what generation does not need offloaded meanwhile."""
    width = max(1, int((size * 1e6 / 12 / LAYERS) ** 0.5 / HEAD)) * HEAD
    with world(local_rank):
        console = Console(quiet=torch.distributed.get_rank() != 0, highlight=False)
        session(console, stage, width, phases)
        gc.collect()  # older releases of DeepSpeed use the world where an engine dies


if __name__ == "__main__":
    typer.run(main)
