"""What a search gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cohyde.catalog import Tool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The tools for one request, best first, and how they were found."""

    query: str
    """The request as it was given."""
    description: str
    """What the rewriter wrote, cleaned; empty where it had no part in the answer."""
    rewritten: bool
    """Whether the rewriter had a part in it. If not, the encoder alone has answered, from the request."""
    reason: str | None = None
    """Why it had none."""
    tools: tuple[tuple[Tool, float], ...]
    """Tools with their inner products."""
    timings: Mapping[str, float]
    """Seconds by step."""

    def to_json(self) -> dict[str, Any]:
        """As ``cohyde search --json`` prints it and ``POST /search`` answers."""
        return {
            "query": self.query,
            "description": self.description,
            "rewritten": self.rewritten,
            "reason": self.reason,
            "tools": [
                {"id": tool.id, "score": score, "rank": rank} for rank, (tool, score) in enumerate(self.tools, start=1)
            ],
            "timings": dict(self.timings),
        }
