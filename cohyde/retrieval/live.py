"""From requests to ranked tools, for as long as one likes: what ``cohyde search`` and ``cohyde serve`` stand on."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from cohyde.catalog import Tool, render
from cohyde.config import EmbeddingConfig, IndexConfig, SearchConfig, ServeConfig
from cohyde.encoder.embedder import Embedder, open_embedder
from cohyde.encoder.pairs import Side
from cohyde.encoder.search import SEARCH_MODES
from cohyde.errors import UserError
from cohyde.retrieval.answer import Answer
from cohyde.retrieval.batching import Batcher
from cohyde.retrieval.breaker import Breaker
from cohyde.retrieval.catalog import Change, LiveCatalog, Snapshot
from cohyde.retrieval.descriptions import Cache, Described, Descriptions, Rewriter
from cohyde.retrieval.index_folder import (
    check_encoder,
    encoder_identity,
    is_index_folder,
    open_index_folder,
    read_index_card,
)
from cohyde.retrieval.requests import check_count, check_queries
from cohyde.retrieval.rewriters import GeneratorRewriter, hurried
from cohyde.retrieval.trained import Trained

SEARCHES_BY_REQUEST = "query"
"""The search mode that needs no rewriter."""
PART = 16
"""Texts that one caller hands to the encoder at once."""


class LiveRetriever:
    """An encoder with its catalogue, and a rewriter or none; safe to be used from many threads at once.

    What several threads ask for at the same time is embedded, and described, in one call.
    """

    def __init__(
        self,
        encoder: Path,
        tools: Sequence[Tool] | None,
        *,
        embedding: EmbeddingConfig,
        search: SearchConfig,
        index: Path | None = None,
        indexing: IndexConfig | None = None,
        rewriter: Rewriter | None = None,
        limits: ServeConfig | None = None,
        deadline_seconds: float | None = None,
        keep: Path | None = None,
    ) -> None:
        """Load the encoder, and its index of the catalogue or make one.

        Args:
            encoder: a sentence-transformers folder.
            tools: the catalogue, in the order that breaks ties; None: that of an index made by ``cohyde index``.
            embedding: how the encoder embeds.
            search: what the index is searched with.
            index: a folder that ``cohyde index`` made with this encoder, or one that
                :meth:`cohyde.encoder.retriever.DenseRetriever.save_index` wrote for these tools; None embeds them.
            indexing: the kind of index to make; None: exact. One that ``cohyde index`` made is of a kind already.
            rewriter: describes requests; closed with this. None, or the mode ``query``: requests are searched with.
            limits: None for the defaults.
            deadline_seconds: how long to wait for the rewriter before the encoder answers alone; None: without end.
            keep: see :class:`cohyde.retrieval.catalog.LiveCatalog`.

        Raises:
            UserError: a folder or file does not load, there is no such search mode, or a server that shall embed does
                not do so as the encoder does.
        """
        check_mode(search.mode)
        indexing = indexing or IndexConfig()
        if index is not None and is_index_folder(index):
            check_encoder(index, read_index_card(index)[0], encoder_identity(encoder, embedding))
        self.search_config = search
        self.limits = limits or ServeConfig()
        self._encoder = open_embedder(encoder, embedding)
        self.embedder: Batcher[tuple[Side, str], np.ndarray] = Batcher(
            lambda texts: _by_side(self._encoder.embed, texts),
            most=embedding.embed_batch_size,
            window=self.limits.batch_window_ms / 1000,
            name="encoder",
        )
        self.descriptions = self._describing(rewriter, deadline_seconds)
        first = _first_snapshot(tools, embedding.index_form, index, indexing, self._encoder)
        tools_of = partial(self._embedded, side="document")
        self.catalog = LiveCatalog(first, tools_of, embedding.index_form, keep)

    @classmethod
    def open(
        cls,
        trained: Trained,
        *,
        index: str | Path | None = None,
        limits: ServeConfig | None = None,
        deadline_seconds: float | None = None,
        keep: Path | None = None,
    ) -> Self:
        """Load a trained pair of models; the rewriter only where the search mode needs it.

        Args:
            trained: the models and the catalogue.
            index: a folder that ``cohyde index`` made with this encoder, in place of the run's own catalogue.
            limits: None for those of the run's configuration, but without a window for batches.
            deadline_seconds: how long to wait for the rewriter before the encoder answers alone; None: without end.
            keep: see :class:`cohyde.retrieval.catalog.LiveCatalog`.

        Raises:
            UserError: something of it does not load.
        """
        check_mode(trained.search.mode)
        if index is not None:
            read_index_card(Path(index))
        rewriter = None
        if trained.search.mode != SEARCHES_BY_REQUEST:
            rewriter = GeneratorRewriter(
                trained.rewriter,
                rewriter=hurried(trained.rewriting, deadline_seconds),
                sampling=trained.sampling,
                prompt=trained.prompt,
                examples=trained.examples,
            )
        return cls(
            trained.encoder,
            trained.tools if index is None else None,
            embedding=trained.embedding,
            search=trained.search,
            index=trained.index if index is None else Path(index),
            indexing=trained.indexing,
            rewriter=rewriter,
            limits=limits or replace(trained.serve, batch_window_ms=0.0),
            deadline_seconds=deadline_seconds,
            keep=keep,
        )

    def _describing(self, rewriter: Rewriter | None, deadline: float | None) -> Descriptions | None:
        if rewriter is None or self.search_config.mode == SEARCHES_BY_REQUEST:
            return None
        limits = self.limits
        return Descriptions(
            rewriter,
            cache=Cache(limits.cached_descriptions),
            breaker=Breaker(failures=limits.rewriter_failures, pause_seconds=limits.rewriter_pause_seconds),
            most=limits.rewriter_batch_size,
            window=limits.batch_window_ms / 1000,
            deadline=deadline,
        )

    def search(self, texts: Sequence[str], k: int = 5) -> list[Answer]:
        """The best tools for each request, best first; ties in catalogue order.

        Args:
            texts: requests in everyday words.
            k: tools at most; a smaller catalogue gives all that it has.

        Returns:
            One answer a request, in order. Its ``timings`` are the seconds that all requests of this call took
            together to be described (``rewrite``) and to be searched for (``retrieve``).

        Raises:
            RequestError: a request is empty, invisible, too long or no text, or ``k`` is below 1.
        """
        k = check_count(k)
        asked = check_queries(texts, self.limits.max_query_characters)
        started = time.perf_counter()
        described = self._described(asked)
        written = time.perf_counter()
        snapshot = self.catalog.current
        rankings = self._ranked(snapshot, asked, described, k)
        timings = {
            "rewrite": round(written - started, 4),
            "retrieve": round(time.perf_counter() - written, 4),
        }
        return [
            Answer(
                query=text,
                description=item.text,
                rewritten=bool(item.text),
                reason=item.reason,
                tools=tuple(ranking),
                timings=timings,
            )
            for text, item, ranking in zip(texts, described, rankings, strict=True)
        ]

    def change(self, put: Sequence[Tool] = (), remove: Collection[str] = ()) -> Change:
        """Add, replace and remove tools while searches go on; see :meth:`LiveCatalog.change`."""
        return self.catalog.change(put, remove)

    def close(self, timeout: float | None = None) -> None:
        """Finish what is in work, waiting so many seconds at most, and free the models."""
        if self.descriptions is not None:
            self.descriptions.close(timeout)
        self.embedder.close(timeout)
        self._encoder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _described(self, asked: Sequence[str]) -> list[Described]:
        if self.descriptions is None:
            why = "search.mode is query" if self.search_config.mode == SEARCHES_BY_REQUEST else "there is no rewriter"
            return [Described(reason=why) for _ in asked]
        return self.descriptions.describe(asked)

    def _ranked(
        self, snapshot: Snapshot, asked: Sequence[str], described: Sequence[Described], k: int
    ) -> list[list[tuple[Tool, float]]]:
        """The ranking for each request: by the configured mode where it was described, else by itself."""
        mode = SEARCH_MODES[self.search_config.mode]
        by_itself = SEARCH_MODES[SEARCHES_BY_REQUEST]
        rankings: dict[int, list[tuple[Tool, float]]] = {}
        for strategy, places in (
            (mode, [place for place, item in enumerate(described) if item.text]),
            (by_itself, [place for place, item in enumerate(described) if not item.text]),
        ):
            if places:
                texts, descriptions = [asked[p] for p in places], [described[p].text for p in places]
                vectors = strategy(self._embedded, texts, descriptions, self.search_config)
                rankings.update(zip(places, snapshot.rank(vectors, k), strict=True))
        return [rankings[place] for place in range(len(asked))]

    def _embedded(self, texts: Sequence[str], side: Side = "query") -> np.ndarray:
        """(n, d) unit rows. Many texts are handed over in parts, so that others' requests come in between."""
        sided = [(side, text) for text in texts]
        parts = [sided[start : start + PART] for start in range(0, len(sided), PART)]
        rows = [row for part in parts for row in _results(self.embedder.submit_all(part))]
        return np.stack(rows) if rows else np.empty((0, 0), dtype=np.float32)


def check_mode(mode: str) -> None:
    """Refuse a search mode that does not exist.

    Raises:
        UserError: names those that do.
    """
    if mode not in SEARCH_MODES:
        raise UserError(f"no search mode is called {mode!r}", f"search.mode is one of: {', '.join(SEARCH_MODES)}")


def _by_side(
    embed_side: Callable[[list[str], Side], np.ndarray], texts: Sequence[tuple[Side, str]]
) -> list[np.ndarray]:
    """A vector a text, in order; requests and catalogue are embedded apart, since they may have other instructions."""
    vectors: dict[int, np.ndarray] = {}
    for side in sorted({side for side, _ in texts}):
        places = [place for place, (own, _) in enumerate(texts) if own == side]
        vectors.update(zip(places, embed_side([texts[place][1] for place in places], side), strict=True))
    return [vectors[place] for place in range(len(texts))]


def _results(futures: Iterable["Future[np.ndarray]"]) -> list[np.ndarray]:
    return [future.result() for future in futures]


def _first_snapshot(
    tools: Sequence[Tool] | None, form: int, index: Path | None, indexing: IndexConfig, encoder: Embedder
) -> Snapshot:
    """The catalogue at the start, with the vectors of an index or fresh ones."""
    from cohyde.encoder.index_kinds import make_index
    from cohyde.encoder.retriever import read_index

    if index is not None and is_index_folder(index):
        snapshot, _ = open_index_folder(index)
        _check_same(index, snapshot.tools, tools)
        encoder.check(snapshot.renderings)
        return snapshot
    if not tools:
        raise UserError("the catalogue is empty", "give at least one tool")
    renderings = tuple(render(tool, form) for tool in tools)
    if index is None:
        made = make_index(encoder.embed(renderings, "document"), indexing)
        return Snapshot(tools=tuple(tools), renderings=renderings, index=made)
    found, ids = read_index(index)
    if ids != tuple(tool.id for tool in tools):
        raise UserError(f"{index}: is of another catalogue than the tools given", "make the index of these tools")
    encoder.check(renderings)
    own = found if indexing == IndexConfig() else make_index(found.vectors, indexing)
    return Snapshot(tools=tuple(tools), renderings=renderings, index=own)


def _check_same(index: Path, found: Sequence[Tool], given: Sequence[Tool] | None) -> None:
    if given is not None and tuple(found) != tuple(given):
        raise UserError(f"{index}: is of another catalogue than the tools given", "make the index of these tools")
