"""CoHyDE: co-training of a dense encoder and an LLM rewriter for tool retrieval."""

__version__ = "0.1.0"
