"""S4p.r: score each candidate by what it retrieves under θr+1, and pick (chosen, rejected)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cohyde.catalog import Dataset
from cohyde.config import EmbeddingConfig, PreferencesConfig
from cohyde.data.dataset import read_dataset
from cohyde.executor import AtHand, Row
from cohyde.io import read_rows, sha256_file, write_jsonl
from cohyde.progress import Progress
from cohyde.rewriter.preferences import REWARD_DEPTH, REWARDS, Reward, ScoredCandidates, preference_pairs
from cohyde.shards import in_shards
from stages.declaration import Stage
from stages.folders import CANDIDATES, ENCODER_FOLDER, PAIRS


@dataclass(frozen=True, kw_only=True)
class PairsConfig:
    """The slice of S4p."""

    encoder: EmbeddingConfig
    preferences: PreferencesConfig


SHARD = 256
"""Queries whose rewards are kept together: at the paper's scale some seconds of embedding."""


def run(inputs: Mapping[str, Path], config: PairsConfig, out_dir: Path, progress: Progress) -> dict[str, float]:
    """Write ``pairs.jsonl`` and ``rewards.jsonl``; a round in which all candidates tie writes no pair and says so."""
    dataset, _ = read_dataset(inputs["data"])
    rows = read_rows(inputs["candidates"] / CANDIDATES)
    progress.log(f"scoring {sum(len(row['candidates']) for row in rows)} candidates of {len(rows)} queries")
    work = _scorer(inputs["encoder"] / ENCODER_FOLDER, dataset, config)
    key = [sha256_file(inputs["candidates"] / CANDIDATES), config.preferences.reward]
    rewards = in_shards(rows, SHARD, work, key, progress, "queries scored")
    scored = [
        ScoredCandidates(
            id=row["id"],
            prompt=row["prompt"],
            raw=tuple(candidate["raw"] for candidate in row["candidates"]),
            tokens=tuple(candidate["tokens"] for candidate in row["candidates"]),
            finished=tuple(candidate["finished"] for candidate in row["candidates"]),
            rewards=tuple(own["rewards"]),
        )
        for row, own in zip(rows, rewards, strict=True)
    ]
    pairs, metrics = preference_pairs(scored, config.preferences.pick, config.preferences.max_pairs)
    write_jsonl(out_dir / PAIRS, pairs)
    write_jsonl(out_dir / "rewards.jsonl", ({"id": item.id, "rewards": list(item.rewards)} for item in scored))
    if not pairs:
        progress.warn("all candidates tie under this reward: there is no pair, and the rewriter stays as it is")
    return {**metrics, "pairs_kept": len(pairs)}


def _scorer(encoder: Path, dataset: Dataset, config: PairsConfig) -> AtHand[Row]:
    """What gives each query's candidates their rewards; the encoder is loaded when the first of them asks."""
    from cohyde.encoder.retriever import DenseRetriever

    retriever = cache(lambda: DenseRetriever.build(encoder, dataset.tools, config.encoder))
    gold = {query.id: query.tools for query in dataset.train}
    reward = REWARDS[config.preferences.reward]

    def score(rows: Sequence[Row], progress: Progress) -> list[Row]:
        texts = [candidate["text"] for row in rows for candidate in row["candidates"]]
        ranked = iter(retriever().rank_texts([text or "-" for text in texts], REWARD_DEPTH))
        return [
            {"rewards": [_worth(own["text"], next(ranked), gold[row["id"]], reward) for own in row["candidates"]]}
            for row in rows
        ]

    return AtHand(score)


def _worth(text: str, ranked: Sequence[tuple[str, float]], gold: Sequence[str], reward: Reward) -> float:
    """A candidate that is empty after cleaning is worth nothing, so that it is never chosen."""
    return reward([tool for tool, _ in ranked], gold) if text else 0.0


STAGE = Stage(
    kind="preference pairs",
    entry="stages.preference_pairs:run",
    version="2",
    needs=("data", "candidates", "encoder"),
    reserves="encoder",
)
