"""Batches without waste on a CPU: no padding, and a prefix that several rows share is computed once.

DPO's two completions have one prompt, and few-shot prompts begin alike; padded, all of that is computed again for every
row. Here a batch becomes one sequence in which every distinct prefix occurs once, with a mask in which each token sees
exactly what it sees in its own row. That is the same function of the weights, so the gradient is the same too. The
output head scores only the positions that bear loss, where TRL's scores every position on a CPU.

It holds for layers whose only view of other tokens is masked attention. A recurrent (linear-attention) layer reads its
neighbours in order, so models with any are left alone, and every model has to pass a comparison first.
"""

import functools
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

HEAD_CHUNK = 1 << 25
"""Logits held at once, in numbers; more are recomputed in the backward pass, chunk by chunk."""
CHECK_TOLERANCE = 1e-3
"""Largest accepted difference of a token's log-probability between a packed and a padded batch, in float32."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Rows as one sequence of P tokens, each distinct prefix once."""

    input_ids: torch.Tensor
    """(P,) token ids."""
    positions: torch.Tensor
    """(P,) each token's place in its row."""
    mask: torch.Tensor
    """(P, P) true where the row's token may see the column's."""
    paths: list[torch.Tensor]
    """For each row, where its tokens are in the sequence."""


def pack(rows: Sequence[Sequence[int]]) -> Packed:
    """Lay rows out as one sequence in which rows with a common beginning share it."""
    order = sorted(range(len(rows)), key=lambda index: tuple(rows[index]))
    paths: list[torch.Tensor] = [torch.empty(0, dtype=torch.long)] * len(rows)
    blocks: list[tuple[int, int, torch.Tensor]] = []  # start, shared, path
    ids: list[int] = []
    positions: list[int] = []
    before: Sequence[int] = ()
    path = torch.empty(0, dtype=torch.long)
    for index in order:  # sorted, a row's longest shared beginning is with its predecessor
        row = rows[index]
        shared = _common(before, row)
        start = len(ids)
        ids.extend(row[shared:])
        positions.extend(range(shared, len(row)))
        path = torch.cat([path[:shared], torch.arange(start, len(ids))])
        blocks.append((start, shared, path))
        paths[index], before = path, row
    mask = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    for start, shared, path in blocks:
        own = slice(start, start + len(path) - shared)
        mask[own, path[:shared]] = True
        mask[own, own] = torch.tril(torch.ones(len(path) - shared, len(path) - shared, dtype=torch.bool))
    return Packed(input_ids=torch.tensor(ids), positions=torch.tensor(positions), mask=mask, paths=paths)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def pack_batches(model: Any) -> bool:
    """Let a causal language model's ``fused_lm_head`` forward (TRL's) compute packed batches, if it can.

    Everything else about the model, generation included, stays as it is. Call it on the base model, inside any PEFT
    wrapper, after a TRL trainer was built around it.

    Returns:
        Whether batches will be packed: only where a packed batch gives the log-probabilities of a padded one.
    """
    if model.device.type != "cpu" or model.dtype != torch.float32 or not _attends_to_everything(model.config):
        return False
    padded_forward = model.forward
    packed_forward = types.MethodType(_packed_forward, model)
    if not _agree(model, padded_forward, packed_forward):
        return False

    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        if not fused_lm_head:
            return padded_forward(*args, **kwargs)
        return packed_forward(*args, **kwargs)

    model.forward = types.MethodType(forward, model)
    return True


def _attends_to_everything(config: Any) -> bool:
    text = config.get_text_config()
    layers = getattr(text, "layer_types", None) or ["full_attention"]
    return all(layer == "full_attention" for layer in layers) and not getattr(text, "sliding_window", None)


def _agree(model: Any, padded_forward: Any, packed_forward: Any) -> bool:
    """Compare both on a few rows with and without common beginnings, one of them padded."""
    size = model.config.get_text_config().vocab_size
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(size, (4, 12), generator=draw)
    rows[1, :7], rows[2, :4] = rows[0, :7], rows[0, :4]
    attention = torch.ones_like(rows)
    attention[3, 9:] = 0
    labels = rows.masked_fill(attention == 0, -100)
    labels[:, :3] = -100
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            padded = padded_forward(input_ids=rows, attention_mask=attention, labels=labels, fused_lm_head=True)
            packed = packed_forward(input_ids=rows, attention_mask=attention, labels=labels)
    finally:
        model.train(training)
    return bool((padded.log_probs - packed.log_probs).abs().max() <= CHECK_TOLERANCE)


def _packed_forward(
    self: Any,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    **ignored: Any,
) -> Any:
    """What TRL's fused forward returns, from a packed batch. B rows of L tokens, padded on the right."""
    from trl.trainer.utils import FusedCausalLMOutput

    assert input_ids is not None and labels is not None
    lengths = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).sum(dim=1).tolist()
    rows = [row[:length] for row, length in zip(input_ids.tolist(), lengths, strict=True)]
    packed = pack(rows)
    hidden = self.base_model(
        input_ids=packed.input_ids[None],
        attention_mask=packed.mask[None, None],
        position_ids=packed.positions[None],
        use_cache=False,
    ).last_hidden_state[0]  # (P, d)
    label_mask = labels[:, 1:] != -100  # (B, L-1)
    row, place = label_mask.nonzero(as_tuple=True)
    padded_paths = torch.nn.utils.rnn.pad_sequence(packed.paths, batch_first=True)  # (B, L)
    scores = _score(self.get_output_embeddings(), hidden[padded_paths[row, place]], labels[row, place + 1])
    log_probs, entropy, mean_logits, top1 = (
        values.new_zeros(label_mask.shape).masked_scatter(label_mask, values) for values in scores
    )
    return FusedCausalLMOutput(
        loss=-log_probs.sum() / label_mask.sum().clamp(min=1),
        log_probs=log_probs,
        entropy=entropy,
        mean_logits=mean_logits,
        is_top1=top1,
        label_mask=label_mask,
    )


def _score(head: Any, hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Log-probability, entropy, mean logit and "is the likeliest" of N targets, in chunks of bounded memory."""
    size = max(1, HEAD_CHUNK // head.weight.shape[0])
    starts = range(0, max(1, len(targets)), size)
    run: Any = _score_chunk
    if len(starts) > 1 and torch.is_grad_enabled():
        run = functools.partial(torch.utils.checkpoint.checkpoint, _score_chunk, use_reentrant=False)
    parts = [run(head.weight, head.bias, hidden[at : at + size], targets[at : at + size]) for at in starts]
    return tuple(torch.cat(values) for values in zip(*parts, strict=True))


def _score_chunk(
    weight: torch.Tensor, bias: torch.Tensor | None, hidden: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    logits = functional.linear(hidden, weight, bias).float()  # (n, vocabulary)
    log_probs = functional.log_softmax(logits, dim=-1)
    chosen = log_probs.gather(-1, targets[:, None])[:, 0]
    with torch.no_grad():
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        return chosen, entropy, logits.mean(dim=-1), logits.argmax(dim=-1) == targets
