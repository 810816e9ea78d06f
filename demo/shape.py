"""Which layers, width and heads give a model of a given size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pinferry.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ModelShape", "choose_shape", "smallest_parameter_count"]

_NARROWEST = 16


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that make a model.

    Attributes
    ----------
    context
        Characters that attention looks back on.
    positions
        Characters that the rotary tables have angles for.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    positions: int

    @property
    def parameters(self) -> int:
        """Parameters of the model; the output head is the embedding and counts once."""
        return _parameters(self.layers, self.width, self.vocabulary)


def _parameters(layers: int, width: int, vocabulary: int) -> int:
    return vocabulary * width + layers * (12 * width**2 + 2 * width) + width


def smallest_parameter_count(vocabulary: int) -> int:
    """Return the parameters of the smallest model over `vocabulary` characters."""
    return _parameters(1, _NARROWEST, vocabulary)


def choose_shape(params: int, *, vocabulary: int, context: int, positions: int) -> ModelShape:
    """Pick layers, width and heads so that the model has about `params` parameters.

    Among the shapes within 10 %, weigh how near they are against how usual their ratio of width to
    layers is: about 26 at 1e6 parameters, 60 at 1e8 and 128 at 7e9.

    Raises
    ------
    InvalidArgument
        If no shape comes within 10 %.
    """
    usual = 26.0 * (params / 1e6) ** 0.18
    candidates = list(_candidates(params, vocabulary))
    fitting = [
        (abs(math.log(width / layers / usual)) + 5 * abs(size / params - 1), layers, width)
        for layers, width, size in candidates
        if abs(size - params) <= 0.1 * params
    ]
    if not fitting:
        nearest = min((size for _, _, size in candidates), key=lambda size: abs(size - params))
        raise InvalidArgument(
            f"params={params}: no model over {vocabulary} characters comes within 10 % of that; "
            f"the nearest has {nearest} parameters, pass params={nearest}"
        )
    _, layers, width = min(fitting)
    return ModelShape(
        layers=layers,
        width=width,
        heads=width // _head_width(width),
        vocabulary=vocabulary,
        context=context,
        positions=positions,
    )


def _candidates(params: int, vocabulary: int) -> Iterator[tuple[int, int, int]]:
    for layers in range(1, 257):
        # The width that would fit exactly, from the quadratic in it.
        linear = vocabulary + 2 * layers + 1
        exact = (math.sqrt(linear**2 + 48 * layers * params) - linear) / (24 * layers)
        grain = 128 if exact >= 1024 else 64 if exact >= 256 else _NARROWEST
        for width in {grain * int(exact / grain), grain * (int(exact / grain) + 1)}:
            if width >= _NARROWEST:
                yield layers, width, _parameters(layers, width, vocabulary)


def _head_width(width: int) -> int:
    usable = (size for size in (128, 64, 32, 16) if width % size == 0 and width >= 4 * size)
    return next(usable, _NARROWEST)
