"""Time from the command to the end of the first training step, cold and from the compilation cache.

    python benchmarks/warm_start.py [--batch-size 16]

Each start is a process of its own, as a person's is: imports, reading the config, opening the
records, building the model, compiling or loading the program, the first batch, the first step. The
goal is a warm start under 30 seconds.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stillbox.records.scenes import write_scenes


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=16)
    arguments = parser.parse_args()
    table = Table(title=f"ssd_mobilenet_v1_300x300, batch {arguments.batch_size}")
    for column in ("start", "whole command, s", "to the end of step 1, s"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_scenes(folder / "data", train=4 * arguments.batch_size, val=1)
        for start in ("cold", "warm", "warm again"):
            whole, first = _start(folder, start, arguments.batch_size)
            table.add_row(start, f"{whole:.1f}", f"{first:.1f}")
    Console().print(table)


def _start(folder: Path, start: str, batch_size: int) -> tuple[float, float]:
    """Runs one step in a fresh process; returns the seconds of all of it and up to the step."""
    data = folder / "data"
    settings = {
        "data.train.paths": f"{data}/train.record-*",
        "data.train.label_map": f"{data}/label_map.pbtxt",
        "train.batch_size": batch_size,
        "train.steps": 1,
        "train.log_every": 1,
    }
    words = [word for item in settings.items() for word in ("--set", "{}={}".format(*item))]
    command = [sys.executable, "-m", "stillbox.cli.main", "train", "ssd_mobilenet_v1_300x300"]
    model = folder / start.replace(" ", "_")
    began, first = time.monotonic(), float("nan")
    with subprocess.Popen(
        [*command, "--model-dir", str(model), *words],
        env=os.environ | {"STILLBOX_CACHE": str(folder / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            # The metrics of a step are shown once the step is done.
            if line.startswith("step 1/1"):
                first = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"the command failed with exit code {process.returncode}")
    return time.monotonic() - began, first


if __name__ == "__main__":
    main()
