#!/usr/bin/env bash
# The toolbench-mini table in README.md: three rounds on 2,490 real APIs, on two CPU cores.
# Usage: jobs/toolbench-mini.sh FOLDER   (a dataset folder: catalog.jsonl, queries.jsonl, vague.jsonl)
set -euo pipefail
folder=$(realpath "${1:?give the folder of the dataset}")
cd "$(dirname "$0")/.."
make setup
.venv/bin/cohyde run --config toolbench-mini --rounds 3 "data.path=$folder"
