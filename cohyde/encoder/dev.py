"""What checkpoints of an encoder are compared by: NDCG@5 of the dev texts over the whole catalogue."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sentence_transformers import SentenceTransformer

from cohyde.catalog import Tool, render
from cohyde.config import EncoderConfig
from cohyde.encoder.index import ExactIndex
from cohyde.encoder.model import embed
from cohyde.encoder.pairs import Side
from cohyde.encoder.search import rank
from cohyde.encoder.tokens import Tokeniser
from cohyde.evaluation.metrics import QueryScore, ndcg_at, summarise

DEV_METRIC = "dev_ndcg@5"
DEV_CUTOFF = 5


@dataclass(frozen=True, kw_only=True)
class DevSet:
    """What checkpoints are selected on: n texts, each with its gold tool ids (at least one) and its tier."""

    texts: tuple[str, ...]
    gold: tuple[frozenset[str], ...]
    tiers: tuple[str, ...]

    def __post_init__(self) -> None:
        if not len(self.texts) == len(self.gold) == len(self.tiers):
            raise ValueError(
                f"dev set: {len(self.texts)} texts, {len(self.gold)} gold sets and {len(self.tiers)} tiers; "
                "each text needs one of both"
            )
        if not self.texts:
            raise ValueError("dev set: there is no text; give None to train without selection")


class DevEvaluation:
    """Asked time and again while an encoder changes: every text is tokenised once, and encoded at each evaluation."""

    def __init__(
        self,
        model: SentenceTransformer,
        dev: DevSet,
        tools: Sequence[Tool],
        config: EncoderConfig,
        tokens: Tokeniser | None = None,
    ) -> None:
        """Get ready to evaluate ``model`` as it will be.

        Args:
            model: what :func:`cohyde.encoder.model.load_encoder` gives.
            dev: texts with their gold tools.
            tools: the catalogue, in its order; searched in ``config.index_form``.
            config: of the encoder.
            tokens: of the training, which has read many of these texts already; None: of this evaluation's own.
        """
        self._model, self._dev, self._tokens = model, dev, tokens or Tokeniser(model)
        self._batch_size = config.embed_batch_size
        self._ids = [tool.id for tool in tools]
        self._texts = [render(tool, config.index_form) for tool in tools]

    def ndcg(self) -> float:
        """The mean over tiers, in [0, 1], of the model as it is now, without dropout and in float32."""
        index = ExactIndex(self._embedded(self._texts, "document"))
        ranked = rank(index, self._embedded(self._dev.texts, "query"), self._ids, DEV_CUTOFF)
        rows = [
            QueryScore(
                id=str(number), tier=tier, values={DEV_METRIC: ndcg_at([tool for tool, _ in best], gold, DEV_CUTOFF)}
            )
            for number, (best, gold, tier) in enumerate(zip(ranked, self._dev.gold, self._dev.tiers, strict=True))
        ]
        return summarise(rows).mean_over_tiers.values[DEV_METRIC]

    def _embedded(self, texts: Sequence[str], side: Side) -> np.ndarray:
        return embed(self._model, texts, self._batch_size, side, self._tokens)


def dev_ndcg(model: SentenceTransformer, dev: DevSet, tools: Sequence[Tool], config: EncoderConfig) -> float:
    """NDCG@5 of the dev texts over the catalogue, once; see :class:`DevEvaluation`."""
    return DevEvaluation(model, dev, tools, config).ndcg()
