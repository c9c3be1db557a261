"""From logits to tokens: greedy or sampled, every row with random numbers of its own."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cohyde.config import SamplingConfig


def row_seed(seed: int, candidate: int) -> int:
    """The seed of one candidate of a request. A hash: seed + candidate would be a neighbour's seed (TRAPS 10)."""
    return int.from_bytes(hashlib.sha256(f"{seed}\x1f{candidate}".encode()).digest()[:16])


class Sampler:
    """Chooses the next token of every row of a batch.

    All of a row's random numbers are drawn at once, from its own seed: which rows are its neighbours, and which of
    them have finished, cannot change its text.
    """

    def __init__(
        self, sampling: SamplingConfig, prompts: Sequence[Sequence[int]], seeds: Sequence[int], device: torch.device
    ) -> None:
        """Begin with one row for each prompt and its seed (see :func:`row_seed`)."""
        self.sampling = sampling
        self.prompts: Sequence[Sequence[int]] | None = prompts if sampling.repetition_penalty != 1 else None
        self.seen: Tensor | None = None  # B V: tokens of the prompt and of what was written
        self.uniform: Tensor | None = None  # B max_new_tokens, in [0, 1)
        if sampling.temperature > 0:
            draws = [np.random.Generator(np.random.Philox(key=seed)).random(sampling.max_new_tokens) for seed in seeds]
            self.uniform = torch.from_numpy(np.stack(draws)).to(device)

    def choose(self, logits: Tensor, step: int) -> Tensor:
        """The next token of each row, from logits B V at step ``step``."""
        scores = self._penalised(logits.float())
        tokens = scores.argmax(-1) if self.uniform is None else self._sampled(scores, self.uniform[:, step])
        if self.seen is not None:
            self.seen.scatter_(1, tokens[:, None], True)
        return tokens

    def keep(self, order: Tensor) -> None:
        """Row ``order[i]`` becomes row ``i``; the others are dropped."""
        self.seen = None if self.seen is None else self.seen[order]
        self.uniform = None if self.uniform is None else self.uniform[order]

    def _penalised(self, scores: Tensor) -> Tensor:
        if self.prompts is not None:
            self.seen = torch.zeros_like(scores, dtype=torch.bool)
            for row, prompt in enumerate(self.prompts):
                self.seen[row, torch.tensor(prompt, device=scores.device)] = True
            self.prompts = None
        if self.seen is None:
            return scores
        penalty = self.sampling.repetition_penalty
        return torch.where(self.seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)

    def _sampled(self, scores: Tensor, uniform: Tensor) -> Tensor:
        """Temperature, top-k, top-p, in that order, as transformers does; then the inverse of the distribution."""
        scores = scores.double() / self.sampling.temperature
        tokens = None
        if self.sampling.top_k:
            scores, tokens = scores.topk(min(self.sampling.top_k, scores.shape[-1]), dim=-1)
        elif self.sampling.top_p < 1:
            scores, tokens = scores.sort(dim=-1, descending=True, stable=True)
        probabilities = scores.softmax(-1)
        if self.sampling.top_p < 1:
            before = probabilities.cumsum(-1) - probabilities
            probabilities = probabilities.masked_fill(before >= self.sampling.top_p, 0)
        cumulative = probabilities.cumsum(-1)
        target = uniform[:, None] * cumulative[:, -1:]
        place = torch.searchsorted(cumulative, target, right=True).clamp_max(cumulative.shape[-1] - 1)
        return (place if tokens is None else tokens.gather(1, place))[:, 0]
