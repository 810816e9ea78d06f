"""Text that every machine has: the code of Python's standard library.

Docstrings and comments are left out, and a level of indentation is one character. What remains is
regular enough for a small model to learn something from within seconds.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pinferry.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Corpus", "load_corpus"]


_INDENT = re.compile(r"^(?: {4})+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text as character numbers.

    Attributes
    ----------
    tokens
        On the CPU, one byte per character.
    characters
        The vocabulary: those that occur, sorted.
    files
        How many files the text is made of.
    """

    tokens: torch.Tensor
    characters: str
    files: int

    def encode(self, text: str) -> list[int]:
        """Return the numbers of the characters of `text`, all of which must occur."""
        return [self.characters.index(character) for character in text]

    def decode(self, tokens: list[int]) -> str:
        """Return the text that `tokens` stand for."""
        return "".join(self.characters[token] for token in tokens)


def load_corpus(text_bytes: int, *, directory: Path | None = None) -> Corpus:
    """Read public modules in the order of their names until `text_bytes` characters are reached.

    Parameters
    ----------
    text_bytes
        Where to stop, counted after docstrings and comments are left out.
    directory
        Where to look for modules, by default the standard library; subdirectories are left out.

    Raises
    ------
    InvalidArgument
        If there are too few sources, as in an installation that has only compiled files.
    """
    where = directory or Path(sysconfig.get_path("stdlib"))
    parts: list[str] = []
    count = 0
    for code in _modules(where):
        parts.append(code)
        count += len(code)
        if count >= text_bytes:
            break
    text = "\n\n".join(parts)[:text_bytes]
    if len(text) < min(text_bytes, 10_000):
        raise InvalidArgument(
            f"{where} has {len(text)} characters of Python source and the demo trains on at least "
            "10,000; install Python with its sources"
        )
    characters = "".join(sorted(set(text)))
    numbers = bytes.maketrans(characters.encode(), bytes(range(len(characters))))
    tokens = torch.frombuffer(bytearray(text.encode().translate(numbers)), dtype=torch.uint8)
    return Corpus(tokens=tokens, characters=characters, files=len(parts))


def _modules(directory: Path) -> Iterator[str]:
    # Generated tables, which teach nothing about code, have names that begin with an underscore.
    for path in sorted(directory.glob("[!_]*.py")):
        try:
            code = _bare_code(ast.parse(path.read_bytes()))
        except SyntaxError:
            continue
        # One byte per character keeps the vocabulary under 128 and the encoding trivial. Asked of
        # the code, not of the source, where an escape sequence may hide another character.
        if code.isascii():
            yield code


def _bare_code(module: ast.Module) -> str:
    for node in ast.walk(module):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.body and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return _INDENT.sub(lambda match: "\t" * (len(match[0]) // 4), ast.unparse(module))
