"""BM25 over rendered tools, by bm25s: the sparse floor that dense retrieval is measured against."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cohyde.catalog import Tool, render
from cohyde.evaluation.results import Ranking

if TYPE_CHECKING:
    from cohyde.config import Bm25Config


class Bm25Index:
    """Lucene's variant of BM25 (Robertson et al. 1994; Kamphuis et al. 2020) over a catalogue under one rendering.

    Words are runs of two or more letters, digits and underscores, in lower case. bm25s leaves the order of ties open,
    so here all scores are computed and ordered by (score down, catalogue position up).
    """

    def __init__(self, tools: Sequence[Tool], form: int, config: "Bm25Config") -> None:
        """Index the tools, in catalogue order.

        Args:
            tools: at least one.
            form: rendering φ that is indexed.
            config: k1, b and whether function words count.
        """
        import bm25s

        self._tool_ids = [tool.id for tool in tools]
        self._stop_words = "en" if config.stop_words else []
        self._model = bm25s.BM25(k1=config.k1, b=config.b, method="lucene")
        words = self._words([render(tool, form) for tool in tools])
        self._known: Collection[str] = {word for own in words for word in own}
        if self._known:  # bm25s refuses a catalogue without a word
            self._model.index(words, show_progress=False)

    def __len__(self) -> int:
        """Tools in the index."""
        return len(self._tool_ids)

    def rank(self, texts: Sequence[str], depth: int) -> list[Ranking]:
        """For each text at most ``depth`` tools with their scores, best first, ties in catalogue order.

        A tool that shares no word with the text is not found, so a list may be short or empty.
        """
        return [self._best(words, depth) for words in self._words(texts)]

    def _words(self, texts: Sequence[str]) -> list[list[str]]:
        import bm25s

        words: list[list[str]] = bm25s.tokenize(
            list(texts), stopwords=self._stop_words, return_ids=False, show_progress=False
        )
        return words

    def _best(self, words: Sequence[str], depth: int) -> Ranking:
        known = [word for word in words if word in self._known]
        if not known:
            return []
        scores: np.ndarray[Any, Any] = self._model.get_scores(known)
        found = np.flatnonzero(scores > 0)
        if len(found) > depth:
            # No tool below the depth-th best score can be among the best; those that tie with it are ordered below.
            least = np.partition(scores[found], len(found) - depth)[len(found) - depth]
            found = found[scores[found] >= least]
        best = found[np.lexsort((found, -scores[found]))][:depth]
        return [(self._tool_ids[place], float(scores[place])) for place in best]
