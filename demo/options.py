"""What the demo is asked to do, and what it makes of that on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pinferry.demo.shape import smallest_parameter_count
from pinferry.errors import DeviceNotFound, InvalidArgument
from pinferry.pool import default_device, open_device, parse_size

__all__ = ["DemoOptions", "Scale", "Settings", "resolve", "resolve_device"]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for. None leaves the choice to the demo.

    Attributes
    ----------
    device
        ``"auto"``, ``"cpu"`` or ``"cuda:N"``.
    params
        Parameters of the model; a shape within 10 % of it is picked.
    cycles
        How often training and generating alternate.
    steps
        Training steps per cycle.
    seed
        Seeds weights, batches and sampling.
    arena
        Size of the pinned arena, such as ``"64GiB"``. None: as large as the state that is found.
    json
        File for everything that was found, ``"-"`` for standard output.
    quiet
        Show nothing but failures.
    """

    device: str = "auto"
    params: int | None = None
    cycles: int = 4
    steps: int | None = None
    seed: int = 0
    arena: int | str | None = None
    json: str | Path | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes that fit a kind of device; `text_bytes` bounds the text that is trained on."""

    params: int
    steps: int
    context: int
    batch: int
    rollouts: int
    new_tokens: int
    text_bytes: int


# One CPU core gets through about 5,000 tokens a second, forwards and backwards, at 1e6 parameters.
# Small batches make the most of the 50,000 tokens that a run of ten seconds sees, and so does a
# text that is not much longer.
_ON_CPU = Scale(
    params=1_000_000, steps=40, context=64, batch=4, rollouts=4, new_tokens=120, text_bytes=80_000
)
_ON_CUDA = Scale(
    params=124_000_000,
    steps=60,
    context=256,
    batch=16,
    rollouts=8,
    new_tokens=320,
    text_bytes=1_500_000,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The options with every choice made, less what belongs to the display.

    Attributes
    ----------
    device
        ``"cpu"`` or ``"cuda:N"``.
    device_was_chosen
        Whether the demo picked the device.
    arena_bytes
        None: computed from the state that is found after the first training phase.
    """

    device: str
    device_was_chosen: bool
    params: int
    cycles: int
    steps: int
    seed: int
    arena_bytes: int | None
    scale: Scale

    @property
    def on_cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != "cpu"


def resolve(options: DemoOptions) -> Settings:
    """Check the options and fill in what was left open.

    Raises
    ------
    InvalidArgument
        If an option makes no sense; the message says what to pass.
    DriverUnavailable, DeviceNotFound
        If a GPU was named and cannot be had.
    """
    device = resolve_device(options.device)
    scale = _ON_CPU if device == "cpu" else _ON_CUDA
    params = scale.params if options.params is None else options.params
    steps = scale.steps if options.steps is None else options.steps
    # No text has fewer than two characters, nor these files fewer than this bound.
    least = smallest_parameter_count(vocabulary=64)
    _require_at_least("params", params, least, "the smallest model has that many parameters")
    _require_at_least("cycles", options.cycles, 1, "one cycle trains, then generates")
    _require_at_least("steps", steps, 1, "every cycle trains for at least one step")
    _require_at_least("seed", options.seed, 0, "seeds are not negative")
    if options.seed >= 2**62:
        raise InvalidArgument(f"seed={options.seed} is too large; pass less than 2**62")
    _require_writable(options.json)
    return Settings(
        device=device,
        device_was_chosen=options.device == "auto",
        params=params,
        cycles=options.cycles,
        steps=steps,
        seed=options.seed,
        arena_bytes=None if options.arena is None else parse_size(options.arena),
        scale=_for_size(scale, params),
    )


def resolve_device(name: str) -> str:
    """Return ``"cpu"`` or ``"cuda:N"`` for `name`, which may also be ``"auto"`` or ``"cuda"``.

    Raises
    ------
    UnknownDevice
        If it is no name of a device.
    DriverUnavailable, DeviceNotFound
        If there is no such GPU.
    """
    if name == "auto":
        name = default_device()
    open_device(name)
    if name == "cpu":
        return name
    index = int(name.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise DeviceNotFound(
            f"PyTorch {torch.__version__} sees {torch.cuda.device_count()} GPUs and cannot train "
            f"on {name}; install a PyTorch with CUDA, or pass device='cpu'",
            index=index,
            count=torch.cuda.device_count(),
        )
    return f"cuda:{index}"


def _for_size(scale: Scale, params: int) -> Scale:
    """Shrink the batch of models beyond 1e9 parameters, so that activations stay small."""
    return replace(scale, batch=max(1, min(scale.batch, scale.batch * 10**9 // params)))


def _require_at_least(name: str, value: object, least: int, why: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgument(f"{name}={value!r}: pass a whole number from {least} on; {why}")


def _require_writable(json: str | Path | None) -> None:
    if json is None or str(json) == "-":
        return
    directory = Path(json).parent
    if not directory.is_dir():
        raise InvalidArgument(f"json={str(json)!r}: there is no directory {str(directory)!r}")
    if Path(json).is_dir():
        raise InvalidArgument(f"json={str(json)!r} is a directory; name a file, or '-'")
