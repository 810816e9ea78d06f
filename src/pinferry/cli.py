"""The command line: ``pinferry`` with ``demo``, ``doctor``, ``bench`` or ``trace``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  -- typer reads the annotations
from typing import Annotated

import typer

from pinferry import __version__
from pinferry.errors import PinferryError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Training state between GPUs and pinned host memory, at the speed of the link.",
    no_args_is_help=True,
    add_completion=False,
)

_Device = Annotated[
    str, typer.Option(help="'cpu', 'cuda:N', or 'auto': the first GPU where there is one.")
]
_Json = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write everything as JSON; '-' is standard output."),
]


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Move training state between GPUs and pinned host memory, at the speed of the link."""
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def demo(
    *,
    device: _Device = "auto",
    params: Annotated[
        str | None, typer.Option(help="Parameters of the model, such as 1000000 or 1.5e9.")
    ] = None,
    cycles: Annotated[int, typer.Option(help="Train and generate phases.")] = 4,
    steps: Annotated[int | None, typer.Option(help="Training steps in each phase.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, batches and sampling.")] = 0,
    arena: Annotated[
        str | None, typer.Option(help="Size of the arena, such as 8GiB; default: what is needed.")
    ] = None,
    json: _Json = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but failures.")] = False,
) -> None:
    """Train a small transformer with its state offloaded between phases, and prove it right."""
    from pinferry.demo import DemoOptions
    from pinferry.demo import main as run

    options = DemoOptions(
        device=device,
        params=None if params is None else _count(params),
        cycles=cycles,
        steps=steps,
        seed=seed,
        arena=arena,
        json=json,
        quiet=quiet,
    )
    raise typer.Exit(run(options))


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what this machine offers and what to do about what is missing."""
    from pinferry.doctor import main as run

    raise typer.Exit(run(json=json))


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="'pinning', 'large', 'transfer', 'arena', 'deepspeed'; default: all."),
    ] = None,
    device: _Device = "auto",
    size: Annotated[
        str | None,
        typer.Option(
            help="Bytes to move; default 12GB on a GPU, 256MiB on the CPU; 'arena' ignores it."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs after the first.")] = 5,
    json: _Json = None,
) -> None:
    """Measure against references of the same run."""
    from pinferry.bench import run_benchmarks

    run_benchmarks(names or [], device=device, size=size, repeats=repeats, json=json)


@app.command()
def trace(
    file: Annotated[Path, typer.Argument(help="What engine.trace() wrote.")],
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG", help="Draw lanes over time; needs matplotlib, the extra 'bench'."
        ),
    ] = None,
) -> None:
    """Summarize a trace of transfers: bytes, rates, overlap, waiting."""
    from pinferry.traces import main as run

    raise typer.Exit(run(file, plot=plot))


def _count(text: str) -> int:
    try:
        return round(float(text))
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no number; write 1000000 or 1.5e9") from None


def main() -> None:
    """Run the command line; an error of pinferry is a line and exit code 2, not a traceback."""
    try:
        app()
    except PinferryError as error:
        typer.secho(f"{type(error).__name__}: {error}", err=True, fg=typer.colors.RED)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
