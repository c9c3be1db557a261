"""S4p.r: score each candidate by what it retrieves under θr+1, and pick (chosen, rejected)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cohyde.config import EmbeddingConfig, PreferencesConfig
from cohyde.data.dataset import read_dataset
from cohyde.io import read_rows, write_jsonl
from cohyde.progress import Progress
from cohyde.rewriter.preferences import REWARD_DEPTH, REWARDS, Reward, ScoredCandidates, preference_pairs
from stages.declaration import Stage
from stages.folders import CANDIDATES, ENCODER_FOLDER, PAIRS


@dataclass(frozen=True, kw_only=True)
class PairsConfig:
    """The slice of S4p."""

    encoder: EmbeddingConfig
    preferences: PreferencesConfig


def run(inputs: Mapping[str, Path], config: PairsConfig, out_dir: Path, progress: Progress) -> dict[str, float]:
    """Write ``pairs.jsonl`` and ``rewards.jsonl``; a round in which all candidates tie writes no pair and says so."""
    from cohyde.encoder.retriever import DenseRetriever

    dataset, _ = read_dataset(inputs["data"])
    gold = {query.id: query.tools for query in dataset.train}
    rows = read_rows(inputs["candidates"] / CANDIDATES)
    retriever = DenseRetriever.build(inputs["encoder"] / ENCODER_FOLDER, dataset.tools, config.encoder)
    texts = [candidate["text"] for row in rows for candidate in row["candidates"]]
    progress.log(f"scoring {len(texts)} candidates of {len(rows)} queries")
    ranked = iter(retriever.rank_texts([text or "-" for text in texts], REWARD_DEPTH))
    reward = REWARDS[config.preferences.reward]
    scored = []
    for row in rows:
        candidates = row["candidates"]
        rewards = [_worth(candidate["text"], next(ranked), gold[row["id"]], reward) for candidate in candidates]
        scored.append(
            ScoredCandidates(
                id=row["id"],
                prompt=row["prompt"],
                raw=tuple(candidate["raw"] for candidate in candidates),
                tokens=tuple(candidate["tokens"] for candidate in candidates),
                finished=tuple(candidate["finished"] for candidate in candidates),
                rewards=tuple(rewards),
            )
        )
    pairs, metrics = preference_pairs(scored, config.preferences.pick, config.preferences.max_pairs)
    write_jsonl(out_dir / PAIRS, pairs)
    write_jsonl(out_dir / "rewards.jsonl", ({"id": item.id, "rewards": list(item.rewards)} for item in scored))
    if not pairs:
        progress.warn("all candidates tie under this reward: there is no pair, and the rewriter stays as it is")
    return {**metrics, "pairs_kept": len(pairs)}


def _worth(text: str, ranked: Sequence[tuple[str, float]], gold: Sequence[str], reward: Reward) -> float:
    """A candidate that is empty after cleaning is worth nothing, so that it is never chosen."""
    return reward([tool for tool, _ in ranked], gold) if text else 0.0


STAGE = Stage(
    kind="preference pairs",
    entry="stages.preference_pairs:run",
    version="1",
    needs=("data", "candidates", "encoder"),
    reserves="encoder",
)
