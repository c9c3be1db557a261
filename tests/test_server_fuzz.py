"""What a fuzzer makes of the server's OpenAPI document: whatever it sends, the answer is one that the document has."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from test_server import Site, make_retriever, serving

load_all_checks()
# A request that only a person would call blank (white space, characters that show nothing) fits the document's schema.
TOO_STRICT = [CHECKS.get_one("positive_data_acceptance")]
OPERATIONS = {"POST /search", "GET /tools", "PUT /tools", "DELETE /tools", "GET /healthz", "GET /metrics"}


@pytest.fixture(scope="module")
def fuzzed(tiny_encoder_path: Path) -> Iterator[Site]:
    with serving(make_retriever(tiny_encoder_path)) as site:
        yield site


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
def test_whatever_is_sent_the_answer_is_documented_and_the_server_lives_on(fuzzed: Site, mode: GenerationMode) -> None:
    document = schemathesis.openapi.from_url(f"http://127.0.0.1:{fuzzed.port}/openapi.json")
    sent = set()
    for found in document.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=6, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: schemathesis.Case) -> None:
            case.call_and_validate(excluded_checks=TOO_STRICT)
            assert fuzzed.lives()
            sent.add(case.operation.label)

        if mode.is_positive or operation.body or any(True for _ in operation.iter_parameters()):
            send()
    assert sent >= (OPERATIONS if mode.is_positive else {"POST /search", "PUT /tools"})
