"""A run whose rewriter generates with vLLM, an engine of which is killed; and the weights that it leaves."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cohyde.dag.processes import end, is_alive, started_by
from cohyde.dag.session import local_cpus
from cohyde.rewriter.load import load_rewriter
from cohyde.rewriter.prompts import encode_prompt
from cohyde.rewriter.vllm_backend import MODULE

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS = 900
PROJECTIONS = "[q_proj,k_proj,v_proj,o_proj]"
SETTINGS = (
    "rewriter.backend=vllm",
    "rewriter.few_shot=0",
    "rewriter.max_prompt_tokens=3000",  # of a byte each
    "rewriter.vllm.enforce_eager=true",
    "rewriter.vllm.cpu_cache_gib=1",
    "data.train_queries=20",
    "data.eval_queries=6",
    "encoder.train.epochs=1",
    "retrain.queries=8",
    "preferences.queries=12",
    "sft.eval_queries=0",
    *(f"{part}.lora.targets={PROJECTIONS}" for part in ("sft", "instruction", "dpo")),
    # Stage after stage, so that one worker's imports are enough.
    *(f"resources.{part}.cpus={local_cpus()}" for part in ("light", "encoder", "training", "generation")),
)
PROMPT = "Point forecasts of temperature, wind and rain"
LOGPROBS = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
prompt, found = json.loads(sys.argv[1]), []
for folder in sys.argv[2:]:
    model = LLM(model=folder, dtype="float32", enforce_eager=True, max_model_len=512, skip_tokenizer_init=True)
    asked = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
    [output] = model.generate([{"prompt_token_ids": prompt}], asked, use_tqdm=False)
    found.append([at[token].logprob for at, token in zip(output.prompt_logprobs[1:], prompt[1:])])
    model.llm_engine.engine_core.shutdown()
    del model
    cleanup_dist_env_and_memory()
print("LOGPROBS", json.dumps(found))
"""


@dataclass(frozen=True)
class Ended:
    """A run that has ended, and how."""

    command: list[str]
    stages: dict[str, dict[str, Any]]
    errors: str
    killed: int
    left: list[Any]
    """Processes of the run that are there after its end."""


@pytest.fixture(scope="session")
def ended(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One round, whose first engine is killed."""
    folder = tmp_path_factory.mktemp("run")
    command = [sys.executable, "-m", "cohyde", "run", "--config", "tiny", "--rounds", "1", "--json"]
    command += ["--store", str(folder / "store"), f"rewriter.model={llama}", *SETTINGS]
    said = folder / "stderr"
    with said.open("w") as stderr:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT)
    try:
        engine = engine_of(running, said)
        os.kill(engine, 9)
        there = started_by(running.pid)
        output, _ = running.communicate(timeout=RUN_SECONDS)
    finally:
        end(started_by(running.pid))
        running.kill()
    errors = said.read_text(encoding="utf-8")
    assert running.returncode == 0, errors[-3000:]
    stages = {stage["id"]: stage for stage in json.loads(output)["stages"]}
    left = [process for process in there if is_alive(*process)]
    return Ended(command, stages, errors, engine, left)


def engine_of(running: "subprocess.Popen[str]", said: Path) -> int:
    """The first process of vLLM that a run starts."""
    until = time.monotonic() + RUN_SECONDS
    while running.poll() is None and time.monotonic() < until:
        for pid, _ in started_by(running.pid):
            if MODULE in command_of(pid):
                return pid
        time.sleep(0.5)
    raise AssertionError(f"the run has started no engine:\n{said.read_text(encoding='utf-8')[-3000:]}")


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def test_a_run_generates_with_vllm_and_survives_the_death_of_an_engine(ended: Ended) -> None:
    assert "vLLM's process was ended by signal 9" in ended.errors
    assert ended.left == [] and not is_alive(ended.killed)
    assert {stage["state"] for stage in ended.stages.values()} == {"done"}
    for stage_id in ("E.0", "S2.1", "S4s.1", "E.1"):
        written = json.loads((Path(ended.stages[stage_id]["path"]) / "manifest.json").read_text("utf-8"))
        assert written["config"]["rewriter"]["backend"] == "vllm"
    assert ended.stages["S4s.1"]["metrics"]["distinct_share"] > 0.9


def test_the_finished_run_does_nothing_when_it_is_run_again(ended: Ended) -> None:
    manifests = [Path(stage["path"]) / "manifest.json" for stage in ended.stages.values()]
    before = [manifest.stat().st_mtime_ns for manifest in manifests]
    again = subprocess.run(ended.command, capture_output=True, text=True, cwd=ROOT, timeout=RUN_SECONDS)
    assert again.returncode == 0, again.stderr[-3000:]
    assert {stage["id"]: stage for stage in json.loads(again.stdout)["stages"]} == ended.stages
    assert [manifest.stat().st_mtime_ns for manifest in manifests] == before


def test_merged_weights_give_the_log_probabilities_of_transformers(ended: Ended, llama: Path) -> None:
    import torch

    merged = [Path(ended.stages[stage_id]["path"]) / "rewriter" for stage_id in ("S1b", "S4.1")]
    folders = [llama, *merged]
    ours = []
    for folder in folders:
        model, tokenizer = load_rewriter(folder, "float32")
        prompt = encode_prompt(tokenizer, PROMPT)
        with torch.no_grad():
            every = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
        ours.append(every.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0])
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [sys.executable, "-c", LOGPROBS, json.dumps(prompt), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=RUN_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    said = next(line for line in done.stdout.splitlines() if line.startswith("LOGPROBS "))
    theirs = torch.tensor(json.loads(said.removeprefix("LOGPROBS ")))
    torch.testing.assert_close(theirs, torch.stack(ours), atol=1e-4, rtol=0)
    for earlier, later in pairwise(ours):  # what each training has changed is more than that tolerance
        assert (earlier - later).abs().max() > 1e-2
