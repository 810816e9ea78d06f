"""The examples in docstrings and in the README run, and say what they say."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
import torch

import pinferry
from tests.zero.engines import operators

ROOT = Path(__file__).parent.parent
RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")
ROOMS = ("deepspeed", "loop", "pool", "states", "transfer")
MODULES = sorted(
    info.name
    for room in ROOMS
    for info in walk_packages(import_module(f"pinferry.{room}").__path__, f"pinferry.{room}.")
)


def blocks_of(page: str) -> list[str]:
    """Return the blocks of Python in a page."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    return blocks


def environment() -> dict[str, str]:
    """Return that of a program which uses this checkout, and DeepSpeed as the tests of it do."""
    # Those tests make this process a rank, where they run in it.
    own = {name: value for name, value in os.environ.items() if name not in RANK}
    return {
        **own,
        "PYTHONPATH": str(ROOT / "src"),
        "DS_ACCELERATOR": "cuda" if torch.cuda.is_available() else "cpu",
        "TORCH_EXTENSIONS_DIR": str(operators()),
    }


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_some_modules_have_examples_at_all() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(import_module(name)) if test.examples]
    assert len(found) >= 5


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/access.md",
        "docs/compaction.md",
        "docs/streaming.md",
        "docs/activations.md",
        "docs/schedule.md",
    ],
)
def test_the_examples_of_a_page_run_one_after_the_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    names: dict[str, object] = {}
    for block in blocks_of(name):
        exec(compile(block, name, "exec"), names)


def test_the_examples_of_the_page_on_deepspeed_are_a_program_for_a_launcher(tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks_of("docs/deepspeed.md")))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=tmp_path,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    assert "forward needs lp_params, offloaded to the host" in done.stdout


def test_the_examples_of_the_docs_say_what_they_say() -> None:
    outcome = doctest.testfile(str(ROOT / "docs" / "arena.md"), module_relative=False)
    assert outcome.attempted > 5
    assert outcome.failed == 0


def test_every_public_name_can_be_imported() -> None:
    for name in pinferry.__all__:
        assert getattr(pinferry, name) is not None


def test_every_room_is_linked_into_the_package() -> None:
    package = ROOT / "src" / "pinferry"
    for room in ("bench", "csrc", "demo", "doctor", "loop", "pool", "states", "traces", "transfer"):
        assert (package / room).resolve() == ROOT / room
    # At the top level, that name would hide the package.
    assert (package / "deepspeed").resolve() == ROOT / "zero"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_an_example_runs(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,  # the first of all compiles an operator of DeepSpeed
        env=environment(),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
