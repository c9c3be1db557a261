"""What is imported, and when: planning and asking for help load none of the heavy libraries."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {
    "accelerate",
    "bm25s",
    "datasets",
    "faiss",
    "fastapi",
    "matplotlib",
    "mcp",
    "openai",
    "pandas",
    "peft",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "ray",
    "scipy",
    "sentence_transformers",
    "sklearn",
    "torch",
    "transformers",
    "trl",
    "uvicorn",
    "vllm",
}
PLAN = "from cohyde.config import load_config; from stages.pipeline import pipeline; pipeline(load_config('tiny'))"


def heavy_after(code: str) -> set[str]:
    """The heavy libraries that a fresh interpreter has loaded after running some code."""
    report = "import sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import cohyde",
        "import cohyde.catalog, cohyde.config, cohyde.io, cohyde.errors, cohyde.progress, cohyde.resources",
        "import cohyde.data.dataset, cohyde.data.split",
        "import cohyde.data.importing, cohyde.data.exporting, cohyde.data.queries, cohyde.data.vague",
        "import cohyde.rewriter.chat, cohyde.rewriter.openai_endpoint",
        "import cohyde.dag",
        "import cohyde.models.reference",
        "import cohyde.rewriter.generate, cohyde.rewriter.prompts",
        "import cohyde.retriever, cohyde.retrieval.live, cohyde.retrieval.rewriters",
        "import cohyde.cli",
        "import stages.pipeline",
        "from cohyde.config import load_config; load_config('demo', ['rounds=1'])",
        PLAN,
    ],
)
def test_nothing_heavy_is_imported(code):
    assert heavy_after(code) == set()


def test_the_check_sees_what_is_imported_inside_a_function():
    assert heavy_after("import importlib; importlib.import_module('faiss')") >= {"faiss"}


def test_help_needs_nothing_heavy():
    code = """
import sys
from cohyde.cli import main
sys.argv[1:] = ["--help"]
try:
    main()
except SystemExit as leaving:
    assert not leaving.code
"""
    assert heavy_after(code) == set()
