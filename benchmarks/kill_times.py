"""Measures how long a job of two processes takes to end after one of them has failed.

    python benchmarks/kill_times.py [--launcher mpirun] [--events SIGKILL exception ...]

For each event and each victim it prints the seconds until both processes have ended, their exit
codes, and the last line of each. An `exception` is raised in the victim; the others are signals.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.records.scenes import write_scenes

_EVENTS = {"exception": signal.SIGUSR1} | {
    number.name: number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
}
_PARTS = Path(__file__).parents[1] / "tests" / "one_box.py"
# Each process writes its number; SIGUSR1 raises an exception.
_FAILING = """
import os, pathlib, signal, sys
def fail(*_):
    raise RuntimeError("an exception of this benchmark")
signal.signal(signal.SIGUSR1, fail)
if "--process" in sys.argv:
    index = sys.argv[sys.argv.index("--process") + 1]
else:
    index = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("SLURM_PROCID"))
pathlib.Path(__file__).with_name(f"pid-{index}").write_text(str(os.getpid()))
"""
_SETTINGS = (
    "model.kind=one_box",
    "model.num_classes=6",
    "model.resizer={height: 64, width: 64}",
    *("train.steps=100000", "train.batch_size=4", "train.checkpoint_every=20", "data.workers=1"),
    *("evaluation.batch_size=4", "train.log_every=1000"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launcher", default="", help="a command such as mpirun; default: none")
    parser.add_argument("--events", nargs="+", choices=_EVENTS, default=list(_EVENTS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_scenes(Path(folder), train=10, val=6, seed=14)
        print("| event | victim | seconds | exit codes | last lines |\n|---|---|---|---|---|")
        for event in arguments.events:
            for victim in (0, 1):
                seconds, ends = _measure(Path(folder), arguments.launcher, event, victim)
                codes, lines = zip(*ends, strict=True)
                said = " / ".join(f"`{line[-150:]}`" for line in lines)
                print(f"| {event} | {victim} | {seconds:.1f} | {codes} | {said} |", flush=True)


def _measure(
    folder: Path, launcher: str, event: str, victim: int
) -> tuple[float, list[tuple[int, str]]]:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    (folder / "failing.py").write_text(_FAILING)
    processes = _start(folder, run, launcher)
    try:
        while not (is_model_directory(run) and ModelDirectory.open(run).steps()):
            time.sleep(0.1)
            for process in processes:
                assert process.poll() is None, process.communicate()
        pid = int((folder / f"pid-{victim}").read_text())
        os.kill(pid, _EVENTS[event])
        began = time.monotonic()
        # A stopped process does not end by itself.
        left = [process for process in processes if event != "SIGSTOP" or process.pid != pid]
        for process in left:
            process.wait(400)
        seconds = time.monotonic() - began
    finally:
        for process in processes:
            process.kill()
    said = [process.communicate()[0].strip().splitlines()[-1:] for process in processes]
    lines = [" ".join(line) for line in said]
    return seconds, [
        (process.returncode, line) for process, line in zip(processes, lines, strict=True)
    ]


def _start(folder: Path, run: Path, launcher: str) -> list[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "stillbox.cli.main", "train", "demo_scenes"]
    words += ["--model-dir", str(run), "--import", str(_PARTS)]
    words += ["--import", str(folder / "failing.py")]
    settings = (
        *_SETTINGS,
        f"data.train.paths={folder}/train.record-*",
        f"data.evaluation.paths={folder}/val.record-*",
        f"data.train.label_map={folder}/label_map.pbtxt",
        f"data.evaluation.label_map={folder}/label_map.pbtxt",
    )
    words += [word for setting in settings for word in ("--set", setting)]
    if launcher:
        commands = [[*launcher.split(), "-n", "2", *words]]
    else:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{listener.getsockname()[1]}"
        flags = ["--coordinator", place, "--processes", "2", "--process"]
        commands = [[*words, *flags, str(index)] for index in (0, 1)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen(command, **pipes) for command in commands]


if __name__ == "__main__":
    main()
