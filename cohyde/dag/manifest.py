"""The record beside every artifact: what it is, what it was made from, by what, where and when."""

import dataclasses
import functools
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohyde.dag.fingerprint import fingerprint_of
from cohyde.dag.spec import Metrics
from cohyde.io import canonical_json, sha256_text

FILE_NAME = "manifest.json"
FORMAT = 1
LIBRARIES = (
    "accelerate", "bm25s", "cohyde", "datasets", "faiss-cpu", "faiss-gpu", "numpy", "omegaconf", "peft", "ray",
    "safetensors", "sentence-transformers", "tokenizers", "torch", "transformers", "trl", "vllm",
)  # fmt: skip
"""Distributions whose versions are recorded where they are installed."""


class NewerFormatError(ValueError):
    """Written by a later version of cohyde: not damaged, and not for this one to judge."""


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One file of an artifact."""

    path: str
    """Relative to the artifact, with forward slashes."""
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of ``manifest.json``. Everything that varies from host to host or from day to day is here only."""

    id: str
    fingerprint: str
    kind: str
    identity: Mapping[str, Any]
    """What the fingerprint is a hash of, so that a changed recipe can be told field by field."""
    inputs: Mapping[str, Mapping[str, str]]
    """Name of the input → ``id`` and ``fingerprint`` of the stage whose artifact it was."""
    config: Any
    """The configuration slice with all its settings, as JSON data."""
    metrics: Metrics
    warnings: tuple[str, ...] = ()
    files: tuple[FileRecord, ...] = ()
    run: str
    attempt: int
    host: str
    started: str
    """ISO 8601 with the offset from UTC."""
    ended: str
    seconds: float
    versions: Mapping[str, str]
    git: str | None
    """Revision of the checkout that ran (with ``-dirty`` where it was changed); None outside of one."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Name of each prompt → SHA-256 of its text."""
        prompts: Mapping[str, str] = self.identity["prompts"]
        return prompts

    def to_text(self) -> str:
        """Indented JSON with a checksum over all the rest."""
        body = {"format": FORMAT, **dataclasses.asdict(self)}
        body["checksum"] = sha256_text(canonical_json(body))
        return json.dumps(body, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def parse(text: str) -> Manifest:
    """The manifest in a text.

    Raises:
        ValueError: it is cut off, was changed, or comes from another version of the format; says which.
        NewerFormatError: from a later version.
    """
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(body, dict) or "format" not in body:
        raise ValueError("not a manifest")
    check_format(body["format"], FORMAT)
    checksum = body.pop("checksum", None)
    if checksum != sha256_text(canonical_json(body)):
        raise ValueError("changed after it was written (its checksum does not match)")
    del body["format"]
    body["files"] = tuple(FileRecord(**item) for item in body["files"])
    body["warnings"] = tuple(body["warnings"])
    manifest = Manifest(**body)
    if fingerprint_of(manifest.identity) != manifest.fingerprint:
        raise ValueError("its fingerprint is not that of its identity")
    return manifest


def check_format(found: Any, known: int) -> None:
    """What was written in ``found`` can be read by who knows ``known``.

    Raises:
        NewerFormatError: it is a later format.
        ValueError: it is none.
    """
    if found == known:
        return
    message = f"format {found!r}; this version of cohyde reads format {known}"
    raise (NewerFormatError if isinstance(found, int) and found > known else ValueError)(message)


@functools.cache
def library_versions() -> dict[str, str]:
    """Versions of Python and of the installed :data:`LIBRARIES`, without importing any."""
    return {"python": platform.python_version(), **dict(_installed(LIBRARIES))}


def _installed(names: Iterable[str]) -> list[tuple[str, str]]:
    found = []
    for name in names:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_revision(folder: Path) -> str | None:
    """Revision of the checkout that a folder belongs to; None outside of one or without git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
