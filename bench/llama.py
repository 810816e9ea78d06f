"""A model like Llama, of any size, with random weights."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Shape", "make_llama"]

_HEAD = 64
_LAYERS = 12


class Shape(NamedTuple):
    """What a model is made of; the hidden width is four times the width, as in Llama 3.2 1B."""

    layers: int
    width: int
    tokens: int

    @classmethod
    def of(cls, parameters: int) -> Shape:
        """Return a shape of at most so many parameters, some ten layers where that is possible."""
        tokens = 32_000 if parameters >= 10**8 else 1_000
        width = _HEAD * max(1, round((parameters / (16 * _LAYERS + 8)) ** 0.5 / _HEAD))
        layer = 16 * width**2 + 2 * width
        return cls(max(1, (parameters - 2 * tokens * width) // layer), width, tokens)


def make_llama(shape: Shape, device: torch.device) -> tuple[nn.Module, str]:
    """Return a model in bf16 that maps tokens to its loss on them, and what it is, in words.

    It is that of transformers where that is installed, and the same matrices in plain PyTorch where
    it is not.
    """
    model: nn.Module
    with torch.device(device):
        try:
            from transformers import LlamaConfig, LlamaForCausalLM
        except ImportError:
            model, kind = _Plain(shape), "a plain stack like Llama"
        else:
            layers, width, tokens = shape
            config = LlamaConfig(
                vocab_size=tokens,
                hidden_size=width,
                intermediate_size=4 * width,
                num_hidden_layers=layers,
                num_attention_heads=width // _HEAD,
                num_key_value_heads=width // _HEAD,
                tie_word_embeddings=False,
                use_cache=False,
            )
            model = _OfTransformers(LlamaForCausalLM(config))
            kind = f"LlamaForCausalLM of transformers {version('transformers')}"
    model = model.to(torch.bfloat16)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return model, f"{kind}, {parameters} parameters in bf16"


class _OfTransformers(nn.Module):
    def __init__(self, model: Any) -> None:  # noqa: ANN401 -- transformers may be missing
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(input_ids=tokens, labels=tokens).loss
        return loss


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.before(x)
        query, key, value = (
            part(y).unflatten(-1, (-1, _HEAD)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).flatten(-2))
        y = self.between(x)
        y = self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return x + y


class _Plain(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.tokens, shape.width)
        self.layers = nn.ModuleList(_Layer(shape.width) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.tokens, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(self.norm(x))[:, :-1].flatten(0, 1)
        loss: torch.Tensor = nn.functional.cross_entropy(scores.float(), tokens[:, 1:].flatten())
        return loss
