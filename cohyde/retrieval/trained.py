"""A trained pair of models with its catalogue, wherever they lie: in a store, or in a folder of their own."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from cohyde.catalog import Tool
from cohyde.config import (
    COMMAND_LINE,
    EmbeddingConfig,
    IndexConfig,
    RewriterConfig,
    SamplingConfig,
    SearchConfig,
    ServeConfig,
    build,
    parse_override,
    plain,
    section,
)
from cohyde.errors import UserError
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
    indexing: IndexConfig = field(default_factory=IndexConfig)
    """What kind of index the catalogue is searched in."""


FIXED = ("model", "prompt", "few_shot")
"""Settings of the rewriter that it was trained with."""
OPEN = ("attention", "embedder", "endpoint", "embed_batch_size")
"""Settings of the encoder that may be others than those it was trained with."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What may be set otherwise when trained models are asked."""

    encoder: EmbeddingConfig = section(EmbeddingConfig)
    rewriter: RewriterConfig = section(RewriterConfig)
    search: SearchConfig = section(SearchConfig)
    serve: ServeConfig = section(ServeConfig)
    index: IndexConfig = section(IndexConfig)


def with_settings(trained: Trained, overrides: Sequence[str]) -> Trained:
    """The same models, asked with other settings, such as ``search.mode=query`` or ``encoder.embedder=endpoint``.

    Raises:
        UserError: an override is none, its key or value is wrong, or it is of something that was trained.
    """
    own = Settings(
        encoder=trained.embedding,
        rewriter=trained.rewriting,
        search=trained.search,
        serve=trained.serve,
        index=trained.indexing,
    )
    layers = [(trained.name, plain(own)), *((COMMAND_LINE, parse_override(override)) for override in overrides)]
    told = build(Settings, layers)
    fixed = {"rewriter": FIXED, "encoder": [item.name for item in fields(EmbeddingConfig) if item.name not in OPEN]}
    for part, names in fixed.items():
        for name in names:
            if getattr(getattr(told, part), name) != getattr(getattr(own, part), name):
                raise UserError(f"{part}.{name} is what {trained.name} was trained with", "leave it as it is")
    return replace(
        trained,
        embedding=told.encoder,
        rewriting=told.rewriter,
        search=told.search,
        serve=told.serve,
        indexing=told.index,
    )
