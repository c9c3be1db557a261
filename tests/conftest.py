"""Fixtures that all tests share: a cache folder of the session's own, and the tiny models in it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cohyde.dag.store import Store
from cohyde.models.reference import resolve


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Ctrl-C reaches the processes that tests start, even where the tests themselves run in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def cohyde_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder for this session, so that no test writes to the home folder.

    ``COHYDE_CACHE``, where it is set, is kept: its converted models are then reused from session to session.
    """
    given = os.environ.get("COHYDE_CACHE")
    folder = Path(given) if given else tmp_path_factory.mktemp("cohyde-cache")
    os.environ["COHYDE_CACHE"] = str(folder)
    yield folder
    if given is None:
        del os.environ["COHYDE_CACHE"]


@pytest.fixture(scope="session")
def tiny_encoder_path(cohyde_cache: Path) -> Path:
    """A sentence-transformers folder of two BERT layers, 64 dimensions, CLS pooling."""
    return resolve("tiny:bert")


@pytest.fixture(scope="session")
def tiny_rewriter_path(cohyde_cache: Path) -> Path:
    """A Qwen3.5 folder of four layers (three linear, one full attention) with a chat template that can think."""
    return resolve("tiny:qwen3_5")


@pytest.fixture(scope="session")
def finished_store(cohyde_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with the finished run ``tiny`` of no rounds, that tests read and do not change."""
    from finished_runs import FINISHED, finish

    return finish(tmp_path_factory.mktemp("finished") / "store", "tiny", FINISHED)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The public data sets that may lie beside a checkout; tests that need them are left out where they don't."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no public data sets beside this checkout")
    return folder
