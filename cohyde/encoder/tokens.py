"""Texts as token ids: each distinct text is tokenised once a training, and padded anew wherever it is used."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from cohyde.encoder.pairs import Side

AT_ONCE = 1024
"""Texts a call of the tokenizer, which pads them to their longest before we take the padding off."""
MASK = "attention_mask"
POSITIONS_AT_ONCE = {"cpu": 1024}
ON_ACCELERATORS = 16384


def prompt_of(model: SentenceTransformer, side: Side) -> str | None:
    """What this encoder puts before every text of a side; None where that is nothing."""
    return model.prompts.get(side) or None


@dataclass(frozen=True)
class TokenisedText:
    """One text as its model reads it, and how much of it is cut off."""

    features: dict[str, np.ndarray]
    """``input_ids``, and whatever else the tokenizer gives but the mask: n positions each."""
    cut: int
    """Tokens beyond the model's maximum length."""

    def __len__(self) -> int:
        """Positions that the model reads, special tokens included."""
        return len(self.features["input_ids"])


@dataclass(kw_only=True)
class TextCounts:
    """Texts and positions that went through the encoder in training; a text that occurs again counts again."""

    texts: int = 0
    truncated: int = 0
    cut_tokens: int = 0
    positions: int = 0
    padding: int = 0

    def add(self, texts: Sequence[TokenisedText]) -> None:
        """Count one forward pass over these texts, which are padded to the longest of them."""
        read = [len(text) for text in texts]
        self.texts += len(texts)
        self.truncated += sum(text.cut > 0 for text in texts)
        self.cut_tokens += sum(text.cut for text in texts)
        self.positions += len(read) * max(read)
        self.padding += len(read) * max(read) - sum(read)

    def tokens(self) -> int:
        """Positions that are no padding."""
        return self.positions - self.padding


@dataclass
class Tokeniser:
    """The tokens of every text that it was asked for, kept: an epoch after the first tokenises nothing.

    It goes through ``model.preprocess``, so that a text becomes exactly what ``model.encode`` would make of it.
    """

    model: SentenceTransformer
    _known: dict[Side, dict[str, TokenisedText]] = field(default_factory=lambda: {"query": {}, "document": {}})

    def __call__(self, texts: Sequence[str], side: Side = "query") -> list[TokenisedText]:
        """Texts of one side of the search as tokens, in their order."""
        known = self._known[side]
        fresh = [text for text in dict.fromkeys(texts) if text not in known]
        for start in range(0, len(fresh), AT_ONCE):
            part = fresh[start : start + AT_ONCE]
            known.update(zip(part, self._tokenised(part, side), strict=True))
        return [known[text] for text in texts]

    def _tokenised(self, texts: list[str], side: Side) -> list[TokenisedText]:
        batch = self.model.preprocess(texts, prompt=prompt_of(self.model, side), task=side)
        columns = {name: value.numpy() for name, value in batch.items() if isinstance(value, torch.Tensor)}
        encodings = getattr(batch, "encodings", None) or [None] * len(texts)
        read = columns.pop(MASK).astype(bool)
        return [
            TokenisedText(
                {name: column[row][read[row]].astype(np.int32) for name, column in columns.items()}, _cut(encoding)
            )
            for row, encoding in enumerate(encodings)
        ]

    def padded(self, texts: Sequence[TokenisedText]) -> dict[str, Any]:
        """One forward pass: features of shape (n, longest of the texts), padded on the tokenizer's side."""
        tokenizer: Any = self.model.tokenizer
        fill = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        width = max(len(text) for text in texts)
        read = np.zeros((len(texts), width), dtype=bool)
        for row, text in zip(read, texts, strict=True):
            row[slice(width - len(text), None) if tokenizer.padding_side == "left" else slice(len(text))] = True
        batch: dict[str, Any] = {"modality": "text", MASK: torch.from_numpy(read.astype(np.int64))}
        for name in texts[0].features:
            column = np.full(read.shape, fill.get(name, 0), dtype=np.int64)
            column[read] = np.concatenate([text.features[name] for text in texts])
            batch[name] = torch.from_numpy(column)
        return batch


def _cut(encoding: Any) -> int:
    """Tokens that a tokenizer of the fast kind left out at the end; other kinds don't tell."""
    overflowing = encoding.overflowing if encoding is not None else []
    return sum(len(part.ids) - sum(part.special_tokens_mask) for part in overflowing)


def positions_at_once(device: torch.device) -> int:
    """Tokens and padding of a forward pass: small ones pad less, but each has to keep the device busy."""
    return POSITIONS_AT_ONCE.get(device.type, ON_ACCELERATORS)


def chunks_by_length(lengths: Sequence[int], most_positions: int, most_texts: int | None = None) -> list[list[int]]:
    """Positions of the texts, from short to long, cut into the forward passes of a batch.

    A chunk is closed when one more text, padded to its own length, would make more than ``most_positions``, or when it
    has ``most_texts`` texts. A text that is longer than that is a chunk of its own.
    """
    chunks: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        full = not chunks or (
            len(chunks[-1]) == most_texts
            if most_texts is not None
            else (len(chunks[-1]) + 1) * lengths[place] > most_positions
        )
        if full:
            chunks.append([])
        chunks[-1].append(place)
    return chunks
