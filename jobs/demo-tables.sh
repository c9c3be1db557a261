#!/usr/bin/env bash
# README.md's main table and ablation table of the demo, on two CPU cores: an hour or two each. Half of the first is
# iterative refinement. The second leaves out those with S1c; without --only they are there too.
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
untrained-encoder
untrained-rewriter
search-description
rounds-2
rounds-4
NAMES
)"
