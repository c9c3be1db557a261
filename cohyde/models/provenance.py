"""Where a base model is from and under which licence, as far as its own files say so. Nothing is guessed."""

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.models.reference import is_cached, is_hub, resolve

UNKNOWN = "unknown"
LONGEST = 80
"""Characters of a licence's name at most; some packages put a licence's whole text where its name belongs."""


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """A model that training started from."""

    name: str
    """As people know it: without the place on this machine."""
    hub: str
    """Its id on the Hugging Face hub; empty for others."""
    licence: str
    """As its author states it, or ``unknown``."""
    stated: str
    """Where that is stated; empty where it is not."""


def base_model(reference: str) -> BaseModel:
    """What is known of the model that a configuration names; it is not downloaded for this."""
    if reference.startswith("tiny:"):
        return BaseModel(name=f"{reference} (random weights)", hub="", licence=UNKNOWN, stated="")
    if reference.startswith("package:"):
        return _packaged(reference)
    if not is_hub(reference):
        return _in_folder(Path(reference).name, "", Path(reference))
    name = reference.partition("@")[0]
    return _in_folder(name, name, resolve(reference) if is_cached(reference) else None)


def _in_folder(name: str, hub: str, folder: Path | None) -> BaseModel:
    licence = str(front_matter(folder / "README.md").get("license") or "") if folder else ""
    return BaseModel(
        name=name, hub=hub, licence=licence[:LONGEST] or UNKNOWN, stated="its model card" if licence else ""
    )


def _packaged(reference: str) -> BaseModel:
    module = reference.removeprefix("package:").partition("/")[0]
    distribution = next(iter(importlib.metadata.packages_distributions().get(module, [])), "")
    licence = _licence_of(distribution) if distribution else ""
    return BaseModel(
        name=reference.removeprefix("package:"),
        hub="",
        licence=licence or UNKNOWN,
        stated=f"the metadata of the Python package {distribution}" if licence else "",
    )


def _licence_of(distribution: str) -> str:
    metadata = importlib.metadata.metadata(distribution).json
    named = str(metadata.get("license_expression") or metadata.get("license") or "").strip()
    return named if len(named) <= LONGEST and "\n" not in named else ""


def front_matter(card: Path) -> dict[str, Any]:
    """The YAML at the beginning of a model card; empty where there is none that can be read."""
    import yaml

    try:
        text = card.read_text(encoding="utf-8")
        found = yaml.safe_load(text.split("---\n", 2)[1]) if text.startswith("---\n") else {}
    except (OSError, UnicodeDecodeError, IndexError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
