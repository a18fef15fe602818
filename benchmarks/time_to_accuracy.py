"""AP and AP50 on a folder of images against minutes, from the command to the last evaluation.

Each cell is a training of its own that ends with the minutes:

- `stillbox train --data FOLDER` as it comes, from random weights, from `--weights`, and recipes of
  `--start`;
- Ultralytics' `yolo11n.yaml` from random weights, with the defaults and the option `time` of its
  command. It is under the AGPL: it has an environment of its own, and no file imports it;
- networks of torchvision from random weights, by the settings of its reference script.

Start, compilation without a cache, and evaluations count. Results belong to the best checkpoint
on the validation images, scored by this project's COCO scorer.

    python benchmarks/time_to_accuracy.py BCCD RACCOON --minutes 3 5 10 15 --peers
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from environments import TORCH, peer_python

from stillbox.evaluation.coco import from_coco_json, results_from_coco_json, score_coco
from stillbox.evaluation.results import ImageResult

ULTRALYTICS = ("ultralytics", "ultralytics")
# The share of the time that torchvision's runs leave over.
_RESERVE = 0.03
_EVALUATED = re.compile(r"step \d+: AP ([\d.]+), AP50 ([\d.]+)")
_NETWORKS = ("ssdlite320_mobilenet_v3_large", "retinanet_resnet50_fpn")


@dataclass(frozen=True)
class Folder:
    """A data set in the forms that the rows read, with the splits `train` and `val`."""

    name: str
    records: Path
    yolo: Path
    coco: Path

    def scores(self, results: Sequence[ImageResult]) -> tuple[float, float]:
        """Returns AP and AP50 on the validation images."""
        truths, names = from_coco_json(self.coco / "annotations" / "instances_val.json")
        summary = score_coco(truths, results, names).summary
        return summary["AP"] or 0.0, summary["AP50"] or 0.0


@dataclass(frozen=True)
class Point:
    """An evaluation."""

    minutes: float
    """Since the command was started."""
    ap: float
    ap50: float


@dataclass(frozen=True)
class Training:
    """What a training reached."""

    curve: list[Point]
    best: Point
    """The checkpoint that the trainer keeps as its best, at the minute when the training ends."""

    @classmethod
    def of(cls, curve: list[Point]) -> "Training":
        """Returns a training from its evaluations with COCO's scores."""
        best = max(curve, key=lambda point: point.ap)
        return cls(curve, Point(curve[-1].minutes, best.ap, best.ap50))


Row = Callable[[Folder, float, Path], Training]
"""Trains on a data set for some minutes, in an empty folder."""


def run(command: Sequence[str | Path], **environment: str) -> list[tuple[float, str]]:
    """Runs a command; returns its lines, each with the minutes since the start.

    Raises:
        SystemExit: the command fails; with its last lines.
    """
    began, lines = time.perf_counter(), []
    with subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(((time.perf_counter() - began) / 60, line))
    if process.returncode:
        last = "".join(line for _, line in lines[-30:])
        raise SystemExit(f"{' '.join(map(str, command))}\n{last}")
    return lines


def stillbox(*words: str | Path) -> list[str | Path]:
    """Returns the command with its words."""
    return [sys.executable, "-m", "stillbox.cli.main", *words]


def prepare(source: Path, work: Path) -> Folder:
    """Converts a folder to records, and these for the peers, which get the same splits."""
    records = work / "records"
    run(stillbox("data", "convert", source, "--output", records))
    for form in ("yolo", "coco"):
        for split in ("train", "val"):
            words = (form, f"{records}/{split}.record-*", "--split", split)
            places = ("--label-map", records / "label_map.pbtxt", "--output", work / form)
            run(stillbox("data", "export", *words, *places))
    return Folder(source.name, records, work / "yolo", work / "coco")


# ---- rows ---------------------------------------------------------------------------------------


def own_row(
    data: Folder, minutes: float, place: Path, *, weights: str, recipe: str = ""
) -> Training:
    """Trains for so many minutes, without a cache."""
    words = ("--data", data.records, "--weights", weights, "--model-dir", place / "model")
    command = stillbox("train", *filter(None, [recipe]), *words, "--minutes", str(minutes))
    lines = run(command, STILLBOX_CACHE=str(place / "cache"))
    matches = ((now, _EVALUATED.match(line)) for now, line in lines)
    return Training.of([Point(now, *map(float, match.groups())) for now, match in matches if match])


def ultralytics(data: Folder, minutes: float, place: Path, *, python: Path) -> Training:
    """Trains with Ultralytics' command; the curve is its own, its best has COCO's scores."""
    yolo = python.with_name("yolo")
    common = (f"data={data.yolo}/data.yaml", "imgsz=320", "device=cpu", f"project={place}")
    words = ("model=yolo11n.yaml", f"time={minutes / 60}", "pretrained=False", "name=train")
    took = run([yolo, "detect", "train", *words, *common], YOLO_OFFLINE="true")[-1][0]
    header, *lines = (place / "train" / "results.csv").read_text().splitlines()
    names = [name.strip() for name in header.split(",")]
    columns = [names.index(n) for n in ("time", "metrics/mAP50-95(B)", "metrics/mAP50(B)")]
    values = [[float(line.split(",")[column]) for column in columns] for line in lines]
    before = took - values[-1][0] / 60
    points = [Point(before + seconds / 60, ap, ap50) for seconds, ap, ap50 in values]
    best = f"model={place}/train/weights/best.pt"
    run([yolo, "detect", "val", best, *common, "name=val", "save_json=True"], YOLO_OFFLINE="true")
    results = _by_number(data, place / "val" / "predictions.json")
    return Training(points, Point(took, *data.scores(results)))


def _by_number(data: Folder, path: Path) -> list[ImageResult]:
    """Returns results; images have the ids of the ground truth in place of file names."""
    truth = json.loads((data.coco / "annotations" / "instances_val.json").read_text())
    stems = {Path(image["file_name"]).stem: str(image["id"]) for image in truth["images"]}
    # Ultralytics writes a name of digits as a number.
    ids = {
        str(int(stem)) if stem.isdecimal() else stem: image_id for stem, image_id in stems.items()
    }
    results = results_from_coco_json(path)
    return [replace(result, image_id=ids[result.image_id]) for result in results]


def torchvision(
    data: Folder, minutes: float, place: Path, *, python: Path, network: str
) -> Training:
    """Trains a network of torchvision, which writes its detections at each evaluation."""
    program = Path(__file__).with_name("torch_training.py")
    words = (network, data.coco, place, "--minutes", str(minutes * (1 - _RESERVE)))
    # Five evaluations of RetinaNet take most of five minutes of two cores.
    lines = run([python, program, *words, "--evaluations", "1"])
    print(f"{network}: {lines[-1][1].strip()}", file=sys.stderr)
    files = sorted(place.glob("*.json"), key=lambda file: float(file.stem))
    before = lines[-1][0] - float(files[-1].stem)
    return Training.of(
        [
            Point(before + float(file.stem), *data.scores(results_from_coco_json(file)))
            for file in files
        ]
    )


def rows(arguments: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """Yields what is trained, by name."""
    for start in (":none", *[f":{name}" for name in arguments.weights], *arguments.start):
        recipe, _, weights = start.partition(":")
        words = ("**stillbox**", *filter(None, [recipe]))
        name = "random" if weights == "none" else Path(weights).stem
        yield f"{' '.join(words)}, {name}", partial(own_row, weights=weights, recipe=recipe)
    if not arguments.peers:
        return
    if python := peer_python(*ULTRALYTICS):
        yield "Ultralytics `yolo11n.yaml`, random", partial(ultralytics, python=python)
    if python := peer_python(*TORCH):
        for network in _NETWORKS:
            row = partial(torchvision, python=python, network=network)
            yield f"torchvision `{network}`, random", row


# ---- the table and the picture ------------------------------------------------------------------


def draw(curves: dict[str, dict[str, Training]], path: Path) -> None:
    """Draws AP against minutes, one plot for each data set."""
    import matplotlib.pyplot as plt

    figure, plots = plt.subplots(1, len(curves), figsize=(6 * len(curves), 4), squeeze=False)
    for plot, (data, named) in zip(plots[0], curves.items(), strict=True):
        for name, training in named.items():
            minutes, scores = zip(*((p.minutes, p.ap) for p in training.curve), strict=True)
            plot.plot(minutes, scores, ".-", label=re.sub(r"[*`]", "", name))
        plot.set(title=data, xlabel="minutes", ylabel="AP", ylim=(0, None))
        plot.grid(alpha=0.3)
    plots[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Prints one row for each data set and start."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--minutes", type=float, nargs="+", default=[5.0, 15.0])
    parser.add_argument("--weights", nargs="+", default=[], metavar="NAME_OR_FILE")
    parser.add_argument("--start", nargs="+", default=[], metavar="RECIPE:WEIGHTS")
    parser.add_argument("--peers", action="store_true", help="make environments of the peers")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of rows")
    parser.add_argument("--image", type=Path, help="file of the curves of the longest runs")
    arguments = parser.parse_args()
    budgets = sorted(arguments.minutes)
    columns = " | ".join(f"{minutes:g} min: AP, AP50" for minutes in budgets)
    print(f"| data | from | {columns} |\n|---|---{'|---' * len(budgets)}|", flush=True)
    curves: dict[str, dict[str, Training]] = {}
    for source in arguments.data:
        with tempfile.TemporaryDirectory() as work:
            data = prepare(source, Path(work))
            for name, row in rows(arguments):
                if not any(part in name for part in arguments.only):
                    continue
                trainings = [_train_apart(row, data, minutes) for minutes in budgets]
                curves.setdefault(data.name, {})[name] = trainings[-1]
                bests = [training.best for training in trainings]
                cells = [f"{p.ap:.3f}, {p.ap50:.3f} ({p.minutes:.1f})" for p in bests]
                print(f"| {data.name} | {name} | {' | '.join(cells)} |", flush=True)
    if arguments.image:
        draw(curves, arguments.image)


def _train_apart(row: Row, data: Folder, minutes: float) -> Training:
    with tempfile.TemporaryDirectory() as place:
        return row(data, minutes, Path(place))


if __name__ == "__main__":
    main()
