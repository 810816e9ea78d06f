"""One model in training: batches, steps and sampling, each a function of the seed alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from pinferry.demo.model import KeysAndValues, Transformer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinferry.demo.options import Settings
    from pinferry.demo.shape import ModelShape
    from pinferry.demo.text import Corpus

__all__ = ["PROMPTS", "Trainee"]

# Of one length, so that they make one batch.
PROMPTS = ("\tdef _", "class ", "\tself.", "import", "\tfor i", "return", "\twith ", "\tif no")

_TEMPERATURE = 0.5
_BASE_LEARNING_RATE = 3e-3
_WARM_UP_STEPS = 10


class Trainee:
    """A model with its optimizer and its sources of chance.

    Batches and sampling noise come from generators of their own on the CPU, so that nothing else,
    moving state least of all, can shift them.
    """

    def __init__(self, settings: Settings, shape: ModelShape, corpus: Corpus) -> None:
        self._settings = settings
        self._corpus = corpus
        self._device = torch.device(settings.device)
        gpus = [self._device.index] if settings.on_cuda else []
        # PyTorch's own initialisation draws from the global generators, which belong to the caller.
        with torch.random.fork_rng(devices=gpus), self._device:
            self.model = Transformer(shape)
        self.model.initialize(_generator(settings.seed, self._device))
        self._batches = _generator(settings.seed + 1)
        self._noise = _generator(settings.seed + 2)
        self.optimizer = _make_optimizer(self.model)
        self._total_steps = settings.cycles * settings.steps + 1
        self._steps_done = 0

    def train(self, steps: int, on_loss: Callable[[float], None]) -> list[float]:
        """Take `steps` steps, then begin the next one: its gradients stay for the next call.

        The first step of the next call adds its own batch to them. Gradients that change while
        they are away therefore show in every later loss.

        Returns
        -------
        list[float]
            One loss for each batch, the last one included. Blocks the host for each of them.
        """
        losses = []
        for step in range(steps + 1):
            losses.append(self._backward())
            on_loss(losses[-1])
            if step < steps:
                self._update()
        return losses

    @torch.no_grad()
    def generate(self, on_token: Callable[[], None]) -> list[str]:
        """Continue every prompt. Needs the weights and the buffers, nothing else."""
        scale = self._settings.scale
        prompts = [self._encode(prompt) for prompt in PROMPTS[: scale.rollouts]]
        tokens = torch.tensor(prompts)
        past: KeysAndValues | None = None
        with self._precision():
            for _ in range(scale.new_tokens):
                start = 0 if past is None else tokens.shape[1] - 1
                logits, past = self.model(tokens[:, start:].to(self._device), past, start)
                tokens = torch.cat((tokens, self._sample(logits[:, -1])), dim=1)
                on_token()
        return [self._corpus.decode(row) for row in tokens.tolist()]

    def _backward(self) -> float:
        inputs, targets = self._draw_batch()
        with self._precision():
            logits, _ = self.model(inputs)
            loss = cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        torch.autograd.backward(loss)
        return loss.item()

    def _update(self) -> None:
        warm_up = min(1.0, (self._steps_done + 1) / _WARM_UP_STEPS)
        decay = max(0.05, 1.0 - self._steps_done / self._total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * warm_up * decay
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._steps_done += 1

    def _draw_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        scale, tokens = self._settings.scale, self._corpus.tokens
        last = tokens.numel() - scale.context
        starts = torch.randint(last, (scale.batch, 1), generator=self._batches)
        window = tokens[starts + torch.arange(scale.context + 1)].long().to(self._device)
        return window[:, :-1], window[:, 1:]

    def _sample(self, logits: torch.Tensor) -> torch.Tensor:
        # The larger of "chance / exponential noise" picks each character as often as its chance.
        noise = torch.empty(logits.shape).exponential_(generator=self._noise)
        chances = (logits.float() / _TEMPERATURE).softmax(dim=-1).cpu()
        return (chances / noise).argmax(dim=-1, keepdim=True)

    def _encode(self, prompt: str) -> list[int]:
        known = "".join(c if c in self._corpus.characters else "\n" for c in prompt)
        return self._corpus.encode(known)

    def _precision(self) -> torch.autocast:
        return torch.autocast(
            self._device.type, dtype=torch.bfloat16, enabled=self._settings.on_cuda
        )


def _generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def _make_optimizer(model: Transformer) -> torch.optim.AdamW:
    """Make AdamW over two groups: matrices decay, gains do not.

    Wider models take smaller steps; 3e-3 fits a width of 128.
    """
    rate = min(4e-3, _BASE_LEARNING_RATE * math.pow(128 / model.shape.width, 0.75))
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    gains = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [
        {"params": matrices, "peak_lr": rate, "weight_decay": 0.1},
        {"params": gains, "peak_lr": rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)
