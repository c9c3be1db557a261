"""Generation with transformers models, on CPU or GPU: batches sorted by length, shared prefix read once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from cohyde.config import SamplingConfig
from cohyde.errors import Interrupted
from cohyde.progress import Progress
from cohyde.rewriter.generate import Completion, Request, TooLong, unwritten, with_room
from cohyde.rewriter.load import declared_stops
from cohyde.rewriter.prompts import encode_prompt
from cohyde.rewriter.sampler import Sampler, row_seed
from cohyde.rewriter.shared_prefix import SharedPrefixDecoder, attention_switched, can_share_prefix, common_prefix


class Decoder(Protocol):
    """Reads prompts and then token after token; rows may be dropped in between."""

    def start(self, prompts: Sequence[Sequence[int]], copies: int, room: int) -> Tensor:
        """Read prompts and give each ``copies`` rows; returns the logits of every row's first token, rows V."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row; returns the logits of the next, B V."""

    def keep(self, order: Sequence[int]) -> None:
        """Row ``order[i]`` becomes row ``i``; the others are dropped."""


class PlainDecoder:
    """For models that cannot share a prefix: left-padded batches through the model's own attention and cache."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def start(self, prompts: Sequence[Sequence[int]], copies: int, room: int) -> Tensor:
        """Read prompts and give each ``copies`` rows; returns the logits of every row's first token, rows V."""
        longest = max(map(len, prompts))
        device = self.model.device
        padding = [longest - len(prompt) for prompt in prompts]
        tokens = torch.tensor([[0] * pad + list(row) for pad, row in zip(padding, prompts, strict=True)], device=device)
        self.mask = (torch.arange(longest, device=device) >= torch.tensor(padding, device=device)[:, None]).long()
        self.cache = DynamicCache(config=self.model.config)
        logits = self._logits(tokens, (self.mask.cumsum(1) - 1).clamp_min(0))
        rows = torch.arange(len(prompts), device=device).repeat_interleave(copies)
        self._select(rows)
        return logits[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row; returns the logits of the next, B V."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], dim=1)
        return self._logits(tokens[:, None], self.mask.sum(1, keepdim=True) - 1)

    def keep(self, order: Sequence[int]) -> None:
        """Row ``order[i]`` becomes row ``i``; the others are dropped."""
        self._select(torch.tensor(order, device=self.mask.device))

    def _select(self, rows: Tensor) -> None:
        self.mask = self.mask[rows]
        self.cache.reorder_cache(rows)  # type: ignore[arg-type]

    def _logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        output = self.model(
            input_ids=tokens,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits


class TransformersGenerator:
    """The ``transformers`` backend of :class:`cohyde.rewriter.generate.Generator`.

    Takes a model in training as well (with adapters, too): its mode and its attention are put back after each call.
    Prompts of one call after another that begin alike have their prefix read once, as long as the weights stay.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        batch_size: int = 16,
        share_prefix: bool | None = None,
        too_long: TooLong = "error",
    ) -> None:
        """Generate with a loaded model.

        Args:
            model: a causal language model, or a PEFT model around one.
            tokenizer: its tokenizer.
            batch_size: rows (prompts times candidates) decoded at once; speed only.
            share_prefix: read the prompts' shared prefix once. None: if the model can, which is tried first.
            too_long: what becomes of a prompt that leaves the model no room for its completion.
        """
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.share_prefix, self.too_long = share_prefix, too_long
        self.stops = stop_tokens(self.model, tokenizer)
        self._shared: tuple[Any, SharedPrefixDecoder] | None = None

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig, progress: Progress) -> list[Completion]:
        """Complete every request; the result is in the order of ``requests``.

        Raises:
            UserError: a prompt and its completion are longer than the model's longest sequence, and ``too_long`` says
                that this is an error.
            Interrupted: ``progress`` asked to stop between two batches.
            RuntimeError: the model computes something that is not a number.
        """
        prompts = [encode_prompt(self.tokenizer, request.prompt) for request in requests]
        most = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        places = with_room(requests, prompts, most, sampling, self.too_long)
        # Longest first: if memory is short, that shows at once.
        order = sorted(places, key=lambda place: (-len(prompts[place]), place))
        size = max(1, self.batch_size // sampling.n)
        completions = {place: unwritten(request.id, sampling) for place, request in enumerate(requests)}
        done = len(requests) - len(order)
        if not order:
            return list(completions.values())
        with (
            torch.no_grad(),
            self._evaluating(),
            self._decoder([prompts[place] for place in order], progress) as decoder,
        ):
            for begin in range(0, len(order), size):
                if progress.stopping:
                    raise Interrupted(f"asked to stop after {begin} of {len(order)} prompts")
                batch = order[begin : begin + size]
                texts = self._complete(decoder, [requests[p] for p in batch], [prompts[p] for p in batch], sampling)
                completions.update(zip(batch, texts, strict=True))
                done += len(batch)
                progress.update(done, len(requests), "prompts")
        return [completions[place] for place in range(len(requests))]

    def close(self) -> None:
        """Free the model's memory."""
        self.model = self._shared = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)

    @contextmanager
    def _decoder(self, prompts: Sequence[Sequence[int]], progress: Progress) -> Iterator[Decoder]:
        if self.share_prefix is None:
            self.share_prefix = can_share_prefix(self.model)
            if not self.share_prefix:
                progress.log("this model's prompts are read whole: sharing their prefix would change its output")
        if not self.share_prefix:
            yield PlainDecoder(self.model)
            return
        with attention_switched(self.model):
            yield self._behind(common_prefix(prompts))

    def _behind(self, prefix: list[int]) -> SharedPrefixDecoder:
        """A decoder behind a prefix: the last one, unless prefix or weights are others."""
        key = (prefix, sum(parameter._version for parameter in self.model.parameters()))
        if self._shared is None or self._shared[0] != key:
            self._shared = (key, SharedPrefixDecoder(self.model, prefix))
        return self._shared[1]

    def _complete(
        self,
        decoder: Decoder,
        requests: Sequence[Request],
        prompts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
    ) -> list[Completion]:
        copies = range(sampling.n)
        seeds = [row_seed(request.seed, candidate) for request in requests for candidate in copies]
        rows = [prompt for prompt in prompts for _ in copies]
        sampler = Sampler(sampling, rows, seeds, self.model.device)
        logits = decoder.start(prompts, sampling.n, sampling.max_new_tokens)
        written, finished = self._decode(decoder, sampler, logits, sampling.max_new_tokens)
        texts = [self.tokenizer.decode(row, skip_special_tokens=True) for row in written]
        completions = []
        for place, request in enumerate(requests):
            mine = slice(place * sampling.n, (place + 1) * sampling.n)
            completions.append(
                Completion(
                    id=request.id,
                    texts=tuple(texts[mine]),
                    tokens=tuple(map(len, written[mine])),
                    finished=tuple(finished[mine]),
                )
            )
        return completions

    def _decode(
        self, decoder: Decoder, sampler: Sampler, logits: Tensor, most: int
    ) -> tuple[list[list[int]], list[bool]]:
        """Token after token until every row has come to its end; the tokens of each row, and whether it did."""
        rows = list(range(len(logits)))
        written: list[list[int]] = [[] for _ in rows]
        finished = [False] * len(rows)
        for step in range(most):
            if torch.isnan(logits).any():
                raise RuntimeError(
                    "the rewriter's logits are not numbers (NaN); its weights or its precision are at fault"
                )
            tokens = sampler.choose(logits, step)
            going = []
            for place, token in enumerate(tokens.tolist()):
                if token in self.stops:
                    finished[rows[place]] = True
                else:
                    written[rows[place]].append(token)
                    going.append(place)
            if not going or step + 1 == most:
                break
            if len(going) < len(rows):
                order = closed_ranks(going)
                kept = torch.tensor(order, device=tokens.device)
                decoder.keep(order)
                sampler.keep(kept)
                tokens, rows = tokens[kept], [rows[place] for place in order]
            logits = decoder.step(tokens)
        return written, finished


def closed_ranks(going: Sequence[int]) -> list[int]:
    """Which row goes where so that ``going`` (ascending) fill the first places and as few as possible move."""
    staying = {place for place in going if place < len(going)}
    moving = iter(place for place in going if place >= len(going))
    return [place if place in staying else next(moving) for place in range(len(going))]


def stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """As :func:`cohyde.rewriter.load.declared_stops`, of a loaded model."""
    return declared_stops(getattr(model, "generation_config", None), model.config, tokenizer)
