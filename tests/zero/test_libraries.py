"""Adapters by peft on a Llama of transformers, and 8-bit optimizers of bitsandbytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pinferry import Category
from pinferry.deepspeed import attach
from tests.zero.engines import engine_of
from tests.zero.model import VOCABULARY, train

if TYPE_CHECKING:
    from pinferry import PinnedArena

STEPS = 4


class Llama(nn.Module):
    """A very small Llama, which makes its rotary frequencies itself."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.causal: nn.Module = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                tie_word_embeddings=True,
            )
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.causal(input_ids=tokens, labels=tokens).loss
        return loss


def adapted() -> nn.Module:
    """Return the same with low-rank adapters, and everything else frozen."""
    from peft import LoraConfig, get_peft_model

    model = Llama()
    model.causal = get_peft_model(model.causal, LoraConfig(r=4, task_type="CAUSAL_LM"))
    return model


def losses_of(make: Any, arena: PinnedArena) -> tuple[list[float], list[float], set[Category]]:
    """Train without offload and with, and return what was away."""
    with make() as engine:
        expected = train(engine, STEPS)
    moved: set[Category] = set()
    with make() as engine, attach(engine, arena) as offloader:

        def cycle(moment: str, step: int) -> None:
            engine.offload_states()
            moved.update(offloader.offloaded_states())
            assert not offloader.resident()
            engine.reload_states()

        return expected, train(engine, STEPS, cycle), moved


@pytest.mark.parametrize("kind", ["bf16_optimizer", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("model", [Llama, adapted])
def test_a_llama_with_adapters_and_without(
    model: Any, kind: str, arena: PinnedArena, device: str
) -> None:
    pytest.importorskip("peft")

    def make() -> Any:
        torch.manual_seed(3)
        return engine_of(kind, model=model())

    expected, losses, moved = losses_of(make, arena)
    assert losses == expected
    assert {Category.LP_PARAMS, Category.HP_PARAMS, Category.BUFFERS} <= moved
    assert (Category.FROZEN_PARAMS in moved) is (model is adapted)


@pytest.mark.parametrize("kind", ["bf16_optimizer", "zero1", "zero2", "zero3"])
def test_an_optimizer_with_8_bit_states(kind: str, arena: PinnedArena, device: str) -> None:
    optimizers = pytest.importorskip("bitsandbytes").optim

    def make() -> Any:
        return engine_of(
            kind, client=lambda groups, lr: optimizers.AdamW8bit(groups, lr=lr, min_8bit_size=64)
        )

    expected, losses, moved = losses_of(make, arena)
    assert losses == expected
    assert Category.OPTIM_STATES in moved
