"""Decoding of many prompts that begin alike: their shared prefix is computed once, kept once and read once a step.

The ordinary way copies the prefix's keys and values for every row, and copies the whole cache again at every step. Here
a row owns what is different in it, in a buffer with room for its completion; attention over the prefix is one matrix
product for all rows. Both parts are joined by their common softmax denominator, so the result is attention over the
whole (up to rounding). Layers of linear attention keep no keys: every row begins with a copy of the prefix's state.

Shapes: B rows, H key-value heads, G query heads for each of them, T new tokens, P prefix tokens, S own tokens of a row,
D dimensions of a head.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, LinearAttentionLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION = "cohyde_shared_prefix"


class OwnLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of what follows the prefix, for B rows with ``room`` tokens each; the prefix's beside them."""

    def __init__(self, prefix: tuple[Tensor, Tensor] | None, rows: int, room: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.prefix = prefix  # keys and values, H P D each
        self.rows, self.room, self.length = rows, room, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers, B H room D; zeros, as what is hidden is still multiplied (by nought)."""
        self.dtype, self.device = key_states.dtype, key_states.device
        heads, size = key_states.shape[1], key_states.shape[3]
        self.keys = key_states.new_zeros(self.rows, heads, self.room, size)
        self.values = value_states.new_zeros(self.rows, heads, self.room, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append to the rows' own tokens; returns all of them (not the prefix), B H S D each."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        end = self.length + key_states.shape[2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Tokens that a row attends to, prefix included."""
        return self.length + (0 if self.prefix is None else self.prefix[0].shape[1])

    def keep(self, order: Sequence[int]) -> None:
        """Row ``order[i]`` becomes row ``i``; moved rows come from behind the end, so this copies no more than them."""
        assert self.keys is not None and self.values is not None
        for place, row in enumerate(order):
            if place != row:
                self.keys[place, :, : self.length] = self.keys[row, :, : self.length]
                self.values[place, :, : self.length] = self.values[row, :, : self.length]
        self.keys, self.values = self.keys[: len(order)], self.values[: len(order)]


class RowCache(Cache):
    """The cache of a batch; ``hidden`` (B room) marks the padding in front of shorter rows."""

    def __init__(self, layers: list[Any], hidden: Tensor | None = None) -> None:
        super().__init__(layers=layers)
        self.hidden = hidden


_ACTIVE: ContextVar[RowCache | None] = ContextVar("active", default=None)
"""The cache of the forward pass that is going on. Not an argument: linear layers hand theirs on to foreign kernels."""


def shared_prefix_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of B rows over their shared prefix and their own tokens (``key``, ``value``); for transformers."""
    cache = _ACTIVE.get()
    if cache is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return output, None
    batch, heads, new, size = query.shape
    kv_heads, own = key.shape[1], key.shape[2]
    query_BHGD = query.reshape(batch, kv_heads, -1, size) * (scaling or size**-0.5)  # G holds the T new tokens as well
    own_BHGS = (query_BHGD @ key.transpose(2, 3)).float()
    if new > 1:
        later = torch.ones(new, own, dtype=torch.bool, device=query.device).triu(own - new + 1)
        own_BHGS.view(batch, kv_heads, -1, new, own).masked_fill_(later, -torch.inf)
    if cache.hidden is not None:
        own_BHGS.masked_fill_(cache.hidden[:, None, None, :own], -torch.inf)
    prefix = cache.layers[module.layer_idx].prefix
    if prefix is None:
        mixed = own_BHGS.softmax(-1).to(value.dtype) @ value
    else:
        mixed = _joined_attention(query_BHGD, own_BHGS, value, *prefix)
    return mixed.view(batch, heads, new, -1).transpose(1, 2), None


def _joined_attention(
    query_BHGD: Tensor, own_BHGS: Tensor, value: Tensor, keys_HPD: Tensor, values_HPD: Tensor
) -> Tensor:
    """Softmax over own and prefix scores together, without putting them side by side."""
    batch, heads, group, size = query_BHGD.shape
    query_HQD = query_BHGD.transpose(0, 1).reshape(heads, batch * group, size)
    prefix_HQP = (query_HQD @ keys_HPD.transpose(1, 2)).float()
    largest = prefix_HQP.amax(-1).view(heads, batch, group, 1).transpose(0, 1)
    largest = torch.maximum(largest, own_BHGS.amax(-1, keepdim=True))  # B H G 1
    own_BHGS = own_BHGS.sub_(largest).exp_()
    prefix_HQP = prefix_HQP.sub_(largest.transpose(0, 1).reshape(heads, -1, 1)).exp_()
    total = own_BHGS.sum(-1, keepdim=True)
    total += prefix_HQP.sum(-1).view(heads, batch, group, 1).transpose(0, 1)
    mixed = (prefix_HQP.to(value.dtype) @ values_HPD).view(heads, batch, group, -1).transpose(0, 1)
    return (own_BHGS.to(value.dtype) @ value + mixed) / total.to(value.dtype)


AttentionInterface.register(ATTENTION, shared_prefix_attention)


@contextmanager
def attention_switched(model: Any) -> Iterator[None]:
    """Let the model compute attention by :func:`shared_prefix_attention`, and as before afterwards."""
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def common_prefix(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The longest prefix of all prompts that leaves every one of them at least one token of its own."""
    first, last = min(map(list, prompts)), max(map(list, prompts))  # whatever these two share, all share
    shared = min(len(prompt) for prompt in prompts) - 1
    differing = (place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return list(first[: min(shared, next(differing, shared))])


class SharedPrefixDecoder:
    """Decodes batches of prompts that begin with ``prefix``. Needs :func:`attention_switched`."""

    def __init__(self, model: Any, prefix: Sequence[int]) -> None:
        self.model, self.prefix = model, list(prefix)
        cache = DynamicCache(config=model.config)
        if self.prefix:
            _last_logits(model, [self.prefix], 0, cache, None)
        self.start_layers: list[Any] = cache.layers
        self.cache = RowCache([])
        self.positions = torch.zeros(0, dtype=torch.long)

    def start(self, prompts: Sequence[Sequence[int]], copies: int, room: int) -> Tensor:
        """Read prompts and give each ``copies`` rows with room for ``room`` more tokens; returns logits, rows V.

        Prompts of equal length are read together, so nothing is padded: padding between prefix and prompt would leak
        into the states of linear layers.
        """
        lengths = [len(prompt) - len(self.prefix) for prompt in prompts]
        groups, logits = [], []
        for length in sorted(set(lengths)):
            members = [place for place, own in enumerate(lengths) if own == length]
            cache = RowCache([self._layer(layer, len(members), length) for layer in self.start_layers])
            own = [prompts[place][len(self.prefix) :] for place in members]
            logits.append(_last_logits(self.model, own, len(self.prefix), cache, cache))
            groups.append((members, length, cache))
        order = [place for members, _, _ in groups for place in members]
        device = logits[0].device
        rows = torch.tensor([order.index(place) for place in range(len(prompts))], device=device)
        rows = rows.repeat_interleave(copies)
        own_length = torch.tensor(lengths, device=device).repeat_interleave(copies)
        longest = max(lengths)
        columns = torch.arange(longest + room, device=device)
        hidden = None if len(groups) == 1 else columns < (longest - own_length)[:, None]
        layers = [
            self._joined(index, [(cache, length) for _, length, cache in groups], rows, longest, longest + room)
            for index in range(len(self.start_layers))
        ]
        self.cache, self.positions = RowCache(layers, hidden), own_length + len(self.prefix)
        return torch.cat(logits)[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row; returns the logits of the next, B V."""
        logits = _logits(self.model, tokens[:, None], self.positions[:, None], self.cache, self.cache)
        self.positions = self.positions + 1
        return logits

    def keep(self, order: Sequence[int]) -> None:
        """Row ``order[i]`` becomes row ``i``; the others are dropped. ``order[i]`` is ``i`` or beyond the new end."""
        kept = torch.tensor(order, device=self.positions.device)
        self.positions = self.positions[kept]
        if self.cache.hidden is not None:
            self.cache.hidden = self.cache.hidden[kept]
        for layer in self.cache.layers:
            if isinstance(layer, OwnLayer):
                layer.keep(order)
            else:
                layer.reorder_cache(kept)  # type: ignore[arg-type]

    def _layer(self, start: Any, rows: int, room: int) -> Any:
        if isinstance(start, LinearAttentionLayer):
            return _with_states(start, torch.zeros(rows, dtype=torch.long))
        prefix = (start.keys[0], start.values[0]) if self.prefix else None
        return OwnLayer(prefix, rows, room)

    def _joined(self, index: int, parts: Sequence[tuple[RowCache, int]], rows: Tensor, longest: int, room: int) -> Any:
        """One layer of the whole batch from those of its groups, own tokens flush right at ``longest``."""
        layers: list[Any] = [cache.layers[index] for cache, _ in parts]
        if isinstance(layers[0], LinearAttentionLayer):
            return _with_states(layers[0], rows, others=layers[1:])
        joined = OwnLayer(layers[0].prefix, len(rows), room)
        joined.lazy_initialization(layers[0].keys, layers[0].values)
        assert joined.keys is not None and joined.values is not None
        begin = 0
        for layer, (_, length) in zip(layers, parts, strict=True):
            here = ((rows >= begin) & (rows < begin + layer.rows)).nonzero()[:, 0]
            for target, source in ((joined.keys, layer.keys), (joined.values, layer.values)):
                target[here, :, longest - length : longest] = source[rows[here] - begin]
            begin += layer.rows
        joined.length = longest
        return joined


def _with_states(start: LinearAttentionLayer, rows: Tensor, others: Sequence[LinearAttentionLayer] = ()) -> Any:
    """A linear layer whose row ``i`` has the state of row ``rows[i]`` of ``start`` and ``others``, one after another.

    Always a copy: the layer changes its state in place.
    """
    layer = LinearAttentionLayer(number_of_states=start.number_of_states)
    layer.dtype, layer.device = start.dtype, start.device
    layer.has_previous_state = dict(start.has_previous_state)
    layer.conv_kernel_size = dict(start.conv_kernel_size)
    for name in ("conv_states", "recurrent_states"):
        for index, state in getattr(start, name).items():
            if state is None:
                continue
            whole = torch.cat([state, *(getattr(other, name)[index] for other in others)])
            getattr(layer, name)[index] = whole.index_select(0, rows.to(whole.device))
            getattr(layer, f"is_{name}_initialized")[index] = True
    return layer


def _last_logits(
    model: Any, ids: Sequence[Sequence[int]], position: int, cache: Cache, active: RowCache | None
) -> Tensor:
    tokens = _tokens(model, ids)
    positions = torch.arange(position, position + tokens.shape[1], device=model.device).expand_as(tokens)
    return _logits(model, tokens, positions, cache, active)


def _logits(model: Any, tokens: Tensor, positions: Tensor, cache: Cache, active: RowCache | None) -> Tensor:
    """Logits after the last token of each row, B V."""
    reset = _ACTIVE.set(active)
    try:
        output = model(
            input_ids=tokens, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
    finally:
        _ACTIVE.reset(reset)
    logits: Tensor = output.logits[:, -1]
    return logits


def can_share_prefix(model: Any) -> bool:
    """Whether this decoder and the model's own forward pass agree, tried on two short sequences.

    A model with other kinds of layers (sliding windows, for one) or with an attention that ours does not compute
    (soft-capped scores, sinks) is told apart by its cache, by an error or by its logits.
    """
    if not {type(layer) for layer in DynamicCache(config=model.config).layers} <= {DynamicLayer, LinearAttentionLayer}:
        return False
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = [(7919 * place + 11) % vocabulary for place in range(1, 15)]
    sequences = [ids[:12], [*ids[:6], *reversed(ids[8:11])]]
    expected = [model(input_ids=_tokens(model, [[*sequence, 1]])).logits[0, -1] for sequence in sequences]
    try:
        with attention_switched(model):
            decoder = SharedPrefixDecoder(model, common_prefix(sequences))
            decoder.start(sequences, 1, 1)
            found = decoder.step(torch.ones(2, dtype=torch.long, device=model.device))
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):  # an architecture that is built otherwise
        return False
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.1
    difference = (found - torch.stack(expected)).abs().max() / found.abs().max().clamp_min(1e-6)
    return bool(difference < tolerance)


def _tokens(model: Any, ids: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(ids, device=model.device)
