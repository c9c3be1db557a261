"""An encoder that a server holds as well: its vectors are taken from there once they are known to be this encoder's.

Instructions and lengths are applied here, so that the server has to know of neither.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from cohyde.config import EmbeddingConfig
from cohyde.encoder.embedding_endpoint import EmbeddingEndpoint
from cohyde.encoder.model import POOLINGS, embed, full_dimensions, load_encoder, with_pooling
from cohyde.encoder.pairs import Side
from cohyde.encoder.tokens import prompt_of
from cohyde.errors import UserError
from cohyde.progress import Silent

ALIKE = 0.999
"""Mean cosine from which on two encoders count as one (toolrank's bound)."""
TRIED_TEXTS = 64
SIDES: tuple[Side, ...] = ("document", "query")


class Served:
    """A server's embeddings of an encoder whose folder is here."""

    def __init__(self, encoder: Path, config: EmbeddingConfig) -> None:
        """Load the encoder, which is let go once the server has been held against it.

        Raises:
            UserError: the folder does not load, its tokenizer cannot say where a text is cut, or the server's URL,
                model name or key cannot be right.
        """
        self._encoder, self._config = encoder, config
        self._endpoint = EmbeddingEndpoint(config.endpoint)
        self._local: SentenceTransformer | None = load_encoder(encoder, config)
        self._dimensions, self._full = self._local.get_embedding_dimension() or 0, full_dimensions(self._local) or 0
        self._tokenizer: Any = self._local.tokenizer
        self._prompts = {side: prompt_of(self._local, side) or "" for side in SIDES}
        if not self._tokenizer.is_fast:
            raise UserError(
                f"{encoder}: its tokenizer does not say where a text is cut, so that none can be sent to a server",
                "set encoder.embedder=in_process",
            )

    def embed(self, texts: Sequence[str], side: Side = "query") -> np.ndarray:
        """As any :class:`cohyde.encoder.embedder.Embedder`; a server not tried yet is tried on the first texts."""
        if not texts:
            return np.empty((0, self._dimensions), dtype=np.float32)
        self.check(texts)
        return self._asked(texts, side)

    def check(self, texts: Sequence[str]) -> None:
        """Hold the server's vectors against the encoder's own, on either side, for a fixed sample of these texts."""
        if self._local is None:
            return
        sample = sampled(texts)
        for side in SIDES if self._sides_differ() else SIDES[:1]:
            theirs = self._asked(sample, side)
            _compare(self._local, sample, theirs, side, self._config, self._encoder)
        self._local = None

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()

    def _sides_differ(self) -> bool:
        lengths = {self._most(side) for side in SIDES}
        return len(lengths) > 1 or len(set(self._prompts.values())) > 1

    def _most(self, side: Side) -> int:
        """Tokens of a text of this side that are read, its instruction included."""
        longer = self._config.tool_max_length if side == "document" else None
        return longer or self._config.max_length

    def _asked(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """The server's vectors, (n, d), each distinct text sent once."""
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        sent = [cut_to(self._tokenizer, self._prompts[side] + text, self._most(side)) for text in row_of]
        vectors = self._endpoint.embed(sent, Silent())
        if vectors.shape[1] == self._full and self._dimensions < self._full:
            vectors = vectors[:, : self._dimensions]
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        if vectors.shape[1] != self._dimensions:
            raise UserError(
                f"{self._config.endpoint.url}: model {self._config.endpoint.model!r} gives vectors of "
                f"{vectors.shape[1]} dimensions, and the encoder {self._encoder} ones of {self._dimensions}",
                f"serve this encoder: {serving(self._encoder)}",
            )
        return vectors[[row_of[text] for text in texts]]


def sampled(texts: Sequence[str]) -> list[str]:
    """At most 64 distinct texts, drawn by a fixed seed, with the longest of all among them: that is where cuts show."""
    distinct = list(dict.fromkeys(texts))
    drawn = np.random.default_rng(0).permutation(len(distinct))[:TRIED_TEXTS].tolist()
    longest = max(range(len(distinct)), key=lambda place: len(distinct[place]))
    return [distinct[place] for place in dict.fromkeys([longest, *drawn])][:TRIED_TEXTS]


def cut_to(tokenizer: Any, text: str, most: int) -> str:
    """The longest beginning of a text that ends with a token and is read whole within ``most`` tokens.

    The tokens that are kept are those that the encoder itself would read; the server needs no limit of its own.
    """
    ends = _kept(tokenizer, text, most)
    if ends is None:
        return text
    for end in reversed(ends):
        # What is left may be split otherwise than within the whole, into more tokens.
        if _kept(tokenizer, text[:end], most) is None:
            return text[:end]
    return text[:1]


def _kept(tokenizer: Any, text: str, most: int) -> list[int] | None:
    """Where in the text each kept token ends, if any is left out; None: the text is read whole."""
    read = tokenizer(text, truncation=True, max_length=most)
    encoding = read.encodings[0]
    if not encoding.overflowing:
        return None
    own = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
    return [end for (_, end), special in own if not special]


def serving(encoder: Path) -> str:
    """A command that serves an encoder."""
    return f"vllm serve {encoder} --runner pooling"


def _compare(
    model: SentenceTransformer,
    texts: Sequence[str],
    theirs: np.ndarray,
    side: Side,
    config: EmbeddingConfig,
    encoder: Path,
) -> None:
    ours = embed(model, texts, config.embed_batch_size, side)
    cosines = np.einsum("nd,nd->n", ours.astype(np.float64), theirs.astype(np.float64))
    if cosines.mean() >= ALIKE:
        return
    worst = int(cosines.argmin())
    raise UserError(
        f"{config.endpoint.url}: model {config.endpoint.model!r} does not embed as the encoder {encoder} does: the "
        f"mean cosine over {len(texts)} texts is {cosines.mean():.4f}, and at least {ALIKE} is wanted; the worst is "
        f"{cosines[worst]:.4f}, for {texts[worst][:60]!r}. {_likely(model, texts, theirs, side, config, cosines)}",
        f"serve this encoder: {serving(encoder)}; or set encoder.embedder=in_process",
    )


def _likely(
    model: SentenceTransformer,
    texts: Sequence[str],
    theirs: np.ndarray,
    side: Side,
    config: EmbeddingConfig,
    cosines: np.ndarray,
) -> str:
    """Why: what can be told from the vectors, else what it mostly is."""
    for name in POOLINGS:
        if np.einsum("nd,nd->n", _pooled(model, texts, side, config, name), theirs).mean() >= ALIKE:
            return f"The server's pooling is {name!r}"
    if np.median(cosines) >= ALIKE:
        return "Most texts agree: the server may cut long ones elsewhere"
    return (
        "The server may hold other weights (another encoder, or another state of this one), pool otherwise, put an "
        "instruction of its own before texts, or cut them elsewhere"
    )


def _pooled(
    model: SentenceTransformer, texts: Sequence[str], side: Side, config: EmbeddingConfig, pooling: str
) -> np.ndarray:
    """What the same weights give under a pooling, which may be another than this encoder's."""
    other = SentenceTransformer(
        modules=with_pooling(model, pooling), device=str(model.device), truncate_dim=model.truncate_dim
    )
    other.prompts = model.prompts
    return embed(other, texts, config.embed_batch_size, side)
