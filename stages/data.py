"""data: validate a dataset folder, take its subset, split off dev."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cohyde.catalog import tiers_of
from cohyde.config import DataConfig
from cohyde.data.dataset import dataset_folder, read_dataset, write_dataset
from cohyde.data.split import limit_queries, split_dataset, subset_tools
from cohyde.progress import Progress
from stages.declaration import Stage


def run(inputs: Mapping[str, Path], config: DataConfig, out_dir: Path, progress: Progress) -> dict[str, float]:
    """Write the dataset that all other stages read; its queries carry their split."""
    dataset, findings = read_dataset(dataset_folder(config.path), drop_invalid=config.drop_invalid)
    for line in findings.lines():
        progress.warn(f"dropped: {line}")
    dataset = replace(dataset, name="data")  # a folder's name is no content: equal data has to give equal bytes
    dataset = limit_queries(dataset, config.train_queries, config.eval_queries, config.split_seed)
    dataset, dropped_gold = subset_tools(dataset, config.tools, config.split_seed)
    if not dataset.dev:
        dataset = split_dataset(dataset, dev=config.dev_fraction, seed=config.split_seed)
    write_dataset(out_dir, dataset, {"tiers": tiers_of([*dataset.train, *dataset.dev, *dataset.eval])})
    return {
        "tools": len(dataset.tools),
        "train_queries": len(dataset.train),
        "dev_queries": len(dataset.dev),
        "eval_queries": len(dataset.eval),
        "vague_queries": len(dataset.vague),
        "dropped_rows": findings.counts.total(),
        "dropped_gold": dropped_gold,
    }


STAGE = Stage(
    kind="data",
    entry="stages.data:run",
    version="3",
    needs=(),
    reserves="light",
)
