"""Tiny models with random weights and real shapes: an encoder and a rewriter that build in seconds, without a download.

They learn little, but every code path that a large model takes, they take too: CLS pooling and normalisation, a chat
template with thinking, layers of linear attention beside full attention, tied embeddings, two end-of-text tokens.
"""

import json
import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cohyde.catalog import query_from_row, render_full, tool_from_row
from cohyde.errors import UserError
from cohyde.filesystem import cache_root
from cohyde.io import canonical_json, read_rows, sha256_text
from cohyde.models.cache import build_once
from cohyde.resources import sample_folder

VERSION = 2
"""Raised when a builder changes: folders and fingerprints of older ones are then not taken for its own."""
SEED = 20240
HIDDEN = 64
BERT_WORDS = 2500
BPE_TOKENS = 1500
CONTEXT_WEIGHT = 3
"""Factor on what attention adds in the tiny rewriter: without it, its text would hang on the last token alone."""

CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- if message.role not in ['system', 'user', 'assistant'] %}
{{- raise_exception('Unexpected role ' ~ message.role) }}
{%- endif %}
{%- if message.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}
{%- endif %}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- else %}
{{- '<think>\\n' }}
{%- endif %}
{%- endif %}"""


def sample_texts() -> list[str]:
    """The embedded sample's tools and requests: what the tiny models' vocabularies are made from."""
    folder = sample_folder()
    tools = [render_full(tool_from_row(row)) for row in read_rows(folder / "catalog.jsonl")]
    return tools + [query_from_row(row).text for row in read_rows(folder / "queries.jsonl")]


def tiny_identity(name: str, texts: Sequence[str] | None = None) -> str:
    """Identity of a tiny model: builder, version and the texts that it is made from. Builds nothing."""
    _builder(name)
    return f"tiny:{name}@{VERSION}:{_texts_sha256(sample_texts() if texts is None else texts)}"


def tiny_folder(name: str, texts: Sequence[str] | None = None) -> Path:
    """The folder of the tiny model ``bert`` or ``qwen3_5``, built on first use.

    Args:
        name: which one.
        texts: what its vocabulary is made from; None takes the embedded sample.

    Raises:
        UserError: there is no such tiny model.
    """
    build = _builder(name)
    corpus = sample_texts() if texts is None else list(texts)
    target = cache_root() / "models" / f"tiny-{name}-{VERSION}-{_texts_sha256(corpus)}"
    return build_once(target, lambda out: build(corpus, out))


def _builder(name: str) -> Any:
    if name not in BUILDERS:
        raise UserError(f"there is no tiny model {name!r}", f"tiny models are: {', '.join(sorted(BUILDERS))}")
    return BUILDERS[name]


def _texts_sha256(texts: Sequence[str]) -> str:
    return sha256_text(canonical_json(list(texts)))[:16]


# ---------------------------------------------------------------------------------------------------- encoder


def build_bert(texts: Sequence[str], out: Path) -> None:
    """A BERT of two layers, saved as a sentence-transformers folder with CLS pooling and normalisation."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel

    tokenizer = _wordpiece_tokenizer(texts)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=512,
        initializer_range=0.1,  # larger than BERT's 0.02: with two layers, texts would else hardly differ
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        BertModel(config).save_pretrained(out)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(out)
    modules = [Transformer(str(out), max_seq_length=256), Pooling(HIDDEN, "cls"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(out), create_model_card=False)


def _wordpiece_tokenizer(texts: Sequence[str]) -> Any:
    """WordPiece over the commonest words, with single characters for the rest.

    The vocabulary is counted here: the trainer of ``tokenizers`` numbers WordPiece characters in an order that changes
    from run to run.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import BertTokenizer

    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    words = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    characters = sorted(set("".join(words)) | set(string.ascii_lowercase + string.digits))
    common = sorted(words, key=lambda word: (-words[word], word))[:BERT_WORDS]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = dict.fromkeys([*special, *characters, *(f"##{character}" for character in characters), *common])
    vocabulary = {token: position for position, token in enumerate(tokens)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer, backend.decoder = normalizer, splitter, decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    return BertTokenizer(tokenizer_object=backend, vocab=vocabulary, model_max_length=512)


# --------------------------------------------------------------------------------------------------- rewriter


def build_qwen3_5(texts: Sequence[str], out: Path) -> None:
    """A Qwen3.5 of four layers: three of linear attention, one of full attention."""
    import torch
    from transformers import GenerationConfig, Qwen3_5ForCausalLM, Qwen3_5TextConfig

    tokenizer = _bpe_tokenizer(texts)
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    config = Qwen3_5TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        max_position_embeddings=4096,
        initializer_range=0.05,
        tie_word_embeddings=True,
        eos_token_id=ends[0],
        pad_token_id=ends[1],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = Qwen3_5ForCausalLM(config)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("out_proj.weight", "o_proj.weight")):
                weight.mul_(CONTEXT_WEIGHT)
    # Sampling defaults as real Qwen folders have them: nothing here may ever use them.
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=ends, pad_token_id=ends[1], do_sample=True, temperature=0.6, top_p=0.95, top_k=20
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _bpe_tokenizer(texts: Sequence[str]) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import AddedToken, Qwen3_5Tokenizer

    # The model's own class brings normaliser and splitting, so that the folder loads the same everywhere.
    plain = Qwen3_5Tokenizer().backend_tokenizer
    backend = Tokenizer(models.BPE())
    backend.normalizer, backend.pre_tokenizer = normalizers.NFC(), plain.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_TOKENS, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    trained = json.loads(backend.to_str())["model"]
    merges: Any = [tuple(merge) for merge in trained["merges"]]
    tokenizer = Qwen3_5Tokenizer(
        vocab=trained["vocab"], merges=merges, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


BUILDERS = {"bert": build_bert, "qwen3_5": build_qwen3_5}
