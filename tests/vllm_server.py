"""A ``vllm serve`` of this machine, for tests and benchmarks.

It is started by its module: the command asks for the version of a package that is called ``vllm``, and the CPU build is
called otherwise.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 900


@contextmanager
def vllm_server(model: Path, name: str, longest: int, sequences: int, *more: str) -> Iterator[str]:
    """Serve a model on a free port of 127.0.0.1, in float32, with further arguments; yields the base URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", name]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(longest), "--max-num-seqs", str(sequences), "--generation-config", "vllm"]
    # On a CPU: a seeded request whose prompt is read in parts ends the engine; and the model is in the engine's process
    # rather than in a third that waits busily for it.
    command += ["--no-enable-chunked-prefill", "--distributed-executor-backend", "uni", *more]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    with tempfile.TemporaryFile("w+b") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            end = time.monotonic() + START_SECONDS
            while not _answers(f"http://127.0.0.1:{port}/health"):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise RuntimeError(f"vllm serve did not come up:\n{log.read().decode(errors='replace')[-3000:]}")
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False
