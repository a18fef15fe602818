"""Kills runs at random moments and checks what is left: `python -m tools.kill_runs --kills 100`.

A run is `stillbox train` of a small detector, then `stillbox evaluate`, which writes the report. It
is killed by SIGKILL again and again and started again after each kill, until it has finished. After
each kill every file of the model directory is read. A finished run must have the bits of one that
was never killed. `docs/failures.md` has the printed table.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stillbox.checkpoints.model_directory import ModelDirectory, is_model_directory
from stillbox.evaluation.history import HISTORY, read_history
from stillbox.evaluation.report import REPORT
from stillbox.experiment.yaml_config import from_yaml
from stillbox.records.scenes import write_scenes
from tests.small import small_overrides

_STEPS, _CHECKPOINT_EVERY, _EVALUATE_EVERY = 36, 3, 9
# Phases, and what the log has when each begins; a checkpoint is found on the disk.
_MARKS = {
    "start": "",
    "compilation": "... compiling the train step",
    "steps": "\ncompiled",
    "checkpoint": "",
    "evaluation": "... evaluating",
    "report": "scoring",
}
PHASES = tuple(_MARKS)
# Seconds after its begin in which a phase is killed.
_SECONDS = {
    "start": 4.0,
    "compilation": 3.0,
    "steps": 0.5,
    "checkpoint": 0.02,
    "evaluation": 1.0,
    "report": 3.0,
}


@dataclass
class Tally:
    """What the kills of one phase left."""

    kills: int = 0
    unreadable: int = 0
    """Model directories with a file that cannot be read."""
    lost: int = 0
    """Directories without a checkpoint that was there before, or that was due long before."""
    repeated: list[int] = field(default_factory=list)
    """Steps that were done and had to be repeated, for each kill."""

    def row(self, phase: str) -> str:
        """Returns a row of the table."""
        most = max(self.repeated, default=0)
        return f"| {phase} | {self.kills} | {self.unreadable} | {self.lost} | {most} |"


class KilledRun:
    """A run in a folder, which is killed and started again.

    Args:
        folder: of the model directory and the logs.
        scenes: records that `write_scenes` wrote.
        cache: folder of compiled programs.
        changes: further overrides of the run.
    """

    def __init__(
        self, folder: Path, scenes: Path, cache: Path, changes: Sequence[str] = ()
    ) -> None:
        folder.mkdir(parents=True)
        self.directory = folder / "model"
        self.faults: list[str] = []
        self._log, self._cache = folder / "log", cache
        overrides = small_overrides(
            scenes,
            f"train.steps={_STEPS}",
            f"train.checkpoint_every={_CHECKPOINT_EVERY}",
            f"train.evaluate_every={_EVALUATE_EVERY}",
            "train.keep_checkpoints=2",
            # With everything that a state may hold: averages, accumulators, dropout's keys.
            "train.optimizer={kind: adam}",
            "train.freeze=[^backbone.conv_0]",
            "train.ema_decay=0.9",
            "model.head.dropout=true",
            "data.workers=1",
            *changes,
        )
        words = [word for override in overrides for word in ("--set", override)]
        self._train = ["train", "demo_scenes", "--model-dir", str(self.directory), *words]
        self._evaluate = ["evaluate", str(self.directory)]

    def finish(self, *, report: bool) -> None:
        """Trains to the end, and writes the report if it is wanted."""
        for words in (self._train, self._evaluate) if report else (self._train,):
            with self._started(words, self._cache) as process:
                self._expect_success(process)

    def kill(self, phase: str, moment: float, tallies: Mapping[str, Tally]) -> bool:
        """Kills it and looks at what is left; False if it ended before.

        Args:
            phase: one of `PHASES`.
            moment: seconds after the phase has begun; it may be over by then.
            tallies: of all phases; that in which it was killed receives what is found.
        """
        words = self._evaluate if phase == "report" else self._train
        # Compilation takes its time only where it has not been done before.
        empty = self._log.with_name("empty")
        shutil.rmtree(empty, ignore_errors=True)
        cache = empty if phase == "compilation" else self._cache
        before = latest_step(self.directory)
        if phase == "report" and before < _STEPS:
            self.finish(report=True)
            before = _STEPS
        with self._started(words, cache) as process:
            began = self._wait_for(phase, process)
            time.sleep(moment if began else 0)
            alive = process.poll() is None
            process.kill()
            process.wait()
        if not alive:
            self._expect_success(process)
            return False
        self._judge(before, tallies["report" if phase == "report" else self._phase()])
        return True

    @property
    def finished(self) -> bool:
        """Whether training has reached its last step."""
        return latest_step(self.directory) == _STEPS

    @contextmanager
    def _started(self, words: Sequence[str], cache: Path) -> Iterator[subprocess.Popen[bytes]]:
        environment = {**os.environ, "STILLBOX_CACHE": str(cache)}
        command = [sys.executable, "-m", "stillbox.cli.main", *words]
        with (
            self._log.open("wb") as log,
            subprocess.Popen(command, env=environment, stderr=log, stdout=log) as process,
        ):
            yield process

    def _wait_for(self, phase: str, process: subprocess.Popen[bytes]) -> bool:
        """Waits until a phase begins; False if the process ends before."""
        checkpoints = self.directory / "checkpoints"
        while process.poll() is None:
            if phase == "checkpoint":
                if any(checkpoints.glob(".unfinished-*")):
                    return True
            elif _MARKS[phase] in self._log.read_text():
                return True
            time.sleep(0.0005)
        return False

    def _phase(self) -> str:
        """Returns the phase that the killed training was in."""
        if any((self.directory / "checkpoints").glob(".unfinished-*")):
            return "checkpoint"
        log = self._log.read_text()
        begun = {phase: log.rfind(_MARKS[phase]) for phase in ("compilation", "evaluation")}
        # Steps follow the compilation, and the line with the scores of an evaluation.
        begun["steps"] = max(log.rfind(_MARKS["steps"]), log.rfind(" images\nstep "))
        last = max(begun, key=lambda phase: begun[phase])
        return last if begun[last] >= 0 else "start"

    def _expect_success(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait() != 0:
            self.faults.append(self._log.read_text())

    def _judge(self, before: int, tally: Tally) -> None:
        log = self._log.read_text()
        tally.kills += 1
        if fault := find_fault(self.directory):
            tally.unreadable += 1
            self.faults.append(fault)
            return
        now = latest_step(self.directory)
        # The last step in the log; its checkpoint may not have been complete.
        steps = [int(line.split()[1].split("/")[0]) for line in log.splitlines() if _is_step(line)]
        reached = max(steps, default=before)
        if now < before or reached - now > 2 * _CHECKPOINT_EVERY:
            tally.lost += 1
            self.faults.append(f"step {before}, then {reached}, but the checkpoint is of {now}")
        tally.repeated.append(max(reached - now, 0))


def find_fault(directory: Path) -> str:
    """Reads every file of a model directory; returns what cannot be read, empty if all can."""
    if not is_model_directory(directory):
        return ""
    try:
        opened = ModelDirectory.open(directory)
        from_yaml(opened.experiment, str(directory))
        opened.best()
        damaged: list[str] = []
        read_history(directory / HISTORY, damaged.append)
        if damaged:
            return damaged[0]
        for step in opened.steps():
            checkpoint = opened.checkpoint(step)
            for section in checkpoint.sections:
                checkpoint.read(section)
        evaluation = directory / "evaluation"
        for path in evaluation.glob("*.json"):
            json.loads(path.read_text())
        if (evaluation / REPORT).exists() and "</html>" not in (evaluation / REPORT).read_text():
            return f"half of {evaluation / REPORT}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def latest_step(directory: Path) -> int:
    """Returns the step of the newest checkpoint, 0 where there is none."""
    if not is_model_directory(directory):
        return 0
    return ModelDirectory.open(directory).latest_step() or 0


def last_arrays(directory: Path) -> dict[tuple[str, str], np.ndarray]:
    """Returns all arrays of the newest checkpoint by section and name."""
    checkpoint = ModelDirectory.open(directory).checkpoint("latest")
    return {
        (section, name): array
        for section in checkpoint.sections
        for name, array in checkpoint.read(section).items()
    }


def same_bits(directory: Path, other: Path) -> bool:
    """Whether the newest checkpoints of two directories are equal."""
    first, second = last_arrays(directory), last_arrays(other)
    return first.keys() == second.keys() and all(
        np.array_equal(first[key], second[key], equal_nan=True) for key in first
    )


def kill_runs(
    folder: Path,
    phases: Sequence[str],
    moments: random.Random,
    cache: Path | None = None,
    changes: Sequence[str] = (),
) -> tuple[dict[str, Tally], list[str], int]:
    """Kills runs once in each of the given phases.

    Args:
        folder: of all runs.
        phases: some of `PHASES`, in any order, repeatedly.
        moments: chooses the moments.
        cache: folder of compiled programs; None: a new one.
        changes: further overrides of the runs.

    Returns:
        What the kills of each phase left, all faults, and the number of runs that finished.
    """
    scenes = folder / "scenes"
    write_scenes(scenes, train=10, val=6, seed=1)
    cache, report = cache or folder / "cache", "report" in phases
    whole = KilledRun(folder / "whole", scenes, cache, changes)
    whole.finish(report=report)
    tallies = {phase: Tally() for phase in PHASES}
    faults, finished = list(whole.faults), 0
    run = KilledRun(folder / "1", scenes, cache, changes)
    for phase in phases:
        longest = _SECONDS[phase]
        while not run.kill(phase, moments.uniform(0, longest), tallies):
            if run.faults:
                break
            longest /= 2
            if run.finished and phase != "report":
                finished += 1
                faults += _compare(run, whole)
                run = KilledRun(folder / str(finished + 1), scenes, cache, changes)
        faults += run.faults
        run.faults.clear()
    run.finish(report=report)
    return tallies, faults + _compare(run, whole), finished + 1


def _compare(run: KilledRun, whole: KilledRun) -> list[str]:
    steps = [line["step"] for line in read_history(run.directory / HISTORY).training]
    faults = list(run.faults)
    if steps != list(range(1, _STEPS + 1)):
        faults.append(f"the history has the steps {steps}")
    if not same_bits(run.directory, whole.directory):
        faults.append(f"{run.directory}: other bits than a run that was never killed")
    names = {entry.name for entry in (run.directory / "checkpoints").iterdir()}
    if rubbish := {name for name in names if not name.isdecimal()}:
        faults.append(f"left over: {rubbish}")
    return faults


def _is_step(line: str) -> bool:
    return line.startswith("step ") and "/" in line.split()[1]


def main() -> int:
    """Prints the table; returns 1 if anything was lost or cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    phases = [PHASES[number % len(PHASES)] for number in range(arguments.kills)]
    moments.shuffle(phases)
    with tempfile.TemporaryDirectory() as folder:
        tallies, faults, finished = kill_runs(Path(folder), phases, moments)
    print("| killed in | kills | unreadable | checkpoints lost | most steps repeated |")
    print("|---|---|---|---|---|")
    for phase, tally in tallies.items():
        print(tally.row(phase))
    print(f"\n{finished} runs finished, {len(faults)} faults")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
