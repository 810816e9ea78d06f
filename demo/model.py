"""A small decoder-only transformer over characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import relu, scaled_dot_product_attention

if TYPE_CHECKING:
    from pinferry.demo.shape import ModelShape

__all__ = ["KeysAndValues", "Transformer"]

KeysAndValues = list[tuple[torch.Tensor, torch.Tensor]]


class Block(nn.Module):
    """Attention and a two-layer perceptron, both on normalised input and added to it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.context = shape.context
        self.attention_norm = nn.RMSNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.perceptron_norm = nn.RMSNorm(width)
        self.perceptron_in = nn.Linear(width, 4 * width, bias=False)
        self.perceptron_out = nn.Linear(4 * width, width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        past: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return the output, and the keys and values that the next character attends to."""
        batch, length, width = x.shape
        mixed: torch.Tensor = self.queries_keys_values(self.attention_norm(x))
        q, k, v = mixed.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = _rotate(q, rotation), _rotate(k, rotation)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        k, v = k[:, :, -self.context :], v[:, :, -self.context :]
        seen = scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.attention_out(seen.transpose(1, 2).reshape(batch, length, width))
        hidden = relu(self.perceptron_in(self.perceptron_norm(x))).square()
        return x + self.perceptron_out(hidden), (k, v)


def _rotate(x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cosines, sines = rotation
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
    return turned.to(x.dtype)


class Transformer(nn.Module):
    """The model. Its output head is its embedding: one storage under two names.

    The rotary tables are non-persistent buffers: no checkpoint has them, and memory does not come
    back while they stay.
    """

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        half = shape.width // shape.heads // 2
        frequencies = 10_000.0 ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(shape.positions), frequencies)
        self.register_buffer("rotary_cosines", angles.cos(), persistent=False)
        self.register_buffer("rotary_sines", angles.sin(), persistent=False)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights from `generator`, which lives on the model's device."""
        scale = self.shape.width**-0.5
        for parameter in self.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, scale, generator=generator)
        # Small enough for logits near zero at first, since the head is the same matrix.
        self.embedding.weight.normal_(0.0, 0.02, generator=generator)
        for block in self.blocks:
            if isinstance(block, Block):
                # Every block starts as the identity.
                block.attention_out.weight.zero_()
                block.perceptron_out.weight.zero_()

    def forward(
        self, tokens: torch.Tensor, past: KeysAndValues | None = None, start: int = 0
    ) -> tuple[torch.Tensor, KeysAndValues]:
        """Return logits, and the keys and values to pass as `past` with the next character.

        Parameters
        ----------
        tokens
            int64, shape ``(batch, length)``; a length of 1 where `past` is given.
        past
            What the call for the characters before returned.
        start
            Position of the first of `tokens`.
        """
        end = start + tokens.shape[1]
        rotation = (
            self.get_buffer("rotary_cosines")[start:end],
            self.get_buffer("rotary_sines")[start:end],
        )
        x: torch.Tensor = self.embedding(tokens)
        kept: KeysAndValues = []
        for index, block in enumerate(self.blocks):
            x, keys_values = block(x, rotation, None if past is None else past[index])
            kept.append(keys_values)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits, kept
