"""Trains on a Ray of several raylets and kills workers or raylets; run as a program.

`python -m tests.scaling.ray_kills FOLDER RECORDS WORKERS STEPS SIGNALS`, with `w` for a worker that
is killed, `-` for a raylet that is removed and `+` for one that is added, prints as JSON how the
run in FOLDER ended. RECORDS is a folder that `write_scenes` has filled. WORKERS is a number or two
of them, or a slice v6e:4x4, with four devices of a processor as the chips of each machine.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.evaluation.history import HISTORY, read_history
from tests.small import small_overrides

PARTS = Path(__file__).parents[1] / "one_box.py"
# A detector that is compiled in no time.
CHANGES = (
    "train.batch_size=48",
    "train.log_every=10",
    "train.summary_every=1",
    "train.checkpoint_every=50",
    "train.optimizer={kind: momentum, schedule: {kind: constant, learning_rate: 0.01}}",
    "model.kind=one_box",
    "model.num_classes=6",
    "model.resizer={height: 64, width: 64}",
    "data.workers=1",
)
# Python that starts `stillbox train` with Ray looking for changes of the cluster more often.
PROGRAM = (
    "import sys; from stillbox.scaling import ray_train; ray_train._RESIZE_SECONDS = 10.0; "
    "from stillbox.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


def start_cluster(machines: int, slices: int = 0):
    """Returns a cluster on this machine, of so many raylets with a processor each.

    The machines of `slices` slices v6e:4x4 are more of them. Ray takes them for TPUs by their
    resources and labels.
    """
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for _ in range(machines):
        cluster.add_node(num_cpus=1, include_dashboard=False)
    # Not in their order, as on real machines.
    for machine in [2, 0, 3, 1] * slices:
        name = f"slice-{len(cluster.list_all_nodes()) // 4}"
        facts = {"tpu-slice-name": name, "tpu-worker-id": str(machine), "tpu-pod-type": "v6e-16"}
        cluster.add_node(
            num_cpus=1,
            resources={"TPU": 4, "accelerator_type:TPU-V6E": 1}
            | ({"TPU-v6e-16-head": 1} if machine == 0 else {}),
            labels={f"ray.io/{key}": value for key, value in facts.items()},
            env_vars={"TPU_NAME": name, "TPU_WORKER_ID": str(machine)},
        )
    cluster.wait_for_nodes()
    return cluster


def flags_of_devices(number: int) -> str:
    """Returns `XLA_FLAGS` for so many devices of a process."""
    before = os.environ.get("XLA_FLAGS", "")
    return f"{before} --xla_force_host_platform_device_count={number}"


def command(records: Path, directory: Path, steps: int, *engine: str) -> list[str]:
    """Returns the command that trains, with `engine` as its last words."""
    changes = small_overrides(records, *CHANGES, f"train.steps={steps}", evaluated=False)
    changes = [text for text in changes if not text.startswith("model.") or text in CHANGES]
    words = [word for change in changes for word in ("--set", change)]
    start = [sys.executable, "-c", PROGRAM, "train", "demo_scenes"]
    return [*start, "--model-dir", str(directory), "--import", str(PARTS), *words, *engine]


def workers_of(cluster) -> list[int]:
    """Returns the ids of the processes that train."""
    raylets = {node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()}
    workers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if parent in raylets and b"RayTrainWorker" in title:
            workers.append(int(folder.name))
    return workers


def newest(directory: Path) -> int:
    """Returns the step of the newest checkpoint."""
    there = is_model_directory(directory)
    return (ModelDirectory.open(directory).latest_step() or 0) if there else 0


def main() -> None:
    """Runs, disturbs, and prints."""
    folder, records, workers, steps, signals = sys.argv[1:6]
    directory = Path(folder) / f"run-{os.getpid()}"
    if workers.startswith("v6e"):
        os.environ |= {"XLA_FLAGS": flags_of_devices(4), "JAX_PLATFORMS": "cpu"}
        cluster, number = start_cluster(1, slices=1), "--slice"
    else:
        cluster, number = start_cluster(int(workers.rpartition(":")[2])), "--workers"
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    engine = ("--engine", "ray", number, workers)
    words = command(Path(records), directory, int(steps), *engine)
    log = Path(f"{directory}.log")
    disturbances, began = [], time.monotonic()
    chance = random.Random(len(signals))
    with log.open("w") as output:
        process = subprocess.Popen(words, env=environment, stdout=output, stderr=output)
        try:
            for letter in signals:
                before = newest(directory)
                while newest(directory) <= before and process.poll() is None:
                    time.sleep(0.1)
                time.sleep(chance.uniform(0, 3))
                if process.poll() is not None:
                    break
                disturbances.append((letter, newest(directory), round(time.monotonic() - began, 1)))
                if letter == "w":
                    os.kill(chance.choice(workers_of(cluster)), signal.SIGKILL)
                elif letter == "-":
                    cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
                else:
                    cluster.add_node(num_cpus=1)
            code = process.wait(timeout=3000)
        finally:
            process.kill()
    seconds = time.monotonic() - began
    training = read_history(directory / HISTORY).training
    result = {
        "code": code,
        "seconds": round(seconds, 1),
        "disturbances": disturbances,
        "steps": [line["step"] for line in training],
        "newest": newest(directory),
        "losses": [line["loss"] for line in training],
        "said": log.read_text()[-6000:],
    }
    print(json.dumps(result))
    cluster.shutdown()


if __name__ == "__main__":
    main()
