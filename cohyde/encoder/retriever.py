"""An encoder with its indexed catalogue: from texts to ranked tools."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cohyde.catalog import Tool, render
from cohyde.config import EmbeddingConfig, SearchConfig
from cohyde.encoder.embedder import Embedder, open_embedder
from cohyde.encoder.search import rank, search_vectors
from cohyde.io import read_rows, write_jsonl

if TYPE_CHECKING:
    from cohyde.encoder.index import ExactIndex

Ranking = list[tuple[str, float]]
"""Tool ids with their inner products, best first."""

INDEX_FILE = "index.npy"
FAISS_FILE = "catalog.faiss"
"""Of an exported index."""
IDS_FILE = "tools.jsonl"


@dataclass(frozen=True, kw_only=True)
class DenseRetriever:
    """An encoder and the index of a catalogue under φ5 (or whatever ``index_form`` says)."""

    embedder: Embedder
    index: "ExactIndex"
    tool_ids: tuple[str, ...]
    config: EmbeddingConfig

    @classmethod
    def build(cls, encoder: Path, tools: Sequence[Tool], config: EmbeddingConfig) -> "DenseRetriever":
        """Load the encoder and embed the catalogue."""
        from cohyde.encoder.index import ExactIndex

        embedder = open_embedder(encoder, config)
        vectors = embedder.embed([render(tool, config.index_form) for tool in tools], "document")
        return cls(
            embedder=embedder, index=ExactIndex(vectors), tool_ids=tuple(tool.id for tool in tools), config=config
        )

    def save_index(self, folder: Path) -> None:
        """Write the index with its tool ids, in catalogue order."""
        folder.mkdir(parents=True, exist_ok=True)
        self.index.save(folder / INDEX_FILE)
        write_jsonl(folder / IDS_FILE, ({"id": tool_id} for tool_id in self.tool_ids))

    @classmethod
    def load(cls, encoder: Path, index: Path, config: EmbeddingConfig) -> "DenseRetriever":
        """Load the encoder and an index that :meth:`save_index` wrote with it."""
        found, tool_ids = read_index(index)
        return cls(embedder=open_embedder(encoder, config), index=found, tool_ids=tool_ids, config=config)

    def rank_texts(self, texts: Sequence[str], depth: int) -> list[Ranking]:
        """Rank the catalogue for each text: at most ``depth`` tools, ties in catalogue order."""
        return self.rank(texts, texts, SearchConfig(mode="query", depth=max(20, depth)), depth)

    def rank(
        self, queries: Sequence[str], descriptions: Sequence[str], search: SearchConfig, depth: int | None = None
    ) -> list[Ranking]:
        """Rank the catalogue for each query with its description, by the search mode of the configuration."""
        if not queries:
            return []
        vectors = search_vectors(self.embedder.embed, queries, descriptions, search)
        return rank(self.index, vectors, self.tool_ids, depth or search.depth)


def read_index(folder: Path) -> tuple["ExactIndex", tuple[str, ...]]:
    """The index and the tool ids that :meth:`DenseRetriever.save_index` wrote, or those of an exported run.

    Raises:
        ValueError: the index is damaged.
    """
    from cohyde.encoder.index import ExactIndex

    exported = folder / FAISS_FILE
    index = ExactIndex.load_faiss(exported) if exported.is_file() else ExactIndex.load(folder / INDEX_FILE)
    return index, tuple(row["id"] for row in read_rows(folder / IDS_FILE))
