#!/usr/bin/env bash
# README.md's main table and ablation table of the demo, on two CPU cores: an hour or two each. Half of the first is
# iterative refinement. Left out of the second: SFT of 1,000 and 5,000 steps, many hours for a rewriter on a CPU.
set -euo pipefail
cd "$(dirname "$0")/.."
make setup
.venv/bin/cohyde eval baselines --config demo
.venv/bin/cohyde eval ablations --config demo --rounds 1 --only "$(paste -sd, - <<'NAMES'
no-warm-up
one-rendering
description-anchors
mixed-anchors
query-rewrite
sft-100
untrained-encoder
untrained-rewriter
search-description
rounds-2
rounds-4
NAMES
)"
