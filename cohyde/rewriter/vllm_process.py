"""What runs in the engine's process: it reads requests from one pipe, and writes tokens and errors to another.

Started by :class:`cohyde.rewriter.vllm_backend.Engine` alone. A thread reads the pipe all the time: when it is closed,
because the parent is done or dead, an idle engine is shut down, and one at work ends at once with all that it started.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MEMORY_SECONDS = 120.0
"""How long a GPU's memory is waited for: what a killed process held is free only a moment later."""


def main(source: int, target: int) -> None:
    """Serve until the pipe ``source`` is closed."""
    incoming: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_read, args=(source, incoming, busy), daemon=True).start()

    def tell(**message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(target, data) :]

    engine = None
    try:
        engine = _start((incoming.get() or {})["engine"])
        busy.clear()
        tell(ready=True)
        while (message := incoming.get()) is not None:
            written = _generate(engine, message["asked"], message["parameters"], tell)
            busy.clear()
            tell(written=written)
    except Cannot as error:
        tell(error=str(error), remedy=error.remedy)
    except Exception as error:
        traceback.print_exc()
        tell(error="".join(traceback.format_exception_only(error)).strip())
    finally:
        if engine is not None:
            engine.engine_core.shutdown()
        sys.stderr.flush()
        _end()


class Cannot(Exception):
    """What the user can mend."""

    def __init__(self, message: str, remedy: str) -> None:
        """With what to do about it."""
        super().__init__(message)
        self.remedy = remedy


def _read(source: int, incoming: "queue.SimpleQueue[dict[str, Any] | None]", busy: threading.Event) -> None:
    """Pass messages on, and None at the pipe's end; an engine at work does not look, so it is ended here."""
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            busy.set()
            incoming.put(json.loads(line))
    incoming.put(None)
    if busy.is_set():
        _end()


def _end() -> None:
    """End this process and its group. Memory of a GPU is the driver's to free, and it does so at the process's end."""
    os.killpg(os.getpid(), signal.SIGKILL)


def _start(settings: Mapping[str, Any]) -> Any:
    import torch

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        wait_for_memory(settings["gpu_memory_utilization"], torch.cuda.mem_get_info)
    from vllm import LLM

    # When a prompt is read in parts, vLLM winds the request's random numbers back, which a CPU's cannot be: it dies
    # ("CPU Generator does not use offset").
    return LLM(**settings, **({} if on_gpu else {"enable_chunked_prefill": False})).llm_engine


def wait_for_memory(
    share: float, look: Callable[[], tuple[int, int]], patience: float = MEMORY_SECONDS, pause: float = 1.0
) -> None:
    """Wait until the share of a GPU's memory that the engine takes is free.

    Args:
        share: of the whole.
        look: gives the free and the whole memory in bytes, as ``torch.cuda.mem_get_info``.
        patience: seconds.
        pause: seconds between two looks.

    Raises:
        Cannot: something else holds it.
    """
    end = time.monotonic() + patience
    while True:
        free, whole = look()
        if free >= share * whole:
            return
        if time.monotonic() >= end:
            raise Cannot(
                f"the GPU has {free / 2**30:.1f} of {whole / 2**30:.1f} GiB free, and the engine takes {share:.0%}",
                "end what else uses it (nvidia-smi shows that), or lower rewriter.vllm.gpu_memory_utilization",
            )
        time.sleep(pause)


def _generate(
    engine: Any, asked: Sequence[Any], parameters: Mapping[str, Any], tell: Callable[..., None]
) -> list[list[list[int]]]:
    """Token ids of every request's completions, in the order of the requests."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    for place, (prompt, seed) in enumerate(asked):
        each = SamplingParams(**parameters, seed=seed, output_kind=RequestOutputKind.FINAL_ONLY)
        engine.add_request(str(place), {"prompt_token_ids": prompt}, each)
    written: dict[int, list[list[int]]] = {}
    said = 0.0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                parts = sorted(output.outputs, key=lambda part: part.index)
                written[int(output.request_id)] = [list(part.token_ids) for part in parts]
        if time.monotonic() - said > 0.5:
            said = time.monotonic()
            tell(done=len(written), of=len(asked))
    return [written[place] for place in range(len(asked))]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
