"""Six kills at random moments of the tiny pipeline; ``tests/chaos.py --kills 60`` makes more."""

from pathlib import Path

import pytest
from chaos import chaos

pytestmark = pytest.mark.slow


def test_a_run_that_is_killed_anywhere_gives_the_same_bytes(
    tmp_path: Path, tiny_encoder_path: Path, tiny_rewriter_path: Path
) -> None:
    outcome = chaos(tmp_path, kills=6, seed=3)
    assert outcome.kills.total() == 6 and outcome.artifacts >= 12
    assert outcome.differences == []
