"""Embeddings by an OpenAI-compatible server's ``/embeddings``: a commercial encoder as a baseline, or one's own.

What is asked of one's own is in :mod:`cohyde.encoder.served`.

Any answer that is not a finite vector of one dimension for each text stops the work: an index that lacks a tool, or has
another one's vector, would rank without a word.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cohyde.config import EncoderEndpointConfig
from cohyde.errors import NoAnswerError, UserError
from cohyde.progress import Progress
from cohyde.rewriter.openai_endpoint import Endpoint, Failure


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Texts that are sent together."""

    id: str
    start: int
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Vectors:
    """What came back for a batch: (n, d)."""

    start: int
    rows: np.ndarray


class EmbeddingEndpoint:
    """A served encoder."""

    def __init__(self, config: EncoderEndpointConfig, dimensions: int | None = None) -> None:
        """Get ready to ask; nothing is sent yet.

        Args:
            config: where, and how.
            dimensions: that are asked for, and insisted on; None: as many as the model has.

        Raises:
            UserError: the URL, the model's name or the key cannot be right.
        """
        self.config, self._dimensions = config, dimensions
        self._server = Endpoint(
            url=config.url,
            model=config.model,
            api_key_env=config.api_key_env,
            concurrency=config.concurrency,
            timeout_seconds=config.timeout_seconds,
            retries=config.retries,
        )

    def embed(self, texts: Sequence[str], progress: Progress) -> np.ndarray:
        """One unit vector a text, (n, d) float32, in the order of ``texts``.

        Raises:
            UserError: the server does not answer, or with other than one finite vector of one dimension for each text.
        """
        found: list[_Vectors] = []
        done = 0
        for outcome in self._server.answers(list(self._batches(texts)), self._post, self._read):
            if isinstance(outcome, Failure):
                raise NoAnswerError(self._server.url, outcome.why, "see to the endpoint, and run it again")
            found.append(outcome)
            done += len(outcome.rows)
            progress.update(done, len(texts), "texts embedded")
        found.sort(key=lambda vectors: vectors.start)
        self._check_dimensions(found)
        rows = np.concatenate([vectors.rows for vectors in found])
        unit: np.ndarray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        return unit

    def close(self) -> None:
        """Close the connections."""
        self._server.close()

    def _batches(self, texts: Sequence[str]) -> Iterator[_Batch]:
        for start in range(0, len(texts), self.config.batch_size):
            yield _Batch(id=str(start), start=start, texts=tuple(texts[start : start + self.config.batch_size]))

    def _post(self, batch: _Batch) -> str:
        wanted: Any = {"dimensions": self._dimensions} if self._dimensions else {}
        return self._server.client.embeddings.with_raw_response.create(
            model=self._server.model, input=list(batch.texts), encoding_format="float", **wanted
        ).text

    def _read(self, batch: _Batch, answer: Mapping[str, Any]) -> _Vectors:
        """The batch's vectors by their ``index``.

        Raises:
            UserError: they are not what was asked for.
        """
        data = answer.get("data")
        rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
        by_place = {row.get("index", place): row.get("embedding") for place, row in enumerate(rows)}
        if len(rows) != len(batch.texts) or set(by_place) != set(range(len(batch.texts))):
            raise self._wrong(f"{len(by_place)} vectors for {len(batch.texts)} texts")
        vectors = [self._checked(by_place[place], batch.start + place) for place in range(len(batch.texts))]
        if len({len(vector) for vector in vectors}) > 1:
            raise self._wrong(f"vectors of {' and '.join(sorted({str(len(vector)) for vector in vectors}))} dimensions")
        return _Vectors(start=batch.start, rows=np.stack(vectors))

    def _checked(self, values: Any, place: int) -> np.ndarray:
        try:
            vector = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise self._wrong(f"no vector for text {place + 1}: {str(values)[:60]!r}") from None
        if vector.ndim != 1 or not vector.size:
            raise self._wrong(f"no vector for text {place + 1}: {str(values)[:60]!r}")
        if not np.isfinite(vector).all():
            raise self._wrong(f"a vector with a number that is none (NaN or infinite), for text {place + 1}")
        if not vector.any():
            raise self._wrong(f"a vector of noughts, for text {place + 1}")
        if self._dimensions and len(vector) != self._dimensions:
            raise self._wrong(f"a vector of {len(vector)} dimensions, and {self._dimensions} were asked for")
        return vector

    def _check_dimensions(self, found: Sequence[_Vectors]) -> None:
        sizes = sorted({vectors.rows.shape[1] for vectors in found})
        if len(sizes) > 1:
            raise self._wrong(f"vectors of {' and '.join(map(str, sizes))} dimensions")

    def _wrong(self, what: str) -> UserError:
        return UserError(
            f"{self._server.url}: model {self._server.model!r} has answered with {what}",
            "check that the endpoint serves an embedding model"
            + (f" that gives {self._dimensions} dimensions" if self._dimensions else ""),
        )
