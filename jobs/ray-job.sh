#!/usr/bin/env bash
# The paper's experiment as a job of a Ray cluster of H200 machines that runs already, sent from this checkout.
# Usage: jobs/ray-job.sh http://HEAD:8265 STORE DATA [key=value …]
# STORE and DATA are folders of a file system that every machine of the cluster sees. The cluster's token is in
# RAY_AUTH_TOKEN or ~/.ray/auth_token. Running it again goes on with what is missing.
set -euo pipefail
address=${1:?give the address of the dashboard, http://HOST:8265}
store=${2:?give the folder of the store on the shared file system}
data=${3:?give the folder of the dataset on the shared file system}
shift 3
cd "$(dirname "$0")/.."
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
exec "${PYTHON:-.venv/bin/python}" -m cohyde submit --address "$address" -- \
  run --config toolbench-h200 --rounds 3 --name h200 --store "$store" "data.path=$data" "$@"
