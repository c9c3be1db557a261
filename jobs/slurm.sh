#!/usr/bin/env bash
# The paper's experiment on H200 nodes of a Slurm cluster.
# Usage: COHYDE_STORE=/shared/store sbatch jobs/slurm.sh /shared/toolbench [key=value …]
#
# A node of eight GPUs takes eight workers of the preset toolbench-h200 (8 CPUs, 1 GPU, 64 GiB each) and a light stage
# (4 CPUs, 32 GiB). What generates spreads over all GPUs, of several nodes too (sbatch --nodes=4); training takes one or
# two. A smaller share of a node: sbatch --cpus-per-task=20 --gpus-per-node=h200:2 --mem=168G
# Two minutes before the time limit the stages write checkpoints, and the job puts itself into the queue again.
#SBATCH --job-name=cohyde
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=68
#SBATCH --gpus-per-node=h200:8
#SBATCH --mem=552G
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=cohyde-%j.log
set -euo pipefail

data=${1:?give the folder of the dataset on the shared file system}
shift
: "${COHYDE_STORE:?set it to the folder of the store on the shared file system}"
cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}"
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
gpus=${SLURM_GPUS_ON_NODE:?the job has no GPUs}
stages_memory=$(((gpus * 64 + 32) * 1024 ** 3))
object_store=$((1024 ** 3)) # only paths travel through Ray

export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$("$python" -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
port=$((20000 + SLURM_JOB_ID % 10000))
address=$head:$port

ray_on() { # node, then the arguments that tell a head from the others
  local node=$1
  shift
  srun --nodes=1 --ntasks=1 --nodelist="$node" "$python" -m ray.scripts.scripts start --block --disable-usage-stats \
    --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="$gpus" \
    --memory="$stages_memory" --object-store-memory="$object_store" "$@" &
}

ray_on "$head" --head --port="$port" --include-dashboard=false
for node in "${nodes[@]:1}"; do
  ray_on "$node" --address="$address"
done

timeout 300 "$python" - "$address" "${#nodes[@]}" <<'WAIT'
import sys
import time

import ray

address, wanted = sys.argv[1], int(sys.argv[2])
while True:
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        break
    except ConnectionError:
        time.sleep(2)
while sum(node["Alive"] for node in ray.nodes()) < wanted:
    time.sleep(2)
WAIT

"$python" -m cohyde run --config toolbench-h200 --rounds 3 --name "h200" --address "$address" \
  runner.grace_seconds=90 "resources.generation.workers=$((gpus * ${#nodes[@]}))" "data.path=$data" "$@" &
driver=$!
told=
trap 'told=yes; kill -TERM "$driver"' TERM
status=0
wait "$driver" || status=$?
while kill -0 "$driver" 2>/dev/null; do # the signal has ended the waiting, not the run
  status=0
  wait "$driver" || status=$?
done
if [ -n "$told" ] && [ "$status" -ne 0 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
