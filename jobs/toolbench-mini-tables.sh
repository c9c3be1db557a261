#!/usr/bin/env bash
# README.md's main table and ablation table of toolbench-mini, one round on a part of it, on two CPU cores: an hour.
# Usage: jobs/toolbench-mini-tables.sh FOLDER   (a dataset folder: catalog.jsonl, queries.jsonl, vague.jsonl)
set -euo pipefail
folder=$(realpath "${1:?give the folder of the dataset}")
cd "$(dirname "$0")/.."
make setup
settings=(
  --config toolbench-mini --rounds 1 "data.path=$folder"
  data.tools=800 data.train_queries=400 encoder.train.epochs=1 retrain.queries=96 sft.max_steps=30 preferences.queries=16
  evaluation.standard_sample=30 evaluation.vague_sample=30 evaluation.dev_sample=24 evaluation.full_at_end=false
)
.venv/bin/cohyde eval baselines "${settings[@]}"
.venv/bin/cohyde eval ablations "${settings[@]}" \
  --only no-warm-up,one-rendering,query-rewrite,untrained-encoder,untrained-rewriter,search-description
