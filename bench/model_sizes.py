"""Storages of real models, computed from their architectures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ModelStorages", "Storage", "llama_lora", "mixture_of_experts", "zero_partitions"]

_BF16 = 2
_FP32 = 4


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage of a model or its optimizer; `layer` is what is offloaded together with it."""

    category: str
    layer: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ModelStorages:
    """What one training run keeps on its device.

    Attributes
    ----------
    name
        For keys of results.
    parameters
        Of the model, adapters left out.
    storages
        In the order in which discovery finds them: by category, then by layer.
    """

    name: str
    parameters: int
    storages: tuple[Storage, ...]

    @property
    def nbytes(self) -> int:
        """All of it."""
        return sum(storage.nbytes for storage in self.storages)


def _by_category(name: str, parameters: int, found: list[Storage]) -> ModelStorages:
    order = {category: i for i, category in enumerate(dict.fromkeys(s.category for s in found))}
    return ModelStorages(name, parameters, tuple(sorted(found, key=lambda s: order[s.category])))


def llama_lora(rank: int = 16) -> ModelStorages:
    """Return Llama 3.2 1B with LoRA on all seven projections of each layer.

    16 layers of width 2048, 32 heads that share 8 of keys and values, a hidden width of 8192, and
    128,256 tokens whose embedding is the output's too. Weights are frozen in bfloat16; adapters and
    what a fused AdamW keeps for them (two moments and a step each) are float32.
    """
    width, hidden, shared, layers, tokens = 2048, 8192, 512, 16, 128_256
    shapes = [(width, width), (shared, width), (shared, width), (width, width)]
    shapes += [(hidden, width), (hidden, width), (width, hidden)]
    counts = [(0, tokens * width)]
    found: list[Storage] = []
    for layer in range(layers):
        counts += [(layer, rows * columns) for rows, columns in shapes]
        counts += [(layer, width)] * 2  # the norms
        for rows, columns in shapes:
            for count in (rank * columns, rows * rank):
                found.append(Storage("adapters", layer, count * _FP32))
                found += [Storage("optim_states", layer, count * _FP32)] * 2
                found.append(Storage("optim_states", layer, _FP32))
    counts.append((layers - 1, width))
    frozen = [Storage("lp_params", layer, count * _BF16) for layer, count in counts]
    return _by_category("llama_lora", sum(count for _, count in counts), frozen + found)


def mixture_of_experts() -> ModelStorages:
    """Return a mixture of 8 experts in each of 16 layers, trained in mixed precision.

    Width 2048, experts of three 2048 x 4096 matrices, 32 heads that share 8 of keys and values, a
    router, 32,000 tokens with separate embedding and output. Weights are bfloat16; master weights
    and two moments of each are float32.
    """
    width, hidden, shared, layers, experts, tokens = 2048, 4096, 512, 16, 8, 32_000
    counts = [(0, tokens * width)]
    for layer in range(layers):
        attention = [width * width, shared * width, shared * width, width * width]
        expert = [width * hidden] * 3
        parts = [*attention, experts * width, width, width, *(expert * experts)]
        counts += [(layer, count) for count in parts]
    counts += [(layers - 1, width), (layers - 1, tokens * width)]
    found = [Storage("lp_params", layer, count * _BF16) for layer, count in counts]
    found += [Storage("hp_params", layer, count * _FP32) for layer, count in counts]
    for layer, count in counts:
        found += [Storage("optim_states", layer, count * _FP32)] * 2
    return _by_category("moe", sum(count for _, count in counts), found)


def zero_partitions() -> ModelStorages:
    """Return the flat partitions that 8 ranks of one host keep of Llama 2 7B under ZeRO.

    Four pipeline stages of 9, 8, 8 and 7 layers, the first with the embedding and the last with the
    output, each shared by two ranks. Whole tensors are packed into flat groups of at most 10^8
    elements, each split in two parts padded to 4 elements, so that no two stages have the same
    sizes. Of a part a rank keeps bfloat16 parameters and gradients, float32 master weights and two
    moments. `layer` is the rank.
    """
    found: list[Storage] = []
    parameters = 0
    for stage in range(4):
        for ranks_group in _pack(_llama_7b_stage(stage), 10**8):
            parameters += ranks_group
            part = -(-ranks_group // (2 * 4)) * 4
            for rank in (2 * stage, 2 * stage + 1):
                found.append(Storage("lp_params", rank, part * _BF16))
                found.append(Storage("hp_params", rank, part * _FP32))
                found += [Storage("optim_states", rank, part * _FP32)] * 2
                found.append(Storage("contiguous_grad_buffer", rank, part * _BF16))
    found.sort(key=lambda storage: storage.layer)
    return _by_category("zero", parameters, found)


def _llama_7b_stage(stage: int) -> Iterator[int]:
    width, hidden, tokens = 4096, 11_008, 32_000
    if stage == 0:
        yield tokens * width
    for _ in range((9, 8, 8, 7)[stage]):
        yield from [width * width] * 4
        yield from [width * hidden] * 3
        yield from [width] * 2
    if stage == 3:
        yield width
        yield tokens * width


def _pack(counts: Iterator[int], most: int) -> Iterator[int]:
    """Yield the sizes of groups of whole tensors; one that is larger is a group of its own."""
    group = 0
    for count in counts:
        if group and group + count > most:
            yield group
            group = 0
        group += count
    yield group
