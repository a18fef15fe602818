"""What a first run on a folder of images reaches: AP by starting point, after so many minutes.

Every row is `stillbox train RECIPE --data FOLDER` with as many steps as the machine makes in the
given minutes, compilation and evaluations not counted, and the best AP of the five evaluations on
the validation images of the folder. All steps are timed first, in short runs of the same commands.

    python benchmarks/first_run.py BCCD RACCOON --minutes 5 15
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_TIMED_STEPS = 24


@dataclass(frozen=True)
class Start:
    """A recipe, and the weights that it starts from."""

    recipe: str
    weights: str
    batch: int
    overrides: tuple[str, ...] = ()

    def command(self, data: Path, folder: Path, steps: int, every: int) -> list[str]:
        """Returns the command that trains `steps` steps and evaluates after each `every`."""
        changes = *self.overrides, f"train.batch_size={self.batch}", f"train.evaluate_every={every}"
        sets = [word for change in changes for word in ("--set", change)]
        return [
            *(sys.executable, "-m", "stillbox.cli.main", "train", self.recipe),
            *("--data", str(data), "--model-dir", str(folder), "--weights", self.weights),
            *("--steps", str(steps), *sets),
        ]


_V2_TAPS = "model.neck.taps=[block_6_expand, block_13_expand, conv_1]"
_V2 = ("model.backbone.kind=mobilenet_v2", _V2_TAPS)
_LITE0 = (
    "model.backbone.kind=efficientnet_lite",
    "model.backbone.drop_connect_rate=0.0",
    "model.neck.taps=[stack_2_block_1, stack_4_block_2, stack_6_block_0]",
    "model.pixels={mean: [127.0, 127.0, 127.0], std: [128.0, 128.0, 128.0]}",
)


def starts(arguments: argparse.Namespace) -> list[Start]:
    """Returns the starting points: random weights, then those that were given."""
    batch, found = arguments.batch, [Start("ssd_mobilenet_v1_bccd", "none", arguments.batch)]
    if arguments.mobilenet_v1:
        found.append(Start("ssd_mobilenet_v1_bccd", arguments.mobilenet_v1, batch))
    if arguments.mobilenet_v2:
        found.append(Start("ssd_mobilenet_v1_bccd", arguments.mobilenet_v2, batch, _V2))
    if arguments.efficientnet_lite0:
        weights = arguments.efficientnet_lite0
        found.append(Start("ssd_mobilenet_v1_bccd", weights, batch, _LITE0))
    for given in arguments.start:
        recipe, _, weights = given.partition(":")
        found.append(Start(recipe, weights, batch))
    return found


def metrics(folder: Path, name: str) -> list[float]:
    """Returns the values of a metric in the log of a run, in order."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    found = (row.get(name, row.get("evaluation", {}).get(name)) for row in rows)
    return [value for value in found if value is not None]


def train(start: Start, data: Path, steps: int, every: int) -> tuple[list[float], list[float]]:
    """Returns the speeds in images a second, and the APs of a run."""
    with tempfile.TemporaryDirectory() as folder:
        command = start.command(data, Path(folder, "model"), steps, every)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        log = Path(folder, "model")
        return metrics(log, "images_per_second"), metrics(log, "AP")


def main() -> None:
    """Prints one row for each folder and starting point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--minutes", type=float, nargs="+", default=[5.0])
    parser.add_argument("--mobilenet-v1", metavar="FILE", help="ImageNet weights")
    parser.add_argument("--mobilenet-v2", metavar="FILE", help="ImageNet weights")
    parser.add_argument("--efficientnet-lite0", metavar="NAME_OR_FILE", help="ImageNet weights")
    parser.add_argument("--batch", type=int, default=8, help="images of a step")
    parser.add_argument("--start", action="append", default=[], metavar="RECIPE:WEIGHTS")
    arguments = parser.parse_args()
    columns = " | ".join(f"AP after {minutes:g} min" for minutes in arguments.minutes)
    print(f"| data | recipe | weights | images/s | {columns} |")
    print("|---" * (4 + len(arguments.minutes)) + "|", flush=True)
    runs = [(data, start) for data in arguments.data for start in starts(arguments)]
    # Other work slows the runs that follow, and then changes no number of steps.
    speeds = [max(train(start, data, _TIMED_STEPS, 0)[0]) for data, start in runs]
    for (data, start), speed in zip(runs, speeds, strict=True):
        cells = []
        for minutes in arguments.minutes:
            steps = max(int(60 * minutes * speed / start.batch), 10)
            _, scores = train(start, data, steps, steps // 5)
            cells.append(f"{max(scores):.3f} ({steps} steps)")
        row = [data.name, start.recipe, Path(start.weights).name, f"{speed:.1f}", *cells]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
