"""A process that generates with vLLM and tells of it in lines of JSON; a test kills it in the end.

Run: ``python -m tests.with_vllm.dying FOLDER``. It kills its first engine at work; the second is at work when it ends.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from cohyde.config import RewriterConfig, SamplingConfig, VllmConfig
from cohyde.progress import Silent
from cohyde.rewriter.generate import Request, open_generator
from cohyde.rewriter.vllm_backend import VllmGenerator

ENGINE = VllmConfig(enforce_eager=True, cpu_cache_gib=1, max_model_len=2560, max_sequences=32)
CONFIG = RewriterConfig(backend="vllm", precision="float32", vllm=ENGINE)
GREEDY = SamplingConfig(max_new_tokens=16)
SAMPLED = SamplingConfig(n=2, temperature=0.7, top_p=0.95, top_k=50, max_new_tokens=8)
REQUESTS = [Request(id=str(place), prompt=f"{place} degrees", seed=place) for place in range(4)]
LONG = [Request(id=str(place), prompt=f"{place} degrees".ljust(300, "!"), seed=place) for place in range(24)]
"""More tokens, of a byte each, than one step of the engine reads: 32 sequences of 300, two of a prompt sharing 256."""


class AtWork(Silent):
    """Does something each time the engine says how far it is: it does so from its first step on."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def update(self, done: float, total: float, what: str = "") -> None:
        self.act(done, total)


def tell(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def main(folder: Path) -> None:
    with open_generator(folder, CONFIG) as generator:
        assert isinstance(generator, VllmGenerator)

        def kill(done: float, total: float) -> None:
            assert generator.engine_pid is not None
            tell(killed=generator.engine_pid, unfinished=total - done)
            os.kill(generator.engine_pid, signal.SIGKILL)

        try:
            generator.generate(REQUESTS, GREEDY, AtWork(kill))
        except RuntimeError as error:
            tell(error=str(error), left=generator.engine_pid)
        done = generator.generate(REQUESTS, GREEDY, Silent())
        tell(engine=generator.engine_pid, texts=[item.texts[0] for item in done])
        there, back = (generator.generate(asked, SAMPLED, Silent()) for asked in (LONG, LONG[::-1]))
        tell(there=[item.texts for item in there], back=[item.texts for item in back[::-1]])
        generator.generate(REQUESTS, SamplingConfig(max_new_tokens=2000), AtWork(lambda *_: tell(at_work=True)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
