"""``cohyde serve`` under load: latency by the number of clients, and memory over many requests.

Run: ``python tests/benchmarks/serving.py`` (encoder alone), or with ``--rewriter`` for both models.
The server is a process of its own; the clients are threads of this one, on the same machine. The models are the
preset's as they are before training, over the catalogue of the embedded sample; every request is another one, so no
description is known already.
"""

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from cohyde.config import load_config
from cohyde.data.dataset import read_dataset
from cohyde.models.reference import resolve
from cohyde.resources import sample_folder
from cohyde.retrieval.live import SEARCHES_BY_REQUEST, LiveRetriever
from cohyde.retrieval.trained import Trained
from cohyde.rewriter.examples import few_shot_examples
from cohyde.rewriter.prompts import load_prompt
from cohyde.server.app import make_app
from cohyde.server.http import listen, serve_http

CLIENTS = (1, 8, 32)
PERCENTILES = (50, 95, 99)
LISTENING = "listening on "


def serve(preset: str, mode: str) -> None:
    """Answer until SIGTERM; the port is told on standard output."""
    config, (dataset, _) = load_config(preset), read_dataset(sample_folder())
    trained = Trained(
        name="benchmark",
        state="",
        encoder=resolve(config.encoder.model),
        rewriter=resolve(config.rewriter.model) if mode != SEARCHES_BY_REQUEST else Path(),
        tools=dataset.tools,
        embedding=config.encoder.embedding(),
        rewriting=config.rewriter,
        sampling=config.describe,
        prompt=load_prompt(config.rewriter.prompt),
        examples=tuple(few_shot_examples(dataset, config.rewriter.few_shot, config.data.split_seed)),
        search=replace(config.search, mode=mode),
    )
    own = listen("127.0.0.1", 0)
    with LiveRetriever.open(trained, limits=trained.serve) as retriever:
        print(f"{LISTENING}{own.getsockname()[1]}", flush=True)
        serve_http(make_app(retriever), own, trained.serve)


class Load:
    """Requests of some clients, each with a connection of its own that stays open."""

    def __init__(self, port: int) -> None:
        dataset, _ = read_dataset(sample_folder())
        self.port = port
        self.texts = [query.text for query in (*dataset.train, *dataset.eval)]
        self.sent = 0
        self.lock = threading.Lock()

    def run(self, clients: int, requests: int) -> tuple[list[float], float]:
        """Seconds of each request, and of all together."""
        seconds: list[float] = []
        left = [requests]
        threads = [threading.Thread(target=self._client, args=(left, seconds)) for _ in range(clients)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(seconds) != requests:
            raise SystemExit(f"only {len(seconds)} of {requests} requests were answered")
        return seconds, time.perf_counter() - started

    def _client(self, left: list[int], seconds: list[float]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        while (text := self._next(left)) is not None:
            began = time.perf_counter()
            body = json.dumps({"query": text, "k": 5})
            connection.request("POST", "/search", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                return
            seconds.append(time.perf_counter() - began)

    def _next(self, left: list[int]) -> str | None:
        with self.lock:
            if not left[0]:
                return None
            left[0] -= 1
            self.sent += 1
            return f"{self.texts[self.sent % len(self.texts)]} ({self.sent})"


def measure(preset: str, mode: str, counts: dict[int, int], long_run: int) -> dict[str, Any]:
    """Latency by number of clients; and memory after 1,000 requests and after ``long_run``."""
    command = [sys.executable, __file__, "--preset", preset, "--serve", mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = next(int(line.removeprefix(LISTENING)) for line in server.stdout if line.startswith(LISTENING))
            load, memory = Load(port), psutil.Process(server.pid).memory_info
            load.run(1, 3)  # what is done once is done
            rows = []
            for clients, requests in counts.items():
                seconds, whole = load.run(clients, requests)
                quantiles = dict(zip(PERCENTILES, np.percentile(seconds, PERCENTILES).tolist(), strict=True))
                rows.append({"clients": clients, "requests": requests, "rate": requests / whole, "seconds": quantiles})
                print_row(mode, rows[-1])
            found: dict[str, Any] = {"mode": mode, "latency": rows}
            if long_run:
                load.run(8, max(0, 1000 - load.sent))
                before, at = memory().rss, load.sent
                load.run(8, long_run - load.sent)
                found["memory"] = {str(at): before, str(load.sent): memory().rss}
                print(f"memory in MB: {before / 1e6:.1f} after {at:,} requests, ", file=sys.stderr, end="")
                print(f"{memory().rss / 1e6:.1f} after {load.sent:,}", file=sys.stderr)
            return found
        finally:
            server.terminate()


def print_row(mode: str, row: dict[str, Any]) -> None:
    """One line of the table, as soon as it is known."""
    shown = "  ".join(f"{row['seconds'][p] * 1000:9.1f}" for p in PERCENTILES)
    print(f"{mode:12} {row['clients']:7} {row['requests']:8}  {shown}  {row['rate']:8.1f}", file=sys.stderr)


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="demo", help="whose models; tiny's are random, and fast")
    parser.add_argument("--rewriter", action="store_true", help="with the rewriter, too")
    parser.add_argument("--requests", type=int, default=300, help="of each number of clients, with the encoder alone")
    parser.add_argument("--rewritten", type=int, default=2, help="of each client, with the rewriter")
    parser.add_argument("--long", type=int, default=10_000, help="requests after which memory is looked at; 0: not")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", metavar="MODE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.preset, arguments.serve)
        return
    heads = "  ".join(f"p{p} in ms".rjust(9) for p in PERCENTILES)
    print(f"{'searched':12} {'clients':>7} {'requests':>8}  {heads}  requests/s", file=sys.stderr)
    found = [measure(arguments.preset, SEARCHES_BY_REQUEST, dict.fromkeys(CLIENTS, arguments.requests), arguments.long)]
    if arguments.rewriter:
        found.append(measure(arguments.preset, "concatenated", {n: n * arguments.rewritten for n in CLIENTS}, 0))
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
