"""An engine's end: killed at work, or at work when the process is killed that asked for it."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cohyde.config import RewriterConfig
from cohyde.dag.processes import is_alive
from cohyde.progress import Silent
from cohyde.rewriter.generate import open_generator
from tests.with_vllm.dying import GREEDY, REQUESTS

pytestmark = pytest.mark.vllm
PATIENCE = 60.0


def gone(pid: int) -> bool:
    """Whether a process has ended, after a while at the latest."""
    end = time.monotonic() + PATIENCE
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_alive(pid)


def test_a_killed_engine_is_replaced_and_no_engine_outlives_who_asked_for_it(llama: Path) -> None:
    with open_generator(llama, RewriterConfig(backend="transformers", precision="float32")) as ours:
        expected = [item.texts[0] for item in ours.generate(REQUESTS, GREEDY, Silent())]
    command = [sys.executable, "-m", "tests.with_vllm.dying", str(llama)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        messages = map(json.loads, asking.stdout)
        try:
            killed = next(messages)
            assert killed["unfinished"] == len(REQUESTS)
            failed = next(message for message in messages if "error" in message)
            assert failed == {
                "error": "vLLM's process was ended by signal 9; what it said is in the log",
                "left": None,
            }
            assert not is_alive(killed["killed"])
            replaced = next(messages)
            assert replaced["texts"] == expected
            # More prompts than are read in one step: none is read in parts, which would end the engine on a CPU.
            sampled = next(messages)
            assert sampled["there"] == sampled["back"] and len({text for item in sampled["there"] for text in item}) > 4
            assert next(messages) == {"at_work": True} and is_alive(replaced["engine"])
        finally:
            asking.kill()
    assert gone(replaced["engine"])
