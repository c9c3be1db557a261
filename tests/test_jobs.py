"""What a person submits: scripts that a shell takes, manifests by their schemas, and the preset's resources in each."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from cohyde.cli_submit import parsed
from cohyde.config import AllResourcesConfig, load_config

ROOT = Path(__file__).resolve().parent.parent
JOBS = ROOT / "jobs"
SCRIPTS = sorted(JOBS.glob("*.sh"))
GIB = 1024**3
OBJECT_STORE = GIB


@pytest.fixture(scope="module")
def preset() -> AllResourcesConfig:
    return load_config("toolbench-h200").resources


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_one_that_a_shell_takes(script: Path) -> None:
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n#") and "set -euo pipefail" in text and os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", script], check=True)


def command_lines(text: str) -> list[list[str]]:
    """The `run` command lines of a script or an entrypoint, shell variables and all."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [
        line.replace('"', "").replace(" * ", "*").split()
        for line in re.findall(r"(?<=[ ])run (--config [^&\n]*)", joined)
    ]


@pytest.mark.parametrize("name", ["ray-job.sh", "slurm.sh", "kuberay-rayjob.yaml"])
def test_the_command_is_one_that_cohyde_takes(name: str) -> None:
    text = (JOBS / name).read_text()
    if name.endswith(".yaml"):
        text = yaml.safe_load(text)["spec"]["entrypoint"]
    [arguments] = command_lines(text)
    assert name != "slurm.sh" or "resources.generation.workers=$((gpus*${#nodes[@]}))" in arguments
    said = [re.sub(r"=\$\(\(.*\)\)$", "=8", one) for one in arguments if one != "$@"]
    given = parsed("run", [re.sub(r"\$\w+", "/shared/x", one) for one in said])
    assert (given["config"], given["rounds"], given["name"]) == ("toolbench-h200", 3, "h200")
    load_config(given["config"], given["overrides"])


# ----------------------------------------------------------------------------------------------------- Slurm

DIRECTIVES = {
    "job-name", "nodes", "ntasks-per-node", "cpus-per-task", "gpus-per-node", "mem", "time", "signal", "requeue",
    "open-mode", "output",
}  # fmt: skip


def directives() -> dict[str, str]:
    lines = re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", (JOBS / "slurm.sh").read_text(), re.M)
    assert len(lines) == (JOBS / "slurm.sh").read_text().count("#SBATCH")
    return dict(lines)


def test_sbatch_reads_the_directives() -> None:
    said = directives()
    assert set(said) == DIRECTIVES
    # sbatch stops reading at the first command
    text = (JOBS / "slurm.sh").read_text()
    assert text.rindex("#SBATCH") < text.index("\nset ")
    assert re.fullmatch(r"\d+:\d\d:\d\d", said["time"])
    assert said["signal"] == "B:TERM@120"  # to the script alone, which passes it on
    assert (said["ntasks-per-node"], said["open-mode"]) == ("1", "append")


def test_a_slurm_node_takes_eight_workers_and_a_light_stage(preset: AllResourcesConfig) -> None:
    said = directives()
    for stage in (preset.encoder, preset.training, preset.generation):
        assert (stage.cpus, stage.gpus, stage.memory_gib) == (8, 1, 64)
    workers = preset.generation.workers
    assert said["gpus-per-node"] == f"h200:{workers * preset.generation.gpus:g}"
    assert int(said["cpus-per-task"]) == workers * preset.generation.cpus + preset.light.cpus
    wanted = workers * preset.generation.memory_gib + preset.light.memory_gib
    assert "stages_memory=$(((gpus * 64 + 32) * 1024 ** 3))" in (JOBS / "slurm.sh").read_text()
    assert wanted + OBJECT_STORE / GIB < int(said["mem"].removesuffix("G")) <= wanted + 8


def test_the_grace_ends_before_slurms_patience() -> None:
    grace = re.search(r"runner.grace_seconds=(\d+)", (JOBS / "slurm.sh").read_text())
    assert grace and int(grace[1]) < int(directives()["signal"].partition("@")[2])


# -------------------------------------------------------------------------------------------------- Kubernetes

RAY_JOB = {
    "activeDeadlineSeconds", "backoffLimit", "rayClusterSpec", "submitterPodTemplate", "metadata", "clusterSelector",
    "submitterConfig", "managedBy", "deletionStrategy", "entrypoint", "runtimeEnvYAML", "jobId", "submissionMode",
    "entrypointResources", "entrypointNumCpus", "entrypointNumGpus", "ttlSecondsAfterFinished",
    "shutdownAfterJobFinishes", "suspend",
}  # fmt: skip
RAY_CLUSTER = {
    "headGroupSpec", "workerGroupSpecs", "rayVersion", "authOptions", "enableInTreeAutoscaling", "autoscalerOptions",
    "headServiceAnnotations", "suspend", "gcsFaultToleranceOptions", "managedBy",
}  # fmt: skip
HEAD_GROUP = {"serviceType", "headService", "enableIngress", "rayStartParams", "template"}
WORKER_GROUP = {
    "groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template", "scaleStrategy",
    "suspend", "idleTimeoutSeconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return yaml.safe_load((JOBS / "kuberay-rayjob.yaml").read_text())


def test_the_manifest_has_kuberays_fields_and_no_others(manifest: dict[str, Any]) -> None:
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    spec, cluster = manifest["spec"], manifest["spec"]["rayClusterSpec"]
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"} and set(spec) <= RAY_JOB
    assert set(cluster) <= RAY_CLUSTER and set(cluster["headGroupSpec"]) <= HEAD_GROUP
    assert all(
        {"groupName", "minReplicas", "maxReplicas"} <= set(group) <= WORKER_GROUP
        for group in cluster["workerGroupSpecs"]
    )
    assert cluster["authOptions"] == {"mode": "token"}
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    constraints = (ROOT / "constraints.txt").read_text()
    assert f"ray=={cluster['rayVersion']}\n" in constraints


def pods(manifest: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, str]]]:
    cluster = manifest["spec"]["rayClusterSpec"]
    return [
        (group["template"], group["rayStartParams"])
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    ]


def test_the_pods_are_kubernetes_pods(manifest: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for template, _ in pods(manifest):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, **template}
        validate.validate(pod, "1.31", strict=True)


def test_pods_have_what_the_presets_stages_reserve(manifest: dict[str, Any], preset: AllResourcesConfig) -> None:
    (head, head_start), (worker, worker_start) = pods(manifest)
    for stage in (preset.encoder, preset.training, preset.generation):
        check_pod(worker, worker_start, cpus=stage.cpus, gpus=stage.gpus, memory=stage.memory_gib)
    check_pod(head, head_start, cpus=preset.light.cpus, gpus=preset.light.gpus, memory=preset.light.memory_gib)
    assert manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == preset.generation.workers


def check_pod(template: dict[str, Any], start: dict[str, str], *, cpus: float, gpus: float, memory: float) -> None:
    [container] = template["spec"]["containers"]
    limits = container["resources"]["limits"]
    assert container["resources"]["requests"] == limits
    assert (float(start["num-cpus"]), float(start["num-gpus"])) == (cpus, gpus)
    assert (float(limits["cpu"]), float(limits.get("nvidia.com/gpu", 0))) == (cpus, gpus)
    # Ray leaves to stages what the pod has, less the object store and what is in use when it starts: some GiB.
    assert int(start["object-store-memory"]) == OBJECT_STORE
    assert memory + 4 <= int(limits["memory"].removesuffix("Gi"))


# ----------------------------------------------------------------------------------------- the script, for real

SRUN = """#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/usr/bin/env bash
case "$1" in
  show) echo 127.0.0.1 ;;
  requeue) echo "requeue $2" >> "$SAID" ;;
esac
"""
PYTHON = """#!/usr/bin/env bash
arguments=()
for one in "$@"; do
  case "$one" in
    toolbench-h200) one=tiny ;;
    --num-gpus=*|--memory=*) continue ;;
    data.path=*) one=data.path=sample ;;
  esac
  arguments+=("$one")
done
exec "$REAL_PYTHON" "${arguments[@]}"
"""


@pytest.fixture
def allocation(tmp_path: Path) -> dict[str, str]:
    """What Slurm gives a job, with the commands of Slurm's that it calls, and the preset for tests."""
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "python": PYTHON}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHON": str(tmp_path / "python"),
        "PYTHONPATH": str(ROOT),
        "REAL_PYTHON": sys.executable,
        "SAID": str(tmp_path / "said"),
        "COHYDE_STORE": str(tmp_path / "store"),
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_JOB_NODELIST": "node[1]",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_GPUS_ON_NODE": "2",
    }


@pytest.mark.slow
def test_slurms_signal_makes_the_run_stop_and_the_job_queue_again_and_the_next_one_goes_on(
    allocation: dict[str, str], tmp_path: Path
) -> None:
    command = ["bash", str(JOBS / "slurm.sh"), "/shared/toolbench", "rounds=1"]
    with (tmp_path / "log").open("w+") as log:
        job = subprocess.Popen(command, env=allocation, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for(tmp_path / "log", "S1a", job)
            job.send_signal(signal.SIGTERM)  # to the script alone, as `B:` says
            assert job.wait(timeout=150) == 130
        finally:
            end_all(job)
    assert (tmp_path / "said").read_text() == f"requeue {os.getpid()}\n"
    finished = set((tmp_path / "store").glob("*-*/manifest.json"))
    assert any(path.parent.name.startswith("data-") for path in finished)

    with (tmp_path / "log").open("w+") as log:
        job = subprocess.Popen(command, env=allocation, stdout=log, stderr=log, start_new_session=True)
        try:
            assert job.wait(timeout=420) == 0, (tmp_path / "log").read_text()
        finally:
            end_all(job)
    assert (tmp_path / "said").read_text() == f"requeue {os.getpid()}\n"
    assert finished < set((tmp_path / "store").glob("*-*/manifest.json"))


def wait_for(log: Path, text: str, job: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 180
    while text not in log.read_text():
        assert job.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def end_all(job: "subprocess.Popen[bytes]") -> None:
    """As Slurm does when the script has ended: nothing of its session stays."""
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == job.pid:
                process.kill()
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
