"""CoHyDE: co-training of a dense encoder and an LLM rewriter for tool retrieval."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cohyde.retriever import Retriever

__version__ = "0.1.0"
__all__ = ["Retriever", "__version__"]


def __getattr__(name: str) -> Any:
    """What is imported when it is asked for, so that ``import cohyde`` is instant."""
    if name == "Retriever":
        from cohyde.retriever import Retriever

        return Retriever
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
