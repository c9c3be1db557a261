"""Generation with vLLM's offline engine, in a process of its own: a stage's memory and the engine's never mix.

The engine's process is a child in a process group of its own. It ends when it is told to, when its parent closes the
pipe between the two, and when the parent dies, however that happens: the kernel then closes the pipe. What it starts
itself (with tensor parallelism, a process a GPU) is in its group and goes with it.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from cohyde.config import RewriterConfig, SamplingConfig
from cohyde.errors import Interrupted, UserError
from cohyde.progress import Progress
from cohyde.rewriter.generate import Completion, Request, check_backend_is_here, unwritten, with_room
from cohyde.rewriter.load import declared_stops, load_tokenizer
from cohyde.rewriter.prefix_caching import caches_prefixes
from cohyde.rewriter.prompts import encode_prompt

MODULE = "cohyde.rewriter.vllm_process"
LOOK_SECONDS = 0.5
"""How often it is looked whether the stage shall stop."""
END_SECONDS = 20.0
"""How long the engine's process has to end by itself."""
DTYPES = {"float32": "float32", "bf16": "bfloat16"}


class VllmGenerator:
    """The ``vllm`` backend of :class:`cohyde.rewriter.generate.Generator`.

    The engine starts with the first request: only then is it known how long a sequence may be.
    """

    def __init__(self, path: Path, config: RewriterConfig) -> None:
        """Get ready to generate with the model in a folder.

        Raises:
            UserError: vLLM is not installed, or the folder has no tokenizer.
        """
        check_backend_is_here(config)
        self.path, self.config = path, config
        self.tokenizer = load_tokenizer(path)
        self._engine: Engine | None = None

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig, progress: Progress) -> list[Completion]:
        """Complete every request; the result is in the order of ``requests``.

        Raises:
            UserError: a prompt and its completion are longer than the longest sequence, and ``too_long`` says that
                this is an error; or the engine cannot be started.
            Interrupted: ``progress`` asked to stop.
            RuntimeError: the engine has failed or died.
        """
        prompts = [encode_prompt(self.tokenizer, request.prompt) for request in requests]
        places = with_room(requests, prompts, self._most, sampling, self.config.too_long)
        completions = {place: unwritten(request.id, sampling) for place, request in enumerate(requests)}
        if places:
            asked = [[prompts[place], requests[place].seed] for place in places]
            longest = max(len(prompts[place]) for place in places)
            longest = max(longest, self.config.max_prompt_tokens)
            engine = self._engine_for(longest + sampling.max_new_tokens, progress)
            try:
                written = engine.generate(asked, self._parameters(sampling), progress)
            except BaseException:  # it may be in the middle of anything: the next request gets a new one
                self.close()
                raise
            for place, tokens in zip(places, written, strict=True):
                completions[place] = self._completion(requests[place].id, tokens)
        return [completions[place] for place in range(len(requests))]

    def close(self) -> None:
        """End the engine's process, and wait until it is gone."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    @property
    def engine_pid(self) -> int | None:
        """The number of the engine's process, and of its group, while there is one."""
        return self._engine.pid if self._engine else None

    def _engine_for(self, length: int, progress: Progress) -> "Engine":
        """The engine; a new one where sequences have to be longer than the present one takes."""
        length = min(length, self._most) if self._most else length
        if self._engine is not None and self._engine.length < length:
            self.close()
        if self._engine is None:
            self._engine = Engine(self._settings(length), self.config.vllm.cpu_cache_gib, progress)
        return self._engine

    def _settings(self, length: int) -> dict[str, Any]:
        """Arguments of ``vllm.LLM``."""
        vllm = self.config.vllm
        return {
            "model": str(self.path),
            "skip_tokenizer_init": True,
            "dtype": DTYPES[self.config.precision],
            "load_format": "safetensors",
            "trust_remote_code": False,
            "generation_config": "vllm",  # none of the folder's own: every field is said by us
            "max_model_len": vllm.max_model_len or length,
            "max_num_seqs": vllm.max_sequences,
            "gpu_memory_utilization": vllm.gpu_memory_utilization,
            "enforce_eager": vllm.enforce_eager,
            "enable_prefix_caching": caches_prefixes(self.path, vllm.prefix_caching),
            "tensor_parallel_size": vllm.tensor_parallel_size,
            "distributed_executor_backend": "mp" if vllm.tensor_parallel_size > 1 else "uni",
            "disable_log_stats": True,
            "seed": 0,  # of nothing: each request has its own
        }

    def _parameters(self, sampling: SamplingConfig) -> dict[str, Any]:
        """Arguments of ``vllm.SamplingParams`` but for the seed: all that has a say in the text."""
        return {
            "n": sampling.n,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": sampling.max_new_tokens,
            "min_tokens": 0,
            "stop": [],
            "stop_token_ids": sorted(self._stops),
            "ignore_eos": False,
            "detokenize": False,
        }

    def _completion(self, identifier: str, written: Sequence[Sequence[int]]) -> Completion:
        finished = [bool(tokens) and tokens[-1] in self._stops for tokens in written]
        kept = [tokens[:-1] if ended else tokens for tokens, ended in zip(written, finished, strict=True)]
        return Completion(
            id=identifier,
            texts=tuple(self.tokenizer.decode(list(tokens), skip_special_tokens=True) for tokens in kept),
            tokens=tuple(map(len, kept)),
            finished=tuple(finished),
        )

    @cached_property
    def _declared(self) -> Any:
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(self.path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: no causal language model: {str(error).splitlines()[0]}") from None

    @cached_property
    def _most(self) -> int | None:
        """Tokens of the longest sequence."""
        own = getattr(self._declared.get_text_config(), "max_position_embeddings", None)
        return min((length for length in (own, self.config.vllm.max_model_len) if length), default=None)

    @cached_property
    def _stops(self) -> frozenset[int]:
        from transformers import GenerationConfig

        there = (self.path / "generation_config.json").is_file()
        settings = GenerationConfig.from_pretrained(self.path, local_files_only=True) if there else None
        return declared_stops(settings, self._declared, self.tokenizer)


class Engine:
    """The engine's process, from its start to its end. Messages are lines of JSON, over two pipes."""

    def __init__(self, settings: Mapping[str, Any], cpu_cache_gib: int, progress: Progress) -> None:
        """Start it and wait until the model is loaded.

        Raises:
            UserError: it says what the user can mend.
            Interrupted: ``progress`` asked to stop.
            RuntimeError: it does not start.
        """
        self.length: int = settings["max_model_len"]
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        environment = {
            **os.environ,
            # One process holds engine and model, and no other remains to be ended.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": str(cpu_cache_gib),
            "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
            "VLLM_NO_USAGE_STATS": "1",
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs_in), str(theirs_out)],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what it says is no result
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._unread, self._open = b"", True
        self._answers = select.poll()
        self._answers.register(self._from, select.POLLIN)
        try:
            self._send({"engine": dict(settings)})
            self._receive("ready", progress)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process's number, and that of its group."""
        return self._process.pid

    def generate(
        self, asked: Sequence[Any], parameters: Mapping[str, Any], progress: Progress
    ) -> list[list[list[int]]]:
        """Token ids of each request's completions, stop tokens included. ``asked``: pairs of token ids and seed."""
        self._send({"asked": list(asked), "parameters": dict(parameters)})
        written: list[list[list[int]]] = self._receive("written", progress)
        return written

    def close(self) -> None:
        """Let it end by itself, which frees a GPU's memory best; after a while end it and all that it has started."""
        for end in (self._to, self._from) if self._open else ():
            os.close(end)
        self._open = False
        if self._process.returncode is None:
            patience = time.monotonic() + END_SECONDS
            while not self._has_ended() and time.monotonic() < patience:
                time.sleep(0.02)
            # Not collected yet, so that the group's number is still its own.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def _has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:  # whoever embeds us ignores what becomes of children
            return True

    def _send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except BrokenPipeError:
            self._died()

    def _receive(self, wanted: str, progress: Progress) -> Any:
        """Wait for a message that holds ``wanted``; others say how far it is, or why it cannot be."""
        while True:
            message = self._next(progress)
            if wanted in message:
                return message[wanted]
            if "error" in message:
                raise _error(message)
            progress.update(message["done"], message["of"], "prompts")

    def _next(self, progress: Progress) -> dict[str, Any]:
        while b"\n" not in self._unread:
            if progress.stopping:
                raise Interrupted("asked to stop while vLLM was at work")
            if self._answers.poll(1000 * LOOK_SECONDS):
                data = os.read(self._from, 1 << 20)
                if not data:
                    self._died()
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _died(self) -> None:
        self.close()
        code = self._process.returncode
        how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        raise RuntimeError(f"vLLM's process {how}; what it said is in the log")


def _error(message: Mapping[str, Any]) -> Exception:
    if message.get("remedy"):
        return UserError(message["error"], message["remedy"])
    return RuntimeError(f"vLLM: {message['error']}")
