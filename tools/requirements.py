"""Print what pyproject.toml asks for: to build, to run and to check, one requirement a line."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def main() -> None:
    """Print the requirements, so that pip can install them before pinferry itself compiles."""
    config = tomllib.loads(PYPROJECT.read_text())
    project = config["project"]
    print(*config["build-system"]["requires"], sep="\n")
    print(*project["dependencies"], sep="\n")
    print(*project["optional-dependencies"]["dev"], sep="\n")


if __name__ == "__main__":
    main()
