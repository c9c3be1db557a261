"""A trained pair of models with its catalogue, wherever they lie: in a store, or in a folder of their own."""

from dataclasses import dataclass, field
from pathlib import Path

from cohyde.catalog import Tool
from cohyde.config import EmbeddingConfig, RewriterConfig, SamplingConfig, SearchConfig, ServeConfig
from cohyde.rewriter.prompts import Example, Prompt


@dataclass(frozen=True, kw_only=True)
class Trained:
    """All that requests are answered with."""

    name: str
    """The run's name, for messages."""
    state: str
    """Which state of it, such as ``E.2``."""
    encoder: Path
    """A sentence-transformers folder."""
    rewriter: Path
    """A transformers folder."""
    index: Path | None = None
    """The encoder's index of the tools, as :meth:`cohyde.encoder.retriever.DenseRetriever.save_index` writes it."""
    tools: tuple[Tool, ...] = field(repr=False)
    """The catalogue, in the order that breaks ties."""
    embedding: EmbeddingConfig
    rewriting: RewriterConfig
    sampling: SamplingConfig
    prompt: Prompt = field(repr=False)
    examples: tuple[Example, ...] = field(default=(), repr=False)
    """Few-shot examples beside the prompt's own."""
    search: SearchConfig
    serve: ServeConfig = field(default_factory=ServeConfig)
