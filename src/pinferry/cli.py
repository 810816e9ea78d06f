"""The command line: ``pinferry demo``, ``pinferry doctor``, ``pinferry bench``."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="Training state between GPUs and pinned host memory, at the speed of the link.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what this machine offers and what to do about what is missing."""
    from pinferry.doctor import main as run

    raise typer.Exit(run(json=json))


def main() -> None:
    """Run the command line; errors of pinferry are one line, not a traceback."""
    from pinferry.errors import PinferryError

    try:
        app()
    except PinferryError as error:
        typer.secho(f"{type(error).__name__}: {error}", err=True, fg=typer.colors.RED)
        raise SystemExit(2) from None
