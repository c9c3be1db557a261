"""What the server counts, in Prometheus's text format."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from cohyde.retrieval.live import LiveRetriever

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATHS = frozenset({"/search", "/tools", "/mcp", "/healthz", "/metrics", "/docs", "/openapi.json"})
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counters of one server."""

    def __init__(self, retriever: LiveRetriever) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("cohyde_requests", "Requests answered", ["path", "status"], registry=self.registry)
        self.seconds = Histogram(
            "cohyde_request_seconds", "Seconds to answer a request", ["path"], buckets=SECONDS, registry=self.registry
        )
        self.answers = Counter(
            "cohyde_answers", "Searches answered, with or without the rewriter", ["rewritten"], registry=self.registry
        )
        self.in_work = Gauge("cohyde_requests_in_work", "Requests in work", registry=self.registry)
        self.registry.register(_OfRetriever(retriever))

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answer; what clients ask for that is not there is one kind."""
        known = path if path in PATHS else "other"
        self.requests.labels(known, str(status)).inc()
        self.seconds.labels(known).observe(seconds)

    def text(self) -> bytes:
        """All of them, as they are now."""
        return generate_latest(self.registry)


class _OfRetriever:
    """What the retriever counts by itself, read when it is asked for."""

    def __init__(self, retriever: LiveRetriever) -> None:
        self._retriever = retriever

    def collect(self) -> Iterator[Any]:
        """The metrics, as they are now."""
        retriever = self._retriever
        snapshot = retriever.catalog.current
        yield GaugeMetricFamily("cohyde_tools", "Tools in the catalogue", len(snapshot.tools))
        yield CounterMetricFamily("cohyde_catalog_changes", "Changes of the catalogue", snapshot.version)
        batches = CounterMetricFamily("cohyde_batches", "Calls of a model", labels=["model"])
        texts = CounterMetricFamily("cohyde_batched_texts", "Texts in these calls", labels=["model"])
        described = retriever.descriptions
        counted = {"encoder": retriever.embedder.sizes} | ({"rewriter": described.batcher.sizes} if described else {})
        for model, sizes in counted.items():
            batches.add_metric([model], sum(sizes.values()))
            texts.add_metric([model], sum(size * count for size, count in list(sizes.items())))
        yield batches
        yield texts
        if described is not None:
            cache = described.cache
            yield GaugeMetricFamily("cohyde_descriptions_cached", "Descriptions in the cache", len(cache))
            yield CounterMetricFamily("cohyde_description_cache_hits", "Requests described already", cache.hits)
            yield CounterMetricFamily("cohyde_description_cache_misses", "Requests not described yet", cache.misses)
            resting = float(described.breaker.is_open)
            yield GaugeMetricFamily("cohyde_rewriter_left_alone", "1 while the rewriter is left alone", resting)
