"""Images per second of inference, files in and detections out, beside other runtimes.

    python benchmarks/inference.py [IMAGE ...] [--recipes ssd_mobilenet_v1_300x300 ...]
        [--weights FILE] [--set FIELD=VALUE ...] [--batch-sizes 1 8] [--rounds 3]
        [--evaluate RECORDS] [--no-exports] [--no-torchvision]

The networks have random weights, unless `--weights FILE` and `--set FIELD=VALUE` give others; the
column `found` says how many detections an image has, so what suppression has to do. Without images,
640x480 JPEGs are drawn. Ways of ours: the checkpoint, its ONNX export in onnxruntime and in
OpenVINO, and for single images its TFLite exports in LiteRT. torchvision's networks run in an
environment of their own, which is made at the first run. They are other networks with random
weights, see README.md.

`arrays`: resized images in memory to detections. `files`: image files to detections, decoded and
resized on as many threads as there are cores, ahead of the network. Runtimes take turns; the rate
belongs to the median round. Images are repeated until they fill all batches. `--evaluate RECORDS`
adds a row of `stillbox evaluate` for the images of these records, without scoring. A second table
says where the time of the checkpoint goes.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from environments import ask_peer, peer_python
from input_pipeline import draw_jpeg
from measuring import machine, show
from rich.table import Table
from suppression import PEERS

from stillbox.api import load, load_model
from stillbox.checkpoints.trained import TrainedModel
from stillbox.cli.overrides import changes_of
from stillbox.devices.process import own_processors, restart_with_large_pages
from stillbox.devices.setup import prepare_process
from stillbox.errors import UserError
from stillbox.evaluation.program import score_program
from stillbox.evaluation.scoring import open_evaluation, score_dataset
from stillbox.experiment.resolve import changed, resolve
from stillbox.exporting.export import export_model
from stillbox.exporting.settings import ExportSettings
from stillbox.models.build import build_detector
from stillbox.models.variables import split_detector
from stillbox.predicting.checkpoint_backend import CheckpointBackend
from stillbox.predicting.images import read_image
from stillbox.predicting.predictor import Predictor
from stillbox.records.label_map import LabelMap

RECIPES = {
    "ssd_mobilenet_v1_300x300": "ssdlite320_mobilenet_v3_large",
    "ssdlite_mobilenet_v2_coco": "ssdlite320_mobilenet_v3_large",
    "ssd_resnet34": "ssd300_vgg16",
    "retinanet": "retinanet_resnet50_fpn",
}
"""Recipes, and torchvision's nearest network."""
EXPORTS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("onnxruntime", "onnxruntime", {"format": "onnx"}),
    ("OpenVINO", "openvino", {"format": "onnx"}),
    ("LiteRT", "litert", {"format": "tflite"}),
    ("LiteRT, int8", "litert", {"format": "tflite", "quantize": "int8"}),
)
"""Names, runtimes and settings of exports."""
IMAGES, LONGEST = 16, 240.0


class Row(NamedTuple):
    """One runtime at one batch size."""

    name: str
    arrays: float
    """Images a second."""
    files: float
    """Likewise."""
    detections: float
    """Detections in an image."""


def main() -> None:
    """Prints the tables."""
    restart_with_large_pages()  # as every command does
    arguments = read_arguments()
    prepare_process()
    print(f"{machine()}, jax {jax.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        paths = arguments.images or list(drawn(Path(folder)))
        for recipe in arguments.recipes:
            for batch_size in arguments.batch_sizes:
                show_rows(recipe, batch_size, paths, Path(folder), arguments)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", nargs="*", type=Path)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--weights", help="of all the recipes")
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--evaluate", metavar="RECORDS")
    parser.add_argument("--no-exports", action="store_true")
    parser.add_argument("--no-torchvision", action="store_true")
    return parser.parse_args()


def drawn(folder: Path) -> Iterator[Path]:
    """Yields files of drawn images."""
    for number in range(IMAGES):
        path = folder / f"{number}.jpg"
        path.write_bytes(draw_jpeg(number))
        yield path


def show_rows(
    recipe: str, batch_size: int, paths: Sequence[Path], folder: Path, arguments: argparse.Namespace
) -> None:
    """Measures all runtimes with one network, and prints."""
    # Whole batches: a runtime computes the rows that fill up the last one, too.
    whole = -(-len(paths) // batch_size) * batch_size
    paths = list(itertools.islice(itertools.cycle(paths), whole))
    model = random_model(recipe, changes_of(arguments.set))
    if arguments.weights:
        model = load_model(recipe, weights=arguments.weights, overrides=changes_of(arguments.set))
        model = model.named_by_config()
    predictors = {"stillbox": Predictor(CheckpointBackend(model), batch_size=batch_size)}
    if not arguments.no_exports:
        predictors |= exported(model, batch_size, paths, folder / f"{recipe}.{batch_size}")
    rows = measured(predictors, paths, arguments.rounds)
    if not arguments.no_torchvision:
        rows += torchvision_rows(RECIPES[recipe], batch_size, paths, arguments.rounds)
    table = Table("", "arrays/s", "files/s", "found", title=f"{recipe}, batch {batch_size}")
    for row in rows:
        table.add_row(row.name, f"{row.arrays:.2f}", f"{row.files:.2f}", f"{row.detections:.0f}")
    if arguments.evaluate:
        rate = evaluated(model, batch_size, arguments.evaluate)
        table.add_row("stillbox evaluate", "", f"{rate:.2f}", "")
    show(table)
    show(parts(predictors["stillbox"], paths, f"milliseconds an image, {recipe}, {batch_size}"))


def exported(
    model: TrainedModel, batch_size: int, paths: Sequence[Path], folder: Path
) -> dict[str, Predictor]:
    """Returns a model's exports in each installed runtime, calibrated on some of the images."""
    images = [read_image(path)[0] for path in paths[:IMAGES]]
    size = model.experiment.model.resizer.input_size
    common = ExportSettings(batch_size=batch_size, image_size=size)
    predictors = {}
    for name, runtime, changes in EXPORTS:
        if batch_size > 1 and changes["format"] == "tflite":
            continue
        place = folder / "_".join(changes.values())
        try:
            if not place.exists():
                export_model(model, place, replace(common, **changes), images)
            predictors[f"{name}, our export"] = load(place, runtime=runtime, batch_size=batch_size)
        except UserError as error:
            print(f"without {name}: {error}")
    return predictors


def random_model(recipe: str, overrides: Sequence[str] = ()) -> TrainedModel:
    """Returns a recipe's detector with the weights that training would begin with.

    The last norm of a residual block begins with a scale of 0. An export would leave such a block
    out, so the scale is another one here.
    """
    experiment = resolve(recipe, changes_of(overrides)).experiment
    _, params, stats = split_detector(build_detector(experiment.model))
    params = {
        path: np.full_like(array, 0.25) if path.endswith(".scale") and not np.any(array) else array
        for path, array in params.items()
    }
    names = [f"class {number}" for number in range(experiment.model.num_classes)]
    return TrainedModel(experiment, LabelMap.from_names(names), params, stats, "random weights")


def measured(predictors: dict[str, Predictor], paths: Sequence[Path], rounds: int) -> list[Row]:
    """Measures predictors in turn."""
    ways = {
        (name, way): run
        for name, predictor in predictors.items()
        for way, run in (("arrays", arrays(predictor, paths)), ("files", files(predictor, paths)))
    }
    counts = {name: run() for (name, way), run in ways.items()}
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in ways}
    for _ in range(rounds):
        for key, run in ways.items():
            began = time.perf_counter()
            run()
            seconds[key].append(time.perf_counter() - began)
    rates = {key: len(paths) / statistics.median(taken) for key, taken in seconds.items()}
    return [
        Row(name, rates[name, "arrays"], rates[name, "files"], counts[name] / len(paths))
        for name in predictors
    ]


def arrays(predictor: Predictor, paths: Sequence[Path]) -> Callable[[], int]:
    """Returns a function that detects in prepared images, and returns how many it found."""
    prepared = [predictor.backend.prepare(read_image(path)[0]) for path in paths]
    size = predictor.batch_size

    def run() -> int:
        batches = (prepared[at : at + size] for at in range(0, len(prepared), size))
        return sum(len(image.scores) for batch in batches for image in predictor.run(batch))

    return run


def files(predictor: Predictor, paths: Sequence[Path]) -> Callable[[], int]:
    """Returns a function that does what `stillbox predict --no-pictures` does to files."""

    def run() -> int:
        detections = predictor.detect(paths, read_image, workers=own_processors())
        entries = [result.to_dict() for result in detections]
        json.dumps(entries)
        return sum(len(entry["detections"]) for entry in entries)

    return run


def evaluated(model: TrainedModel, batch_size: int, records: str) -> float:
    """Returns images a second of reading, decoding, resizing and detecting."""
    changes = {"data.evaluation.paths": [records], "evaluation.batch_size": batch_size}
    experiment = changed(model.experiment, changes)
    detect = score_program(experiment).bind(model.params, model.stats)
    dataset = open_evaluation(experiment)
    score_dataset(detect, experiment, dataset)  # compiles
    return score_dataset(detect, experiment, dataset).timings.images_per_second


def torchvision_rows(
    network: str, batch_size: int, paths: Sequence[Path], rounds: int
) -> list[Row]:
    """Measures torchvision's network in a process of its own."""
    python = peer_python(*PEERS["torchvision"])
    if python is None:
        return []
    words = (network, str(batch_size), str(rounds))
    names = np.array([str(path.resolve()) for path in paths])
    try:
        return [Row(**ask_peer(python, "inference_peers.py", words, timeout=LONGEST, paths=names))]
    except subprocess.TimeoutExpired:
        print(f"torchvision {network}: not finished in {LONGEST:g} s")
        return []


def parts(predictor: Predictor, paths: Sequence[Path], title: str) -> Table:
    """Returns a table of the stages of our own way, each alone and on one thread."""
    table = Table("stage", "ms", title=title)
    backend, size = predictor.backend, predictor.batch_size

    def timed(name: str, run: Callable[[], list]) -> list:
        began = time.perf_counter()
        made = run()
        spent = (time.perf_counter() - began) / len(paths)
        table.add_row(name, f"{spent * 1000:.2f}")
        return made

    pixels = timed("read and decode", lambda: [read_image(path)[0] for path in paths])
    prepared = timed("resize", lambda: [backend.prepare(image) for image in pixels])
    batches = [prepared[at : at + size] for at in range(0, len(prepared), size)]
    outputs = timed(
        "network, suppression, transfers", lambda: [o for b in batches for o in predictor.run(b)]
    )
    made = timed(
        "detections in pixels",
        lambda: [predictor.detections(*pair) for pair in zip(pixels, outputs, strict=True)],
    )
    timed("JSON", lambda: [json.dumps(result.to_dict()) for result in made])
    timed("picture, unless --no-pictures", lambda: [result.draw() for result in made])
    return table


if __name__ == "__main__":
    main()
