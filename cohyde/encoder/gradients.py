"""From a loss over all vectors of a batch to gradients of the weights, at once or through a cache of vectors.

Shapes: a batch of n texts is encoded in chunks; a chunk's vectors are (texts of the chunk, d), all of them (n, d).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

Encode = Callable[[Any], Tensor]
"""A chunk to its vectors, with dropout and a gradient."""
Loss = Callable[[Tensor], Tensor]
"""The vectors of all chunks, in order, to a scalar."""
Backward = Callable[[Encode, Sequence[Any], Loss, torch.device], Tensor]
"""Adds the gradient of the loss to that of every weight; returns the loss, detached."""


def encode(model: SentenceTransformer, features: dict[str, Any], precision: str) -> Tensor:
    """Unit vectors (n, d), float32, of one padded chunk, as the model is set (``train()`` for dropout).

    Pooling and normalising stay float32: at τ = 0.05 a bfloat16 vector would be off by 0.1 in the scores.
    """
    transformer, *head = model
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
        output = transformer(batch_to_device(features, model.device))
    output["token_embeddings"] = output["token_embeddings"].float()
    for layer in head:
        output = layer(output)
    vectors: Tensor = output["sentence_embedding"]
    return vectors


def at_once(encode_chunk: Encode, chunks: Sequence[Any], loss_of: Loss, device: torch.device) -> Tensor:
    """Hold the activations of the whole batch: one forward and one backward pass a chunk."""
    loss = loss_of(torch.cat([encode_chunk(chunk) for chunk in chunks]))
    torch.autograd.backward(loss)
    return loss.detach()


def cached(encode_chunk: Encode, chunks: Sequence[Any], loss_of: Loss, device: torch.device) -> Tensor:
    """Hold the activations of one chunk: two forward passes and one backward pass a chunk (GradCache).

    All vectors are made without a graph; the loss gives the gradient of each; then every chunk is encoded again, with
    the random numbers that it had, and takes its vectors' gradient further to the weights. So the gradient is that of
    :func:`at_once` on the same chunks, up to the order in which float32 numbers are added up. Source: Gao et al. 2021,
    "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", section 3.2.
    """
    states, parts = [], []
    with torch.no_grad():
        for chunk in chunks:
            states.append(random_state(device))
            parts.append(encode_chunk(chunk))
    vectors = torch.cat(parts).requires_grad_()
    loss = loss_of(vectors)
    (gradient,) = torch.autograd.grad(loss, vectors)
    sizes = [len(part) for part in parts]
    for chunk, state, part in zip(chunks, states, gradient.split(sizes), strict=True):  # type: ignore[no-untyped-call]
        with replayed(state, device):
            again = encode_chunk(chunk)
        torch.autograd.backward(again, part)
    return loss.detach()


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Where the generators of the CPU and of a CUDA device are."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


@contextmanager
def replayed(state: tuple[Tensor, Tensor | None], device: torch.device) -> Iterator[None]:
    """Draw the random numbers that followed ``state`` once more; afterwards the generators are where they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], device)
        yield
