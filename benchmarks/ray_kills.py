"""Kills workers and raylets of a training on Ray at random moments, and prints what was lost.

    python -m benchmarks.ray_kills [--kills 10] [--seed 1] [--steps 1500]
    python -m benchmarks.ray_kills --resize docs/pictures/ray_resize.png [--steps 900]

The first form trains a small SSD with two workers on three raylets. Each kill is SIGKILL; a new
raylet takes the place of a killed one. The second form trains with three workers, then two, then
three, with batch norm per replica, and draws the losses. Both compare the losses with the losses
of an undisturbed run of as many plain processes.
"""

import argparse
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stillbox.evaluation.charts import add_legend, figure_png, label_axes
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.records.scenes import write_scenes
from tests.scaling.ray_kills import PROGRAM, newest, start_cluster, workers_of
from tests.small import small_overrides

_EVERY = 20
_SSD = (
    *("train.batch_size=12", "train.log_every=50", "train.summary_every=1", "data.workers=1"),
    *(f"train.checkpoint_every={_EVERY}", "train.keep_checkpoints=2"),
)
_PER_REPLICA = tuple(
    f"model.{part}.conv.batch_norm.statistics=per_replica" for part in ("backbone", "head")
)
# Seconds of training before a kill, and how many of the kills come while workers are starting.
_TRAINING_SECONDS, _STARTING_SECONDS, _STARTING_SHARE = 12.0, 10.0, 0.2
_PATIENCE = 3000.0


class Kill(NamedTuple):
    """What was killed and what was lost."""

    victim: str
    step: int
    """Step in the history at that moment."""
    checkpoint: int
    """Newest checkpoint at that moment."""
    starting: bool
    """The workers had not begun to train again after the kill before."""
    seconds: float
    """Until a new step was in the history."""
    resumed: int


class Run:
    """`stillbox train --engine ray` on a cluster of this machine."""

    def __init__(self, folder: Path, workers: str, machines: int, words: list[str]) -> None:
        self.directory, self._log = folder / "ray", folder / "ray.log"
        self.cluster = start_cluster(machines)
        words = [*words, "--engine", "ray", "--workers", workers]
        environment = os.environ | {"RAY_ADDRESS": self.cluster.address, "RAY_DEDUP_LOGS": "0"}
        with self._log.open("w") as output:
            self.process = subprocess.Popen(words, env=environment, stdout=output, stderr=output)

    def step(self) -> int:
        """Returns the last step of the history."""
        return max((line["step"] for line in self.history()), default=0)

    def history(self) -> tuple[Any, ...]:
        """Returns the lines of training."""
        return read_history(self.directory / HISTORY, lambda _: None).training

    def starts(self) -> list[int]:
        """Returns the step of each start of the workers, as they print it."""
        said = self._log.read_text(errors="replace")
        resumed = re.findall(r"(?:(from scratch)|resuming at step (\d+)) ?", said)
        return [int(step or 0) for _, step in resumed]

    def wait_for_training(self, starts: int) -> int:
        """Waits for more than `starts` starts and a step of the last one; returns its first."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            starts_now = self.starts()
            if len(starts_now) > starts and self.step() > starts_now[-1]:
                return starts_now[-1]
            time.sleep(0.1)
        raise SystemExit(f"no training goes on:\n{self._log.read_text()[-6000:]}")

    def kill(self, chance: random.Random, kind: str) -> str:
        """Kills a worker or a raylet other than the first; returns its name."""
        if kind == "worker" and (workers := workers_of(self.cluster)):
            os.kill(chance.choice(workers), signal.SIGKILL)
            return "worker"
        node = chance.choice(self.cluster.list_all_nodes()[1:])
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        self.cluster.remove_node(node, allow_graceful=False)
        return "raylet"

    def close(self) -> None:
        """Ends what runs."""
        self.process.kill()
        self.cluster.shutdown()


def main() -> None:
    """Prints the table of the kills, or draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--resize", type=Path, metavar="PNG", help="3, 2 and 3 workers instead")
    arguments = parser.parse_args()
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_scenes(folder, train=48, val=6, seed=14)
        if arguments.resize:
            _resize(folder, arguments.steps, arguments.resize)
        else:
            _kills(folder, arguments.steps, arguments.kills, random.Random(arguments.seed))


def _kills(folder: Path, steps: int, kills: int, chance: random.Random) -> None:
    words = _train_small_ssd(folder, folder / "ray", steps)
    run = Run(folder, "2", 3, words)
    print("| kill | what | at step | newest checkpoint | training again, s | from step |")
    print("|---|---|---|---|---|---|")
    try:
        for number, kill in enumerate(_disturb(run, kills, chance), start=1):
            at = f"{kill.step}{', while starting' * kill.starting}"
            row = (number, kill.victim, at, kill.checkpoint, f"{kill.seconds:.0f}", kill.resumed)
            print(f"| {' | '.join(map(str, row))} |", flush=True)
            assert kill.checkpoint <= kill.resumed <= kill.step, kill
        assert run.process.wait(_PATIENCE) == 0
    finally:
        run.close()
    whole = _undisturbed(_train_small_ssd(folder, folder / "whole", steps), 2)
    _compare(run, whole, steps)


def _disturb(run: Run, kills: int, chance: random.Random) -> Iterator[Kill]:
    run.wait_for_training(0)
    while not newest(run.directory):
        time.sleep(0.1)
    open_kills: list[tuple[str, int, int, bool, float]] = []
    for number in range(1, kills + 1):
        starting = bool(open_kills)
        time.sleep(chance.uniform(0, _STARTING_SECONDS if starting else _TRAINING_SECONDS))
        starts, kind = len(run.starts()), chance.choice(("worker", "raylet"))
        state = run.step(), newest(run.directory)
        began = time.monotonic()
        victim = run.kill(chance, kind)
        open_kills.append((victim, *state, starting, began))
        if victim == "raylet":
            run.cluster.add_node(num_cpus=1)
        if number < kills and chance.random() < _STARTING_SHARE and not starting:
            continue
        resumed, ended = run.wait_for_training(starts), time.monotonic()
        yield from (Kill(*kill, ended - began, resumed) for *kill, began in open_kills)
        open_kills.clear()


def _train_small_ssd(folder: Path, directory: Path, steps: int, *more: str) -> list[str]:
    changes = small_overrides(folder, *_SSD, *more, f"train.steps={steps}", evaluated=False)
    words = [word for change in changes for word in ("--set", change)]
    start = [sys.executable, "-c", PROGRAM, "train", "demo_scenes"]
    return [*start, "--model-dir", str(directory), *words]


def _undisturbed(words: list[str], processes: int) -> dict[int, float]:
    """Trains in so many processes of this machine; returns the losses by step."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{listener.getsockname()[1]}"
    flags = ["--coordinator", place, "--processes", str(processes), "--process"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    jobs = [subprocess.Popen([*words, *flags, str(number)], **quiet) for number in range(processes)]
    assert [job.wait(_PATIENCE) for job in jobs] == [0] * processes
    directory = Path(words[words.index("--model-dir") + 1])
    return {line["step"]: line["loss"] for line in read_history(directory / HISTORY).training}


def _compare(run: Run, whole: dict[int, float], steps: int) -> dict[int, float]:
    """Returns the losses of a run; prints how far an undisturbed run is from them."""
    losses = {line["step"]: line["loss"] for line in run.history()}
    assert list(losses) == list(whole) == list(range(1, steps + 1)), len(losses)
    assert newest(run.directory) == steps
    ours, theirs = (np.array(list(run_losses.values())) for run_losses in (losses, whole))
    worst = np.max(np.abs(ours - theirs) / np.abs(theirs))
    print(f"\n{steps} steps, once each; losses off by {worst:.1e} of the value at most, "
          f"{np.mean(ours == theirs):.0%} equal in all digits")  # fmt: skip
    return losses


def _resize(folder: Path, steps: int, picture: Path) -> None:
    words = _train_small_ssd(folder, folder / "ray", steps, *_PER_REPLICA)
    run = Run(folder, "2:3", 3, words)
    try:
        first = run.wait_for_training(0)
        marks = [(first, 3)]
        for workers, at in ((2, steps // 6), (3, steps // 3)):
            while run.step() < at and run.process.poll() is None:
                time.sleep(0.05)
            starts = len(run.starts())
            if workers == 2:
                run.kill(random.Random(1), "raylet")
            else:
                run.cluster.add_node(num_cpus=1)
            marks.append((run.wait_for_training(starts), workers))
        assert run.process.wait(_PATIENCE) == 0
    finally:
        run.close()
    print("workers from step:", ", ".join(f"{workers} from {step}" for step, workers in marks))
    words = _train_small_ssd(folder, folder / "whole", steps, *_PER_REPLICA)
    whole = _undisturbed(words, 3)
    _draw(_compare(run, whole, steps), whole, marks, picture)


def _draw(
    losses: dict[int, float], whole: dict[int, float], marks: list[tuple[int, int]], picture: Path
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.2), layout="constrained", facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    at, ours, theirs = (np.array(column) for column in (list(whole), list(losses.values()),
                                                  list(whole.values())))  # fmt: skip
    label_axes(above, "Loss with 3, 2 and 3 workers", "step", "loss")
    above.plot(at, theirs, color="#ffa94d", linewidth=3.5, label="undisturbed, 3 processes")
    above.plot(at, ours, color="#1864ab", linewidth=0.9, label="on Ray")
    add_legend(above)
    label_axes(below, "Difference divided by the loss (0 is drawn at 1e-9)", "step", "")
    below.semilogy(at, np.maximum(np.abs(ours - theirs) / np.abs(theirs), 1e-9), color="#1864ab")
    for axes in (above, below):
        for step, _ in marks[1:]:
            axes.axvline(step, color="#6c757d", linewidth=1.0, linestyle=":")
    for step, workers in marks:
        above.annotate(f" {workers} workers", (step, above.get_ylim()[1]), fontsize=9, va="top")
    picture.write_bytes(figure_png(figure))


if __name__ == "__main__":
    main()
