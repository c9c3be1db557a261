"""Model cards of exported models: what their manifests say, in the form that the Hugging Face hub reads."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohyde import exported
from cohyde.config import Config, EmbeddingConfig, plain
from cohyde.dag.manifest import Manifest
from cohyde.encoder.retriever import FAISS_FILE, IDS_FILE
from cohyde.evaluation.metrics import MEAN_OVER_TIERS
from cohyde.evaluation.results import MetricRow
from cohyde.models.provenance import UNKNOWN, BaseModel

SPDX = re.compile(r"[a-z0-9][a-z0-9.+-]*")
METRIC_NAMES = {"ndcg": "NDCG@5", "recall": "Recall@5", "hit": "Hit@5", "comp": "COMP@5"}
SPLITS = {
    "standard": "evaluation queries as they were written",
    "vague": "vague paraphrases of them",
    "dev": "dev queries, on which checkpoints and rounds are chosen",
}
OF_A_MACHINE = ("resources", "runner", "serve", "tracking")
"""Sections of the configuration that say nothing of the models."""
LIBRARIES = ("cohyde", "torch", "transformers", "sentence-transformers", "trl", "peft", "faiss-cpu")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that the cards say."""

    run: str
    stage: str
    why: str
    config: Config
    encoder_base: BaseModel
    rewriter_base: BaseModel
    data: Mapping[str, str]
    """``name``, ``source`` and ``licence`` of the dataset, as far as its card says them."""
    counts: Mapping[str, int]
    encoder_stage: str
    rewriter_stage: str
    manifests: Sequence[Manifest]
    rows: Sequence[MetricRow]
    """At cutoff 5."""
    rendered_prompt: str

    def manifest(self, stage_id: str) -> Manifest:
        """The record of a stage."""
        return next(manifest for manifest in self.manifests if manifest.id == stage_id)

    @property
    def dataset(self) -> str:
        """The dataset's name."""
        return self.data.get("name", UNKNOWN)


def encoder_card(facts: Facts) -> str:
    """The card of the encoder."""
    config = facts.config.encoder
    head = _front_matter(
        facts,
        facts.encoder_base,
        library="sentence-transformers",
        task="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", "tool-retrieval", "cohyde"],
        result="tool retrieval with the request itself",
        search="query",
    )
    about = f"""\
        # Encoder of the tool retriever {facts.run}

        Maps requests, descriptions and catalogue entries of API tools to unit vectors; the inner product says how well
        they fit. Written by stage `{facts.encoder_stage}` of CoHyDE; evaluated as `{facts.stage}` ({facts.why}).

        ## How to load

        ```python
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer("encoder")
        request = encoder.encode_query("will I get wet on my way home", normalize_embeddings=True)
        tool = encoder.encode_document("Weather. SkyLantern hourly forecast", normalize_embeddings=True)
        print(request @ tool)
        ```

        {_instructions(config)} At most {config.max_length} tokens of a text are read; pooling is `{config.pooling}`
        (`auto`: as in the base model), vectors have length 1{_cut(config)}. Tools are indexed in rendering
        φ{config.index_form} of CoHyDE (φ5: category, name, descriptions, parameters).
    """
    parts = [
        _wrapped(about),
        _origin(facts, facts.encoder_base),
        _training(facts, facts.encoder_stage),
        _results(facts),
        _reproduce(facts),
    ]
    return head + "\n\n".join(parts) + "\n"


def _instructions(config: EmbeddingConfig) -> str:
    if not (config.query_instruction or config.tool_instruction):
        return "No prefix and no instruction: all texts are embedded alike."
    return "Both put an instruction before the text, which lies in the folder as a prompt."


def _cut(config: EmbeddingConfig) -> str:
    return "" if config.dimensions is None else f" and {config.dimensions} dimensions, to which they are cut"


def rewriter_card(facts: Facts) -> str:
    """The card of the rewriter."""
    config = facts.config.describe
    head = _front_matter(
        facts,
        facts.rewriter_base,
        library="transformers",
        task="text-generation",
        tags=["query-rewriting", "hyde", "tool-retrieval", "cohyde"],
        result=f"tool retrieval, searched with: {facts.config.search.mode}",
        search=facts.config.search.mode,
    )
    sampling = "greedy" if config.temperature == 0 else f"temperature {config.temperature}"
    about = f"""\
        # Rewriter of the tool retriever {facts.run}

        Turns a request into a hypothetical catalogue description of the tools that would fulfil it; the encoder beside
        it searches with that. Written by stage `{facts.rewriter_stage}` of CoHyDE; evaluated as `{facts.stage}`
        ({facts.why}). Adapters are merged: these are plain weights.

        ## How to load

        ```python
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained("rewriter")
        model = AutoModelForCausalLM.from_pretrained("rewriter")
        ```

        Decoding: {sampling}, at most {config.max_new_tokens} new tokens, repetition penalty
        {config.repetition_penalty}. Thinking is switched off in the chat template. `{exported.SCRIPT}` in the folder
        above does the whole: prompt, generation, cleaning (`{exported.CLEANING}`), search.

        ## Prompt
    """
    prompt = (
        f"As it is rendered for the request `{{query}}`, examples included (data: `{exported.RECIPE}`, from "
        f"`prompts/{facts.config.rewriter.prompt}.yaml`):"
    )
    parts = [
        _wrapped(about),
        f"{prompt}\n\n{_fenced(facts.rendered_prompt)}",
        _origin(facts, facts.rewriter_base),
        _training(facts, facts.rewriter_stage),
        _results(facts),
        _reproduce(facts),
    ]
    return head + "\n\n".join(parts) + "\n"


def folder_card(facts: Facts) -> str:
    """The card of the whole folder."""
    head = _front_matter(
        facts,
        facts.rewriter_base,
        library="transformers",
        task="",
        tags=["tool-retrieval", "hyde", "cohyde"],
        result=f"tool retrieval, searched with: {facts.config.search.mode}",
        search=facts.config.search.mode,
        bases=[facts.encoder_base, facts.rewriter_base],
    )
    about = f"""\
        # Tool retriever {facts.run}

        From a request in everyday words to the API tools that fulfil it, in a catalogue of
        {facts.counts.get("tools", 0)} tools: a rewriter describes what would fulfil it, an encoder searches the
        catalogue (with: {facts.config.search.mode}). State `{facts.stage}` of a run of CoHyDE: {facts.why}.

        ```console
        $ pip install sentence-transformers transformers faiss-cpu
        $ python {exported.SCRIPT} "will I get wet on my way home" -k 3
        ```

        | what | is |
        | --- | --- |
        | `{exported.ENCODER}/` | a sentence-transformers model |
        | `{exported.REWRITER}/` | a transformers model |
        | `{exported.INDEX}/{FAISS_FILE}` | the catalogue's vectors, a flat inner-product index of FAISS |
        | `{exported.INDEX}/{IDS_FILE}` | the tools' ids in the same order |
        | `{exported.CATALOG}` | the tools, in the same order |
        | `{exported.RECIPE}` | prompt with examples, decoding, what is searched with |
        | `{exported.SCRIPT}`, `{exported.CLEANING}` | an example that needs nothing of CoHyDE |
    """
    parts = [_wrapped(about), _licences(facts), _results(facts), _reproduce(facts)]
    return head + "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------------ front matter


def _front_matter(
    facts: Facts,
    base: BaseModel,
    *,
    library: str,
    task: str,
    tags: Sequence[str],
    result: str,
    search: str,
    bases: Sequence[BaseModel] = (),
) -> str:
    import yaml

    licences = {one.licence for one in bases or (base,)}
    hub = [one.hub for one in bases or (base,) if one.hub]
    data: dict[str, Any] = {
        **_licence_fields(licences.pop() if len(licences) == 1 else UNKNOWN),
        "library_name": library,
        **({"pipeline_tag": task} if task else {}),
        "tags": list(tags),
        **({"base_model": hub} if hub else {}),
    }
    metrics = [
        {
            "task": {"type": "text-retrieval", "name": result},
            "dataset": {"name": f"{facts.dataset} ({row.split})", "type": "tool-retrieval"},
            "metrics": [{"type": "ndcg_at_5", "name": METRIC_NAMES["ndcg"], "value": round(row.value, 6)}],
        }
        for row in facts.rows
        if (row.tier, row.metric, row.search) == (MEAN_OVER_TIERS, "ndcg", search)
    ]
    if metrics:
        data["model-index"] = [{"name": facts.run, "results": metrics}]
    return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---\n\n"


def _licence_fields(licence: str) -> dict[str, str]:
    """The hub's fields for a licence's name: its identifiers are SPDX's in lower case."""
    if SPDX.fullmatch(licence.lower()):
        return {"license": licence.lower()}
    return {"license": "other", "license_name": licence}


# ---------------------------------------------------------------------------------------------------- sections


def _origin(facts: Facts, base: BaseModel) -> str:
    return "\n".join(["## Base model and data", "", *_origin_table(facts, {"base model": base})])


def _licences(facts: Facts) -> str:
    bases = {"encoder's base model": facts.encoder_base, "rewriter's base model": facts.rewriter_base}
    return "\n".join(["## Base models, data, licences", "", *_origin_table(facts, bases)])


def _origin_table(facts: Facts, bases: Mapping[str, BaseModel]) -> list[str]:
    lines = ["| | | licence |", "| --- | --- | --- |"]
    for title, base in bases.items():
        stated = f" ({base.stated})" if base.stated else ""
        lines.append(f"| {title} | {_cell(base.name)} | {_cell(base.licence)}{_cell(stated)} |")
    source = facts.data.get("source")
    named = f"{facts.dataset} ({source})" if source else facts.dataset
    lines.append(f"| data | {_cell(named)} | {_cell(facts.data.get('licence', UNKNOWN))} |")
    counts = ", ".join(f"{count} {name}" for name, count in facts.counts.items())
    note = "What is not known is called unknown. The licences of base model and data are theirs, passed on as stated."
    return [*lines, "", f"Of the data: {counts}." if counts else "", note]


def _training(facts: Facts, stage_id: str) -> str:
    """The chain of stages that trained a model, and the last one's settings."""
    import yaml

    chain = _chain(facts, stage_id)
    lines = ["## Training", "", "| stage | what | fingerprint | seed | minutes |", "| --- | --- | --- | --- | ---: |"]
    for one in chain:
        seed = one.config.get("seed", "") if isinstance(one.config, dict) else ""
        lines.append(f"| {one.id} | {one.kind} | `{one.fingerprint[:16]}` | {seed} | {one.seconds / 60:.1f} |")
    last = chain[-1]
    told = {name: value for name, value in last.metrics.items() if value is not None}
    settings = yaml.safe_dump(_without_places(plain(last.config)), sort_keys=False, allow_unicode=True)
    lines += ["", f"Measured by `{last.id}` itself:", "", _fenced(yaml.safe_dump(told, sort_keys=False), "yaml")]
    lines += ["", f"Settings of `{last.id}`:", "", _fenced(settings, "yaml")]
    return "\n".join(lines)


def _chain(facts: Facts, stage_id: str) -> list[Manifest]:
    """The stages that this model passed through, the first one first."""
    manifest = facts.manifest(stage_id)
    before = [manifest.inputs[name]["id"] for name in ("encoder", "rewriter") if name in manifest.inputs]
    own = [one for one in before if _same_model(one, stage_id)]
    return [*(_chain(facts, own[0]) if own else []), manifest]


def _same_model(stage_id: str, other: str) -> bool:
    """Whether two stages train the same of the two models: S1a and S3 the encoder, S1b, S1c and S4 the rewriter."""
    return (_kind(stage_id) in ("S1a", "S3")) == (_kind(other) in ("S1a", "S3"))


def _kind(stage_id: str) -> str:
    return stage_id.partition(".")[0]


def _results(facts: Facts) -> str:
    present = [metric for metric in METRIC_NAMES if any(row.metric == metric for row in facts.rows)]
    lines = ["## Results", "", f"Of `{facts.stage}`, in %.", ""]
    lines.append("| split | searched with | tier | n | " + " | ".join(METRIC_NAMES[name] for name in present) + " |")
    lines.append("| --- | --- | --- | ---: |" + " ---: |" * len(present))
    groups: dict[tuple[str, str, str], dict[str, MetricRow]] = {}
    for row in facts.rows:
        groups.setdefault((row.split, row.search, row.tier), {})[row.metric] = row
    for (split, search, tier), rows in groups.items():
        values = [f"{100 * rows[name].value:.1f}" if name in rows else "–" for name in present]
        count = next(iter(rows.values())).n
        lines.append("| " + " | ".join([split, search, _cell(tier), str(count), *values]) + " |")
    splits = dict.fromkeys(row.split for row in facts.rows)
    told = "; ".join(f"{split}: {SPLITS[split]}" for split in splits if split in SPLITS)
    return "\n".join([*lines, "", f"{told[:1].upper()}{told[1:]}."]) if told else "\n".join(lines)


def _reproduce(facts: Facts) -> str:
    import yaml

    config, manifest = facts.config, facts.manifest(facts.stage)
    seeds = f"warm-up {config.seeds.warmup}, rounds {config.seeds.loop}, split {config.data.split_seed}"
    versions = ", ".join(f"{name} {manifest.versions[name]}" for name in LIBRARIES if name in manifest.versions)
    settings = {name: value for name, value in _without_places(plain(config)).items() if name not in OF_A_MACHINE}
    return "\n".join(
        [
            "## Configuration, seeds, versions",
            "",
            f"Seeds: {seeds}. Versions: {versions}; Python {manifest.versions.get('python', UNKNOWN)}.",
            "",
            "<details><summary>The run's configuration</summary>",
            "",
            _fenced(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), "yaml"),
            "",
            "</details>",
            "",
            "CoHyDE trains a tool retriever's encoder and rewriter against each other; the fingerprints are those of "
            "its artifact store.",
        ]
    )


# ------------------------------------------------------------------------------------------------------- pieces


def _without_places(value: Any, key: str = "") -> Any:
    """Settings without where things lie or are served: of a local path the last part is kept."""
    if isinstance(value, dict):
        return {name: _without_places(item, name) for name, item in value.items() if name != "endpoint"}
    if key in ("model", "path") and isinstance(value, str) and value.startswith(("/", "~", ".")):
        return value.rstrip("/").rpartition("/")[2]
    return value


def _wrapped(text: str) -> str:
    return textwrap.dedent(text).strip()


def _cell(text: str) -> str:
    """Text that ends no cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _fenced(text: str, language: str = "text") -> str:
    """A code block whose fence the text does not hold."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
