#!/usr/bin/env bash
# The demo's table in README.md: three rounds on the embedded sample, on two CPU cores.
set -euo pipefail
cd "$(dirname "$0")/.."
make run
