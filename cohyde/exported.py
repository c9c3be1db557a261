"""What the folder of an exported run holds: the words of those who write one (:mod:`stages.export`) and who read it.

::

    <folder>/README.md            what this is, and how to load its parts
    <folder>/export.json          how a request is rewritten, embedded and searched with: a :class:`Recipe`
    <folder>/encoder/             a sentence-transformers model, with its card
    <folder>/rewriter/            a transformers model, with its card
    <folder>/index/catalog.faiss  FAISS's flat inner-product index of the catalogue's vectors
    <folder>/index/tools.jsonl    {"id": …} of each vector, in the same order
    <folder>/catalog.jsonl        the tools, in the same order
    <folder>/search.py, clean.py  an example that needs nothing of ours
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.catalog import tool_from_row
from cohyde.config import EmbeddingConfig, RewriterConfig, SamplingConfig, SearchConfig, build, plain
from cohyde.errors import UserError
from cohyde.io import check_readable, read_rows, write_json
from cohyde.retrieval.trained import Trained
from cohyde.rewriter.prompts import Example, Prompt

FORMAT = 1
CARD = "README.md"
RECIPE = "export.json"
ENCODER = "encoder"
REWRITER = "rewriter"
INDEX = "index"
CATALOG = "catalog.jsonl"
SCRIPT = "search.py"
CLEANING = "clean.py"

SECTIONS: dict[str, type[Any]] = {
    "encoder": EmbeddingConfig,
    "rewriter": RewriterConfig,
    "describe": SamplingConfig,
    "search": SearchConfig,
}
"""The sections of a recipe, which are those of a run's configuration."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How an exported pair of models is asked."""

    encoder: EmbeddingConfig
    """Its ``model`` is the folder ``encoder``."""
    rewriter: RewriterConfig
    """Its ``model`` is the folder ``rewriter``; ``few_shot`` is 0, since the prompt holds the examples."""
    describe: SamplingConfig
    search: SearchConfig
    prompt: Prompt
    """With every example that the rewriter is shown, those drawn from the training split included."""
    run: str
    stage: str
    """The evaluation of what was exported, such as ``E.3``."""


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write ``export.json``."""
    prompt = recipe.prompt
    body = {
        "format": FORMAT,
        "run": recipe.run,
        "stage": recipe.stage,
        "prompt": {
            "name": prompt.name,
            "system": prompt.system,
            "user": prompt.user,
            "examples": [{"query": one.query, "answer": one.answer} for one in prompt.examples],
        },
        **{name: plain(getattr(recipe, name)) for name in SECTIONS},
    }
    write_json(folder / RECIPE, body)


def read_recipe(folder: Path) -> Recipe:
    """Read the ``export.json`` of an exported folder.

    Raises:
        UserError: the folder is none, or the file is damaged or of a later version.
    """
    path = folder / RECIPE
    check_readable(path, "give a folder that `cohyde export` wrote")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            raise UserError(f"{path}: format {body['format']!r}; this version of cohyde reads format {FORMAT}")
        sections = {name: build(kind, [(str(path), body[name])]) for name, kind in SECTIONS.items()}
        told = body["prompt"]
        examples = tuple(Example(query=one["query"], answer=one["answer"]) for one in told["examples"])
        prompt = Prompt(name=told["name"], system=told["system"], user=told["user"], examples=examples)
        return Recipe(**sections, prompt=prompt, run=body["run"], stage=body["stage"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged: {error}", "export the run again: cohyde export RUN --to DIR") from None


def read_trained(folder: Path) -> Trained:
    """The models and the catalogue of an exported folder, to be searched with.

    Raises:
        UserError: as :func:`read_recipe`; or the catalogue is missing or damaged.
    """
    recipe = read_recipe(folder)
    return Trained(
        name=recipe.run,
        state=recipe.stage,
        encoder=folder / ENCODER,
        rewriter=folder / REWRITER,
        index=folder / INDEX,
        tools=tuple(tool_from_row(row) for row in read_rows(folder / CATALOG)),
        embedding=recipe.encoder,
        rewriting=recipe.rewriter,
        sampling=recipe.describe,
        prompt=recipe.prompt,
        search=recipe.search,
    )
