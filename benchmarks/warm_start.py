"""Time from the command to the end of the first training step, cold and from the compilation cache.

    python benchmarks/warm_start.py [--recipes retinanet ssd_resnet34 ...] [--batch-size 2]
        [--limit 600] [--set PATH=VALUE ...]

All recipes unless some are named. Each start is a process of its own, as a person's is: imports,
reading the config, opening the records, building the model, compiling or loading the program, the
first batch, the first step. Each recipe has an empty cache; its second start finds there what the
first compiled. What takes longer than the limit in seconds is ended. The goal is a warm start of
RetinaNet under 20 seconds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from measuring import machine

from stillbox.experiment.recipes import read_headers
from stillbox.experiment.resolve import resolve
from stillbox.records.scenes import write_scenes

_CLASSES = 6
"""Of the scenes."""
_COMPLAINT = "stillbox train: "
"""The beginning of an error of the command."""


def main() -> None:
    """Prints a row for each recipe as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [header.name for header in read_headers()]
    parser.add_argument("--recipes", nargs="+", default=names, help="or files")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--limit", type=float, default=600, help="seconds of a start")
    parser.add_argument("--set", action="append", default=[], help="a field: path=value")
    arguments = parser.parse_args()
    print(f"{machine()}, batch {arguments.batch_size}, seconds to the end of the first step\n")
    print("| recipe | cold | warm |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        data = Path(name)
        write_scenes(data, train=4 * arguments.batch_size, val=1)
        settings = [
            f"data.train.paths={data}/train.record-*",
            f"data.train.label_map={data}/label_map.pbtxt",
            f"data.evaluation.paths={data}/val.record-*",
            f"data.evaluation.label_map={data}/label_map.pbtxt",
            f"train.batch_size={arguments.batch_size}",
            "train.fine_tune.checkpoint=",
            "train.steps=1",
            "train.log_every=1",
            *arguments.set,
        ]
        for recipe in arguments.recipes:
            print(f"| `{recipe}` | {_starts(recipe, settings, arguments.limit)} |", flush=True)


def _starts(recipe: str, settings: Iterable[str], limit: float) -> str:
    """Returns the seconds of both starts, or the reason why there are none."""
    settings = [*settings, *_fitting_classes(recipe)]
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "stillbox.cli.main", "train", recipe, *words, "--model-dir"]
    cells = []
    with tempfile.TemporaryDirectory() as name:
        for start in ("cold", "warm"):
            seconds, reason = _start([*command, f"{name}/{start}"], f"{name}/cache", limit)
            cells.append(f"{seconds:.1f}" if seconds else reason)
            if not seconds:
                break
    return " | ".join((*cells, "")[:2])


def _fitting_classes(recipe: str) -> list[str]:
    """Returns what makes a recipe accept the label map of the scenes."""
    model = resolve(recipe).experiment.model
    fits = model.num_classes >= _CLASSES and model.class_slots != "contiguous"
    return [] if fits else [f"model.num_classes={_CLASSES}"]


def _start(command: list[str], cache: str, limit: float) -> tuple[float, str]:
    """Runs a process up to the end of its first step.

    Returns:
        Seconds, or 0 and how the process ended.
    """
    began, last = time.monotonic(), ""
    with subprocess.Popen(
        command,
        env=os.environ | {"STILLBOX_CACHE": cache},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        timer = threading.Timer(limit, process.kill)
        timer.start()
        for line in process.stderr:
            # The metrics of a step are shown once the step is done.
            if line.startswith("step 1/1"):
                timer.cancel()
                seconds = time.monotonic() - began
                # Nobody needs the checkpoint.
                process.kill()
                return seconds, ""
            if not last.startswith(_COMPLAINT):
                last = line.strip()
        late = not timer.is_alive()
        timer.cancel()
    if late:
        return 0.0, f"not done in {limit:.0f} s"
    return 0.0, f"exit code {process.returncode}: {last.removeprefix(_COMPLAINT)}"


if __name__ == "__main__":
    main()
